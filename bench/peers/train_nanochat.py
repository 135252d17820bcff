#!/usr/bin/env python3
"""nanochat's training from a checkout of it, for bench/race: its own model and optimizer files and the defaults of its
base_train.py, on the tokens of two .tok files, for a given number of seconds.

    train_nanochat.py CHECKOUT TRAIN.tok HELDOUT.tok --depth N [--seconds S] [--seq T] [--rows R] [--batch TOKENS]
                      [--vocab N] [--device cuda|cpu] [--window L] [--evaluations N] [--seed N]
                      [--clock wall|cpu] [--threads N]

Prints a line of JSON: the curve of held-out losses in nats per token over training seconds, tokens per second, and the
seconds of compilation, which are outside the clock, as are evaluations. The length of the schedule follows from the
speed of steps that are timed first, after which the weights are drawn again; training ends with the schedule. Without
Flash Attention 3, PyTorch's attention has no windows that pay: --window L is its recommendation then. --clock cpu counts
this process's CPU seconds divided by --threads, for a machine that has other work.
"""
import argparse
import json
import math
import os
import sys
import time

import torch

from train_torch import read_tokens

# base_train.py's defaults, for batches of REFERENCE tokens
REFERENCE, EMBEDDING, HEAD, MATRIX, SCALAR, DECAY = 2**19, 0.3, 0.008, 0.02, 0.5, 0.28
WARM_UP, FALL, LEAST, HEAD_WIDTH = 40, 0.65, 0.05, 128
TRIAL_STEPS = {"cuda": 12, "cpu": 10}


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    a.add_argument("checkout")
    a.add_argument("train")
    a.add_argument("heldout")
    a.add_argument("--depth", type=int, default=12)
    a.add_argument("--seconds", type=float, default=100)
    a.add_argument("--seq", type=int, default=2048)
    a.add_argument("--rows", type=int, default=32)
    a.add_argument("--batch", type=int, default=131072)
    a.add_argument("--vocab", type=int, default=32768)
    a.add_argument("--device", default="cuda")
    a.add_argument("--window", default="L")
    a.add_argument("--evaluations", type=int, default=10)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    a.add_argument("--threads", type=int, default=2)
    return a.parse_args()


def windows_of(path, a):
    """Rows of seq + 1 tokens; the last one is the next row's first."""
    tokens = read_tokens(path)
    n = (len(tokens) - 1) // a.seq
    rows = tokens[: n * a.seq + 1].to(a.device)
    return rows.unfold(0, a.seq + 1, a.seq)


def batches(rows, a):
    """Rows in a random order, another one in every epoch."""
    order = torch.Generator().manual_seed(a.seed)
    while True:
        for pick in torch.randperm(len(rows), generator=order).split(a.rows):
            if len(pick) == a.rows:
                both = rows[pick.to(a.device)]
                yield both[:, :-1].contiguous(), both[:, 1:].contiguous().long()


def rate(step, steps):
    fall = round(FALL * steps)
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    if step <= steps - fall:
        return 1.0
    part = (steps - step) / fall
    return part + (1 - part) * LEAST


def momentum(step, steps):
    start = steps - round(FALL * steps)
    if step < 400:
        return 0.85 + (0.97 - 0.85) * step / 400
    return 0.97 - (0.97 - 0.90) * max(0, step - start) / max(1, steps - start)


def now(a):
    """Seconds of the clock, with all work done."""
    if a.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() / a.threads if a.clock == "cpu" else time.time()


class Run:
    def __init__(self, a):
        sys.path.insert(0, a.checkout)
        from nanochat.gpt import GPT, GPTConfig

        self.a, width = a, -(-a.depth * 64 // HEAD_WIDTH) * HEAD_WIDTH
        heads = width // HEAD_WIDTH
        shape = dict(n_layer=a.depth, n_head=heads, n_kv_head=heads, n_embd=width)
        with torch.device("meta"):
            self.plain = GPT(GPTConfig(sequence_len=a.seq, vocab_size=a.vocab, window_pattern=a.window, **shape))
        self.plain.to_empty(device=a.device)
        self.model = torch.compile(self.plain, dynamic=False)
        self.train, self.heldout = windows_of(a.train, a), windows_of(a.heldout, a)

    def start(self):
        torch.manual_seed(self.a.seed)
        self.plain.init_weights()
        scale = (self.a.batch / REFERENCE) ** 0.5
        rates = dict(unembedding_lr=HEAD, embedding_lr=EMBEDDING, matrix_lr=MATRIX, scalar_lr=SCALAR)
        self.decay = DECAY * scale
        self.optimizer = self.plain.setup_optimizer(
            **{k: v * scale for k, v in rates.items()}, weight_decay=self.decay
        )
        self.stream = batches(self.train, self.a)

    def step(self, step, steps):
        micros = self.a.batch // (self.a.rows * self.a.seq)
        for _ in range(micros):
            x, y = next(self.stream)
            (self.model(x, y) / micros).backward()
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate(step, steps)
            if group["kind"] == "muon":
                group["momentum"] = momentum(step, steps)
                group["weight_decay"] = self.decay * 0.5 * (1 + math.cos(math.pi * step / steps))
        self.optimizer.step()
        self.plain.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self):
        total = count = 0
        for pick in self.heldout.split(self.a.rows):
            if len(pick) == self.a.rows:
                x, y = pick[:, :-1].contiguous(), pick[:, 1:].contiguous().long()
                total += self.model(x, y, loss_reduction="sum").item()
                count += y.numel()
        return total / count


def main():
    a = arguments()
    torch.set_float32_matmul_precision("high")
    if a.device == "cpu":
        torch.set_num_threads(a.threads)
    with open(os.devnull, "w") as nothing:
        out, sys.stdout = sys.stdout, nothing  # it reports its settings there
        r, begin = Run(a), now(a)
        r.start()
        for i in range(3):
            r.step(i, 1000)
        r.evaluate()
        compiled = now(a) - begin
        begin = now(a)
        for i in range(TRIAL_STEPS[a.device]):
            r.step(i, 1000)
        each = (now(a) - begin) / TRIAL_STEPS[a.device]
        r.start()
        sys.stdout = out
    steps, clock, curve = max(1, int(a.seconds / each)), 0.0, []
    since = now(a)
    for i in range(steps):
        r.step(i, steps)
        last, evaluated = i + 1 == steps, (i + 1) * a.evaluations // steps > i * a.evaluations // steps
        if last or evaluated:
            clock += now(a) - since
            if evaluated:
                curve.append([round(clock, 2), r.evaluate()])
                print(f"nanochat: step {i + 1} of {steps}, {clock:.1f} s: {curve[-1][1]:.4f}", file=sys.stderr, flush=True)
            since = now(a)
    speed = steps * a.batch / clock
    parameters = sum(p.numel() for p in r.plain.parameters())
    print(json.dumps(dict(name="nanochat", curve=curve, steps=steps, seconds=clock, tok_s=speed,
                          outside=compiled, parameters=parameters)))


main()
