"""Step time with the live page open and closed, in windows of one run that alternate.

    bench/observe/windows.py INGOT [SECONDS] [PAIRS] [CORES] [CORE]      20 seconds per window, 30 pairs

A client asks for the addresses that the page's JavaScript asks for, at the same intervals, during every other window of a run that trains on
one thread. Three figures are taken per window: the median step time, the CPU time of the training thread per step, and the CPU time of the
whole process per step. The last one has all that serving costs, in whichever thread: a machine on which every core trains would pay it, so
it bounds the effect from above, and other programs on the machine do not change it. Each "on" window is compared with the mean of the two
"off" windows around it, so that drift cancels; the figure is the median of these ratios, with a bootstrap interval of 95 %.

CORES ("12" or "12-13") pins the run and CORE the client; a run on one core has its server on that core too. The exit status is 1 when the interval
of the step time, or of the CPU time of the process, lies above the bar of 0.5 %.
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

    def await_step(self):
        """Waits for the end of a step: a window has whole ones. @return times of the steps since the last call"""
        took, latest = self.steps(), []
        while not latest:
            time.sleep(0.0005)
            latest = self.steps()
        return took + latest

    def cpu(self):
        """Nanoseconds on a core: of the thread that trains, and of all threads."""
        pid, each = self.process.pid, {}
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                each[int(thread)] = int(f.read().split()[0])
        return each[pid], sum(each.values())


def window(run, client):
    """@return the median step time, and CPU time per step of the training thread and of the process, in ms."""
    run.await_step()
    before, until = run.cpu(), time.monotonic() + seconds
    if client:
        client.open()
    while time.monotonic() < until:
        if client:
            client.update()
        time.sleep(min(2, max(0, until - time.monotonic())))
    steps = run.await_step()
    after = run.cpu()
    return [1e3 * statistics.median(steps)] + [(b - a) / 1e6 / len(steps) for a, b in zip(before, after)]


def interval(ratios):
    """The median in percent above 1, and 95 % of what resampling makes of it."""
    draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return [100 * (v - 1) for v in (statistics.median(ratios), draws[RESAMPLES // 40], draws[-RESAMPLES // 40])]


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
above = False
print("%d pairs of %.0f s, %.1f requests per second:" % (pairs, seconds, client.requests / pairs / seconds))
for k, name in enumerate(("step time", "CPU time of the training thread", "CPU time of the process")):
    ratios = [on[i][k] / ((off[i][k] + off[i + 1][k]) / 2) for i in range(pairs)]
    middle, low, high = interval(ratios)
    above = above or (k != 1 and low > BAR)
    print("%-32s %8.3f ms per step, %+.3f %% with the page open (95 %%: %+.3f to %+.3f)" %
          (name, statistics.median(w[k] for w in off), middle, low, high))
sys.exit(above)
