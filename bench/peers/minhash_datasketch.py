#!/usr/bin/env python3
"""datasketch's MinHash on the documents of a JSON lines file: 5-grams of words, 112 permutations.

    minhash_datasketch.py FILE.jsonl [MEGABYTES]

Prints one line of JSON, in MB of text per second of CPU time on one thread: signatures from text, with
words and 5-grams made in Python as its users do, and the hashing alone. Needs the package datasketch.
"""
import json
import os
import re
import sys
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
from datasketch import MinHash  # noqa: E402

NGRAM, HASHES = 5, 112


def documents(path, limit):
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            yield text
            limit -= len(text.encode())
            if limit <= 0:
                return


def grams(text):
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i:i + NGRAM]).encode() for i in range(max(1, len(words) - NGRAM + 1))}


def main():
    limit = float(sys.argv[2]) * 1e6 if len(sys.argv) > 2 else 4e6
    texts = list(documents(sys.argv[1], limit))
    size = sum(len(text.encode()) for text in texts)
    begin = time.process_time()
    sets = [grams(text) for text in texts]
    made = time.process_time()
    first = MinHash(num_perm=HASHES)
    for one in sets:
        sketch = first.copy()  # drawing the permutations anew would cost more
        sketch.update_batch(one)
    end = time.process_time()
    rates = {"mb_s": size / (end - begin) / 1e6, "hashing_mb_s": size / (end - made) / 1e6}
    print(json.dumps({name: round(rate, 3) for name, rate in rates.items()}))


if __name__ == "__main__":
    main()
