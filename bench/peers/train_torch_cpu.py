#!/usr/bin/env python3
"""PyTorch's training speed on this machine, for bench/cpu/run: a GPT with AdamW and clipping, random tokens.

    train_torch_cpu.py MODEL ROWS SEQ fp32|bf16 STEPS [eager|compile] [onednn|plain]

Prints "median best" in tokens per second. bf16 is autocast with fp32 master weights, as ours.
"""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# layers, width, heads, vocabulary
MODELS = {"gpt2-124m": (12, 768, 12, 50257), "gpt-small": (6, 384, 6, 4096)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        rows, seq, width = x.shape
        heads = self.qkv(x).view(rows, seq, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(rows, seq, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    name, rows, seq, dtype, steps = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4], int(sys.argv[5])
    options = sys.argv[6:]
    if "plain" in options:
        torch._C._set_mkldnn_enabled(False)
    torch.manual_seed(0)
    vocab = MODELS[name][3]
    model = Gpt(*MODELS[name])
    forward = torch.compile(model) if "compile" in options else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    seconds = []
    for _ in range(steps + 2):
        ids, targets = torch.randint(0, vocab, (2, rows, seq))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = forward(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    seconds = seconds[2:]
    print(f"{rows * seq / statistics.median(seconds):.0f} {rows * seq / min(seconds):.0f}")


main()
