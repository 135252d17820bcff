#!/usr/bin/env python3
"""The running text of web pages here and by trafilatura, with the settings of datatrove's extractor.

    html_trafilatura.py INGOT PAGES [--truth evaldata.json] [--most N]

PAGES is a folder of .html files. Prints a line of JSON: pages, the mean precision, recall and F1 of our words (as a bag) against
trafilatura's, and how many pages either finds empty. With the truth of trafilatura's repository (tests/evaldata.json, pages in
tests/cache and tests/eval: phrases that a page's text has, and phrases that it does not have) also the accuracy of both."""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile

import trafilatura


def ours(program, pages):
    """{name: text}, by one run over links with short names: an id then is the name."""
    with tempfile.TemporaryDirectory() as folder:
        for i, page in enumerate(pages):
            os.symlink(page.resolve(), os.path.join(folder, "p%05d.html" % i))
        out = os.path.join(folder, "out.jsonl")
        subprocess.run([program, "data", "filter", os.path.join(folder, "p*.html"), "--rules", "none", "--quiet", "--out", out],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        texts = {}
        for line in open(out):
            d = json.loads(line)
            name = re.search(r"p(\d{5})\.html", json.dumps({k: v for k, v in d.items() if k != "text"}))
            texts[pages[int(name[1])].name] = d["text"]
        return texts


def words(text):
    return collections.Counter(re.findall(r"\w+", text))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    parser.add_argument("--truth")
    parser.add_argument("--most", type=int, default=1 << 30)
    args = parser.parse_args()
    pages = [p for folder in args.pages for p in sorted(folder.glob("*.html"))][:args.most]
    mine = ours(args.program, pages)
    peer = {}
    for page in pages:
        peer[page.name] = trafilatura.extract(page.read_bytes(), favor_precision=True, include_comments=False,
                                              deduplicate=True) or ""
    sums, counted, empty, empty_peer = [0.0, 0.0, 0.0], 0, 0, 0
    for page in pages:
        a, b = words(mine.get(page.name, "")), words(peer[page.name])
        empty, empty_peer = empty + (not a), empty_peer + (not b)
        if not a or not b:
            continue
        both = sum((a & b).values())
        precision, recall = both / sum(a.values()), both / sum(b.values())
        f1 = 2 * precision * recall / (precision + recall) if both else 0
        sums = [s + v for s, v in zip(sums, (precision, recall, f1))]
        counted += 1
    row = {"peer": "trafilatura " + trafilatura.__version__, "pages": len(pages), "empty_here": empty, "empty_there": empty_peer}
    row.update(zip(("precision", "recall", "f1"), (round(s / max(1, counted), 4) for s in sums)))
    if args.truth:
        right, of = collections.Counter(), 0
        for entry in json.load(open(args.truth)).values():
            if entry["file"] not in peer:
                continue
            for wanted, phrases in ((True, entry["with"]), (False, entry["without"])):
                for phrase in phrases or []:
                    of += 1
                    for who, texts in (("accuracy_here", mine), ("accuracy_there", peer)):
                        right[who] += (phrase in texts.get(entry["file"], "")) == wanted
        row.update({who: round(n / of, 4) for who, n in right.items()}, phrases=of)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
