#!/usr/bin/env python3
"""Our quality classifier beside logistic regression on hashed words and word pairs (scikit-learn), by cross-validation.

    quality_sklearn.py INGOT LABELLED.jsonl [--folds 5] [--seeds 2] [-- OPTIONS of data quality train]

LABELLED.jsonl has the members text and label, two labels; such as majority_data.jsonl of DCLM's repository, the labels of
human readers. Both train on the same documents and are measured on the same others: the mean area under the ROC curve over
folds and seeds. Prints a line of JSON."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold


def write(path, texts, labels):
    with open(path, "w") as f:
        for i, (text, label) in enumerate(zip(texts, labels)):
            f.write(json.dumps({"id": str(i), "text": text, "label": "good" if label else "bad"}) + "\n")


def ours(program, options, texts, labels, train, test):
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        write(at("train.jsonl"), [texts[i] for i in train], labels[train])
        write(at("test.jsonl"), [texts[i] for i in test], labels[test])
        for command in (["quality", "train", at("train.jsonl"), "--held-out", "0", "--quiet", "--out", at("m.bin"), *options],
                        ["filter", at("test.jsonl"), "--rules", "none", "--quality", at("m.bin"), "--annotate", "--quiet",
                         "--out", at("scored.jsonl")]):
            subprocess.run([program, "data", *command], check=True, stdout=subprocess.DEVNULL)
        scores = {}
        for line in open(at("scored.jsonl")):
            d = json.loads(line)
            scores[int(d["id"])] = d["quality_score"] if d["quality"] == "good" else 1 - d["quality_score"]
        return [scores.get(i, 0.5) for i in range(len(test))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("labelled")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    args, options = parser.parse_known_args()
    rows = [json.loads(line) for line in open(args.labelled)]
    texts, values = [r["text"] for r in rows], sorted({r["label"] for r in rows})
    labels = np.array([int(r["label"] == values[1]) for r in rows])
    hashed = HashingVectorizer(ngram_range=(1, 2), n_features=2**18, alternate_sign=False).transform(texts)
    peer, own = [], []
    for seed in range(args.seeds):
        for train, test in StratifiedKFold(args.folds, shuffle=True, random_state=seed).split(texts, labels):
            model = LogisticRegression(C=10, solver="liblinear").fit(hashed[train], labels[train])
            peer.append(roc_auc_score(labels[test], model.decision_function(hashed[test])))
            own.append(roc_auc_score(labels[test], ours(args.program, [o for o in options if o != "--"], texts, labels, train, test)))
    print(json.dumps({"peer": "scikit-learn", "documents": len(texts), "folds": len(own), "auc": float(np.mean(peer)),
                      "auc_ours": float(np.mean(own))}))


if __name__ == "__main__":
    main()
