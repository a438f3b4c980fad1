"""GridSample: an image read at computed places, by index arithmetic, gathers and weights that have gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator

_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_CUBIC = -0.75  # slope of Keys' kernel at distance 1, as in PyTorch
# One tap along an axis: the float place of the pixel, and its weight (None: 1).
_Tap = tuple[str, str | None]


@onnx_operator("GridSample")
def grid_sample(c: Importer, n: Node) -> str:
    x, grid = c.input(n, 0), c.input(n, 1)
    axes = len(x.shape) - 2
    mode = _MODES.get(n.get_str("mode", "linear"))
    padding, align = n.get_str("padding_mode", "zeros"), bool(n.get_int("align_corners", 0))
    if axes not in (2, 3) or len(grid.shape) != axes + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != axes:
        raise Malformed(f"a grid of shape {list(grid.shape)} for shape {list(x.shape)}")
    if mode is None or padding not in ("zeros", "border", "reflection"):
        raise Malformed(f"mode {n.get_str('mode')!r} or padding_mode {padding!r} is unknown")
    if mode == "cubic" and axes == 3:
        raise Unsupported("cubic in three axes")
    batch, channels, *size = x.shape
    places = math.prod(grid.shape[1:-1])
    flat = c.reshape(grid, (batch, places, axes))
    taps = []
    for k, length in enumerate(size):
        at = c.reshape(c.axis_slice(flat, 2, axes - 1 - k, 1), (batch, places))  # x comes first, and is the last axis
        # From -1 .. 1 to pixels.
        at = c.affine(at, (length - 1) / 2 if align else length / 2, (length - 1) / 2)
        if mode != "cubic":
            at = _inside(c, at, length, padding, align)
        taps.append([_kept(c, tap, length, padding, align, mode) for tap in _taps(c, at, mode)])
    pixels = c.reshape(c.transpose(x, (0, *range(2, axes + 2), 1)), (batch * math.prod(size), channels))
    first = c.constant((np.arange(batch) * math.prod(size)).reshape(batch, 1))
    total = ""
    for corner in product(*taps):
        term = _pixel(c, pixels, [t for t, _ in corner], size, first)
        weights = [w for _, w in corner if w is not None]
        if weights:
            weight = weights[0]
            for w in weights[1:]:
                weight = c.emit1("Mul", [weight, w])
            term = c.emit1("Mul", [term, c.reshape(weight, (batch, places, 1))])
        total = c.emit1("Add", [total, term]) if total else term
    y = c.transpose(total, (0, 2, 1))
    return c.reshape(y, (batch, channels, *grid.shape[1:-1]))


def _inside(c: Importer, at: str, length: int, padding: str, align: bool) -> str:
    """Places beyond the border, as `padding` moves them."""
    if padding == "reflection":
        at = _reflected(c, at, length, align)
    if padding != "zeros":
        at = c.emit1("Clip", [at], {"min": 0.0, "max": float(length - 1)})
    return at


def _reflected(c: Importer, at: str, length: int, align: bool) -> str:
    """Mirrored at the first and the last pixel (aligned corners), or half a pixel beyond them."""
    low, span = (0.0, float(length - 1)) if align else (-0.5, float(length))
    if span == 0:
        return c.affine(at, 0.0)
    far = c.emit1("Abs", [c.affine(at, 1.0, -low)])
    turns = c.emit1("Floor", [c.affine(far, 1 / span)])
    rest = c.emit1("Sub", [far, c.affine(turns, span)])
    half = c.affine(turns, 0.5)
    is_even = c.emit1("Equal", [c.emit1("Floor", [half]), half])
    return c.emit1("Where", [is_even, c.affine(rest, 1.0, low), c.affine(rest, -1.0, span + low)])


def _taps(c: Importer, at: str, mode: str) -> list[_Tap]:
    """The pixels along an axis that a place is made of."""
    if mode == "nearest":
        return [(c.emit1("Round", [at]), None)]
    left = c.emit1("Floor", [at])
    share = c.emit1("Sub", [at, left])
    if mode == "linear":
        return [(left, c.affine(share, -1.0, 1.0)), (c.affine(left, 1.0, 1.0), share)]
    return [(c.affine(left, 1.0, float(k)), _cubic(c, share, k)) for k in (-1, 0, 1, 2)]


def _cubic(c: Importer, share: str, tap: int) -> str:
    """The weight of the pixel `tap` beside a place that lies `share` behind pixel 0."""
    a = _CUBIC
    distance = c.affine(share, 1.0, 1.0) if tap == -1 else c.affine(share, 1.0 if tap == 0 else -1.0, float(tap))
    # Polynomials of the distance, highest power first.
    powers = (a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    total = c.affine(distance, powers[0], powers[1])
    for number in powers[2:]:
        total = c.affine(c.emit1("Mul", [total, distance]), 1.0, number)
    return total


def _kept(c: Importer, tap: _Tap, length: int, padding: str, align: bool, mode: str) -> _Tap:
    """The tap on a pixel that exists; outside of zeros its weight is 0."""
    place, weight = tap
    if mode == "cubic":
        place = _inside(c, place, length, padding, align)
    last = float(length - 1)
    if padding == "zeros":
        zero, one = (c.constant(np.array(v, np.float32)) for v in (0.0, 1.0))
        below = c.emit1("Less", [place, zero])
        above = c.emit1("Greater", [place, c.constant(np.array(last, np.float32))])
        weight = c.emit1("Where", [c.emit1("Or", [below, above]), zero, weight if weight is not None else one])
    return c.emit1("Clip", [place], {"min": 0.0, "max": last}), weight


def _pixel(c: Importer, pixels: str, places: Sequence[str], size: Sequence[int], first: Value) -> str:
    """[batch, places, channels] of whole places, one tensor of floats an axis."""
    index = ""
    for place, length in zip(places, size, strict=True):
        number = c.emit1("Cast", [place], {"to": "i32"})
        if index:
            number = c.emit1("Add", [c.emit1("Mul", [index, c.constant(np.array(length))]), number])
        index = number
    return c.emit1("Gather", [pixels, c.emit1("Add", [index, first])], {"axis": 0})
