"""Kernels that go over rows of elements: element-wise ones, norms, pooling, reductions, copies."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts
from poetc.kernels.operators.parameters import (
    Axis,
    Elements,
    Groups,
    MaxPool,
    Pieces,
    Planes,
    Pool,
    Reduction,
    Resize,
    Rows,
    Scatter,
    Slices,
    StridedCopy,
    Walk,
)


def _name(kernel: Kernel) -> str:
    return kernel.symbol.removeprefix("poetc_op_")


_CHOICES = ("relu", "leaky_relu", "clip")
_UNARY = "neg sign floor ceil round affine"
_FLOAT_BINARY = "add", "sub", "mul", "div", "maximum", "minimum", "pow", "p_relu"
_BINARY = "add sub mul div maximum minimum pow p_relu equal less less_or_equal greater greater_or_equal"


@counts(*_UNARY.split())
def elementwise(kernel: Kernel, m: Machine) -> Loops:
    """poetc_elementwise.h: chunks of 16, or vectors, and the rest. `ops` registers each kind that has a gradient."""
    name, count = _name(kernel), kernel.parameters_as(Elements).count
    if m.has_fours and name.removesuffix("_grad") in _CHOICES:
        return {f"{name}.call": 1, f"{name}.four": count // 4, f"{name}.single": count % 4}
    if m.lanes == 1:
        return {f"{name}.call": 1, f"{name}.single": count}
    return {f"{name}.call": 1, f"{name}.chunk": count // 16, f"{name}.single": count % 16}


@counts("sgd")
def sgd(kernel: Kernel, m: Machine) -> Loops:
    count, lanes = kernel.parameters_as(Elements).count, max(4, m.lanes)
    if kernel.floats[0] != 0.0:
        return {"sgd.call": 1, "sgd.decayed": count}
    return {"sgd.call": 1, "sgd.wide": count // lanes, "sgd.single": count % lanes}


@counts("sgd_slices")
def sgd_slices(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Slices)
    rows, lanes = p.outer * p.count, max(4, m.lanes)
    if kernel.floats[0] != 0.0:
        return {"sgd.call": rows, "sgd.decayed": rows * p.size}
    return {"sgd.call": rows, "sgd.wide": rows * (p.size // lanes), "sgd.single": rows * (p.size % lanes)}


@counts("batch_norm_apply", "batch_norm_grad_input", "batch_norm_grad_input_frozen")
def planes(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Planes)
    rows, pixels, lanes = p.batch * p.channels, p.pixels, 4 if m.has_fours and not name.endswith("frozen") else m.lanes
    loops = {f"{name}.call": 1, f"{name}.plane": rows, f"{name}.wide": rows * (pixels // lanes)}
    return loops | {f"{name}.single": rows * (pixels % lanes)}


def normalized(m: Machine, vectors: int, channels: int = 0) -> Loops:
    """A batch norm made again while pixels are read, so many vectors of them (of floats, without): as by itself."""
    fours = 4 if m.has_fours else 1
    return {"batch_norm_apply.wide": -(-vectors // fours), "batch_norm_apply.plane": channels}


@counts("batch_norm_stats", "batch_norm_grad_params")
def plane_sums(kernel: Kernel, m: Machine) -> Loops:
    """Loop counts of a sum over the pixels of each channel: four channels at once where there are vectors."""
    name, p = _name(kernel), kernel.parameters_as(Planes)
    batch, channels, pixels = p.batch, p.channels, p.pixels
    whole, rest = divmod(pixels, 256)
    together = channels // 4 * 4 if m.lanes > 1 else 0
    loops: Loops = {f"{name}.call": 1}
    for part, number in (("", channels - together), ("_together", together)):
        rows = batch * number
        counts = {
            "channel": number,
            "plane": rows,
            "block": rows * (whole + (rest > 0)),
            "four": rows * (whole * 64 + rest // 4),
            "single": rows * (rest % 4),
        }
        add(loops, {f"{name}.{loop}{part}": n for loop, n in counts.items()})
    return loops


def _rows_and_carries(walk: Walk) -> tuple[int, int]:
    """Rows, and carries over the other dimensions."""
    outer = walk.sizes[:-1]
    return prod(outer), sum(prod(outer[:d]) for d in range(1, len(outer)))


@counts(*_BINARY.split())
def binary(kernel: Kernel, m: Machine) -> Loops:
    name, walk = _name(kernel), kernel.parameters_as(Walk)
    rows, carries = _rows_and_carries(walk)
    is_dense = walk.strides[0][-1] == walk.strides[1][-1] == 1
    fours, rest = divmod(walk.inner, 4) if m.has_fours and name in _FLOAT_BINARY and is_dense else (0, walk.inner)
    loops = {f"{name}.call": 1, f"{name}.row": rows, "walk.carry": carries}
    return loops | {f"{name}.four": rows * fours, f"{name}.element": rows * rest}


@counts("copy1", "copy4")
def copy(kernel: Kernel, m: Machine) -> Loops:
    name, size = _name(kernel), 4 if kernel.symbol.endswith("4") else 1
    walk = kernel.parameters_as(StridedCopy).walk
    (rows, carries), inner, step = _rows_and_carries(walk), walk.inner, walk.inner_stride
    loops = {f"{name}.call": 1, f"{name}.row": rows, "walk.carry": carries}
    sizes, (strides,) = walk.sizes, walk.strides
    turned = next((n for n, along in zip(sizes[-2::-1], strides[-2::-1], strict=True) if along == 1), 0)
    if size == 4 and m.lanes > 1 and step > 1 and inner >= 4 and turned >= 4:  # squares of rows that are columns of x
        squares = rows // turned * (turned // 4) * (inner // 4)
        left = rows * inner - 16 * squares
        return {f"{name}.call": 1, f"{name}.square": squares, f"{name}.strided": left}
    if step == 1:
        return loops | {
            "memcpy.call": rows,
            "memcpy.block": rows * (inner * size // 16),
            "memcpy.rest": rows * (inner * size % 16),
        }
    return loops | {f"{name}.strided": rows * inner}


@counts("concat", "split")
def pieces(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Pieces)
    outer, number, sizes = p.times, len(p.sizes_bytes), p.sizes_bytes
    return {
        f"{name}.call": 1,
        f"{name}.piece": outer * number,
        "memcpy.call": outer * number,
        "memcpy.block": outer * sum(size // 16 for size in sizes),
        "memcpy.rest": outer * sum(size % 16 for size in sizes),
    }


def _inside(outputs: int, stride: int, pad: int, kernel: int, dilation: int, size: int) -> Any:
    """Taps on the image of each window along an axis."""
    at = np.arange(outputs)[:, None] * stride - pad + np.arange(kernel) * dilation
    return ((at >= 0) & (at < size)).sum(axis=1)


@counts("max_pool", "max_pool_grad", "average_pool", "average_pool_grad")
def pool(kernel: Kernel, m: Machine) -> Loops:
    name = _name(kernel)
    p = kernel.parameters_as(Pool)
    i = p.windows
    number, h, w, oh, ow, kh, kw, sh, sw = (
        *(i.planes, i.height, i.width, i.output_height, i.output_width),
        *(i.kernel_h, i.kernel_w, i.stride_h, i.stride_w),
    )
    top, left, dh, dw = i.pad_top, i.pad_left, i.dilation_h, i.dilation_w
    loops: Loops = {f"{name}.call": 1, f"{name}.plane": number, f"{name}.row": number * oh}
    plain = isinstance(p, MaxPool) and not p.is_wide
    plain = plain and (kh, kw, sw, dh, dw, left) == (2, 2, 2, 1, 1, 0) and 2 * ow <= w
    if name == "max_pool_grad":
        # The profiles of computers were measured before there was a loop for it: as others there.
        quick = number * oh * ow if plain and m.lanes <= 4 and top == 0 and sh == 2 and 2 * oh <= h else 0
        return loops | {
            f"{name}.quick": quick,
            f"{name}.output": number * oh * ow - quick,
            f"{name}.input": number * h * w,
        }
    rows, columns = _inside(oh, sh, top, kh, dh, h), _inside(ow, sw, left, kw, dw, w)
    quick = int((rows == 2).sum()) if plain and name == "max_pool" else 0
    taken = int(rows.sum()) - 2 * quick
    return loops | {
        f"{name}.quick": number * quick * ow,
        f"{name}.output": number * (oh - quick) * ow,
        f"{name}.edge": number * (oh - quick) * int((columns < kw).sum()),
        f"{name}.window_row": number * taken * ow,
        f"{name}.tap": number * taken * int(columns.sum()),
        f"{name}.input": number * h * w if name == "average_pool_grad" else 0,
        f"{name}.counted": number * (oh - quick) * ow * (kh + kw),
    }


@counts("reduce_sum", "reduce_mean", "reduce_l1", "reduce_l2")
def reduce(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Reduction)
    (kept_rows, _), kept = _rows_and_carries(p.kept), p.kept.inner
    (rows, _), inner = _rows_and_carries(p.reduced), p.reduced.inner
    outputs = kept_rows * kept
    return {
        f"{name}.call": 1,
        f"{name}.output": outputs,
        f"{name}.kept_row": kept_rows,
        f"{name}.row": outputs * rows,
        f"{name}.block": outputs * rows * -(-inner // 64),
        f"{name}.element": outputs * rows * inner,
    }


@counts("reduce_sum_columns")
def reduce_columns(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Reduction)
    (kept_rows, _), kept = _rows_and_carries(p.kept), p.kept.inner
    (rows, _), inner = _rows_and_carries(p.reduced), p.reduced.inner
    together = 4 * m.lanes if m.lanes >= 8 else 16
    whole, rest, blocks = kept // together, kept % together, rows * -(-inner // 64)
    name = "reduce_sum_columns"
    loops: Loops = {f"{name}.call": 1, f"{name}.kept_row": kept_rows}
    for part, times, width in (("together", whole, together), ("rest", 1 if rest else 0, rest)):
        many = kept_rows * times
        add(
            loops,
            {
                f"{name}.{part}": many,
                f"{name}.{part}_row": many * rows,
                f"{name}.{part}_block": many * blocks,
                f"{name}.{part}_line": many * rows * inner,
                f"{name}.{part}_end": many * blocks * width if part == "rest" else 0,
                f"{name}.{part}_element": many * rows * inner * width if part == "rest" else 0,
            },
        )
    return loops


@counts("reduce_sum_rows")
def reduce_rows(kernel: Kernel, m: Machine) -> Loops:
    name = "reduce_sum_rows"
    p = kernel.parameters_as(Reduction)
    (kept_rows, _), kept = _rows_and_carries(p.kept), p.kept.inner
    (rows, _), inner = _rows_and_carries(p.reduced), p.reduced.inner
    outputs = kept_rows * kept
    whole, rest = divmod(inner, 1024)
    return {
        f"{name}.call": 1,
        f"{name}.output": outputs,
        f"{name}.row": outputs * rows,
        f"{name}.block": outputs * rows * (whole + (rest > 0)),
        f"{name}.sixteen": outputs * rows * (whole * 64 + rest // 16),
        f"{name}.single": outputs * rows * (rest % 16),
    }


def _row_sum(name: str, rows: int, length: int) -> Loops:
    whole, rest = divmod(length, 1024)
    return {
        f"{name}.block": rows * (whole + (rest > 0)),
        f"{name}.sixteen": rows * (length // 16),
        f"{name}.left": rows * (length % 16),
    }


@counts("softmax", "softmax_grad", "log_softmax", "log_softmax_grad")
def softmax(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Axis)
    before, along, after = p.before, p.along, p.after
    if after > 1 or kernel.symbol.startswith("poetc_op_log"):
        name = f"{_name(kernel)}.apart"
        return {f"{name}_call": 1, f"{name}_row": before * after, f"{name}_element": before * along * after}
    name = _name(kernel)
    lanes = max(1, m.lanes)
    loops = {f"{name}.call": 1, f"{name}.row": before, **_row_sum(name, before, along)}
    loops |= {f"{name}.wide": before * (along // lanes), f"{name}.single": before * (along % lanes)}
    return loops


@counts("layer_norm", "layer_norm_grad_input", "layer_norm_grad_params", "rms_norm", "rms_norm_grad_input")
def layer_norm(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Rows)
    rows, length = p.rows, p.length
    loops = {f"{name}.call": 1, f"{name}.row": rows, **_row_sum(name, rows, length)}
    loops |= {f"{name}.wide": rows * (length // m.lanes), f"{name}.single": rows * (length % m.lanes)}
    return loops | {f"{name}.channel": length}


@counts("group_norm", "group_norm_grad_input", "group_norm_grad_params")
def group_norm(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Groups)
    rows, channels, pixels = p.batch * p.groups, p.channels, p.pixels
    planes = rows * channels
    loops = {f"{name}.call": 1, f"{name}.row": rows, f"{name}.plane": planes}
    if name == "group_norm":
        loops |= _row_sum(name, rows, channels * pixels)
    else:
        loops |= {f"{name}.block": planes * -(-pixels // 64), f"{name}.element": planes * pixels}
    return loops | {f"{name}.wide": planes * (pixels // m.lanes), f"{name}.single": planes * (pixels % m.lanes)}


@counts("resize_nearest", "resize_nearest_grad", "resize_linear", "resize_linear_grad")
def resize(kernel: Kernel, m: Machine) -> Loops:
    name, p = _name(kernel), kernel.parameters_as(Resize)
    images, rows, columns = p.images, p.rows, p.columns
    cleared = images * p.height * p.width if name.endswith("grad") else 0
    loops = {f"{name}.call": 1, f"{name}.image": images, f"{name}.row": images * rows}
    return loops | {f"{name}.pixel": images * rows * columns, f"{name}.cleared": cleared}


@counts("scatter")
def scatter(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Scatter)
    rows, carries = _rows_and_carries(p.walk)
    loops = {"scatter.call": 1, "scatter.filled": p.filled, "scatter.row": rows, "walk.carry": carries}
    return loops | {"scatter.element": rows * p.walk.inner}


@counts("gather", "gather_grad", "put_slices")
def gather(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Slices)
    size, rows = p.size, p.outer * p.count
    if kernel.symbol != "poetc_op_gather_grad":
        return {
            "gather.call": 1,
            "gather.row": rows,
            "memcpy.call": rows,
            "memcpy.block": rows * (size // 16),
            "memcpy.rest": rows * (size % 16),
        }
    loops = {"gather_grad.call": 1, "gather_grad.cleared": p.outer * p.length * size, "gather_grad.row": rows}
    return loops | {"gather_grad.element": rows * size}


@counts(*(f"{way}_{name}" for way in ("encode", "decode") for name in ("f16", "bf16", "int8")))
def encoding(kernel: Kernel, m: Machine) -> Loops:
    """encoding.c: of each format its own."""
    del m
    name, count = kernel.symbol.removeprefix("poetc_op_"), kernel.parameters_as(Elements).count
    return {f"{name}.call": 1, f"{name}.element": count}
