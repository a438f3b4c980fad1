"""The sums of products on operands in 16 bits, in numpy and in the order of runtime/kernels/narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from poetc.ops._bound import Bound
from poetc.ops._convolutions import columns_of, group_of
from poetc.ops._windows import Windows

TERMS = 32  # of a block
Product = Callable[[Any, Any], Any]


def product(a: Any, b: Any, terms: int = TERMS, rounded: Callable[[Any], Any] = lambda x: x) -> Any:
    """a[..., rows, depth] b[..., depth, columns]: blocks of so many terms in sequence, and the blocks in sequence.

    `rounded`: every sum.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.float32)
    for first in range(0, a.shape[-1], terms):
        part = np.zeros_like(total)
        for k in range(first, min(first + terms, a.shape[-1])):
            part = rounded(part + a[..., :, k : k + 1] * b[..., k : k + 1, :])
        total = rounded(total + part)
    return total


def evaluate(kind: str, op: Bound, inputs: Sequence[Any], product: Product = product) -> tuple[Any, ...] | None:
    """The results of the operator `op` of such a kind on f32 arrays; None for a kind without sums of products."""
    sums = _SUMS.get(kind)
    if sums is None:
        return None
    with np.errstate(all="ignore"):
        return (sums(op, product, *inputs),)


def _conv(op: Bound, product: Product, x: Any, w: Any, bias: Any = None) -> Any:
    group, (y,) = group_of(op), op.outputs
    _, outputs, oh, ow = y.shape
    columns = columns_of(Windows.of(op, w.shape[2:]), x, (oh, ow), group)  # [n, group, terms, pixels]
    sums = product(w.reshape(1, group, outputs // group, -1), columns).reshape(y.shape)
    return sums if bias is None else sums + bias.reshape(1, -1, 1, 1)


def _grad_input(op: Bound, product: Product, gy: Any, w: Any) -> Any:
    group, (gx,) = group_of(op), op.outputs
    n, _, height, width = gx.shape
    windows = Windows.of(op, w.shape[2:])
    (kh, kw), (sh, sw), (top, left, _, _), (dh, dw) = windows.kernel, windows.strides, windows.pads, windows.dilations

    def places(size: int, kernel: int, stride: int, pad: int, dilation: int, outputs: int) -> Any:
        """[kernel, size]: the output that a tap brings to each pixel; `outputs`, a zero, for none."""
        at = np.arange(size)[None] + pad - dilation * np.arange(kernel)[:, None]
        return np.where((at % stride == 0) & (at >= 0) & (at // stride < outputs), at // stride, outputs)

    rows = places(height, kh, sh, top, dh, gy.shape[2])
    columns = places(width, kw, sw, left, dw, gy.shape[3])
    padded = np.pad(gy, ((0, 0), (0, 0), (0, 1), (0, 1)))
    taps = padded[:, :, rows[:, None, :, None], columns[None, :, None, :]]  # [n, o, kh, kw, height, width]
    b = taps.reshape(n, group, -1, height * width)
    a = w.reshape(group, w.shape[0] // group, w.shape[1], kh * kw).transpose(0, 2, 1, 3)
    return product(a.reshape(1, group, w.shape[1], -1), b).reshape(gx.shape)


def _grad_weight(op: Bound, product: Product, x: Any, gy: Any) -> Any:
    group, (gw,) = group_of(op), op.outputs
    n, outputs, oh, ow = gy.shape
    columns = columns_of(Windows.of(op, gw.shape[2:]), x, (oh, ow), group)  # [n, group, taps, pixels]
    b = columns.transpose(1, 0, 3, 2).reshape(group, n * oh * ow, -1)
    a = gy.reshape(n, group, outputs // group, oh * ow).transpose(1, 2, 0, 3).reshape(group, outputs // group, -1)
    return product(a, b).reshape(gw.shape)


def _matmul(op: Bound, product: Product, a: Any, b: Any, bias: Any = None) -> Any:
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:])
    sums = product(a.T if op.get_int("trans_a") else a, b.T if op.get_int("trans_b") else b)
    sums = sums.reshape(op.outputs[0].shape)
    return sums if bias is None else sums + bias


def _reduce_sum(op: Bound, product: Product, x: Any) -> Any:
    """The sum over all axes but one."""
    (y,), axes = op.outputs, op.get_ints("axes")
    kept = next(k for k in range(x.ndim) if k not in axes)
    rows = np.moveaxis(x, kept, 0).reshape(x.shape[kept], -1)
    return product(rows, np.ones((rows.shape[1], 1), np.float32)).reshape(y.shape)


_SUMS: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "ConvGradInput": _grad_input,
    "ConvGradWeight": _grad_weight,
    "MatMul": _matmul,
    "ReduceSum": _reduce_sum,
}
