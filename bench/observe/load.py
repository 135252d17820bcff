"""Measures what 10,000 requests to the live page cost the run that serves it: time per step, with them and without.

    bench/observe/load.py INGOT [PAIRS]

64 clients at a time: most ask as the page does, some send their request byte by byte, some never end it. Runs
alternate; the figure is the ratio of the medians of step_s over the steps during which requests came, relative to as
many steps of a run that nobody looks at. The run has one thread; clients and server need a second core.
"""
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ingot = sys.argv[1]
pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
REQUESTS, CLIENTS, STEPS = 10000, 64, 400
PATHS = ["/", "/api/runs", "/api/series?run=0&key=loss&points=800", "/api/events?run=0", "/metrics", "/nothing"]


def start(folder):
    log = open(folder + ".log", "w+")
    run = subprocess.Popen([ingot, "train", "--run.dir=" + folder, "--training.steps=%d" % STEPS, "--training.seq_len=256",
                            "--training.local_batch_size=1", "--device=cpu", "--model.preset=tiny", "--model.dim=256",
                            "--model.heads=4", "--training.threads=1", "--checkpoint.every=0", "--validation.every=0",
                            "--data.synth_documents=200", "--metrics.serve=0"], stdout=log, stderr=log)
    for _ in range(300):
        found = re.search(r"live page *http://127.0.0.1:(\d+)/", open(log.name).read())
        if found:
            return run, int(found.group(1))
        time.sleep(0.1)
    sys.exit("no address: " + open(log.name).read())


def ask(port, number):
    """@return whether it was answered as it should be."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        text = ("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % PATHS[number % len(PATHS)]).encode()
        if number % 100 == 0:
            for i in range(len(text)):
                s.sendall(text[i:i + 1])
                time.sleep(0.01)
        elif number % 101 == 0:
            s.sendall(text[:-3])
            time.sleep(0.5)
            return True
        else:
            s.sendall(text)
        got = b""
        while piece := s.recv(65536):
            got += piece
        return got.startswith(b"HTTP/1.1 404 " if b"/nothing" in text else b"HTTP/1.1 200 ")


def visit(port, run):
    left, lock, failed = [REQUESTS], threading.Lock(), []

    def client():
        while True:
            with lock:
                if left[0] == 0 or run.poll() is not None:
                    return
                left[0] -= 1
                number = left[0]
            try:
                if not ask(port, number):
                    failed.append(number)
            except OSError as e:
                if run.poll() is None:
                    failed.append(e)
    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return REQUESTS - left[0], failed


def seconds(folder, first, last):
    lines = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
    return statistics.median(s["step_s"] for s in lines if first <= s["step"] <= last)


def step_of(folder):
    return sum(1 for _ in open(os.path.join(folder, "metrics.jsonl")))


with tempfile.TemporaryDirectory() as work:
    ratios = []
    for i in range(pairs):
        alone, visited = os.path.join(work, "alone%d" % i), os.path.join(work, "visited%d" % i)
        run, port = start(visited)
        while not os.path.exists(visited + "/metrics.jsonl") or step_of(visited) < 5:
            time.sleep(0.05)
        first = step_of(visited)
        asked, failed = visit(port, run)
        last = step_of(visited)
        run.wait()
        start(alone)[0].wait()
        if failed:
            sys.exit("%d requests failed, the first: %s" % (len(failed), failed[0]))
        ratios.append(seconds(visited, first, last) / seconds(alone, first, last))
        print("%d requests in steps %d to %d: %+.2f %% per step" % (asked, first, last, 100 * (ratios[-1] - 1)), flush=True)
    print("median of %d pairs: %+.2f %% (bar: 1 %%)" % (pairs, 100 * (statistics.median(ratios) - 1)))
