"""Step time with the live page open and closed, in windows of one run that alternate.

    bench/observe/windows.py INGOT [SECONDS] [PAIRS] [CORES] [CORE]      20 seconds per window, 30 pairs

A client asks for the addresses that the page's JavaScript asks for, at the same intervals, during every other window of a run that trains on
one thread; each window opens the page anew. Two figures are compared between an "on" window and the mean of the two "off" windows around
it, so that drift cancels:

    step time   the lower quartile of the window's steps: what other programs of the machine add to some steps is not in it
    serving     CPU time of all threads but the one that trains, as a share of the time that passes. A machine on which every core trains
                pays it in step time, so it bounds what the page costs; how busy the machine is hardly changes it

Each is the median over the pairs, with a bootstrap interval of 95 %.

CORES ("12" or "12-13") pins the run and CORE the client; a run on one core has its server on that core too. The exit status is 1 when the
interval of one of them is above the bar of 0.5 %.
"""
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ingot = os.path.abspath(sys.argv[1])
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20
pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 30
cores = [range(int(a), int(b or a) + 1) for a, _, b in (text.partition("-") for text in sys.argv[4:6])]
BAR, RESAMPLES = 0.5, 2000
TRAIN = ["--training.steps=100000000", "--training.seq_len=256", "--training.local_batch_size=2", "--device=cpu", "--model.preset=tiny",
         "--model.dim=256", "--model.heads=4", "--training.threads=1", "--checkpoint.every=0", "--validation.every=1000",
         "--sample.every=1000", "--data.synth_documents=200", "--metrics.serve=0"]
# The charts of page.html: what its list `wanted` selects, and how many pixels a chart has on a screen of 1300.
WIDE, NARROW = 1230, 590
CHARTED = re.compile(r"^(sources\..*\.(loss|tokens)|validation\..*|tasks\..*\.acc(_norm)?|blocks\.(grad_norm|activation_rms|fp8_saturated)\..*|comm\..*\.s"
                     r"|val_loss|lr|grad_norm|tok_s|mfu|mfu_causal|update_ratio|param_norm|step_s|data_s|compute_s|optim_s|host_mem|plan_mem|gpu_mem"
                     r"|expert_load|expert_drop|gpu_util|gpu_power|gpu_temp|noise_scale)$")


class Client:
    """The page, as far as its server can see."""

    def __init__(self, address):
        self.address, self.loaded_at, self.before, self.requests = address, -1e9, None, 0

    def get(self, path, **query):
        with urllib.request.urlopen(self.address + path + ("?" + urllib.parse.urlencode(query) if query else "")) as answer:
            self.requests += 1
            return answer.read()

    def open(self):
        self.get("")
        self.before, self.loaded_at = None, -1e9
        self.get("api/config", run=0)

    def update(self):
        """One call of the page's update(): the state, and the curves when they would differ."""
        run = json.loads(self.get("api/runs"))["runs"][0]
        was = self.before
        events = not was or run["events"] != was["events"]
        if not (events or run["step"] - was["step"] >= run["step"] / 1000 or time.monotonic() - self.loaded_at > 10):
            return
        self.before, self.loaded_at = run, time.monotonic()
        if events:
            self.get("api/events", run=0)
        self.get("api/series", run=0, key="loss", points=WIDE)
        for key in filter(CHARTED.match, run["metrics"]):
            self.get("api/series", run=0, key=key, points=WIDE if key == "val_loss" else NARROW)
        self.get("api/timetable", run=0)
        for key in ("step_s", "data_s", "compute_s", "optim_s"):
            self.get("api/series", run=0, key=key, points=1, **{"from": max(0, run["step"] - 100), "to": run["step"]})


class Run:
    def __init__(self, folder):
        self.folder, log = os.path.join(folder, "run"), os.path.join(folder, "log")
        pin = (lambda: os.sched_setaffinity(0, cores[0])) if cores else None
        with open(log, "w") as out:
            self.process = subprocess.Popen([ingot, "train", "--run.dir=" + self.folder, *TRAIN], stdout=out, stderr=out, preexec_fn=pin)
        while not (found := re.search(r"live page *(http://\S+/)", open(log).read())):
            if self.process.poll() is not None:
                sys.exit("no run: " + open(log).read())
            time.sleep(0.1)
        self.address, self.lines = found.group(1), None

    def steps(self):
        """Times of the steps since the last call."""
        self.lines = self.lines or open(os.path.join(self.folder, "metrics.jsonl"))
        return [json.loads(line)["step_s"] for line in self.lines if line.endswith("\n")]

    def other_cpu(self):
        """Seconds that threads other than the one that trains were on a core."""
        pid, sum_ns = self.process.pid, 0
        for thread in os.listdir(f"/proc/{pid}/task"):
            if int(thread) != pid:
                with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                    sum_ns += int(f.read().split()[0])
        return sum_ns / 1e9


def window(run, client):
    """@return the lower quartile of the step times in ms, and the CPU time of other threads in percent of the time that passed."""
    run.steps()
    before, began = run.other_cpu(), time.monotonic()
    if client:
        client.open()
    while time.monotonic() < began + seconds:
        if client:
            client.update()
        time.sleep(min(2, max(0, began + seconds - time.monotonic())))
    took, steps = time.monotonic() - began, run.steps()
    return 1e3 * statistics.quantiles(steps, n=4)[0], 100 * (run.other_cpu() - before) / took


def interval(values):
    """The median, and 95 % of the medians that resampling yields."""
    draws = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), draws[RESAMPLES // 40], draws[-RESAMPLES // 40]


random.seed(1)
if len(cores) > 1:
    os.sched_setaffinity(0, cores[1])
with tempfile.TemporaryDirectory() as work:
    run = Run(work)
    client = Client(run.address)
    try:
        time.sleep(min(10, seconds))
        off, on = [window(run, None)], []
        for i in range(pairs):
            on.append(window(run, client))
            off.append(window(run, None))
            print(json.dumps({"pair": i, "on": [round(v, 4) for v in on[-1]], "off": [round(v, 4) for v in off[-1]]}), flush=True)
    finally:
        run.process.terminate()
        run.process.wait()
around = [[(a + b) / 2 for a, b in zip(off[i], off[i + 1])] for i in range(pairs)]
print("%d pairs of %.0f s, %.1f requests per second; steps of %.1f ms:" %
      (pairs, seconds, client.requests / pairs / seconds, statistics.median(w[0] for w in off)))
figures = {"step time": interval([100 * (a[0] / b[0] - 1) for a, b in zip(on, around)]), "serving": interval([a[1] - b[1] for a, b in zip(on, around)])}
for name, (middle, low, high) in figures.items():
    print("%-10s %+.3f %% with the page open (95 %%: %+.3f to %+.3f)" % (name, middle, low, high))
sys.exit(any(low > BAR for _, low, _ in figures.values()))
