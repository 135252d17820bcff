"""PyTorch's grouped GEMMs: TFLOP/s of y, dx and dw, as bench/gpu/experts.c has them; dw in bf16, which is
what PyTorch writes. Arguments: EXPERTS ROWS K F."""
import json
import sys

import torch

experts, rows, k, f = map(int, sys.argv[1:5])
grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def ends():
    """Where the groups end, as in experts.c."""
    at, all_ends = 0, []
    for e in range(experts):
        at += int(rows / experts * (0.7 + 0.006 * (e * 37 % 101)))
        all_ends.append(at)
    by = rows / at
    return [int(v * by) for v in all_ends[:-1]] + [rows]


def seconds(call):
    """The best of five samples of at least 20 ms."""
    call()
    torch.cuda.synchronize()
    best, times = float("inf"), 1
    for sample in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / times / 1e3)
        times = max(1, int(20e-3 / best))
    return best


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


x, w, dy = normal(rows, k), normal(experts, f, k) * 0.02, normal(rows, f)
offs = torch.tensor(ends(), device="cuda", dtype=torch.int32)
calls = {
    "y": lambda: grouped_mm(x, w.transpose(-2, -1), offs=offs),
    "dx": lambda: grouped_mm(dy, w, offs=offs),
    "dw": lambda: grouped_mm(dy.t(), x, offs=offs),
}
print(json.dumps({name: round(2e-12 * rows * k * f / seconds(call)) for name, call in calls.items()}))
