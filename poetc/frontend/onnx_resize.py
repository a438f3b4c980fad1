"""Resize and Upsample of images."""

from __future__ import annotations

from poetc.frontend._importer import Importer
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis, onnx_operator
from poetc.graph import Attribute


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
        if n.get_str("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unsupported("keep_aspect_ratio_policy")
        for a, size in zip(axes, c.ints(given, "the sizes"), strict=True):
            if c.rebatch is not None and a == 0 and size == c.rebatch.old:
                size = x.shape[0]
            sizes[a] = size
            full_scales[a] = size / x.shape[a]
    else:
        for a, scale in zip(axes, scales, strict=True):
            full_scales[a], sizes[a] = scale, int(x.shape[a] * scale)
    if rank not in (3, 4) or tuple(sizes[:2]) != x.shape[:2]:
        raise Unsupported(f"from {list(x.shape)} to {sizes}: only the spatial axes of an image can be resized")
    if min(sizes) < 1:
        raise Malformed(f"resizes to {sizes}")
    image = c.reshape(x, (*x.shape[:2], *((1,) if rank == 3 else ()), *x.shape[2:]))
    to = (1, sizes[2]) if rank == 3 else (sizes[2], sizes[3])
    by = (1.0, full_scales[2]) if rank == 3 else (full_scales[2], full_scales[3])
    mode = n.get_str("mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise Unsupported(f"mode {mode!r} (nearest and linear are supported)")
    if n.get_int("antialias", 0):
        raise Unsupported("antialias")
    coordinates = "asymmetric" if legacy else n.get_str("coordinate_transformation_mode", "half_pixel")
    if coordinates not in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"):
        raise Unsupported(f"coordinate_transformation_mode {coordinates!r}")
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "sizes": to,
        "scales": by,
        "coordinates": coordinates,
        "nearest": "floor" if legacy else n.get_str("nearest_mode", "round_prefer_floor"),
    }
    y = c.emit1("Resize", [image], attributes)
    return c.reshape(y, sizes)
