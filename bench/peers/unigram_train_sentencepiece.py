#!/usr/bin/env python3
"""SentencePiece's Unigram trainer on the same text as bench_data_train_tokenizer, with the same splits.

    unigram_train_sentencepiece.py FILE.jsonl VOCAB [THREADS] [--save PREFIX]

A document is a line of its input, with spaces for newlines. Words are split at spaces alone. Prints one line of JSON:
seconds by the clock, CPU seconds of all threads, peak memory in bytes. Needs the package sentencepiece.
"""
import argparse
import io
import json
import resource
import time


def documents(path):
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)["text"].replace("\n", " ").replace("\0", " ")


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
    import sentencepiece

    model = io.BytesIO()
    begin, cpu = time.monotonic(), cpu_seconds()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=documents(a.file), model_writer=model, vocab_size=a.vocab, model_type="unigram",
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_by_unicode_script=False,
        split_by_number=False, max_sentence_length=1 << 30, num_threads=a.threads, minloglevel=2,
        hard_vocab_limit=False)
    seconds, cpu = time.monotonic() - begin, cpu_seconds() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "peak_bytes": peak}))
    if a.save:
        with open(a.save + ".model", "wb") as out:
            out.write(model.getvalue())


if __name__ == "__main__":
    main()
