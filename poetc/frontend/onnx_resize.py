"""Resize and Upsample of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from poetc.frontend import _folding
from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis, onnx_operator
from poetc.graph import Attribute

_KERNEL = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
_LARGEST_AXIS = 4096


@onnx_operator("Resize", "Upsample")
def resize(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    legacy = n.op == "Upsample" or (c.opset < 11 and len(n.inputs) < 3)
    given = None
    scales: tuple[float, ...] = ()
    if legacy:
        value = c.optional(n, 1)
        scales = tuple(map(float, c.array(value, "the scales").reshape(-1))) if value else n.get_floats("scales") or ()
    else:
        scales_value, given = c.optional(n, 2), c.optional(n, 3)
        if scales_value is not None and scales_value.elements:
            scales = tuple(map(float, c.array(scales_value, "the scales").reshape(-1)))
    axes = [normalize_axis(a, rank) for a in n.get_ints("axes") or range(rank)]
    sizes, full_scales = list(x.shape), [1.0] * rank
    if given is not None and not scales:
        wanted = list(c.ints(given, "the sizes"))
        policy = n.get_str("keep_aspect_ratio_policy", "stretch")
        if policy not in ("stretch", "not_larger", "not_smaller"):
            raise Malformed(f"keep_aspect_ratio_policy {policy!r} is unknown")
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            common = choose(size / x.shape[a] for a, size in zip(axes, wanted, strict=True))
            wanted = [math.floor(common * x.shape[a] + 0.5) for a in axes]
        for a, size in zip(axes, wanted, strict=True):
            if c.rebatch is not None and a == 0 and size == c.rebatch.old:
                size = x.shape[0]
            sizes[a] = size
            full_scales[a] = size / x.shape[a] if policy == "stretch" else common
    else:
        for a, scale in zip(axes, scales, strict=True):
            full_scales[a], sizes[a] = scale, int(x.shape[a] * scale)
    if min(sizes) < 1:
        raise Malformed(f"resizes to {sizes}")
    mode = n.get_str("mode", "nearest")
    coordinates = "asymmetric" if legacy else n.get_str("coordinate_transformation_mode", "half_pixel")
    plain = mode in ("nearest", "linear") and not n.get_int("antialias", 0) and coordinates in _KERNEL
    if not plain or rank not in (3, 4) or tuple(sizes[:2]) != x.shape[:2]:
        return _by_matrices(c, n, x, axes, full_scales, sizes, coordinates)
    image = c.reshape(x, (*x.shape[:2], *((1,) if rank == 3 else ()), *x.shape[2:]))
    to = (1, sizes[2]) if rank == 3 else (sizes[2], sizes[3])
    by = (1.0, full_scales[2]) if rank == 3 else (full_scales[2], full_scales[3])
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "sizes": to,
        "scales": by,
        "coordinates": coordinates,
        "nearest": "floor" if legacy else n.get_str("nearest_mode", "round_prefer_floor"),
    }
    y = c.emit1("Resize", [image], attributes)
    return c.reshape(y, sizes)


def _by_matrices(
    c: Importer, n: Node, x: Value, axes: Sequence[int], scales: Sequence[float], sizes: Sequence[int], coordinates: str
) -> str:
    """What the kernel does not know (cubic, antialias, regions): a product with a constant matrix along each axis.

    Interpolation is linear in the image, and one axis after the other. A matrix is what onnx's own evaluator makes of
    one pixel at a time.
    """
    region = c.optional(n, 1) if coordinates == "tf_crop_and_resize" else None
    bounds = c.array(region, "the region").reshape(2, -1) if region is not None and region.elements else None
    if coordinates == "tf_crop_and_resize" and (bounds is None or bounds.shape[1] != len(axes)):
        raise Malformed("tf_crop_and_resize without a region")
    y = c.tensor(x)
    for position, a in enumerate(axes):
        cropped = bounds is not None and tuple(bounds[:, position]) != (0.0, 1.0)
        if sizes[a] == x.shape[a] and scales[a] == 1.0 and not cropped:
            continue
        along = bounds[:, position] if bounds is not None else None
        matrix = _matrix(n, c.opset, x.shape[a], scales[a], sizes[a], along)
        rank = len(x.shape)
        swapped = [k for k in range(rank) if k != a] + [a]
        back = [swapped.index(k) for k in range(rank)]
        y = c.transpose(c.emit1("MatMul", [c.transpose(y, swapped), c.constant(matrix)]), back)
    return y


def _matrix(n: Node, opset: int, before: int, scale: float, after: int, bounds: np.ndarray | None) -> np.ndarray:
    """[before, after]: row i is what becomes of an axis that is 1 at i and 0 elsewhere."""
    if max(before, after) > _LARGEST_AXIS:
        raise Unsupported(f"this mode for an axis of more than {_LARGEST_AXIS} elements")
    if n.get_float("extrapolation_value", 0.0):
        raise Unsupported("an extrapolation_value other than 0")
    kept = [a for a in n.proto.attribute if a.name not in ("axes", "keep_aspect_ratio_policy", "extrapolation_value")]
    node = onnx.helper.make_node("Resize", ["x", "region", "scales"], ["y"])
    node.attribute.extend(kept)
    region = np.array([0, 0, 1, 1], np.float32)
    if bounds is not None:
        region[1], region[3] = bounds
    unit = np.eye(before, dtype=np.float32)
    try:
        (made,) = _folding.fold(node, [unit, region, np.array([1.0, scale], np.float32)], max(opset, 19))
    except _folding.FoldingError as error:
        raise Malformed(f"cannot be evaluated: {error}") from None
    if made.shape != (before, after):
        raise Unsupported(f"a scale that makes {made.shape[1]} of {before}, not {after}")
    return made.astype(np.float32)
