#!/usr/bin/env python3
"""datatrove's verdicts beside ours: FineWeb's four filters in FineWeb's order, with the tokenizer of each document's language.

    ingot data filter TEXTS.jsonl --gopher-stop-words 0 --out KEPT.jsonl
    verdicts_datatrove.py TEXTS.jsonl KEPT.jsonl

A text has the members id, text and language, a key of datatrove such as deu_Latn. Prints a line of JSON: documents, those with
the same verdict, and both by language."""
import collections
import json
import sys

from datatrove.data import Document
from datatrove.pipeline.filters import (C4QualityFilter, FineWebQualityFilter, GopherQualityFilter,
                                        GopherRepetitionFilter)


def filters(language):
    return [
        GopherRepetitionFilter(language=language),
        GopherQualityFilter(language=language, min_stop_words=0),
        C4QualityFilter(filter_no_terminal_punct=False, language=language),
        FineWebQualityFilter(language=language),
    ]


def kept(steps, text):
    d = Document(text=text, id="")
    for step in steps:
        try:
            if step.filter(d) is not True:
                return False
        except ZeroDivisionError:  # a text without words
            return False
    return True


texts, ours = sys.argv[1:3]
have = {json.loads(line)["id"] for line in open(ours)}
by_language, steps, differ = collections.Counter(), {}, collections.Counter()
for line in open(texts):
    d = json.loads(line)
    language = d["language"]
    if language not in steps:
        steps[language] = filters(language)
    by_language[language] += 1
    if kept(steps[language], d["text"]) != (d["id"] in have):
        differ[language] += 1
        print("differs:", d["id"], file=sys.stderr)
n, wrong = sum(by_language.values()), sum(differ.values())
print(json.dumps({"peer": "datatrove", "documents": n, "same": n - wrong, "share": (n - wrong) / n,
                  "kept": len(have), "languages": by_language, "differ": differ}))
