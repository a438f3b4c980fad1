"""int8/*.c for codes with a scale: convolutions forward, and gradients in floats that become updates of codes.

Forward products are those of _integers.py. Their sums are neither held nor scanned: each is multiplied by the scale of
its output.
"""

from __future__ import annotations

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.int8.loops import _Axis, _lines, _phase, _plane, _start, _up, _Windows
from poetc.kernels.int8.selection import IntegerProduct, LayerParameters
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_PART, _COLUMNS = 64, 4  # of int8_linear_sgd.c


def _requantized(name: str, p: IntegerProduct, sums: Loops, runs: int) -> Loops:
    """Sums to codes, and the numbers from which they start: one pass over the weights."""
    c = p.convolution
    loops: Loops = {f"{name}.call": 1, f"{name}.output": c.outputs}
    add(loops, {k: n for k, n in sums.items() if not k.startswith("int8_scan.")})
    weights = c.outputs * (c.channels // c.group) * c.taps
    more = {"weight": weights, "run": runs, "value": p.groups * p.rows * p.columns}
    return loops | {f"int8_requantize.{key}": n for key, n in more.items()}


@counts("int8_qlinear_conv")
def conv(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    down = _Axis(c.output_height, c.stride_h, -c.pad_top, c.dilation_h, c.kernel_h)
    right = _Axis(c.output_width, c.stride_w, -c.pad_left, c.dilation_w, c.kernel_w)
    w = _Windows(down, right, c.height, c.width, c.channels // c.group, c.batch)
    runs = p.groups * p.rows * max(c.batch, -(-w.columns // p.columns_at_once))
    return _requantized("int8_qlinear_conv", p, _phase(w, p, m, is_apart=c.kernel_h * c.kernel_w > 1), runs)


@counts("int8_qlinear_depthwise")
def depthwise(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    lines = (c.output_height - 1) * c.stride_h + c.kernel_h
    line = _up((c.output_width - 1) * c.stride_w + c.kernel_w + 1, 2)
    one = _plane(m, lines, line, c.height, c.width, False)
    add(one, _lines(m, c, c.output_height, c.output_width, c.stride_w))
    add(one, _start(m, 1, c.pixels))
    planes = p.groups * c.batch
    return _requantized("int8_qlinear_depthwise", p, {k: planes * n for k, n in one.items()}, planes)


def _inside(count: int, stride: int, pad: int, dilation: int, kernel: int, size: int) -> int:
    """Pairs of an output and a tap along an axis that lie on a pixel."""
    return sum(0 <= i * stride - pad + k * dilation < size for i in range(count) for k in range(kernel))


@counts("qlinear_conv_grad_input")
def conv_grad_input(kernel: Kernel, m: Machine) -> Loops:
    del m
    c = kernel.parameters_as(LayerParameters).convolution
    inputs, rows, pixels = c.channels // c.group, c.outputs // c.group, c.height * c.width
    name = "qlinear_conv_grad_input"
    loops: Loops = {f"{name}.call": 1}
    if pixels == 1 and c.taps == 1:
        outputs = c.batch * c.outputs
        return loops | {f"{name}.dense_row": outputs, f"{name}.dense_term": outputs * inputs}
    planes = c.batch * c.channels
    if c.taps == 1 and c.stride_h * c.stride_w == 1 and c.pixels == pixels:
        fours = c.batch * c.group * (inputs // 4)
        add(
            loops,
            {
                f"{name}.fours": fours,
                f"{name}.fours_row": fours * rows,
                f"{name}.fours_block": fours * (pixels // 4) * -(-rows // 32),
                f"{name}.fours_term": fours * (pixels // 4) * rows,
                f"{name}.fours_rest": fours * (pixels % 4) * rows,
            },
        )
        planes = c.batch * c.group * (inputs % 4)
    add(loops, {f"{name}.plane": planes, f"{name}.pixel": planes * pixels})
    down = _inside(c.output_height, c.stride_h, c.pad_top, c.dilation_h, c.kernel_h, c.height)
    right = _inside(c.output_width, c.stride_w, c.pad_left, c.dilation_w, c.kernel_w, c.width)
    outputs = planes * rows
    add(
        loops,
        {
            f"{name}.tap": outputs * c.taps,
            f"{name}.line": outputs * down * c.kernel_w,
            f"{name}.term": outputs * down * right,
        },
    )
    return loops


@counts("qlinear_conv_sgd")
def conv_sgd(kernel: Kernel, m: Machine) -> Loops:
    """Four packed columns at a time, beside two rows of gradients, in parts of 64 pixels of an image."""
    del m
    c = kernel.parameters_as(LayerParameters).convolution
    rows, columns = c.outputs // c.group, c.channels // c.group * c.taps
    blocks, parts = c.group * -(-columns // _COLUMNS), c.batch * -(-c.pixels // _PART)
    pixels = c.batch * c.pixels
    counts = {
        "call": 1,
        "block": blocks,
        "block_row": blocks * rows,
        "part": blocks * parts,
        "two": blocks * parts * (rows // 2),
        "two_term": blocks * pixels * (rows // 2),
        "one": blocks * parts * (rows % 2),
        "one_term": blocks * pixels * (rows % 2),
        "pack": c.group * columns * parts,
        "pack_line": c.group * columns * _lines_of(c),
        "packed": c.group * columns * pixels,
        "weight": c.group * columns * rows,
    }
    return {f"qlinear_conv_sgd.{key}": n for key, n in counts.items() if n}


def _lines_of(c: Convolution) -> int:
    """Lines of outputs, and those that two parts share."""
    shared = sum(at % c.output_width > 0 for at in range(_PART, c.pixels, _PART))
    return c.batch * (c.output_height + shared)
