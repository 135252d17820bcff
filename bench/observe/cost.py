"""Measures what observing costs: the CPU time of a run with all that is measured by default, relative to one that only trains.

    bench/observe/cost.py INGOT [PAIRS]

Pairs of runs alternate. CPU time does not change with what else the machine does, as long as it does not change the
clock; the ratio is that of the medians. "all": event files every step, details every 50, the monitor, the live page,
the exchange between ranks. "few": metrics.jsonl alone, which every run has.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

ingot = sys.argv[1]
pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
STEPS = 150
COMMON = ["--training.steps=%d" % STEPS, "--training.seq_len=256", "--training.local_batch_size=4", "--device=cpu",
          "--model.preset=tiny", "--model.dim=256", "--model.heads=4", "--training.threads=1", "--checkpoint.every=0",
          "--checkpoint.weights_every=0", "--validation.every=0", "--sample.every=0", "--data.synth_documents=200",
          "--quiet"]
CASES = {
    "all": ["--metrics.serve=0"],
    "few": ["--metrics.tensorboard_every=0", "--metrics.detail_every=0", "--monitor.preset=off", "--metrics.log_every=0"],
}


def cpu_seconds(folder, own):
    shutil.rmtree(folder, ignore_errors=True)
    run = subprocess.Popen([ingot, "train", "--run.dir=" + folder] + COMMON + own, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(run.pid, 0)
    if status:
        sys.exit("a run failed")
    return usage.ru_utime + usage.ru_stime


with tempfile.TemporaryDirectory() as work:
    took = {name: [] for name in CASES}
    for i in range(pairs):
        for name in sorted(CASES, reverse=i % 2):
            took[name].append(cpu_seconds(os.path.join(work, name), CASES[name]))
few, more = statistics.median(took["few"]), statistics.median(took["all"])
print("%d pairs of %d steps of %.0f ms: %.2f s of CPU time with few metrics, %.2f s with all: %+.2f %% (bar: 0.5 %%)" %
      (pairs, STEPS, 1e3 * few / STEPS, few, more, 100 * (more / few - 1)))
