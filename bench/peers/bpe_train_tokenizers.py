#!/usr/bin/env python3
"""Hugging Face's BPE trainer on the same text as bench_data_train_tokenizer, with the same options.

    bpe_train_tokenizers.py FILE.jsonl VOCAB [THREADS] [--save tokenizer.json]

Prints one line of JSON: seconds by the clock, CPU seconds of all threads, peak memory in bytes. Needs
the package tokenizers.
"""
import argparse
import json
import os
import resource
import time


def documents(path):
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def cpu_seconds():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("vocab", type=int)
    parser.add_argument("threads", type=int, nargs="?", default=1)
    parser.add_argument("--save")
    a = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)  # read when the package starts its threads
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if a.threads > 1 else "false"
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=a.vocab, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    begin, cpu = time.monotonic(), cpu_seconds()
    tokenizer.train_from_iterator(documents(a.file), trainer)
    seconds, cpu = time.monotonic() - begin, cpu_seconds() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "peak_bytes": peak}))
    if a.save:
        tokenizer.save(a.save)


if __name__ == "__main__":
    main()
