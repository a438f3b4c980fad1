"""Strided walks: how kernels see broadcasting, transposing, slicing and reducing.

A walk is a list of sizes and, for each operand, as many strides in elements (0 where it is broadcast). Adjacent
dimensions that every operand crosses evenly are merged. So a kernel needs one code path, and its inner loop is as long
as can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.kernels.operators.parameters import Ints, Walk

MAX_RANK = 16  # POETC_MAX_RANK of the kernels


def contiguous_strides(shape: Ints) -> Ints:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def broadcast_strides(shape: Ints, target: Ints) -> Ints:
    """Strides with which a contiguous tensor of `shape` is read as one of `target`: 0 along broadcast dimensions."""
    lead = len(target) - len(shape)
    own = contiguous_strides(shape)
    return (0,) * lead + tuple(0 if n == 1 and t != 1 else s for n, t, s in zip(shape, target[lead:], own, strict=True))


def collapse(sizes: Ints, *strides: Ints) -> tuple[Ints, tuple[Ints, ...]]:
    """The same walk in as few dimensions as possible, at least one."""
    if math.prod(sizes) == 0:
        return (0,), tuple((0,) for _ in strides)
    merged: list[tuple[int, Ints]] = []
    for n, steps in zip(sizes, zip(*strides, strict=True), strict=True):
        if n == 1:
            continue
        if merged and all(outer == n * inner for outer, inner in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    if not merged:
        merged = [(1, (0,) * len(strides))]
    if len(merged) > MAX_RANK:
        raise ValueError(f"{len(merged)} separate dimensions; kernels walk at most {MAX_RANK}")
    return tuple(n for n, _ in merged), tuple(tuple(s[i] for _, s in merged) for i in range(len(strides)))


def walk(sizes: Ints, *strides: Ints) -> Walk:
    """The kernel's description of a walk, in as few dimensions as possible."""
    return Walk(*collapse(sizes, *strides))


def normalize_axes(kind: str, axes: Sequence[int], rank: int) -> Ints:
    """Sorted axes in [0, rank)."""
    result = sorted({a + rank if a < 0 else a for a in axes})
    if any(not 0 <= a < rank for a in result) or len(result) != len(axes):
        raise ValueError(f"{kind}: axes {tuple(axes)} do not fit a tensor of {rank} dimensions")
    return tuple(result)


def view_steps(shape: Ints, steps: Ints, new_shape: Ints) -> Ints | None:
    """Steps by which `new_shape` reaches the elements of `shape` and `steps` in their order; None if there are none."""
    runs: list[tuple[int, int]] = []  # (elements, step) that follow each other evenly, first to last
    for n, step in zip(shape, steps, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * step:
            runs[-1] = (runs[-1][0] * n, step)
        else:
            runs.append((n, step))
    result: list[int] = []
    for n in reversed(new_shape):
        if n == 1:
            result.append(0)
            continue
        if not runs or runs[-1][0] % n:
            return None
        left, step = runs.pop()
        result.append(step)
        if left > n:
            runs.append((left // n, step * n))
    return None if runs else tuple(reversed(result))


def strided_view(tensor: Any, view: Ints, sizes: Ints) -> Any:
    """The view (first element, steps) of a contiguous array, which shares its elements."""
    item = tensor.dtype.itemsize
    return np.lib.stride_tricks.as_strided(tensor.reshape(-1)[view[0] :], sizes, [item * step for step in view[1:]])
