"""NITI (Wang et al. 2022) written out from its formulas, apart from the product: pixels are [N, H, W, C], in i64.

Rounding takes the quotient and the remainder of a division that truncates. The loss is that of Mandheling's CPU code.
Sums of products are made in floats of 64 bits, which hold each of them exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def _bits(acc: Any) -> int:
    largest = int(np.max(np.abs(acc)))
    return math.ceil(math.log2(largest)) if largest else 0


def _split(acc: Any, shift: int) -> tuple[Any, Any]:
    quotient = np.trunc(acc / 2.0**shift).astype(np.int64)
    return quotient, acc - quotient * 2**shift


def nearest(acc: Any, shift: int) -> Any:
    t, r = _split(acc, shift)
    return np.clip(t + np.trunc(r / 2.0 ** (shift - 1)).astype(np.int64), -127, 127)


def stochastic(acc: Any, shift: int) -> Any:
    t, r = _split(acc, shift)
    r, half = np.abs(r), shift // 2
    low = r % 2**half * (2 if shift % 2 else 1)
    return np.clip(t + np.where(r // 2**half > low, np.sign(acc), 0), -127, 127)


def rescale(acc: Any, exponent: int) -> tuple[Any, int]:
    shift = _bits(acc) - 7
    if shift > 0:
        return nearest(acc, shift), exponent + shift
    return np.clip(acc, -127, 127), exponent


def quantize(x: Any) -> tuple[Any, int]:
    bits = math.ceil(math.log2(np.max(np.abs(x))))
    return np.clip(np.round(x * 2.0 ** (7 - bits)), -128, 127).astype(np.int64), bits - 7


def loss_error(q: Any, exponent: int, target: Any) -> Any:
    if exponent > -7:
        z = np.trunc(47274 * q / 2**15)
        z = z * 2**exponent if exponent >= 0 else np.trunc(z / 2**-exponent)
        z = np.maximum(0, z - (z.max(axis=1, keepdims=True) - 10))
        p = 2**z - 1
    else:
        p = 2.0 ** (1 - 2 * exponent) + q * 2.0 ** (1 - exponent) + q * q
    p = np.trunc(2**11 * p / p.sum(axis=1, keepdims=True)).astype(np.int64)
    rows = np.arange(len(target))
    p[rows, target] -= p.sum(axis=1)
    return stochastic(p, 4)


def _product(a: Any, b: Any) -> Any:
    """The exact integers of `a @ b`; the sums are far below 2^53."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


@dataclass
class Layer:
    """A convolution with a 3 x 3 window and a pad of 1, or a dense layer; then ReLU and a pool of 2 x 2."""

    weight: Any  # [kh, kw, inputs, outputs] or [inputs, outputs]
    exponent: int
    stride: int = 1
    has_relu: bool = True
    has_pool: bool = False
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def is_dense(self) -> bool:
        return self.weight.ndim == 2

    def forward(self, x: Any, exponent: int) -> tuple[Any, int]:
        self.seen["shape"] = x.shape
        if self.is_dense:
            x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # the model flattens [C, H, W]
            acc = _product(x, self.weight)
        else:
            x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            acc = sum(_product(self._tap(x, i, j), self.weight[i, j]) for i in range(3) for j in range(3))
        self.seen["x"] = x
        y, exponent = rescale(acc, exponent + self.exponent)
        if self.has_relu:
            y = np.maximum(y, 0)
        self.seen["y"] = y
        if self.has_pool:
            n, h, w, c = y.shape
            taps = y.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 5, 2, 4).reshape(n, h // 2, w // 2, c, 4)
            self.seen["where"] = taps.argmax(axis=-1)
            y = taps.max(axis=-1)
        return y, exponent

    def _tap(self, x: Any, i: int, j: int) -> Any:
        size = (x.shape[1] - 3) // self.stride + 1, (x.shape[2] - 3) // self.stride + 1
        rows, columns = (
            slice(k, k + self.stride * (n - 1) + 1, self.stride) for k, n in zip((i, j), size, strict=True)
        )
        return x[:, rows, columns]

    def backward(self, error: Any, update_bits: int, *, needs_error: bool) -> Any:
        if self.has_pool:
            n, h, w, c = error.shape
            spread = np.where(self.seen["where"][..., None] == np.arange(4), error[..., None], 0)
            spread = spread.reshape(n, h, w, c, 2, 2).transpose(0, 1, 4, 2, 5, 3)
            error = spread.reshape(n, 2 * h, 2 * w, c)
        if self.has_relu:
            error = np.where(self.seen["y"] > 0, error, 0)
        x = self.seen["x"]
        if self.is_dense:
            gradient, back = _product(x.T, error), _product(error, self.weight.T)
            n, h, w, c = self.seen["shape"]
            back = back.reshape(n, c, h, w).transpose(0, 2, 3, 1)
        else:
            gradient, back = np.zeros_like(self.weight), np.zeros_like(x)
            inputs, outputs = self.weight.shape[2:]
            for i in range(3):
                for j in range(3):
                    pixels = self._tap(x, i, j).reshape(-1, inputs)
                    gradient[i, j] = _product(pixels.T, error.reshape(-1, outputs))
                    tap = self._tap(back, i, j)
                    tap += _product(error, self.weight[i, j].T)
            back = back[:, 1:-1, 1:-1]
        back = rescale(back, 0)[0] if needs_error else None
        shift = _bits(gradient) - update_bits
        move = gradient if shift < 1 else stochastic(gradient, shift)
        self.weight = np.clip(self.weight - move, -127, 127)
        return back


def step(layers: list[Layer], x: Any, target: Any, update_bits: int) -> Any:
    """One training step on images [N, H, W, C]; the logits."""
    q, exponent = quantize(x)
    for layer in layers:
        q, exponent = layer.forward(q, exponent)
    error = loss_error(q, exponent, target)
    for index, layer in reversed(list(enumerate(layers))):
        error = layer.backward(error, update_bits, needs_error=index > 0)
    return q * 2.0**exponent
