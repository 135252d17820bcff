#!/usr/bin/env python3
"""Encoding speed of tiktoken on one thread, in CPU time, with the same vocabulary as ours.

    encode_tiktoken.py TOKENIZER.json|FILE.tiktoken TEXT

Prints one line of JSON. Needs the package tiktoken.
"""
import base64
import json
import sys

from encode_tokenizers import print_speed

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def byte_of_char():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def tiktoken_ranks(path):
    if not path.endswith(".json"):
        with open(path, encoding="ascii") as f:
            pairs = [line.split() for line in f if line.strip()]
        return {base64.b64decode(a): int(b) for a, b in pairs}
    table = byte_of_char()
    with open(path, encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    return {
        bytes(table[c] for c in token): rank
        for token, rank in vocab.items()
        if all(c in table for c in token) and not token.startswith("<|")
    }


def main():
    import tiktoken

    path = sys.argv[1]
    t = tiktoken.Encoding(
        "bench",
        pat_str=GPT2 if path.endswith(".json") else CL100K,
        mergeable_ranks=tiktoken_ranks(path),
        special_tokens={},
    )
    print_speed(lambda ds: [t.encode_ordinary(d) for d in ds], sys.argv[2])


if __name__ == "__main__":
    main()
