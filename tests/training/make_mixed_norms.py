"""Write `mixed_norms.json`: WAGEUBN's batch norm in PyTorch, in double precision, with straight-through rounding.

python -m tests.training.make_mixed_norms        in an environment with poetc and torch 2.13
"""

from __future__ import annotations

import json

import torch
from torch.nn import functional

from tests.training.make_mixed import Forward, Tensor, convolution, layer, numbers, twelve
from tests.training.mixed_norm_cases import NUMBERS, RATE, batches, parameters


def whole(x: Tensor, bits: int) -> Tensor:
    """To nearest, without a limit."""
    step = 2.0 ** (1 - bits)
    return Forward.apply(x, lambda t: (t / step).round() * step)


def norm(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    mean = whole(x.mean((0, 2, 3), keepdim=True), 16)
    deviation = whole(x.var((0, 2, 3), correction=0, keepdim=True).sqrt(), 16) + 2.0**-15
    quotient = whole((x - mean) / deviation, 8)
    return quotient * whole(scale, 8).view(1, -1, 1, 1) + whole(bias, 8).view(1, -1, 1, 1)


def main() -> None:
    w = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in parameters().items()}
    losses, first = [], {}
    for x, target in batches():
        h = layer(convolution, (twelve,) * 3, torch.tensor(x, dtype=torch.float64), w["w1"])
        h = functional.relu(norm(h, w["scale"], w["bias"]))
        y = layer(functional.linear, (twelve,) * 3, h.flatten(1), w["w2"])
        loss = functional.mse_loss(y, torch.tensor(target, dtype=torch.float64))
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for n, v in w.items():
                g = v.grad if n.startswith("w") else whole(v.grad, 15)
                first.setdefault(n, numbers(g))
                v -= RATE * g
                v.grad = None
    weights = {n: numbers(v) for n, v in w.items()}
    found = {"losses": losses, "gradients": first, "weights": weights}
    NUMBERS.write_text(json.dumps(found, separators=(",", ":")), "utf-8")


if __name__ == "__main__":
    main()
