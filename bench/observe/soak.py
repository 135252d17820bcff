"""The live page open in Chromium beside a long run: memory on both sides, and step time with the page and without.

    bench/observe/soak.py INGOT [CHROMIUM] [MINUTES] [PAIRS]      180 minutes, 10 pairs

First the page is open for a minute and closed for a minute, PAIRS times: the figure is the median over the pairs of the ratio of
their median step times. Then the page stays open for MINUTES; each minute the resident memory of the run and of the page's renderer are
read, the page's JavaScript heap after a garbage collection, and the CPU time of the run's other threads, which is what serving costs
where every core trains; on a busy machine it is the figure to trust. Growth is the slope of a line through the second half of them. A line
of JSON per minute goes to standard output, the figures come last.

The browser's network inspection is off: it keeps the bodies of up to 200 MB of answers for the debugger.
"""
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "page"))
from chrome import Chrome

ingot = os.path.abspath(sys.argv[1])
chromium = sys.argv[2] if len(sys.argv) > 2 else "chromium"
minutes = float(sys.argv[3]) if len(sys.argv) > 3 else 180
pairs = int(sys.argv[4]) if len(sys.argv) > 4 else 10
HALF = float(os.environ.get("SOAK_SECONDS", 60))  # of a half of a pair, and between two readings
TICKS = os.sysconf("SC_CLK_TCK")


def memory(pid, kind="Rss"):
    """MiB of memory that a process holds: Rss, or Anonymous, which other programs that use the same libraries do not change."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return int(re.search(rf"^{kind}: *(\d+)", f.read(), re.M).group(1)) / 1024
    except (OSError, AttributeError):
        return 0  # it has ended meanwhile


def cpu_seconds(path):
    """Of /proc/PID or of one of its threads."""
    with open(f"{path}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def other_seconds(pid):
    """CPU time of all threads but the one that trains."""
    return cpu_seconds(f"/proc/{pid}") - cpu_seconds(f"/proc/{pid}/task/{pid}")


def processes(browser, kind=""):
    """The processes of this browser; "--type=renderer": those that draw pages."""
    parents, found = {}, []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                parents[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{pid}/cmdline") as f:
                if kind in f.read():
                    found.append(int(pid))
        except OSError:
            pass

    def descends(pid):
        while pid in parents and pid != browser:
            pid = parents[pid]
        return pid == browser
    return [pid for pid in found if descends(pid)]


class Run:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "run")
        self.log = os.path.join(folder, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [ingot, "train", "--run.dir=" + self.folder, "--training.steps=100000000", "--training.seq_len=256",
                 "--training.local_batch_size=2", "--device=cpu", "--model.preset=tiny", "--model.dim=256", "--model.heads=4",
                 "--training.threads=1", "--checkpoint.every=10000", "--checkpoint.keep_latest_k=1", "--validation.every=1000",
                 "--sample.every=1000", "--data.synth_documents=200", "--metrics.serve=0"], stdout=log, stderr=log)
        self.lines = None
        while not (found := re.search(r"live page *(http://\S+/)", open(self.log).read())):
            if self.process.poll() is not None:
                sys.exit("no run: " + open(self.log).read())
            time.sleep(0.1)
        self.address = found.group(1)

    def steps(self):
        """Times of the steps since the last call."""
        self.lines = self.lines or open(os.path.join(self.folder, "metrics.jsonl"))
        return [json.loads(line)["step_s"] for line in self.lines if line.endswith("\n")]


def measure(run, seconds):
    """@return the median step time over some seconds."""
    run.steps()
    time.sleep(seconds)
    return statistics.median(run.steps())


def slope(values):
    """Of a line through them, per hour."""
    xs = [i * HALF / 3600 for i in range(len(values))]
    x, y = statistics.mean(xs), statistics.mean(values)
    return sum((a - x) * (b - y) for a, b in zip(xs, values)) / sum((a - x) ** 2 for a in xs)


def compare(run, page):
    ratios = []
    for i in range(pairs):
        took = {}
        for is_open in (True, False) if i % 2 else (False, True):
            page.call("Page.navigate", url=run.address if is_open else "about:blank")
            time.sleep(HALF / 6)
            took[is_open] = measure(run, HALF)
        ratios.append(took[True] / took[False])
        print(json.dumps({"pair": i, "open": took[True], "closed": took[False]}), flush=True)
    return 100 * (statistics.median(ratios) - 1) if ratios else float("nan")


def watch(run, chrome, page):
    page.call("Page.navigate", url=run.address)
    page.call("HeapProfiler.enable")
    rows = []
    for _ in range(max(4, round(minutes * 60 / HALF))):
        before, then = other_seconds(run.process.pid), time.time()
        time.sleep(HALF)
        serving = (other_seconds(run.process.pid) - before) / (time.time() - then)
        steps = run.steps()
        page.call("HeapProfiler.collectGarbage")
        used = page.call("Runtime.getHeapUsage")
        rows.append({"time": time.time(), "steps": len(steps), "run_mib": memory(run.process.pid), "run_heap_mib": memory(run.process.pid, "Anonymous"),
                     "browser_mib": sum(map(memory, processes(chrome.process.pid))),
                     "page_mib": sum(map(memory, processes(chrome.process.pid, "--type=renderer"))), "heap_mib": used["usedSize"] / 2**20,
                     "nodes": page.call("Memory.getDOMCounters")["nodes"], "step_ms": 1e3 * statistics.median(steps),
                     "serving_percent": 100 * serving})
        print(json.dumps({k: round(v, 3) for k, v in rows[-1].items()}), flush=True)
    return rows


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the run and the browser too
with tempfile.TemporaryDirectory() as work, Chrome(chromium) as chrome:
    run = Run(work)
    try:
        page = chrome.open("about:blank")
        page.call("Network.disable")
        time.sleep(HALF)
        step = compare(run, page)
        rows = watch(run, chrome, page)
        state = page.value("$('status').textContent")
    finally:
        run.process.terminate()
        run.process.wait()
    late = rows[len(rows) // 2:]
    if pairs:
        print("%d pairs: %+.2f %% step time with the page open (bar: 0.5 %%)" % (pairs, step))
    print("%.2f %% of a core serves it" % statistics.mean(r["serving_percent"] for r in rows))
    for key, what in (("run_mib", "run"), ("run_heap_mib", "run, anonymous"), ("browser_mib", "browser"), ("page_mib", "renderer"),
                      ("heap_mib", "JavaScript heap"), ("nodes", "DOM nodes")):
        print("%-16s %8.1f at first, %8.1f at the end, %+.2f per hour in the second half" %
              (what, rows[0][key], rows[-1][key], slope([r[key] for r in late])))
    print("%.0f minutes, page: %s; complaints of the page: %d" % (len(rows) * HALF / 60, state, len(page.complaints)))
    sys.exit(bool(page.complaints))
