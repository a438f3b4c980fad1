"""Write `mixed.json`: gradients and weights of PyTorch in double precision, with straight-through rounding.

python -m tests.training.make_mixed        in an environment with poetc and torch 2.13
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.training.mixed_cases import NUMBERS, RATE, batches, parameters

Tensor = torch.Tensor
Rounding = Callable[[Tensor], Tensor]


def real(share: float) -> Rounding:
    def run(x: Tensor) -> Tensor:
        unit = share * x.abs().max() / 127
        return (x / unit).round().clamp(-127, 127) * unit

    return run


def power(bits: int) -> Rounding:
    def run(x: Tensor) -> Tensor:
        unit = 2.0 ** torch.ceil(torch.log2(x.abs().max() / (2 ** (bits - 1) - 1)))
        return (x / unit).round() * unit

    return run


def direct(bits: int) -> Rounding:
    step = 2.0 ** (1 - bits)
    return lambda x: ((x / step).round() * step).clamp(step - 1, 1 - step)


def shifted(x: Tensor) -> Tensor:
    scale = 2.0 ** torch.round(torch.log2(x.abs().max()))
    return direct(8)(x / scale) * scale


def normalised(x: Tensor) -> Tensor:
    scale = 2.0 ** torch.round(torch.log2(x.abs().max()))
    return (x / scale * 128).round().clamp(-127, 127) / 2**14


def twelve(x: Tensor) -> Tensor:
    m, e = torch.frexp(x)
    return torch.ldexp((m * 2**12).round() / 2**12, e)


def fp8(x: Tensor) -> Tensor:
    return x.to(torch.float32).to(torch.float8_e5m2).to(torch.float64)


def ten(x: Tensor) -> Tensor:
    m, e = torch.frexp(x)
    return torch.ldexp((m * 2**10).round() / 2**10, e)


def multi_level(x: Tensor) -> Tensor:
    largest = x.abs().max()
    groups = x.abs().amax(dim=(2, 3), keepdim=True) / largest
    groups = torch.where(groups == 0, 1.0, groups)
    whole = torch.floor(torch.log2(groups))
    group = torch.ceil(groups / 2.0**whole * 2) / 2 * 2.0**whole
    a = x.abs() / largest / group
    unit = 2.0 ** (torch.floor(torch.log2(a)).clamp(min=-3) - 4)
    return x.sign() * ((a / unit).round() * unit).clamp(max=1 - 2.0**-5) * group * largest


def scaled(rounding: Rounding) -> Rounding:
    return lambda x: rounding(x * 1024) / 1024


class Adaptive:
    """Bits and unit are made again when an interval is over; more bits where the mean magnitude changes by 3 %."""

    def __init__(self) -> None:
        self.bits, self.unit, self.left, self.mean = 8, 0.0, 0, None

    def __call__(self, x: Tensor) -> Tensor:
        if self.left == 0:
            mean = 0.0 if self.mean is None else self.mean
            while True:
                self.unit = math.ceil(math.log2(x.abs().max().item() / (2 ** (self.bits - 1) - 1)))
                rounded = self.rounded(x).abs().mean().item()
                change = math.log2(1 + abs(x.abs().mean().item() - rounded) / x.abs().mean().item())
                if change <= 0.03 or self.bits == 16:
                    break
                self.bits, mean = self.bits + 8, mean - 8
            self.mean = float(self.unit) if self.mean is None else mean
            moved = max(0.04 * abs(self.unit - self.mean), 100 * change**2)
            self.left = int(min(max(round(0.1 / moved - 2), 1), 128))
        self.left -= 1
        self.mean = 0.04 * self.unit + 0.96 * self.mean
        return self.rounded(x)

    def rounded(self, x: Tensor) -> Tensor:
        most = 2 ** (self.bits - 1) - 1
        return (x / 2.0**self.unit).round().clamp(-most, most) * 2.0**self.unit


SAME: Rounding = lambda x: x  # noqa: E731
EIGHT = (real(1.0), real(1.0), real(0.95))
SHIFTED = (direct(8), shifted, shifted)
# Of each layer: weights, activations, errors; then gradients and stored weights.
CASES: dict[str, tuple[Any, Rounding, Rounding]] = {
    "octo": ([EIGHT] * 3, SAME, SAME),
    "afp": ([(power(8), power(8), Adaptive()) for _ in range(3)], SAME, SAME),
    "wageubn": ([(twelve,) * 3, SHIFTED, (twelve,) * 3], normalised, direct(24)),
    "mls": ([(twelve,) * 3, (multi_level,) * 3, (twelve,) * 3], SAME, SAME),
    "fp8": ([(fp8, ten, scaled(fp8)), (fp8, fp8, scaled(fp8)), (ten, ten, scaled(ten))], SAME, ten),
}


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:
        ctx.rounding = rounding
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.rounding(gradient), None


def layer(product: Callable[..., Tensor], roundings: Any, x: Tensor, w: Tensor) -> Tensor:
    of_weights, of_activations, of_errors = roundings
    y = product(Forward.apply(x, of_activations), Forward.apply(w, of_weights))
    return Backward.apply(y, of_errors)


def convolution(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x, w, padding=1)


def main() -> None:
    found: dict[str, Any] = {}
    for name, (layers, of_gradients, of_stored) in CASES.items():
        w = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in parameters().items()}
        losses, first = [], {}
        for x, target in batches():
            h = torch.tensor(x, dtype=torch.float64)
            for k in (1, 2):
                h = functional.relu(layer(convolution, layers[k - 1], h, w[f"w{k}"]) + w[f"b{k}"].view(1, -1, 1, 1))
            logits = layer(functional.linear, layers[2], h.flatten(1), w["w3"]) + w["b3"]
            loss = functional.cross_entropy(logits, torch.tensor(target, dtype=torch.int64))
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for n, v in w.items():
                    g = of_gradients(v.grad) if n.startswith("w") else v.grad
                    first.setdefault(n, numbers(g))
                    v -= RATE * g
                    if n.startswith("w"):
                        v.copy_(of_stored(v))
                    v.grad = None
        found[name] = {"losses": losses, "gradients": first, "weights": {n: numbers(v) for n, v in w.items()}}
    NUMBERS.write_text(json.dumps(found, separators=(",", ":")), "utf-8")


def numbers(x: Tensor) -> list[float]:
    return [float(f"{v:.8g}") for v in x.flatten().tolist()]


if __name__ == "__main__":
    main()
