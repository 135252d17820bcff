"""Measures what it costs to serve the live page, and how much memory it takes, by the length of the run.

    bench/observe/serving.py INGOT [CHROMIUM] [SECONDS] [STEPS]      60 seconds, 1,000,000 steps

`ingot serve` follows a run whose metrics.jsonl grows: the last line of a run of 20 steps, again and again, with rising steps. First the file
grows to STEPS, and the server's memory is read as it does; then the page is open in Chromium while five steps are appended per
second. The figure is the CPU time of the server over the time that passes, which does not depend on what else the machine does, as
long as the page is answered in time. A run that serves itself has the same server, in a thread of the lowest priority.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "page"))
from chrome import Chrome

ingot = os.path.abspath(sys.argv[1])
chromium = sys.argv[2] if len(sys.argv) > 2 else "chromium"
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 1000000
TRAIN = ["--training.steps=20", "--training.seq_len=64", "--device=cpu", "--model.preset=tiny", "--validation.every=0", "--data.synth_documents=60",
         "--quiet"]
PART, PER_SECOND = 4000, 5


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return int(re.search(r"^Rss: *(\d+)", f.read(), re.M).group(1)) / 1024


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line_of(row, step):
    row.update(step=step, tokens=256 * step, time=1700000000 + step, loss=3 + math.sin(step / 1000))
    return json.dumps(row) + "\n"


class Writer(threading.Thread):
    """Appends steps while the page is open."""

    def __init__(self, path, row, step):
        super().__init__(daemon=True)
        self.path, self.row, self.step = path, row, step

    def run(self):
        with open(self.path, "a") as f:
            while True:
                self.step += 1
                f.write(line_of(self.row, self.step))
                f.flush()
                time.sleep(1 / PER_SECOND)


with tempfile.TemporaryDirectory() as work, Chrome(chromium) as chrome:
    folder, log = os.path.join(work, "run"), os.path.join(work, "log")
    subprocess.run([ingot, "train", "--run.dir=" + folder, *TRAIN], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = os.path.join(folder, "metrics.jsonl")
    row = json.loads(open(path).readlines()[-1])
    with open(log, "w") as out:
        served = subprocess.Popen([ingot, "serve", folder, "--address", "0"], stdout=out, stderr=out)
    while not (found := re.search(r"(http://\S+)/\n", open(log).read())):
        time.sleep(0.1)
    try:
        show = 1000
        for step in range(21, steps, PART):
            with open(path, "a") as f:
                f.write("".join(line_of(row, s) for s in range(step, min(step + PART, steps + 1))))
            urllib.request.urlopen(found.group(1) + "/api/runs").read()
            if step + PART > min(show, steps):
                print("%8d steps: %.1f MiB" % (min(step + PART - 1, steps), resident(served.pid)), flush=True)
                show *= 2
        page = chrome.open(found.group(1) + "/")
        Writer(path, row, steps).start()
        page.until("charts.length && charts[0].curves && charts[0].curves.length", 120)
        time.sleep(10)
        before, then = cpu_seconds(served.pid), time.time()
        time.sleep(seconds)
        share = (cpu_seconds(served.pid) - before) / (time.time() - then)
        print("%.2f %% of a core serves a page of %d steps (bar: 0.5 %% of a step); %.1f MiB" % (100 * share, steps, resident(served.pid)))
    finally:
        served.terminate()
        served.wait()
