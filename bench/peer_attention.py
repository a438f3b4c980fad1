"""PyTorch's side of bench/attention.py: `peer_attention.py LENGTH HEADS SIZE CAUSAL` reads a number of steps a line and
answers with the milliseconds of each, and the bytes of the process.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from torch.nn import functional

torch.set_num_threads(1)
length, heads, size, causal = (int(a) for a in sys.argv[1:])
q, k, v = (torch.randn(1, length, heads, size, requires_grad=True) for _ in range(3))
x, target = torch.randn(1, length, heads, size), torch.randn(1, length, heads, size)


def step() -> None:
    a, b, c = (t.transpose(1, 2) for t in (q + x, k, v))
    y = functional.scaled_dot_product_attention(a, b, c, is_causal=bool(causal)).transpose(1, 2)
    functional.mse_loss(y, target).backward()
    with torch.no_grad():
        for t in (q, k, v):
            t -= 1e-4 * t.grad
            t.grad = None


print("ready", flush=True)
for line in sys.stdin:
    start = time.process_time()
    for _ in range(int(line)):
        step()
    spent = 1e3 * (time.process_time() - start) / int(line)
    print(spent, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
