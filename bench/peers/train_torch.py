#!/usr/bin/env python3
"""PyTorch's training speed on one GPU, for bench/gpu/run, at its best: torch.compile, bf16 autocast over fp32
weights, cuDNN's attention, fused AdamW, clipping.

    train_torch.py MODEL ROWS SEQ STEPS [--tokens FILE] [--narrow] [--checkpoint] [--device cpu]

Prints one line of JSON: tokens per second on random tokens and, with --tokens, on those of a file; the
most memory that was allocated, and what the whole process held. --narrow keeps weights and moments in
bf16, for a model that would not fit otherwise; --checkpoint saves only the inputs of blocks.
"""
import argparse
import dataclasses
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

WARM_UP = 5


@dataclasses.dataclass
class Size:
    llama: bool
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int

    @property
    def head(self):
        return self.width // self.heads


MODELS = {
    "gpt-small": Size(False, 6, 384, 6, 6, 1536, 4096),
    "gpt2-124m": Size(False, 12, 768, 12, 12, 3072, 50304),
    "gpt2-1558m": Size(False, 48, 1600, 25, 25, 6400, 50304),
    "llama-1b": Size(True, 16, 2048, 32, 8, 8192, 32000),
    "llama-3b": Size(True, 28, 3072, 24, 8, 8192, 32000),
    "llama-7b": Size(True, 32, 4096, 32, 32, 11008, 32000),
}


def read_tokens(path):
    """Ids of a .tok file, or of raw 16-bit ones, as a CPU tensor."""
    raw = open(path, "rb").read()
    if raw[:8] != b"INGOTTOK":
        return torch.frombuffer(bytearray(raw), dtype=torch.uint16).to(torch.int32)
    width, count = int.from_bytes(raw[12:14], "little"), int.from_bytes(raw[-48:-40], "little")
    kind = torch.uint16 if width == 2 else torch.int32
    return torch.frombuffer(bytearray(raw[32 : 32 + width * count]), dtype=kind).to(torch.int32)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        norm, bias = (RmsNorm, False) if s.llama else (nn.LayerNorm, True)
        self.size = s
        self.norm1, self.norm2 = norm(s.width), norm(s.width)
        self.qkv = nn.Linear(s.width, s.width + 2 * s.kv_heads * s.head, bias=bias)
        self.out = nn.Linear(s.width, s.width, bias=bias)
        self.up = nn.Linear(s.width, s.hidden * (2 if s.llama else 1), bias=bias)
        self.down = nn.Linear(s.hidden, s.width, bias=bias)

    def attention(self, x, cos, sin):
        s, kv = self.size, self.size.kv_heads * self.size.head
        q, k, v = (
            part.unflatten(-1, (-1, s.head)).transpose(1, 2)
            for part in self.qkv(x).split((s.width, kv, kv), dim=-1)
        )
        if s.llama:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.kv_heads < s.heads)
        return self.out(y.transpose(1, 2).flatten(-2))

    def feed_forward(self, x):
        if not self.size.llama:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, s, seq, recompute):
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.positions = None if s.llama else nn.Embedding(max(seq, 1024), s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = RmsNorm(s.width) if s.llama else nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, s.vocab, bias=False)
        if not s.llama:
            self.head.weight = self.tokens.weight
        turns = torch.arange(seq)[:, None] * 10000.0 ** -(torch.arange(0, s.head, 2) / s.head)
        self.register_buffer("cos", turns.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", turns.sin().bfloat16(), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def windows(tokens, rows, seq, step, device):
    """Inputs and targets of a step: rows of the file in order, from its beginning again at its end."""
    count = (len(tokens) - 1) // seq
    at = [(step * rows + r) % count * seq for r in range(rows)]
    pair = torch.stack([tokens[a : a + seq + 1] for a in at]).long().to(device)
    return pair[:, :-1].contiguous(), pair[:, 1:].contiguous()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model", choices=MODELS)
    args.add_argument("rows", type=int)
    args.add_argument("seq", type=int)
    args.add_argument("steps", type=int)
    args.add_argument("--tokens")
    args.add_argument("--narrow", action="store_true")
    args.add_argument("--checkpoint", action="store_true")
    args.add_argument("--device", default="cuda")
    a = args.parse_args()
    size, cuda = MODELS[a.model], a.device == "cuda"
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.manual_seed(0)
    with torch.device(a.device):
        model = Model(size, a.seq, a.checkpoint)
    if a.narrow:
        model.bfloat16()
    forward = torch.compile(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    wait = torch.cuda.synchronize if cuda else lambda: None
    file = read_tokens(a.tokens) if a.tokens else None

    def batch(step, real):
        if real:
            return windows(file, a.rows, a.seq, step, a.device)
        return torch.randint(0, size.vocab, (2, a.rows, a.seq), device=a.device)

    def median_step(real):
        seconds = []
        for step in range(WARM_UP + a.steps):
            ids, targets = batch(step, real)
            wait()
            start = time.perf_counter()
            with torch.autocast(a.device, torch.bfloat16):
                loss = forward(ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            wait()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[WARM_UP:])

    tokens, seconds = a.rows * a.seq, median_step(False)
    result = {
        "version": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tok_s": round(tokens / seconds),
        "ms": round(1e3 * seconds, 2),
    }
    if file is not None:
        result["real_tok_s"] = round(tokens / median_step(True))
    if cuda:
        free, total = torch.cuda.mem_get_info()
        result["allocated"] = torch.cuda.max_memory_allocated()
        result["device_used"] = total - free
    print(json.dumps(result))


if __name__ == "__main__":
    main()
