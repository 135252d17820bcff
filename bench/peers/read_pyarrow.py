#!/usr/bin/env python3
"""pyarrow reading the column `text` of a Parquet file on one thread.

    read_pyarrow.py FILE.parquet                       prints {"mb_s": ...}
    read_pyarrow.py --make IN.jsonl FILE.parquet CODEC makes one, with pyarrow's defaults

MB of text per second of CPU time, the best of five passes. Needs the package pyarrow.
"""
import json
import sys
import time

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq


def make(source, path, codec):
    """Documents of JSON lines, repeated until there are 100 MB of text."""
    texts = [json.loads(line)["text"] for line in open(source, encoding="utf-8", newline="\n")]
    size = sum(len(text.encode()) for text in texts)
    texts *= max(1, round(100e6 / size))
    ids = [f"document-{i}" for i in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "id": ids}), path, compression=codec, row_group_size=50000)


def main():
    if sys.argv[1] == "--make":
        make(*sys.argv[2:])
        return
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    best = 0
    for _ in range(5):
        begin = time.process_time()
        column = pq.ParquetFile(sys.argv[1]).read(columns=["text"], use_threads=False)["text"]
        seconds = time.process_time() - begin
        size = pyarrow.compute.sum(pyarrow.compute.binary_length(column)).as_py()
        best = max(best, size / seconds / 1e6)
    print(json.dumps({"mb_s": round(best, 1)}))


if __name__ == "__main__":
    main()
