#!/usr/bin/env python3
"""llm.c's training speed on GPT-2, from a checkout of github.com/karpathy/llm.c, for bench/cpu/run and
bench/gpu/run.

    train_llmc.py CHECKOUT MODEL ROWS SEQ STEPS [--device cuda|cpu]

Builds llm.c in a temporary copy (the checkout stays as it is), trains a model with random weights on
random tokens and prints one line of JSON: tokens per second and milliseconds of the median step. On a
GPU it is built in bf16 for that GPU and uses cuDNN's attention when CHECKOUT or the home folder has
cudnn-frontend/include; of its ways to compute GELU, fused into a GEMM or not, the faster one counts. On
a CPU its rows and length are fixed: 4 x 64, in fp32, without clipping.
"""
import argparse
import array
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

WARM_UP = {"cuda": 5, "cpu": 1}
# layers, heads, width; the vocabulary is padded by llm.c itself on a GPU
MODELS = {"gpt2-124m": (12, 12, 768), "gpt2-1558m": (48, 25, 1600)}
VOCAB, PADDED_VOCAB, MAX_SEQ = 50257, 50304, 1024
TOKENS_MAGIC, MODEL_MAGIC = 20240520, 20240326

# CUDA 13 replaced cudaMemAdvise's device number by a location; llm.c passes a number.
CUDA_13 = """
#include <cuda_runtime.h>
#if defined(__cplusplus) && CUDART_VERSION >= 13000
static inline cudaError_t cudaMemAdvise(const void *p, size_t n, cudaMemoryAdvise advice, int device) {
    cudaMemLocation at = {};
    at.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    at.id = device == cudaCpuDeviceId ? 0 : device;
    return cudaMemAdvise(p, n, advice, at);
}
#endif
"""


def run(words, folder, **more):
    """@return what the command printed; exits with its last lines when it fails."""
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", **more)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        sys.exit(f"llm.c: {' '.join(map(str, words))} ended with {done.returncode}\n{tail}")
    return done.stdout


def copy_sources(checkout, folder):
    for name in ("Makefile", "train_gpt2.c", "train_gpt2.cu"):
        if not (checkout / name).is_file():
            sys.exit(f"llm.c: {checkout} has no {name}; expected a checkout of llm.c")
        shutil.copy(checkout / name, folder)
    shutil.copytree(checkout / "llmc", folder / "llmc")


def build_cuda(checkout, folder):
    """The Makefile does not find the GPU's architecture by itself, and its NVCC_FLAGS cannot be added
    to from outside; PFLAGS and NVCC_LDLIBS can be."""
    shim = folder / "cuda_13.h"
    shim.write_text(CUDA_13)
    nvcc = shutil.which("nvcc") or sys.exit("llm.c: nvcc is not in PATH; it is needed to build llm.c")
    stubs = pathlib.Path(nvcc).resolve().parent.parent / "lib64/stubs"  # of the driver's libraries
    capability = run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], folder)
    words = ["make", "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1",
             f"GPU_COMPUTE_CAPABILITY={capability.split()[0].replace('.', '')}",
             f"PFLAGS=-DENABLE_BF16 -include {shim}", f"NVCC_LDLIBS=-L{stubs} -lnvrtc -lcuda"]
    frontend = checkout / "cudnn-frontend"
    if (frontend / "include").is_dir():
        os.symlink(frontend, folder / "cudnn-frontend")
    if (frontend / "include").is_dir() or (pathlib.Path.home() / "cudnn-frontend/include").is_dir():
        words.append("USE_CUDNN=1")
    else:
        print(f"llm.c: no cudnn-frontend/include in {checkout} or the home folder: built without cuDNN",
              file=sys.stderr)
    run(words, folder)


def write_tokens(path, count):
    draw = random.Random(0)
    head = array.array("i", [TOKENS_MAGIC, 1, count] + [0] * 253)
    ids = array.array("H", (draw.randrange(VOCAB) for _ in range(count)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.tobytes() + ids.tobytes())


def write_model(path, layers, heads, width):
    """A model of random weights. The same values repeat: speed does not depend on them."""
    draw = random.Random(1)
    head = array.array("i", [MODEL_MAGIC, 3, MAX_SEQ, VOCAB, layers, heads, width, PADDED_VOCAB])
    per_layer = 12 * width * width + 13 * width
    count = (PADDED_VOCAB + MAX_SEQ) * width + layers * per_layer + 2 * width
    some = array.array("f", (draw.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()
    with path.open("wb") as out:
        out.write(head.tobytes() + bytes(4 * (256 - len(head))))
        for _ in range(4 * count // len(some)):
            out.write(some)
        out.write(some[: 4 * count % len(some)])


def cuda_steps(a, folder):
    """Milliseconds of each step. Validation cannot be turned off (-v 0 divides by zero): it is one
    batch (-m 1) before the first step and after the last."""
    tokens = folder / "tokens.bin"
    write_tokens(tokens, max(4 << 20, a.rows * a.seq + 1))
    words = [
        *("./train_gpt2cu", "-i", tokens, "-j", tokens, "-e", f"d{MODELS[a.model][0]}"),
        *("-b", a.rows, "-t", a.seq, "-x", a.steps + WARM_UP["cuda"], "-v", 1000000, "-m", 1),
        *("-s", 0, "-h", 0, "-r", 0, "-w", 1, "-c", 0.1, "-l", 3e-4),
    ]
    runs = []
    for gelu_fusion in (0, 2):
        output = run([str(w) for w in (*words, "-ge", gelu_fusion)], folder, timeout=400)
        runs.append([float(x) for x in re.findall(r"^step .*\| ([0-9.]+) ms \|", output, re.M)])
    return min(runs, key=lambda steps: statistics.median(steps[WARM_UP["cuda"] :] or [1e9]))


def cpu_steps(a, folder):
    """The number of steps is fixed too: it is stopped after those asked for."""
    if (a.model, a.rows, a.seq) != ("gpt2-124m", 4, 64):
        sys.exit("llm.c on a CPU trains gpt2-124m with 4 x 64 tokens, nothing else")
    run(["make", "train_gpt2"], folder)
    write_model(folder / "gpt2_124M.bin", *MODELS[a.model])
    for part in ("train", "val"):
        write_tokens(folder / f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin", 1 << 16)
    steps = []
    process = subprocess.Popen(["stdbuf", "-oL", "./train_gpt2"], cwd=folder, stdout=subprocess.PIPE,
                               text=True, errors="replace")
    for line in process.stdout:
        took = re.match(r"step \d+: train loss .*took ([0-9.]+) ms", line)
        if took:
            steps.append(float(took.group(1)))
        if len(steps) == a.steps + WARM_UP["cpu"]:
            break
    process.kill()
    return steps


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("checkout", type=lambda path: pathlib.Path(path).resolve())
    p.add_argument("model", choices=MODELS)
    p.add_argument("rows", type=int)
    p.add_argument("seq", type=int)
    p.add_argument("steps", type=int)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        copy_sources(a.checkout, folder)
        if a.device == "cuda":
            build_cuda(a.checkout, folder)
        steps = (cuda_steps if a.device == "cuda" else cpu_steps)(a, folder)
    timed = steps[WARM_UP[a.device] :]
    if len(timed) < a.steps:
        sys.exit(f"llm.c: expected {a.steps} steps after {WARM_UP[a.device]} of warm-up, got {len(timed)}")
    ms = statistics.median(timed)
    print(json.dumps({"tok_s": round(1e3 * a.rows * a.seq / ms), "ms": round(ms, 2)}))


if __name__ == "__main__":
    main()
