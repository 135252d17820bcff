"""Encoding speed of Hugging Face's tokenizers and of tiktoken, on one thread, in CPU time.

    RAYON_NUM_THREADS=1 python bench/peers/encode_tokenizers.py TOKENIZER.json|FILE.tiktoken TEXT

The peers get the text as documents of about 10 kB, cut at line ends: on one string of megabytes
Hugging Face's library is several times slower. Prints a line of JSON; a peer that is not installed
is null.
"""

import base64
import json
import os
import sys
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


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
    """MB/s of the fastest of some passes, after one that fills caches."""
    encode(docs)
    best = float("inf")
    for _ in range(times):
        begin = time.process_time()
        encode(docs)
        best = min(best, time.process_time() - begin)
    return round(n / best / 1e6, 2)


def hugging_face(path, docs, n):
    try:
        import tokenizers
    except ImportError:
        return None
    if not path.endswith(".json"):
        return None
    t = tokenizers.Tokenizer.from_file(path)
    # The fast form keeps no offsets.
    fast = getattr(t, "encode_batch_fast", t.encode_batch)
    return speed(lambda ds: [e.ids for e in fast(ds, add_special_tokens=False)], docs, n)


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


def tiktoken_speed(path, docs, n):
    try:
        import tiktoken
    except ImportError:
        return None
    t = tiktoken.Encoding(
        "bench",
        pat_str=GPT2 if path.endswith(".json") else CL100K,
        mergeable_ranks=tiktoken_ranks(path),
        special_tokens={},
    )
    return speed(lambda ds: [t.encode_ordinary(d) for d in ds], docs, n)


def main():
    path, text_path = sys.argv[1:3]
    with open(text_path, encoding="utf-8", newline="") as f:
        text = f.read()
    docs, n = documents(text), len(text.encode())
    print(
        json.dumps(
            {
                "bytes": n,
                "hugging_face_mb_s": hugging_face(path, docs, n),
                "tiktoken_mb_s": tiktoken_speed(path, docs, n),
            }
        )
    )


if __name__ == "__main__":
    main()
