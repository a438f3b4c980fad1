"""Tensors that nobody trains, though they stand where layers keep weights: fixed transforms, ramps, grids.

Their numbers tell: no training ends in an arithmetic ramp or a Fourier basis. A file of the older exporter does not.
A mask or an encoding of positions, which `roles` asks for too, is recognised in the position of a summand or factor
alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from poetc.frontend.facts._axes import makers
from poetc.graph import Array, DType, Fact, Graph, Operator, Role

KIND = "fixed tensor"
_MASK_VALUE = -1e4  # a mask added to attention scores holds numbers that no weight holds
_LARGEST = 1 << 24  # elements that are looked at
_RAMP = 6  # numbers of a row
_CLOSE = 1e-4  # of the largest number
_FEW = 4  # rows that are looked at before all are
_ANCHOR = re.compile(r"(.*[._/])?(anchors?(_grid|_points?)?|priors?(_boxes)?|strides?(_tensor)?)", re.IGNORECASE)


def find(graph: Graph, known: frozenset[str] = frozenset()) -> Iterator[Fact]:
    """A fact for each parameter that is a fixed transform; not for those that the file calls parameters, `known`."""
    fixed: dict[str, str] = {}
    candidates = {}
    for name, tensor in graph.tensors.items():
        value = graph.values.get(name)
        if tensor.role is not Role.PARAMETER or name in known or not isinstance(value, np.ndarray):
            continue
        if tensor.dtype is DType.F32 and 2 <= value.size <= _LARGEST:
            candidates[name] = value
    for name, value in candidates.items():
        reason = _reason(name, np.asarray(value, np.float64)) or _beside_another(name, value, candidates)
        if reason:
            fixed[name] = reason
    fixed |= _on_a_spectrum(graph, candidates, fixed)
    for name in candidates:
        if name in fixed:
            yield Fact(KIND, name, "not trained", fixed[name], "likely", f"--train 'all,{name}'")


def _reason(name: str, value: Array) -> str:
    """The kind of fixed tensor that the numbers are, in words; "" for any other."""
    flat = value.reshape(-1)
    if flat.size < 4:  # too few for a pattern, but not for numbers that must be equal
        return _slopes(flat) if _is_slopes(flat, 0) else ""
    matrix = value.reshape(value.shape[0], -1) if value.ndim > 1 else value.reshape(1, -1)
    if max(value.shape) == value.size:
        return _of_vector(name, flat)
    if is_one_hot(matrix):
        return "each row is one 1 among zeros"
    for rows in (matrix, matrix.T):
        if min(rows.shape) < 3:
            continue
        if _is_fourier(rows):
            return "cosines beside sines of one window: a Fourier basis"
        if _is_cosine(rows):
            return "cosines of rising frequency: a cosine transform"
        if _is_filter_bank(rows):
            return "overlapping bands of numbers of at least 0: a filter bank"
    if _are_ramps(value.reshape(-1, value.shape[-1])):
        return "each row is an arithmetic ramp: positions times one number a row, as a bias of attention scores"
    if _is_distance(value):
        return "multiples of the distance of row and column: a bias of attention scores"
    if _is_grid(value) or _ANCHOR.fullmatch(name):
        return "the points of a grid: anchors" if _is_grid(value) else "its name: anchors"
    return ""


def _of_vector(name: str, flat: Array) -> str:
    steps = np.diff(flat)
    largest = float(np.abs(flat).max())
    if flat.size >= 4 and steps[0] and float(np.abs(steps - steps[0]).max()) <= 1e-5 * max(largest, abs(steps[0])):
        return f"an arithmetic ramp, {flat[0]:g}, {flat[1]:g}, ... {flat[-1]:g}"
    if _is_slopes(flat, _CLOSE):
        return _slopes(flat)
    if flat.size >= 16 and _is_window(flat):
        return "a window of a spectrum (Hann or Hamming)"
    levels = np.unique(flat)
    if flat.size >= 16 and levels.size < 8 and levels.min() > 1 and (np.log2(levels) % 1 == 0).all():
        return "powers of two in runs: strides of a detector"
    return "its name: anchors" if _ANCHOR.fullmatch(name) else ""


def _slopes(flat: Array) -> str:
    shown = flat if flat.size < 4 else (flat[0], flat[1], "...", flat[-1])
    return f"the slopes of heads by ALiBi, {', '.join(n if isinstance(n, str) else f'{n:g}' for n in shown)}"


def _is_slopes(flat: Array, tolerance: float) -> bool:
    """Powers of two with the exponents of ALiBi: 8 (1, 2, ... n) / n below 0, then every other one of twice as many.

    Two or three numbers are told by all of their bits (`tolerance` 0): 24 of each, which no training meets by chance.
    """
    if flat.size < 2 or float(np.abs(flat).min()) == 0:
        return False
    power = 1 << (flat.size.bit_length() - 1)
    exponents = np.arange(1, power + 1) * 8 / power, np.arange(1, 2 * power + 1, 2) * 4 / power
    slopes = np.exp2(-np.concatenate(exponents)[: flat.size])
    sign = np.sign(flat[0])
    return bool((np.abs(sign * flat - slopes) <= tolerance * slopes).all())


def _are_ramps(rows: Array) -> bool:
    """Rows of one step each, which differ from row to row; so long that numbers of few bits are none by chance."""
    if len(rows) < 2 or rows.shape[1] < _RAMP or not _are_steady(rows[:1]).all():
        return False
    steps = rows[:, 1] - rows[:, 0]
    return bool(steps.all() and np.ptp(steps) and _are_steady(rows).all())


def _are_steady(rows: Array) -> Array:
    """Of each row, whether its numbers have one distance."""
    return np.asarray(np.ptp(np.diff(rows, axis=1), axis=1) <= 1e-5 * np.abs(rows).max(axis=1))


def _is_distance(value: Array) -> bool:
    """Matrices whose numbers are the distances of row and column, times one number each: a bias by distance."""
    if value.ndim < 2 or min(value.shape[-2:]) < 3:
        return False
    tables = value.reshape(-1, *value.shape[-2:])
    scale = float(np.abs(tables).max())
    if not scale or (tables[:, 1:, 1:] != tables[:, :-1, :-1]).any():
        return False
    for steps in (np.diff(tables[:, 0], axis=1), np.diff(tables[:, :, 0], axis=1)):
        if float(np.ptp(steps, axis=1).max()) > 1e-5 * scale:
            return False
    return bool(np.ptp(tables.reshape(len(tables), -1), axis=1).all())


def _is_window(flat: Array) -> bool:
    n = np.arange(flat.size)
    for length in (flat.size, flat.size - 1):
        wave = np.cos(2 * math.pi * n / length)
        for part in (0.5, 0.54):
            if float(np.abs(flat - (part - (1 - part) * wave)).max()) <= _CLOSE:
                return True
    return False


def is_one_hot(matrix: Array) -> bool:
    """Whether each row is one 1 among zeros: an identity, a permutation, a table of one-hot codes."""
    if min(matrix.shape) < 2:
        return False
    return bool(((matrix == 0) | (matrix == 1)).all() and ((matrix == 1).sum(axis=1) == 1).all())


def _is_fourier(rows: Array) -> bool:
    """Pairs of rows of which the squares add up to those of one window; the rows themselves differ."""
    count = len(rows) // 2
    if len(rows) % 2 or count < 2 or rows.shape[1] < 8:
        return False
    for real, imaginary in ((rows[:count], rows[count:]), (rows[::2], rows[1::2])):
        if _share_a_window(real, imaginary):
            return True
    return False


def _share_a_window(real: Array, imaginary: Array) -> bool:
    """Whether the squares of both add up to equal rows. The first few tell of most weights that they do not."""
    few = _power(real[:_FEW], imaginary[:_FEW])
    if float(np.abs(few - few[:1]).max()) > 1.1e-3 * float(few[0].max()):
        return False  # if all rows are close to the first, its largest number is close to that of all
    power = _power(real, imaginary)
    largest = float(power.max())
    same = float(np.abs(power - power[:1]).max()) <= 1e-3 * largest
    return same and largest > 0 and float(np.abs(real - real[:1]).max()) > 1e-3 * math.sqrt(largest)


def _power(real: Array, imaginary: Array) -> Array:
    return np.asarray(np.square(real, dtype=np.float64) + np.square(imaginary, dtype=np.float64))


def _is_cosine(rows: Array) -> bool:
    """Each row is a multiple of cos(π k (n + ½) / N): the transform of the second kind, its first rows or all."""
    count, length = rows.shape
    if length < 4 or count > length or float(np.ptp(rows[0])) > 2 * _CLOSE * float(np.abs(rows).max()):
        return False  # the first cosine is 1 everywhere
    basis = np.cos(math.pi / length * (np.arange(length) + 0.5) * np.arange(count)[:, None])
    scales = (rows * basis).sum(axis=1) / np.square(basis).sum(axis=1)
    close = float(np.abs(rows - scales[:, None] * basis).max()) <= _CLOSE * float(np.abs(rows).max())
    return close and bool((np.abs(scales) > 0).all())


def _is_filter_bank(rows: Array) -> bool:
    """Rows of numbers of at least 0, each a band that rises and falls, with peaks in order."""
    if rows.min() < 0 or (rows == 0).mean() < 0.5 or rows.shape[1] < 8:
        return False
    peaks = []
    for row in rows:
        (inside,) = np.nonzero(row)
        if not inside.size:
            continue  # a band that is narrower than the resolution
        band = row[inside[0] : inside[-1] + 1]
        peak = int(band.argmax())
        if inside.size != band.size or (np.diff(band[: peak + 1]) < 0).any() or (np.diff(band[peak:]) > 0).any():
            return False
        peaks.append(inside[0] + peak)
    return len(peaks) > 2 and peaks == sorted(peaks) and peaks[-1] > peaks[0]


def _is_grid(value: Array) -> bool:
    """Points of two to four coordinates, each of which takes equally spaced numbers, all of them equally often.

    One of three or four may be 1 everywhere, as in the grid that a spatial transformer multiplies.
    """
    shape = [n for n in value.shape if n > 1]
    if len(shape) != 2 or min(shape) not in (2, 3, 4) or max(shape) < 9:
        return False
    points = value.reshape(shape)
    points = points if shape[0] < shape[1] else points.T
    ones = [bool((coordinate == 1).all()) for coordinate in points]
    if any(ones) and (sum(ones) > 1 or len(points) < 3):
        return False
    for coordinate in points[np.logical_not(ones)]:
        levels, counts = np.unique(coordinate, return_counts=True)
        steps = np.diff(levels)
        if not 2 < levels.size <= coordinate.size / 2 or float(np.ptp(steps)) > 1e-5 * float(np.abs(levels).max()):
            return False
        if np.ptp(counts):  # of weights in few bits, too, the numbers are equally spaced
            return False
    return True


def _beside_another(name: str, value: Array, others: Mapping[str, Array]) -> str:
    """A table of cosines whose sines are a table of their own."""
    if value.ndim < 2 or value.shape[0] < 3 or value.size // value.shape[0] < 8:
        return ""
    rows = value.reshape(value.shape[0], -1)
    for other, table in others.items():
        if other != name and table.shape == value.shape:
            partner = table.reshape(rows.shape)
            if _share_a_window(rows, partner) or _share_a_window(rows.T, partner.T):
                return f"its squares and those of {other!r} add up to one window: a Fourier basis"
    return ""


def _on_a_spectrum(graph: Graph, candidates: Mapping[str, Array], fixed: Mapping[str, str]) -> dict[str, str]:
    """Matrices of numbers of at least 0 that a spectrum alone is multiplied by, which a fixed transform has made."""
    if not fixed:
        return {}
    made_by, result = makers(graph), {}
    for op in graph.operators:
        if op.kind != "MatMul":
            continue
        for k in (0, 1):
            weight = op.inputs[k]
            value = candidates.get(weight)
            if value is None or weight in fixed or value.min() < 0:
                continue
            basis = _fixed_source(graph, made_by, op.inputs[1 - k], fixed)
            if basis:
                result[weight] = f"numbers of at least 0 that the spectrum of {basis!r} is multiplied by: a filter bank"
    return result


def _fixed_source(graph: Graph, made_by: Mapping[str, Operator], tensor: str, fixed: Mapping[str, str]) -> str:
    """The fixed tensor that `tensor` is made with; "" where there is none, or a trained one too."""
    basis, seen, queue = "", {tensor}, [tensor]
    while queue:
        name = queue.pop()
        if name in fixed:
            basis = basis or name
        elif graph.tensors[name].role is Role.PARAMETER:
            return ""
        op = made_by.get(name)
        new = [] if op is None else [t for t in op.inputs if t not in seen]
        queue += new
        seen.update(new)
    return basis


# --- in the position of a summand or factor ---------------------------------------------------------------------------


def is_mask(value: Array) -> bool:
    """Zeros and ones, or numbers as low as a mask of attention scores has them."""
    if value.size and float(value.min()) <= _MASK_VALUE:
        return True
    return value.ndim >= 2 and min(value.shape[-2:]) > 1 and bool(((value == 0) | (value == 1)).all())


def is_wave(name: str, value: Array, values: Mapping[str, object]) -> bool:
    """Encodings of positions: sine next to cosine in one table, or one of a pair of tables (rotary embeddings)."""

    def on_circle(a: Any, b: Any) -> bool:
        return bool(np.abs(np.square(a) + np.square(b) - 1).max() < 1e-3)

    if value.ndim < 2 or value.size < 8 or np.abs(value).max() > 1.001:
        return False
    half = value.shape[-1] // 2
    if half and on_circle(value[..., : 2 * half : 2], value[..., 1 : 2 * half : 2]):
        return True  # of an odd width, the last sine has no cosine
    if value.shape[-1] % 2 == 0 and on_circle(value[..., :half], value[..., half:]):
        return True
    others = (v for n, v in values.items() if n != name and isinstance(v, np.ndarray))
    return any(v.shape == value.shape and v.dtype == value.dtype and on_circle(value, v) for v in others)
