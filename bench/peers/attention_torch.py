#!/usr/bin/env python3
"""PyTorch's attention, forward and backward, for the shapes of bench/gpu/attention.c: a line of JSON for each, in
milliseconds.

    attention_torch.py [--part I/N] < SHAPES

"sdpa" is the fastest of scaled_dot_product_attention's kernels (cuDNN, flash, with dropout flash alone), "varlen" is
varlen_attn, for documents; "flex" is flex_attention, compiled, for what has a mask besides causality. --part: every
N-th shape, once each: fills the compiler's cache, so that several processes do so at a time.
"""
import inspect
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None

part, parts = (int(x) for x in sys.argv[2].split("/")) if len(sys.argv) > 2 else (0, 0)


def milliseconds(call):
    """The best of five samples of at least 20 ms."""
    call()
    torch.cuda.synchronize()
    if parts:
        return 0.0
    best, times = float("inf"), 1
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / times)
        times = max(1, int(20 / best))
    return best


def pair(forward, inputs, dout):
    """Milliseconds of forward and of backward; None where the kernel does not take the shape."""
    try:
        def run():
            with torch.no_grad():
                forward()

        ahead = milliseconds(run)
        out = forward()
        return ahead, milliseconds(lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True))
    except (RuntimeError, torch.OutOfMemoryError, torch._dynamo.exc.TorchDynamoException) as e:
        print(f"{type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
        return None


def starts(n, seq, mean):
    """The first token of each token's document, as in attention.c."""
    first, start, at, k = [], 0, 0, 0
    for i in range(n):
        if i % seq == 0:
            start = i
        if mean and i == at:
            start = i
            at += mean // 4 + mean * 3 // 2 * (k * 618 % 1000) // 1000
            k += 1
        first.append(start)
    return first


def measure(name, q_heads, kv_heads, dim, seq, rows, window, document, dropout):
    def normal(heads):
        x = torch.randn(rows, seq, heads, dim, device="cuda", dtype=torch.bfloat16)
        return x.transpose(1, 2).requires_grad_()

    q, k, v, dout = normal(q_heads), normal(kv_heads), normal(kv_heads), normal(q_heads).detach()
    gqa = {"enable_gqa": True} if kv_heads < q_heads else {}
    result, masked = {"name": name}, window or document

    def keep(kind, times):
        if times and sum(times) < sum(result.get(kind, (float("inf"), 0))):
            result[kind] = times

    if not masked:
        kinds = [SDPBackend.FLASH_ATTENTION] + [SDPBackend.CUDNN_ATTENTION] * (not dropout)
        for kind in kinds:
            with sdpa_kernel(kind):
                keep("sdpa", pair(lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, dropout_p=dropout, **gqa), (q, k, v), dout))
    if document and varlen_attn and not window:
        first = starts(rows * seq, seq, document)
        ends = sorted(set(first)) + [rows * seq]
        longest = max(b - a for a, b in zip(ends, ends[1:]))
        at = torch.tensor(ends, device="cuda", dtype=torch.int32)
        packed = [x.detach().transpose(1, 2).reshape(rows * seq, -1, dim).requires_grad_() for x in (q, k, v)]
        named = inspect.signature(varlen_attn).parameters
        causal = {"is_causal": True} if "is_causal" in named else {"window_size": (-1, 0)}
        shared = gqa if "enable_gqa" in named else {}
        if kv_heads == q_heads or shared:
            keep("varlen", pair(lambda: varlen_attn(*packed, at, at, longest, longest, **causal, **shared),
                                packed, dout.transpose(1, 2).reshape(rows * seq, -1, dim)))
    if masked:
        first = torch.tensor(starts(rows * seq, seq, document), device="cuda").view(rows, seq)
        first = first - torch.arange(rows, device="cuda")[:, None] * seq

        def seen(b, h, i, j):
            ok = (j <= i) & (j >= first[b, i])
            return ok & (i - j < window) if window else ok

        blocks = torch.compile(create_block_mask)(seen, rows, None, seq, seq, device="cuda")
        flex = torch.compile(flex_attention, dynamic=False)
        keep("flex", pair(lambda: flex(q, k, v, block_mask=blocks, **gqa), (q, k, v), dout))
    return result


for number, line in enumerate(sys.stdin):
    if parts and number % parts != part:
        continue
    name, *sizes, dropout = line.split()
    torch.compiler.reset()
    row = measure(name, *map(int, sizes), float(dropout))
    for kind in ("sdpa", "varlen", "flex"):
        if kind in row:
            row[f"{kind}_forward"], row[f"{kind}_backward"] = (round(x, 4) for x in row.pop(kind))
    print(json.dumps(row), flush=True)
