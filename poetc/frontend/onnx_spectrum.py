"""DFT and STFT as products with constant bases: linear in the signal, so gradients are products too."""

from __future__ import annotations

import math

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array, Attribute


def _basis(length: int, bins: int, *, inverse: bool = False) -> tuple[Array, Array]:
    """Cosine and sine [length, bins] of the angles 2π t k / length, for the factor cos ∓ i sin of step t in bin k."""
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(bins)) % length) / length
    scale = 1 / length if inverse else 1
    return np.cos(angle) * scale, np.sin(angle) * scale * (1 if inverse else -1)


@onnx_operator("DFT")
def discrete_fourier(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    if rank < 2 or x.shape[-1] not in (1, 2) or not x.is_float:
        raise Malformed(f"a signal of shape {list(x.shape)}: its last axis has the real and the imaginary part")
    if c.opset >= 20:
        stated = c.ints(c.input(n, 2), "the axis") if n.has_input(2) else (-2,)
    else:
        stated = (n.get_int("axis", 1),)
    axis = normalize_axis(stated[0], rank)
    if axis == rank - 1:
        raise Malformed("transforms the axis of the real and the imaginary part")
    inverse, onesided = bool(n.get_int("inverse", 0)), bool(n.get_int("onesided", 0))
    length = c.ints(c.input(n, 1), "the length")[0] if n.has_input(1) else x.shape[axis]
    if length < 1:
        raise Malformed(f"transforms {length} steps")
    bins, parts = (length // 2 + 1 if onesided else length), x.shape[-1]
    if onesided and inverse:
        length = length if n.has_input(1) else 2 * (x.shape[axis] - 1)
        return _along(c, x, axis, _real_inverse(c, length), 1)
    if onesided and parts == 2:
        raise Unsupported("onesided of a complex signal")
    c.room(length, parts, bins, 2)
    cos, sin = _basis(length, bins, inverse=inverse)
    matrix = np.stack([cos, sin], 2)[:, None]  # step, part, bin, part of the result
    if parts == 2:
        matrix = np.concatenate([matrix, np.stack([-sin, cos], 2)[:, None]], 1)
    return _along(c, x, axis, matrix.reshape(length, parts, bins * 2), 2)


def _real_inverse(c: Importer, length: int) -> Array:
    """[bins, 2, length]: a real signal from the half of its spectrum that is not the other's mirror image."""
    if length < 1:
        raise Malformed(f"a signal of {length} steps")
    bins = length // 2 + 1
    c.room(bins, 2, length)
    cos, sin = _basis(length, bins, inverse=True)
    twice = np.full(bins, 2.0)
    twice[0] = 1
    if length % 2 == 0:
        twice[-1] = 1
    return np.asarray(np.stack([cos.T, -sin.T], 1) * twice[:, None, None])


def _along(c: Importer, x: Value, axis: int, matrix: Array, parts: int) -> str:
    """The product along an axis with a matrix [steps, parts of x, new steps · `parts`]; behind the signal are zeros."""
    rank, taken = len(x.shape), min(len(matrix), x.shape[axis])
    order = [k for k in range(rank - 1) if k != axis] + [axis, rank - 1]
    turned = c.transpose(c.axis_slice(x, axis, 0, taken), order)
    outer = c.shape(turned)[:-2]
    held = matrix[:taken].reshape(taken * matrix.shape[1], -1).astype(np.float32)
    rows = c.reshape(turned, (math.prod(outer), len(held)))
    y = c.reshape(c.emit1("MatMul", [rows, c.constant(held)]), (*outer, held.shape[1] // parts, parts))
    return c.transpose(y, [order.index(k) for k in range(rank)])


@onnx_operator("STFT")
def short_time_fourier(c: Importer, n: Node) -> str:
    """A convolution along the signal, with two filters a bin."""
    x, window = c.input(n, 0), c.optional(n, 2)
    signal = c.reshape(x, (*x.shape, 1)) if len(x.shape) == 2 else c.tensor(x)
    shape = c.shape(signal)
    if len(shape) != 3 or shape[2] not in (1, 2) or not x.is_float:
        raise Malformed(f"a signal of shape {list(x.shape)}")
    batch, steps, parts = shape
    (stride,) = c.ints(c.input(n, 1), "the step")
    stated = c.ints(c.input(n, 3), "the length of a frame") if n.has_input(3) else ()
    length = stated[0] if stated else window.elements if window is not None else 0
    if stride < 1 or not 1 <= length <= steps or (window is not None and window.shape != (length,)):
        raise Malformed(f"frames of {length} at steps of {stride} in {steps}, or a window of another length")
    onesided = bool(n.get_int("onesided", 1)) and parts == 1
    bins = length // 2 + 1 if onesided else length
    c.room(length, parts, bins, 2)
    cos, sin = _basis(length, bins)
    filters = np.stack([cos, sin], 2)[:, None]  # as in the transform of one frame
    if parts == 2:
        filters = np.concatenate([filters, np.stack([-sin, cos], 2)[:, None]], 1)
    filters = filters.transpose(2, 3, 1, 0).reshape(bins * 2, parts, 1, length)
    weight = _windowed(c, filters, window)
    image = c.reshape(c.transpose(signal, (0, 2, 1)), (batch, parts, 1, steps))
    geometry: dict[str, Attribute] = {"strides": (1, stride), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    y = c.emit1("Conv", [image, weight], geometry)
    frames = c.shape(y)[3]
    return c.reshape(c.transpose(c.reshape(y, (batch, bins * 2, frames)), (0, 2, 1)), (batch, frames, bins, 2))


def _windowed(c: Importer, filters: Array, window: Value | None) -> Value | str:
    """The filters times the window: a constant, unless the file declares the window to be trained."""
    if window is None:
        return c.constant(filters.astype(np.float32))
    if window.known and not c.is_declared(window):
        return c.constant((filters * c.array(window, "the window").astype(np.float64)).astype(np.float32))
    return c.emit1("Mul", [c.constant(filters.astype(np.float32)), window])
