"""Resize and Upsample of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array, Attribute
from poetc.ops.resize import COORDINATES, NEAREST, coordinates, nearest_pixel

_LARGEST_AXIS = 4096


@onnx_operator("Resize", "Upsample")
def resize(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    legacy = n.op == "Upsample" or (c.opset < 11 and len(n.inputs) < 3)
    sizes, scales, axes = _lengths(c, n, x, legacy)
    mode = n.get_str("mode", "nearest")
    convention = "asymmetric" if legacy else n.get_str("coordinate_transformation_mode", "half_pixel")
    rounding = "simple" if legacy else n.get_str("nearest_mode", NEAREST[0])
    if mode == "bilinear" and legacy:
        mode = "linear"
    for what, name, known in (
        ("mode", mode, ("nearest", "linear", "cubic")),
        ("coordinate_transformation_mode", convention, (*COORDINATES, "tf_crop_and_resize")),
        ("nearest_mode", rounding, NEAREST),
    ):
        if name not in known:
            raise Malformed(f"{what} {name!r} is unknown")
    smooth = mode != "nearest" and bool(n.get_int("antialias", 0))
    plain = mode in ("nearest", "linear") and not smooth and convention in COORDINATES
    if not plain or rank not in (3, 4) or tuple(sizes[:2]) != x.shape[:2]:
        return _by_matrices(c, n, x, axes, scales, sizes, (mode, convention, rounding))
    image = c.reshape(x, (*x.shape[:2], *((1,) if rank == 3 else ()), *x.shape[2:]))
    to = (1, sizes[2]) if rank == 3 else (sizes[2], sizes[3])
    by = (1.0, scales[2]) if rank == 3 else (scales[2], scales[3])
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "sizes": to,
        "scales": by,
        "coordinates": convention,
        "nearest": rounding,
    }
    y = c.emit1("Resize", [image], attributes)
    return c.reshape(y, sizes)


def _lengths(c: Importer, n: Node, x: Value, legacy: bool) -> tuple[list[int], list[float], list[int]]:
    """Length and scale of every axis of the output, and the axes that may change.

    In single precision: so it is that 10 times .7 is 7.
    """
    rank = len(x.shape)
    sizes_input = None
    factors: Array = np.zeros(0, np.float32)
    if legacy:
        value = c.optional(n, 1)
        factors = c.array(value, "the scales") if value else np.array(n.get_floats("scales") or (), np.float32)
    else:
        scales_value, sizes_input = c.optional(n, 2), c.optional(n, 3)
        if scales_value is not None and scales_value.elements:
            factors = c.array(scales_value, "the scales")
    factors = factors.reshape(-1).astype(np.float32)
    axes = [normalize_axis(a, rank) for a in n.get_ints("axes") or range(rank)]
    sizes, scales = list(x.shape), [1.0] * rank
    if not min(x.shape, default=0):
        raise Unsupported(f"an input without elements, {list(x.shape)}")
    stated = len(factors) or (sizes_input.elements if sizes_input is not None else 0)
    if stated and stated != len(axes):
        raise Malformed(f"{stated} scales or sizes for {len(axes)} axes")
    if factors.size:
        if not (np.isfinite(factors).all() and factors.min() > 0):
            raise Malformed(f"scales {[float(f) for f in factors]} are not all positive numbers")
        for a, factor in zip(axes, factors, strict=True):
            scales[a], sizes[a] = float(factor), int(np.float32(x.shape[a]) * factor)
    elif sizes_input is not None:
        wanted = list(c.ints(sizes_input, "the sizes"))
        for k, a in enumerate(axes[: len(wanted)]):
            if c.rebatch is not None and a == 0 and wanted[k] == c.rebatch.old:
                wanted[k] = x.shape[0]
        shares = [np.float32(size) / np.float32(x.shape[a]) for a, size in zip(axes, wanted, strict=True)]
        policy = n.get_str("keep_aspect_ratio_policy", "stretch")
        if policy not in ("stretch", "not_larger", "not_smaller"):
            raise Malformed(f"keep_aspect_ratio_policy {policy!r} is unknown")
        if policy != "stretch":
            shares = [min(shares) if policy == "not_larger" else max(shares)] * len(axes)
            wanted = [
                math.floor(np.float32(x.shape[a]) * s + np.float32(0.5)) for a, s in zip(axes, shares, strict=True)
            ]
        for a, size, share in zip(axes, wanted, shares, strict=True):
            sizes[a], scales[a] = size, float(share)
    else:
        raise Malformed("has neither scales nor sizes")
    if min(sizes) < 1:
        raise Malformed(f"resizes to {sizes}")
    return sizes, scales, axes


def _by_matrices(
    c: Importer,
    n: Node,
    x: Value,
    axes: Sequence[int],
    scales: Sequence[float],
    sizes: Sequence[int],
    names: tuple[str, str, str],
) -> str:
    """Resizing that the kernel does not know, as a product with a constant matrix along each axis.

    Such are cubic, antialias, regions and other axes.

    Interpolation is linear in the image, and one axis after the other.
    """
    rank, (_, convention, _) = len(x.shape), names
    regions = [(0.0, 1.0)] * rank
    if convention == "tf_crop_and_resize":
        region = c.optional(n, 1)
        bounds = c.array(region, "the region").reshape(-1) if region is not None else np.zeros(0)
        if bounds.size != 2 * len(axes):
            raise Malformed("tf_crop_and_resize without a region")
        for k, a in enumerate(axes):
            regions[a] = (float(bounds[k]), float(bounds[k + len(axes)]))
    beyond = n.get_float("extrapolation_value", 0.0) if convention == "tf_crop_and_resize" else 0.0
    y = c.tensor(x)
    for a in axes:
        if sizes[a] == x.shape[a] and scales[a] == 1.0 and regions[a] == (0.0, 1.0):
            continue
        if max(sizes[a], x.shape[a]) > _LARGEST_AXIS:
            raise Unsupported(f"this mode for an axis of more than {_LARGEST_AXIS} elements")
        matrix = _matrix(n, names, x.shape[a], sizes[a], scales[a], regions[a])
        swapped = [k for k in range(rank) if k != a] + [a]
        y = c.emit1("MatMul", [c.transpose(y, swapped), c.constant(matrix)])
        outside = ~matrix.any(axis=0)
        if beyond and outside.any():
            y = c.emit1("Add", [y, c.constant(np.where(outside, np.float32(beyond), np.float32(0)))])
        y = c.transpose(y, [swapped.index(k) for k in range(rank)])
    return y


def _matrix(
    n: Node, names: tuple[str, str, str], length: int, size: int, scale: float, region: tuple[float, float]
) -> Array:
    """[length, size]: column i weighs the pixels that output i is made of. A column of zeros lies outside the image."""
    mode, convention, rounding = names
    at = coordinates(convention, size, length, scale, region).astype(np.float64)
    if mode == "nearest":
        at = nearest_pixel(at.astype(np.float32), rounding, scale).astype(np.float64)
    a, reach = n.get_float("cubic_coeff_a", -0.75), {"nearest": 1, "linear": 1, "cubic": 2}[mode]
    stretch = 1.0 / scale if scale < 1 and n.get_int("antialias", 0) and mode != "nearest" else 1.0
    border = math.ceil(reach * stretch) + 1
    near = np.clip(at, -border, length - 1 + border)
    pixels = np.arange(-2 * border, length + 2 * border)
    distance = np.abs(pixels[:, None] - near) / stretch
    weights = _cubic(distance, a) if mode == "cubic" else np.maximum(1 - distance, 0)
    if n.get_int("exclude_outside", 0) and mode != "nearest":
        weights[(pixels < 0) | (pixels >= length)] = 0
    totals = weights.sum(axis=0)
    weights /= np.where(totals == 0, 1, totals)
    matrix = np.zeros((length, size))
    np.add.at(matrix, np.clip(pixels, 0, length - 1), weights)
    if convention == "tf_crop_and_resize":
        exact = coordinates(convention, size, length, scale, region)
        matrix[:, (exact < 0) | (exact > length - 1)] = 0
    return matrix.astype(np.float32)


def _cubic(distance: Array, a: float) -> Array:
    """Keys' convolution kernel with slope a at distance 1."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
