"""Layers: convolution, pooling, dense products, dropout. One spatial axis is treated as two with H = 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Attribute, DType, Fill

Pair = tuple[int, int]


def _spatial_rank(x: Value) -> int:
    rank = len(x.shape) - 2
    if rank not in (1, 2):
        raise Unsupported(f"{rank} spatial axes (1 and 2 are supported)")
    return rank


def _pair(values: Sequence[int] | None, rank: int, default: int, what: str) -> Pair:
    """(h, w) of an attribute with one number an axis."""
    values = (default,) * rank if values is None else tuple(values)
    if len(values) != rank or any(v < 0 for v in values):
        raise Malformed(f"{what} {list(values)} do not fit {rank} spatial axes")
    return (values[0], values[1]) if rank == 2 else (1 if what != "output_padding" else 0, values[0])


def _image(c: Importer, x: Value) -> tuple[str, tuple[int, ...]]:
    """x as [N, C, H, W], and that shape."""
    shape = x.shape if _spatial_rank(x) == 2 else (*x.shape[:2], 1, x.shape[2])
    return c.reshape(x, shape), shape


def _filters(c: Importer, w: Value, rank: int) -> str:
    if len(w.shape) != rank + 2:
        raise Malformed(f"the weight has shape {list(w.shape)}")
    return c.reshape(w, w.shape if rank == 2 else (*w.shape[:2], 1, w.shape[2]))


def _back(c: Importer, y: str, rank: int) -> str:
    shape = c.shape(y)
    return y if rank == 2 else c.reshape(y, (*shape[:2], shape[3]))


def _geometry(n: Node, size: Sequence[int], kernel: Pair, rank: int) -> dict[str, Attribute]:
    """strides, dilations and pads (top, left, bottom, right), auto_pad resolved."""
    strides = _pair(n.get_ints("strides"), rank, 1, "strides")
    dilations = _pair(n.get_ints("dilations"), rank, 1, "dilations")
    if 0 in strides or 0 in dilations:
        raise Malformed("a stride or dilation is 0")
    auto = n.get_str("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = n.get_ints("pads") or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise Malformed(f"pads {list(pads)} do not fit {rank} spatial axes")
        if min(pads) < 0:
            raise Unsupported(f"negative pads {list(pads)}")
        pads = tuple(pads) if rank == 2 else (0, pads[0], 0, pads[1])
    elif auto == "VALID":
        pads = (0, 0, 0, 0)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for length, k, s, d in zip(size, kernel, strides, dilations, strict=True):
            total = max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        pads = (*before, *after)
    else:
        raise Malformed(f"auto_pad {auto!r} is unknown")
    return {"strides": strides, "dilations": dilations, "pads": pads}


@onnx_operator("Conv")
def conv(c: Importer, n: Node) -> str:
    x, w, bias = c.input(n, 0), c.input(n, 1), c.optional(n, 2)
    if len(x.shape) == 5:
        return _conv_volume(c, n, x, w, bias)
    rank = _spatial_rank(x)
    image, shape = _image(c, x)
    weight = _filters(c, w, rank)
    kernel = (c.shape(weight)[2], c.shape(weight)[3])
    stated = n.get_ints("kernel_shape")
    if stated is not None and tuple(stated) != tuple(w.shape[2:]):
        raise Malformed(f"kernel_shape {list(stated)} is not that of the weight, {list(w.shape)}")
    attributes = {**_geometry(n, shape[2:], kernel, rank), "group": n.get_int("group", 1)}
    return _back(c, c.emit1("Conv", [image, weight, *([bias] if bias else [])], attributes), rank)


def _conv_volume(c: Importer, n: Node, x: Value, w: Value, bias: Value | None) -> str:
    """Over [N, C, D, H, W]: over planes whose channels are those of all the planes that one result reads."""
    if len(w.shape) != 5 or tuple(n.get_ints("kernel_shape") or w.shape[2:]) != w.shape[2:]:
        raise Malformed(f"the weight has shape {list(w.shape)}")
    group, (batch, channels, depth, *plane) = n.get_int("group", 1), x.shape
    outputs, inputs, taps, *kernel = w.shape
    if group < 1 or channels != inputs * group:
        raise Malformed(f"{group} groups of {inputs} channels do not fit shape {list(x.shape)}")
    along: Any = _geometry(Node(_over_axes(n, (0,))), (1, depth), (1, taps), 1)
    (_, stride), (_, dilation), pads = along["strides"], along["dilations"], along["pads"]
    before, after = pads[1], pads[3]
    length = (depth + before + after - (taps - 1) * dilation - 1) // stride + 1
    if length < 1:
        raise Malformed(f"{taps} taps do not fit a depth of {depth}")
    planes = c.transpose(x, (0, 2, 1, 3, 4))
    if before or after:
        padding: dict[str, Attribute] = {
            "pads": (0, before, 0, 0, 0, 0, after, 0, 0, 0),
            "mode": "constant",
            "value": 0.0,
        }
        planes = c.emit1("Pad", [planes], padding)
    # A tap's channels lie behind those of the tap before, within each group.
    read = [c.axis_slice(planes, 1, k * dilation, length, stride) for k in range(taps)]
    flat = [c.reshape(r, (batch * length, group, 1, inputs * math.prod(plane))) for r in read]
    joined = c.emit1("Concat", flat, {"axis": 2}) if taps > 1 else flat[0]
    image = c.reshape(joined, (batch * length, channels * taps, *plane))
    weight = c.reshape(c.transpose(w, (0, 2, 1, 3, 4)), (outputs, inputs * taps, *kernel))
    geometry = _geometry(Node(_over_axes(n, (1, 2))), plane, (kernel[0], kernel[1]), 2)
    y = c.emit1("Conv", [image, weight, *([bias] if bias else [])], {**geometry, "group": group})
    y = c.reshape(y, (batch, length, *c.shape(y)[1:]))
    return c.transpose(y, (0, 2, 1, 3, 4))


def _over_axes(n: Node, axes: Sequence[int]) -> onnx.NodeProto:
    """A node of three spatial axes as one of some of them."""
    part = helper.make_node(n.op, list(n.inputs), ["y"])
    for a in n.proto.attribute:
        values = list(a.ints)
        if a.name in ("kernel_shape", "strides", "dilations", "output_padding", "output_shape") and len(values) == 3:
            values = [values[k] for k in axes]
        elif a.name == "pads" and len(values) == 6:
            values = [values[k + 3 * side] for side in (0, 1) for k in axes]
        elif a.ints:
            raise Malformed(f"{a.name} {values} do not fit 3 spatial axes")
        part.attribute.append(helper.make_attribute(a.name, values) if a.ints else a)
    return part


@onnx_operator("ConvTranspose")
def conv_transpose(c: Importer, n: Node) -> str:
    x, w, bias = c.input(n, 0), c.input(n, 1), c.optional(n, 2)
    if len(x.shape) == 5:
        return _volume_from_planes(c, n, x, w, bias)
    rank = _spatial_rank(x)
    image, shape = _image(c, x)
    weight = _filters(c, w, rank)
    attributes = _transposed_geometry(n, shape, (c.shape(weight)[2], c.shape(weight)[3]), rank)
    return _back(c, c.emit1("ConvTranspose", [image, weight, *([bias] if bias else [])], attributes), rank)


def _volume_from_planes(c: Importer, n: Node, x: Value, w: Value, bias: Value | None) -> str:
    """Over [N, C, D, H, W]: over planes, where each tap along the depth has channels of its own, then over the depth.

    The second has a fixed filter, the identity: tap k of a channel goes to place k.
    """
    batch, channels, depth, *plane = x.shape
    if len(w.shape) != 5 or w.shape[0] != channels or tuple(n.get_ints("kernel_shape") or w.shape[2:]) != w.shape[2:]:
        raise Malformed(f"the weight has shape {list(w.shape)}")
    group, (_, each, taps, *kernel) = n.get_int("group", 1), w.shape
    flat = _transposed_geometry(Node(_over_axes(n, (1, 2))), (1, 1, *plane), (kernel[0], kernel[1]), 2)
    planes = c.reshape(c.transpose(x, (0, 2, 1, 3, 4)), (batch * depth, channels, *plane))
    weight = c.reshape(w, (channels, each * taps, *kernel))
    y = c.emit1("ConvTranspose", [planes, weight], {**flat, "group": group})
    outputs, (rows, columns) = each * group, c.shape(y)[2:]
    along = _transposed_geometry(Node(_over_rows(_over_axes(n, (0,)))), (1, 1, depth, 1), (taps, 1), 2)
    y = c.transpose(c.reshape(y, (batch, depth, outputs * taps, rows * columns)), (0, 2, 1, 3))
    c.room(outputs, taps, taps)
    identity = c.constant(np.tile(np.eye(taps, dtype=np.float32), (outputs, 1)).reshape(outputs * taps, 1, taps, 1))
    added = [bias] if bias else []
    y = c.emit1("ConvTranspose", [y, identity, *added], {**along, "group": outputs})
    return c.reshape(y, (batch, outputs, c.shape(y)[2], rows, columns))


def _transposed_geometry(n: Node, shape: Sequence[int], kernel: Pair, rank: int) -> dict[str, Attribute]:
    """Attributes of ConvTranspose for an image of `shape` [N, C, H, W], the size of its output resolved."""
    extra = _pair(n.get_ints("output_padding"), rank, 0, "output_padding")
    wanted = n.get_ints("output_shape")
    auto = n.get_str("auto_pad", "NOTSET")
    strides = _pair(n.get_ints("strides"), rank, 1, "strides")
    dilations = _pair(n.get_ints("dilations"), rank, 1, "dilations")
    for added, *spaces in zip(extra, strides, dilations, strict=True):
        if added and added >= max(spaces):
            raise Malformed(f"output_padding {added} is not below the stride or the dilation ({max(spaces)})")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(d * s for d, s in zip(shape[2:], strides, strict=True))[2 - rank :]
    if wanted is not None:
        size = _pair(wanted[-rank:], rank, 1, "output_shape")
        before, after, extended = [], [], list(extra)
        for k in range(2):
            total = strides[k] * (shape[2 + k] - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 - size[k]
            extended[k] += max(-total, 0)  # Pixels that the convolution does not reach are padding too.
            total = max(total, 0)
            small, large = total // 2, total - total // 2
            before.append(large if auto == "SAME_LOWER" else small)
            after.append(small if auto == "SAME_LOWER" else large)
        extra = (extended[0], extended[1])
        geometry: dict[str, Attribute] = {"strides": strides, "dilations": dilations, "pads": (*before, *after)}
    else:
        geometry = _geometry(n, shape[2:], kernel, rank)
    return {**geometry, "group": n.get_int("group", 1), "output_padding": extra}


@onnx_operator("MaxPool", "AveragePool")
def pool(c: Importer, n: Node) -> Sequence[str]:
    x = c.input(n, 0)
    if len(x.shape) == 5:
        return [_pool_volume(c, n, x)]
    rank = _spatial_rank(x)
    image, shape = _image(c, x)
    if not n.has("kernel_shape"):
        raise Malformed("kernel_shape is missing")
    attributes = _pool_attributes(n, shape[2:], rank)
    if n.op == "AveragePool":
        return [_back(c, c.emit1(n.op, [image], attributes), rank)]
    y, where = c.emit(n.op, [image], attributes)
    if not n.has_output(1):
        return [_back(c, y, rank)]
    column_major = bool(n.get_int("storage_order", 0)) and rank == 2
    return [_back(c, y, rank), _back(c, _indices(c, where, shape, attributes, column_major=column_major), rank)]


def _pool_volume(c: Importer, n: Node, x: Value) -> str:
    """Over [N, C, D, H, W]: over planes, then over depth.

    The maximum over a box is one of maxima, and the mean one of means. The number of pixels that count is a product:
    each axis has its share.
    """
    if n.has_output(1):
        raise Unsupported("the places of maxima in three spatial axes")
    if len(n.get_ints("kernel_shape") or ()) != 3:
        raise Malformed("kernel_shape does not fit 3 spatial axes")
    batch, channels, depth, height, width = x.shape
    y = c.reshape(x, (batch * channels, depth, height, width))
    for axes in ((1, 2), (0,)):
        part = _over_axes(n, axes)
        if axes == (0,):
            y = c.reshape(y, (batch * channels, 1, depth, math.prod(c.shape(y)[2:])))
            part = _over_rows(part)
        planes = c.shape(y)
        pooled = c.emit(n.op, [y], _pool_attributes(Node(part), planes[2:], 2))[0]
        if axes == (1, 2):
            rows, columns = c.shape(pooled)[2:]
        y = pooled
    return c.reshape(y, (batch, channels, c.shape(y)[2], rows, columns))


def _over_rows(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node of one spatial axis as one of two, whose second window is a single column."""
    for a in node.attribute:
        if a.name == "pads":
            a.ints[:] = [a.ints[0], 0, a.ints[1], 0]
        elif a.name == "output_padding":
            a.ints.append(0)
        elif a.ints:
            a.ints.append(1)
    return node


def _pool_attributes(n: Node, size: Sequence[int], rank: int) -> dict[str, Attribute]:
    """kernel, strides, dilations, pads, ceil_mode, and for means whether pads count."""
    kernel = _pair(n.get_ints("kernel_shape"), rank, 1, "kernel_shape")
    attributes: dict[str, Attribute] = {
        **_geometry(n, size, kernel, rank),
        "kernel": kernel,
        # SAME rounds the output size up, which its pads already do.
        "ceil_mode": bool(n.get_int("ceil_mode", 0)) and n.get_str("auto_pad", "NOTSET") in ("NOTSET", "VALID", ""),
    }
    if n.op == "AveragePool":
        attributes["count_include_pad"] = bool(n.get_int("count_include_pad", 0))
    return attributes


def _indices(
    c: Importer, where: str, shape: Sequence[int], attributes: Mapping[str, Any], *, column_major: bool
) -> str:
    """Places of the maxima in the flattened image, from the taps: first pixel of the window, plus the tap's offset."""
    (sh, sw), (dh, dw), (top, left, *_) = attributes["strides"], attributes["dilations"], attributes["pads"]
    kh, kw = attributes["kernel"]
    planes, (h, w), (oh, ow) = shape[0] * shape[1], shape[2:], c.shape(where)[2:]
    down, right = (1, h) if column_major else (w, 1)
    c.room(kh, kw)
    c.room(planes, oh, ow)
    taps = (np.arange(kh) * dh * down)[:, None] + np.arange(kw) * dw * right
    first = ((np.arange(oh) * sh - top) * down)[:, None] + (np.arange(ow) * sw - left) * right
    first = (np.arange(planes) * h * w).reshape(*shape[:2], 1, 1) + first
    tap = where if c.type(where).dtype is DType.I32 else c.emit1("Cast", [where], {"to": "i32"})
    offset = c.emit1("Gather", [c.constant(taps.reshape(-1)), tap], {"axis": 0})
    return c.emit1("Add", [offset, c.constant(first)])


@onnx_operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    if n.op == "GlobalAveragePool":
        axes = tuple(range(2, len(x.shape)))
        return c.emit1("ReduceMean", [x], {"axes": axes, "keepdims": True}) if axes else c.tensor(x)
    if len(x.shape) > 4:
        return c.emit1("ReduceMax", [x], {"axes": tuple(range(2, len(x.shape))), "keepdims": True})
    rank = _spatial_rank(x)
    image, shape = _image(c, x)
    attributes: dict[str, Attribute] = {
        "kernel": shape[2:], "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "ceil_mode": False
    }  # fmt: skip
    return _back(c, c.emit1("MaxPool", [image], attributes), rank)


@onnx_operator("Gemm")
def gemm(c: Importer, n: Node) -> str:
    a, b, bias = c.input(n, 0), c.input(n, 1), c.optional(n, 2)
    attributes: dict[str, Attribute] = {
        "trans_a": bool(n.get_int("transA", 0)),
        "trans_b": bool(n.get_int("transB", 0)),
        "alpha": n.get_float("alpha", 1.0),
    }
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Malformed(f"multiplies {list(a.shape)} and {list(b.shape)}, not two matrices")
    if len(a.shape) > 2 or len(b.shape) > 2:
        c.note(f"{n.label} multiplies {list(a.shape)} and {list(b.shape)}, which ONNX excludes: read as a batch")
    beta = n.get_float("beta", 1.0)
    if bias is None or beta == 0.0:
        return c.emit1("MatMul", [a, b], attributes)
    columns = b.shape[-2] if attributes["trans_b"] else b.shape[-1]
    scaled = c.affine(bias, beta)
    if bias.shape in ((columns,), (1, columns)) or (columns == 1 and bias.shape == ()):
        return c.emit1("MatMul", [a, b, c.reshape(scaled, [columns])], attributes)
    return c.emit1("Add", [c.emit1("MatMul", [a, b], attributes), scaled])


@onnx_operator("MatMul")
def matmul(c: Importer, n: Node) -> str:
    a, b = c.input(n, 0), c.input(n, 1)
    if not a.shape or not b.shape:
        raise Malformed("multiplies a scalar")
    left = c.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else c.tensor(a)
    right = c.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else c.tensor(b)
    y = c.emit1("MatMul", [left, right])
    shape = list(c.shape(y))
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-1 if len(b.shape) == 1 else -2]
    return c.reshape(y, shape)


@onnx_operator("Dropout")
def dropout(c: Importer, n: Node) -> Sequence[str | Value]:
    """Does nothing in inference, whatever `training_mode` says; a training step may drop here."""
    x, ratio_input = c.input(n, 0), c.optional(n, 1)
    ratio = n.get_float("ratio", 0.5) if ratio_input is None else float(c.array(ratio_input, "a ratio").reshape(-1)[0])
    if not 0 <= ratio < 1:
        raise Malformed(f"drops a share of {ratio:g}")
    if n.has_output(1):
        c.note(f"{n.label} gives its mask away: it never drops anything")
        return [x, Value(n.outputs[1], x.shape, np.dtype(np.bool_), Fill("ones"))]
    if ratio == 0 or x.known or not x.is_float:
        return [x]
    return [c.emit1("DropoutSite", [x], {"ratio": ratio})]


@onnx_operator("Hardmax")
def hardmax(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axis = normalize_axis(n.get_int("axis", -1), len(x.shape))
    if c.opset < 13:
        raise Unsupported("Hardmax of operator sets before 13")
    best = c.emit1("ArgMax", [x], {"axis": axis, "keepdims": False})
    c.room(x.shape[axis], x.shape[axis])
    hits = c.emit1("Gather", [c.constant(np.eye(x.shape[axis], dtype=np.float32)), best], {"axis": 0})
    order = list(range(len(x.shape) - 1))
    return c.transpose(hits, [*order[:axis], len(order), *order[axis:]])
