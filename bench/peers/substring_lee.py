#!/usr/bin/env python3
"""Repeated substrings here and by the rule of google-research/deduplicate-text-datasets (Lee et al. 2022), on small inputs.

    substring_lee.py INGOT TEXTS.jsonl [--length 50]

The rule, in plain Python: all documents in one array of bytes, a separator with the document's number between them; the array's
suffixes are sorted, and wherever two neighbors share `length` bytes, both ranges of that length are removed. A character is kept, as here, if only
some of its bytes would be removed. Prints a line of JSON: documents, bytes, bytes removed, and documents whose text is the same here."""
import argparse
import json
import os
import subprocess
import tempfile


def removed_ranges(texts, length):
    data, starts = bytearray(), []
    for i, text in enumerate(texts):
        data += b"\xff\xff" + i.to_bytes(4, "little")
        starts.append(len(data))
        data += text
    data = bytes(data)
    order = sorted(range(len(data)), key=lambda i: data[i:i + length])
    gone = bytearray(len(data))
    for a, b in zip(order, order[1:]):
        window = data[a:a + length]
        if len(window) == length and window == data[b:b + length] and b"\xff" not in window:
            gone[a:a + length] = gone[b:b + length] = b"\1" * length
    return starts, gone


def left_over(text, gone):
    out, at = bytearray(), 0
    for character in text.decode():
        n = len(character.encode())
        if not all(gone[at:at + n]):
            out += text[at:at + n]
        at += n
    return bytes(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("texts")
    parser.add_argument("--length", type=int, default=50)
    args = parser.parse_args()
    rows = [json.loads(line) for line in open(args.texts)]
    texts = [r["text"].encode() for r in rows]
    starts, gone = removed_ranges(texts, args.length)
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(source, "w") as f:
            for i, r in enumerate(rows):
                f.write(json.dumps({"id": str(i), "text": r["text"]}) + "\n")
        subprocess.run([args.program, "data", "dedup", source, "--method", "substring", "--length", str(args.length),
                        "--quiet", "--out", out], check=True, stdout=subprocess.DEVNULL)
        ours = {int(json.loads(line)["id"]): json.loads(line)["text"].encode() for line in open(out)}
    same = 0
    for i, (text, start) in enumerate(zip(texts, starts)):
        same += left_over(text, gone[start:start + len(text)]) == ours.get(i, b"")
    print(json.dumps({"peer": "deduplicate-text-datasets' rule", "documents": len(texts), "bytes": sum(map(len, texts)),
                      "removed": sum(gone), "same": same}))


if __name__ == "__main__":
    main()
