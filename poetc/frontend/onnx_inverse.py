"""Inverse functions of angles, and the determinant, from functions that have kernels."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator

_LARGEST_MATRIX = 6  # rows of a determinant: n 2ⁿ products


def _float(c: Importer, n: Node) -> Value:
    x = c.input(n, 0)
    if not x.is_float:
        raise Unsupported(f"{n.op} of integers")
    return x


def _root_beside(c: Importer, x: str) -> str:
    """sqrt(1 - x²), exact near the ends."""
    return c.emit1("Sqrt", [c.emit1("Mul", [c.affine(x, -1.0, 1.0), c.affine(x, 1.0, 1.0)])])


@onnx_operator("Asin")
def arc_sine(c: Importer, n: Node) -> str:
    """2 atan(x / (1 + sqrt(1 - x²))): finite at the ends, where the derivative is infinite."""
    x = c.tensor(_float(c, n))
    half = c.emit1("Div", [x, c.affine(_root_beside(c, x), 1.0, 1.0)])
    return c.affine(c.emit1("Atan", [half]), 2.0)


@onnx_operator("Acos")
def arc_cosine(c: Importer, n: Node) -> str:
    """2 atan(sqrt((1 - x) / (1 + x))), exact near 1."""
    x = c.tensor(_float(c, n))
    share = c.emit1("Div", [c.affine(x, -1.0, 1.0), c.affine(x, 1.0, 1.0)])
    return c.affine(c.emit1("Atan", [c.emit1("Sqrt", [share])]), 2.0)


@onnx_operator("Asinh")
def inverse_sine(c: Importer, n: Node) -> str:
    """s log(s x + sqrt(x² + 1)) with the sign s of x, which is 1 at 0: so the derivative there is 1."""
    x = c.tensor(_float(c, n))
    zero, one, minus = (c.constant(np.array(v, np.float32)) for v in (0.0, 1.0, -1.0))
    sign = c.emit1("Where", [c.emit1("Less", [x, zero]), minus, one])
    size = c.emit1("Mul", [sign, x])
    root = c.emit1("Sqrt", [c.affine(c.emit1("Mul", [x, x]), 1.0, 1.0)])
    return c.emit1("Mul", [sign, c.emit1("Log", [c.emit1("Add", [size, root])])])


@onnx_operator("Acosh")
def inverse_cosine(c: Importer, n: Node) -> str:
    """log(x + sqrt(x² - 1))."""
    x = c.tensor(_float(c, n))
    root = c.emit1("Sqrt", [c.emit1("Mul", [c.affine(x, 1.0, -1.0), c.affine(x, 1.0, 1.0)])])
    return c.emit1("Log", [c.emit1("Add", [x, root])])


@onnx_operator("Atanh")
def inverse_tangent(c: Importer, n: Node) -> str:
    """Atanh: log((1 + x) / (1 - x)) / 2."""
    x = c.tensor(_float(c, n))
    return c.affine(c.emit1("Log", [c.emit1("Div", [c.affine(x, 1.0, 1.0), c.affine(x, -1.0, 1.0)])]), 0.5)


@onnx_operator("Det")
def determinant(c: Importer, n: Node) -> str:
    """By minors of the first rows: no pivots, so that it has a gradient at every matrix."""
    x = _float(c, n)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise Malformed(f"the determinant of shape {list(x.shape)}")
    *outer, size, _ = x.shape
    if not 1 <= size <= _LARGEST_MATRIX:
        raise Unsupported(f"the determinant of {size} rows (at most {_LARGEST_MATRIX})")
    matrices = math.prod(outer)
    flat = c.reshape(x, (matrices, size * size))
    cell = c.emit("Split", [flat], {"axis": 1, "sizes": (1,) * (size * size)}) if size > 1 else (flat,)
    minors: dict[tuple[int, ...], str] = {(k,): cell[k] for k in range(size)}
    for row in range(1, size):
        minors = {
            columns: _expanded(c, [cell[row * size + k] for k in columns], minors, columns)
            for columns in combinations(range(size), row + 1)
        }
    return c.reshape(minors[tuple(range(size))], outer)


def _expanded(c: Importer, row: list[str], minors: dict[tuple[int, ...], str], columns: tuple[int, ...]) -> str:
    """The minor of these columns along its last row."""
    total = ""
    for k, value in enumerate(row):
        term = c.emit1("Mul", [value, minors[columns[:k] + columns[k + 1 :]]])
        is_plus = (len(row) - 1 + k) % 2 == 0
        if total:
            total = c.emit1("Add" if is_plus else "Sub", [total, term])
        else:
            total = term if is_plus else c.emit1("Neg", [term])
    return total
