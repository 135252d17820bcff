#!/usr/bin/env python3
"""datatrove's filters over the same documents as bench_data_filter, in megabytes of text per second of
CPU time on one thread.

    pip install datatrove spacy nltk zstandard
    filter_datatrove.py FILE.jsonl[.gz|.zst]... [--seconds S] [--verdicts OUT.jsonl] [--words spacy|space]

Each filter gets at most S seconds (30). --verdicts writes the verdict of each filter on each document:
{"id", "set", "kept", "reason"}; compared with the documents that "ingot data filter --rules SET
--dropped" drops, this shows where the two differ. datatrove splits words by spaCy's rules, which count
punctuation and white space as words; --words space has it split at white space, as ingot does.
"""
import argparse
import gzip
import io
import json
import sys
import time


def documents(path):
    if path.endswith(".zst"):
        import zstandard
        lines = io.TextIOWrapper(zstandard.open(path, "rb"), encoding="utf-8")
    elif path.endswith(".gz"):
        lines = gzip.open(path, "rt", encoding="utf-8")
    else:
        lines = open(path, encoding="utf-8")
    with lines:
        for line in lines:
            yield json.loads(line)


def filters(words):
    from datatrove.pipeline.filters import c4_filters, fineweb_quality_filter
    from datatrove.pipeline.filters import gopher_quality_filter, gopher_repetition_filter
    if words == "space":
        for module in (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter):
            module.split_into_words = lambda text, language: text.split()
    return {
        "gopher-repetition": gopher_repetition_filter.GopherRepetitionFilter(),
        "gopher-quality": gopher_quality_filter.GopherQualityFilter(),
        "c4": c4_filters.C4QualityFilter(),
        "c4-no-punct": c4_filters.C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb": fineweb_quality_filter.FineWebQualityFilter(),
    }


def run(step, docs, seconds, verdict):
    """Megabytes and CPU seconds of one filter, and how many documents it keeps of how many."""
    from datatrove.data import Document
    step.filter(Document(text="A warm-up. It loads models.", id=""))
    spent, size, kept, seen = 0.0, 0, 0, 0
    for d in docs:
        doc = Document(text=d["text"], id=str(d.get("id", "")))
        start = time.process_time()
        verdict_of = step.filter(doc)
        spent += time.process_time() - start
        size += len(d["text"].encode())
        seen += 1
        kept += verdict_of is True
        verdict(doc.id, verdict_of is True, None if verdict_of is True else verdict_of[1])
        if spent > seconds:
            break
    return size / 1e6, spent, kept, seen


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("files", nargs="+")
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--verdicts")
    p.add_argument("--words", choices=["spacy", "space"], default="spacy")
    a = p.parse_args()
    try:
        steps = filters(a.words)
    except ImportError as e:
        print("datatrove is not installed (%s)" % e, file=sys.stderr)
        return 1
    docs = [d for path in a.files for d in documents(path)]
    out = open(a.verdicts, "w") if a.verdicts else None
    total = 0.0
    for name, step in steps.items():
        def verdict(i, kept, reason, name=name):
            if out:
                out.write(json.dumps({"id": i, "set": name, "kept": kept, "reason": reason}) + "\n")
        size, spent, kept, seen = run(step, docs, a.seconds, verdict)
        if name != "c4-no-punct":
            total += spent / size
        print("%-34s %9.2f MB/s %9d kept of %d" % (name, size / spent, kept, seen), flush=True)
    print("%-34s %9.2f MB/s" % ("all sets in sequence", 1 / total))
    return 0


if __name__ == "__main__":
    sys.exit(main())
