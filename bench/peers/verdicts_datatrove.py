#!/usr/bin/env python3
"""datatrove's verdicts beside ours: FineWeb's four filters in FineWeb's order, with the tokenizer of each document's language.

    tests/fixtures/datatrove/texts.py deu_Latn=FOLDER ... > TEXTS.jsonl
    ingot data filter TEXTS.jsonl --gopher-stop-words 0 --out KEPT.jsonl
    ingot data filter TEXTS.jsonl --out KEPT_BY_DEFAULT.jsonl
    verdicts_datatrove.py TEXTS.jsonl KEPT.jsonl KEPT_BY_DEFAULT.jsonl

A text has the members id, text and language, a key of datatrove such as deu_Latn. Prints a line of JSON: documents, those with
the same verdict without and with datatrove's default stop words, which are English, both by language, and
those on which datatrove fails, which do not count."""
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
        except ValueError:  # datatrove cannot find a sentence of its tokenizer in the text
            return None
    return True


def ids(path):
    return {json.loads(line)["id"] for line in open(path)}


texts, ours, ours_by_default = sys.argv[1], ids(sys.argv[2]), ids(sys.argv[3])
by_language, steps, stop_words = collections.Counter(), {}, {}
differ, differ_by_default, keeps, failed = (collections.Counter() for _ in range(4))
for line in open(texts):
    d = json.loads(line)
    language = d["language"]
    if language not in steps:
        steps[language] = filters(language)
        stop_words[language] = [GopherQualityFilter(language=language)]
    keep = kept(steps[language], d["text"])
    if keep is None:
        failed[language] += 1
        continue
    by_language[language] += 1
    keep_by_default = keep and kept(stop_words[language], d["text"])
    keeps[language] += keep
    if keep != (d["id"] in ours):
        differ[language] += 1
        print("differs:", d["id"], "kept by datatrove" if keep else "kept here", file=sys.stderr, flush=True)
    if keep_by_default != (d["id"] in ours_by_default):
        differ_by_default[language] += 1
n, wrong, wrong_by_default = sum(by_language.values()), sum(differ.values()), sum(differ_by_default.values())
print(json.dumps({"peer": "datatrove", "documents": n, "same": n - wrong, "share": (n - wrong) / n,
                  "same_by_default": n - wrong_by_default, "share_by_default": (n - wrong_by_default) / n,
                  "languages": by_language, "kept": keeps, "failed": failed, "differ": differ, "differ_by_default": differ_by_default}))
