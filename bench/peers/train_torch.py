#!/usr/bin/env python3
"""PyTorch's training speed on a GPU or a CPU, for bench/gpu/run and bench/cpu/run: AdamW over fp32
weights, clipping, the loss of every step.

    train_torch.py MODEL ROWS SEQ STEPS [--device cuda|cpu] [--dtype bf16|fp32] [--vocab N] [--eager]
                   [--no-onednn] [--tokens FILE] [--bf16-weights] [--checkpoint] [--dropout P] [--no-bias]
                   [--fp8 tensorwise|rowwise] [--layers N] [--experts N --top-k K --expert-dim F]

Prints one line of JSON: tokens per second of the median step on random tokens and, with --tokens, on
those of a file; on a GPU also the peak of allocated memory and what the whole process held. At its best
on a GPU: torch.compile, bf16 autocast, cuDNN's attention, fused AdamW. On a CPU what is best depends on
the machine: --eager and --no-onednn are there to be tried. --bf16-weights keeps weights and moments in
bf16, for a model that would not fit otherwise; --checkpoint saves only the inputs of blocks. --dropout is
that of nanoGPT: of embeddings, attention's probabilities and both branches; PyTorch chooses the attention then.
--fp8 is torchao's recipe, of the blocks' layers. --experts: each block has that many, and a token uses K of them, without a
capacity, through grouped_mm.
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

grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
WARM_UP = {"cuda": 5, "cpu": 2}  # steps, but no more than are timed


@dataclasses.dataclass
class Size:
    llama: bool
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    bias: bool = True  # of GPTs
    dropout: float = 0
    experts: int = 0
    top_k: int = 0
    expert_dim: int = 0

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


def norm_of(s):
    return RmsNorm(s.width) if s.llama else nn.LayerNorm(s.width, bias=s.bias)


class Experts(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.top_k, self.experts = s.top_k, s.experts
        self.router = nn.Linear(s.width, s.experts, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(s.experts, s.width, 2 * s.expert_dim))
        self.down = nn.Parameter(0.02 * torch.randn(s.experts, s.expert_dim, s.width))

    def forward(self, x):
        rows = x.flatten(0, 1)
        weight, expert = self.router(rows).float().softmax(-1).topk(self.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort()
        ends = torch.bincount(expert.flatten(), minlength=self.experts).cumsum(0).to(torch.int32)
        source = order // self.top_k
        dtype = torch.bfloat16
        gate, up = grouped_mm(rows[source].to(dtype), self.up.to(dtype), offs=ends).chunk(2, dim=-1)
        y = grouped_mm(F.silu(gate) * up, self.down.to(dtype), offs=ends)
        y = y * weight.flatten()[order, None].to(dtype)
        return torch.zeros_like(rows, dtype=dtype).index_add(0, source, y).view(x.shape)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        bias = s.bias and not s.llama
        self.size = s
        self.norm1, self.norm2 = norm_of(s), norm_of(s)
        self.qkv = nn.Linear(s.width, s.width + 2 * s.kv_heads * s.head, bias=bias)
        self.out = nn.Linear(s.width, s.width, bias=bias)
        if s.experts:
            self.mixture = Experts(s)
            return
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
        shared = {"enable_gqa": True} if s.kv_heads < s.heads else {}
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=s.dropout, **shared)
        return self.dropped(self.out(y.transpose(1, 2).flatten(-2)))

    def dropped(self, x):
        return F.dropout(x, self.size.dropout) if self.size.dropout else x

    def feed_forward(self, x):
        if self.size.experts:
            return self.mixture(x)
        if not self.size.llama:
            return self.dropped(self.down(F.gelu(self.up(x), approximate="tanh")))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, s, seq, recompute):
        super().__init__()
        self.recompute, self.dropout = recompute, s.dropout
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.positions = None if s.llama else nn.Embedding(max(seq, 1024), s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = norm_of(s)
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
        if self.dropout:
            x = F.dropout(x, self.dropout)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def windows(tokens, rows, seq, step, device):
    """Inputs and targets of a step: rows of the file in order, wrapping around at its end."""
    count = (len(tokens) - 1) // seq
    at = [(step * rows + r) % count * seq for r in range(rows)]
    pair = torch.stack([tokens[a : a + seq + 1] for a in at]).long().to(device)
    return pair[:, :-1].contiguous(), pair[:, 1:].contiguous()


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    a.add_argument("model", choices=MODELS)
    a.add_argument("rows", type=int)
    a.add_argument("seq", type=int)
    a.add_argument("steps", type=int)
    a.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    a.add_argument("--vocab", type=int)
    a.add_argument("--eager", action="store_true")
    a.add_argument("--no-onednn", action="store_true")
    a.add_argument("--tokens")
    a.add_argument("--bf16-weights", action="store_true")
    a.add_argument("--checkpoint", action="store_true")
    a.add_argument("--dropout", type=float, default=0)
    a.add_argument("--no-bias", action="store_true")
    a.add_argument("--fp8", choices=("tensorwise", "rowwise"))
    a.add_argument("--layers", type=int)
    a.add_argument("--experts", type=int, default=0)
    a.add_argument("--top-k", type=int, default=2)
    a.add_argument("--expert-dim", type=int, default=0)
    return a.parse_args()


class Trainer:
    def __init__(self, a):
        self.a = a
        self.size = dataclasses.replace(MODELS[a.model], bias=not a.no_bias, dropout=a.dropout)
        if a.vocab:
            self.size = dataclasses.replace(self.size, vocab=a.vocab)
        if a.layers:
            self.size = dataclasses.replace(self.size, layers=a.layers)
        if a.experts:
            self.size = dataclasses.replace(
                self.size, experts=a.experts, top_k=a.top_k, expert_dim=a.expert_dim
            )
        torch.manual_seed(0)
        with torch.device(a.device):
            self.model = Model(self.size, a.seq, a.checkpoint)
        if a.bf16_weights:
            self.model.bfloat16()
        if a.fp8:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training

            convert_to_float8_training(
                self.model.blocks, config=Float8LinearConfig.from_recipe_name(a.fp8)
            )
        self.forward = self.model if a.eager else torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
            fused=True if a.device == "cuda" else None,
        )
        self.wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None

    def batch(self, step, file):
        if file is not None:
            return windows(file, self.a.rows, self.a.seq, step, self.a.device)
        shape = (2, self.a.rows, self.a.seq)
        return torch.randint(0, self.size.vocab, shape, device=self.a.device)

    def step(self, ids, targets):
        with torch.autocast(self.a.device, torch.bfloat16, enabled=self.a.dtype == "bf16"):
            loss = self.forward(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def median_seconds(self, file):
        """Of the steps after warm-up. file: their tokens; None: random ones."""
        seconds, warm_up = [], min(WARM_UP[self.a.device], self.a.steps)
        for step in range(warm_up + self.a.steps):
            ids, targets = self.batch(step, file)
            self.wait()
            start = time.perf_counter()
            self.step(ids, targets)
            self.wait()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[warm_up:])


def main():
    a = arguments()
    if a.device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_flash_sdp(a.dropout > 0)
        torch.backends.cuda.enable_mem_efficient_sdp(a.dropout > 0)
    if a.no_onednn:
        torch._C._set_mkldnn_enabled(False)
    file = read_tokens(a.tokens) if a.tokens else None
    trainer, tokens = Trainer(a), a.rows * a.seq
    seconds = trainer.median_seconds(None)
    result = {
        "version": torch.__version__,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "tok_s": round(tokens / seconds),
        "ms": round(1e3 * seconds, 2),
    }
    if file is not None:
        result["real_tok_s"] = round(tokens / trainer.median_seconds(file))
    if a.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        result["allocated"] = torch.cuda.max_memory_allocated()
        result["device_used"] = total - free
    print(json.dumps(result))


if __name__ == "__main__":
    main()
