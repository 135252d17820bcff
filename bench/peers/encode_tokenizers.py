#!/usr/bin/env python3
"""Encoding speed of Hugging Face's tokenizers on one thread, in CPU time.

    encode_tokenizers.py TOKENIZER.json TEXT

The text is encoded as documents of about 10 kB, split at line ends: on one string of megabytes the
library is several times slower. Prints one line of JSON. Needs the package tokenizers.
"""
import json
import os
import sys
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def documents(text, size=10_000):
    out, now = [], []
    have = 0
    for line in text.splitlines(keepends=True):
        now.append(line)
        have += len(line)
        if have >= size:
            out.append("".join(now))
            now, have = [], 0
    return out + ["".join(now)]


def speed(encode, docs, n, times=3):
    """MB/s of the fastest of a few passes, after one that fills the caches."""
    encode(docs)
    best = float("inf")
    for _ in range(times):
        begin = time.process_time()
        encode(docs)
        best = min(best, time.process_time() - begin)
    return round(n / best / 1e6, 2)


def print_speed(encode, path):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    print(json.dumps({"mb_s": speed(encode, documents(text), len(text.encode()))}))


def main():
    import tokenizers

    t = tokenizers.Tokenizer.from_file(sys.argv[1])
    fast = getattr(t, "encode_batch_fast", t.encode_batch)  # it keeps no offsets
    print_speed(lambda ds: [e.ids for e in fast(ds, add_special_tokens=False)], sys.argv[2])


if __name__ == "__main__":
    main()
