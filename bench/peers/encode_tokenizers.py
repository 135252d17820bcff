#!/usr/bin/env python3
"""Encoding speed of Hugging Face's tokenizers on one thread, in CPU time.

    encode_tokenizers.py TOKENIZER.json TEXT

The text is encoded as documents of about 10 kB, split at line ends: on one string of megabytes the
library is several times slower. Prints one line of JSON. Needs the package tokenizers.
"""
import array
import json
import os
import sys
import time
import zlib

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def documents(data, size=10_000):
    """The documents that bench/data/encode.c makes of the same bytes."""
    out, begin = [], 0
    while len(data) - begin > size:
        line = data.find(b"\n", begin + size)
        end = line + 1 if line >= 0 else len(data)
        out.append(data[begin:end].decode())
        begin = end
    if begin < len(data):
        out.append(data[begin:].decode())
    return out


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
    with open(path, "rb") as f:
        data = f.read()
    docs = documents(data)
    ids = array.array("i")
    for doc in encode(docs):
        ids.extend(doc)
    print(json.dumps({"mb_s": speed(encode, docs, len(data)), "ids_crc32": zlib.crc32(ids.tobytes())}))


def main():
    import tokenizers

    t = tokenizers.Tokenizer.from_file(sys.argv[1])
    fast = getattr(t, "encode_batch_fast", t.encode_batch)  # it keeps no offsets
    print_speed(lambda ds: [e.ids for e in fast(ds, add_special_tokens=False)], sys.argv[2])


if __name__ == "__main__":
    main()
