"""Changed numbers back into the codes of a MatMulNBits: as many bits and as large blocks as before."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import onnx

from poetc.frontend._node import Node
from poetc.frontend._quantized import INTEGERS
from poetc.frontend._reading import read_tensor, tensor_dtype
from poetc.graph import Array

_PRODUCT, _CODES, _SCALES, _ZEROS = "MatMulNBits", 1, 2, 3


def recodable(model: onnx.ModelProto, stored: Collection[str]) -> dict[str, Node]:
    """The product that reads each of these stored weights, where its codes can be made anew.

    `stored`: as origins name them. Left out are weights that other operators read, and those without initializers.
    """
    initializers = {t.name for t in model.graph.initializer}
    readers: dict[str, list[Node]] = {}
    for node in model.graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(Node(node))
    products_of = {}
    for name in stored:
        codes = name.split(INTEGERS)[0]
        products = readers.get(codes, [])
        parts = [i for n in products for i in (*n.inputs[_CODES:_ZEROS], *(_zeros(n),)) if i]
        alone = all(len(readers[i]) == 1 for i in parts)
        if (
            INTEGERS in name
            and len(products) == 1
            and products[0].op == _PRODUCT
            and alone
            and initializers >= {*parts}
        ):
            products_of[name] = products[0]
    return products_of


def recode(model: onnx.ModelProto, folder: Path, n: Node, array: Array) -> tuple[Array, dict[str, Array]]:
    """New contents of the initializers of a product, by name, and the numbers [N, K] that they stand for.

    `array`: the numbers wanted, with the columns that fill up the last block.
    """
    tensors = {t.name: t for t in model.graph.initializer}
    bits, block, columns = (n.get_int(a) for a in ("bits", "block_size", "N"))
    blocks = -(-n.get_int("K") // block)
    wanted = np.zeros((columns, blocks * block), np.float32)
    wanted[:, : array.shape[1]] = array
    parts = wanted.reshape(columns, blocks, block)
    held = {i: tensor_dtype(tensors[name]) for i in (_SCALES, _ZEROS) if (name := _input(n, i))}
    before = {i: read_tensor(tensors[_input(n, i)], folder) for i in held}
    scales, zeros = before[_SCALES], before.get(_ZEROS)
    assert scales is not None
    if zeros is not None and zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks]
    old_zeros = np.full((columns, blocks), 2 ** (bits - 1), np.float32) if zeros is None else zeros
    kind = "none" if zeros is None else "whole" if zeros.dtype == np.uint8 else "real"
    choices = [(scales.reshape(columns, blocks), old_zeros.reshape(columns, blocks))]
    choices += [(s.astype(held[_SCALES]), z) for s, z in _choices(parts, bits, kind)]
    if kind == "real":
        choices = [(s, z.astype(held[_ZEROS])) for s, z in choices]
    codes, scale, zero, real = _nearest(parts, bits, choices)
    stored = {
        n.inputs[_CODES]: _packed(codes.reshape(columns * blocks, block), bits),
        n.inputs[_SCALES]: scale.astype(held[_SCALES]),
    }
    if kind == "whole":
        stored[n.inputs[_ZEROS]] = _packed(zero.astype(np.uint8), bits)
    elif kind == "real":
        stored[n.inputs[_ZEROS]] = zero.astype(held[_ZEROS])
    return real.reshape(columns, -1)[:, : array.shape[1]], stored


def _choices(parts: Array, bits: int, kind: str) -> Iterator[tuple[Array, Array]]:
    """Scales and zero points for each block: the range of its numbers, or its number that is largest."""
    top, half = 2**bits - 1, 2 ** (bits - 1)
    if kind == "none":
        middle = np.full(parts.shape[:2], half, np.float32)
        most = np.abs(parts).max(2)
        extreme = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0]
        yield _scale(most / max(1, half - 1)), middle
        yield _scale(-extreme / half), middle
        return
    least, largest = parts.min(2), parts.max(2)
    if kind == "whole":  # 0 lies among the numbers
        least, largest = np.minimum(least, 0), np.maximum(largest, 0)
    scale = _scale((largest - least) / top)
    zero = -least / scale
    yield scale, np.rint(zero) if kind == "whole" else zero


def _scale(scale: Array) -> Array:
    return np.where(scale == 0, 1, scale).astype(np.float32)


def _nearest(parts: Array, bits: int, choices: list[tuple[Array, Array]]) -> tuple[Array, Array, Array, Array]:
    """By block the choice with the least sum of squared differences: codes, scales, zero points, numbers."""
    best: tuple[Array, ...] | None = None
    for scale, zero in choices:
        s, z = (a.astype(np.float32)[..., None] for a in (scale, zero))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes = np.clip(np.nan_to_num(np.rint(parts / s + z)), 0, 2**bits - 1)
            real = ((codes - z) * s).astype(np.float32)
            error = np.nan_to_num(np.square((real - parts).astype(np.float64)).sum(2), nan=np.inf)
        mine = (codes, scale, zero.astype(np.float32), real, error)
        if best is None:
            best = mine
            continue
        better = error < best[4]
        best = tuple(
            np.where(better if a.ndim == 2 else better[..., None], a, b) for a, b in zip(mine, best, strict=True)
        )
    assert best is not None
    return best[0].astype(np.uint8), best[1], best[2], best[3]


def _input(n: Node, index: int) -> str:
    return n.inputs[index] if n.has_input(index) else ""


def _zeros(n: Node) -> str:
    return _input(n, _ZEROS)


def _packed(numbers: Array, bits: int) -> Array:
    """Rows of small integers as bytes, the first in the lowest bits."""
    each = 8 // bits
    filled = np.zeros((len(numbers), -(-numbers.shape[1] // each) * each), np.uint8)
    filled[:, : numbers.shape[1]] = numbers
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(filled.reshape(len(numbers), -1, each) << shifts, axis=2), np.uint8)


def _unpacked(packed: Array, bits: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(((packed[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(packed), -1))
