"""Kernels that do the work of several.

They are in batch_norm_activation.c and sgd_of.c: descending gradients of convolutions, and cells, too.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.devices.loops._convolution_packed_grad_weight import grad_weight, moves_at_once, strip_columns
from poetc.devices.loops._gemm import carve, pack, parts, run
from poetc.devices.loops._machine import COUNTS, Loops, Machine, add, counts
from poetc.devices.loops._rows import elementwise, normalized, plane_sums, planes
from poetc.ops import Kernel
from poetc.ops.kernels.convolution import PackedGradWeight, PackedGradWeightSgd, norm_table_floats
from poetc.ops.kernels.convolution_shape import ConvolutionParameters
from poetc.ops.kernels.matmul import STRIP_ROWS, PackedSgdProduct, SgdProduct
from poetc.ops.kernels.rows import (
    Cell,
    DescendingSlices,
    Elements,
    GruCellGrad,
    LstmCell,
    LstmCellGrad,
    Planes,
    SummedPlanes,
)

_CHOICES, _SMOOTH = ("relu", "leaky_relu", "clip"), ("hard_swish", "silu")
_ACTIVATIONS = (*_CHOICES, *_SMOOTH)
_BLOCK, _CHUNK = 256, 16


@counts(
    *(f"batch_norm_{name}" for name in ("same", *_ACTIVATIONS)),
    *(f"batch_norm_{name}_grad_input" for name in _SMOOTH),
)
def batch_norm_activation(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(Planes), kernel.symbol.removeprefix("poetc_op_")
    name += ".sum_" if isinstance(p, SummedPlanes) and p.has_other else "."
    planes, pixels, lanes = p.batch * p.channels, p.pixels, 4 if m.has_fours else m.lanes
    loops = {f"{name}call": 1, f"{name}plane": planes}
    return loops | {f"{name}wide": planes * (pixels // lanes), f"{name}single": planes * (pixels % lanes)}


@counts(*(f"batch_norm_{name}_grad_params" for name in _SMOOTH))
def batch_norm_activation_params(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(Planes), kernel.symbol.removeprefix("poetc_op_")
    batch, channels, pixels = p.batch, p.channels, p.pixels
    together, lanes = channels // 4 * 4 if m.lanes > 1 else 0, 4 if m.has_fours else m.lanes
    loops: Loops = {f"{name}.call": 1}
    for part, number in (("", channels - together), ("_four", together)):
        planes = batch * number
        rest = pixels % _CHUNK
        wide = pixels // _CHUNK * (_CHUNK // lanes) + rest // lanes
        counts = {
            "channel": number,
            "plane": planes,
            "block": planes * -(-pixels // _BLOCK),
            "chunk": planes * -(-pixels // _CHUNK),
            "wide": planes * wide,
            "single": planes * (rest % lanes),
            "quad": planes * (pixels // 4),
            "tail": planes * (pixels % 4),
        }
        add(loops, {f"{name}.{loop}{part}": n for loop, n in counts.items()})
    return loops


def batch_norm_choice(kernel: Kernel, m: Machine) -> Loops:
    """With Neon as counted. Elsewhere by the loops of the batch norm's gradient and the activation's.

    Most of the latter's time goes to loads and stores, of which there are none here. With vectors a fifth is left, and
    nothing where two passes over the planes become one.
    """
    p, name = kernel.parameters_as(Planes), kernel.symbol.removeprefix("poetc_op_batch_norm_")
    elements = p.batch * p.channels * p.pixels
    activation, part = name.split("_grad_")
    count = planes if part == "input" else plane_sums
    loops = count(replace(kernel, symbol=f"poetc_op_batch_norm_grad_{part}"), m)
    if m.is_neon:
        return {name.replace(".", f".{activation}_"): n for name, n in loops.items()}
    if m.lanes == 1:
        add(loops, elementwise(Kernel(f"poetc_op_{activation}_grad", Elements(elements)), m))
    elif part == "input":
        add(loops, {f"{activation}_grad.chunk": elements // 80})
    return loops


for _name in _CHOICES:
    counts(*(f"batch_norm_{_name}_grad_{part}" for part in ("input", "params")), without=f"_{_name}")(batch_norm_choice)


def _descend(m: Machine, rows: int, width: int) -> Loops:
    lanes = max(4, m.lanes)
    return {"descend.row": rows, "descend.wide": rows * (width // lanes), "descend.single": rows * (width % lanes)}


@counts("gather_grad_sgd")
def gather_grad_sgd(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(DescendingSlices)
    inner, number = p.size, p.count
    loops = {"gather_grad_sgd.call": 1, "gather_grad_sgd.slice": number, "gather_grad_sgd.pair": number * (number - 1)}
    add(loops, {"gather_grad_sgd.element": number * inner, "gather_grad_sgd.cleared": inner})
    add(loops, _descend(m, number, inner))
    return loops


@counts("matmul_sgd")
def matmul_sgd(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(SgdProduct)
    rows, columns, depth = p.rows, p.columns, p.depth
    lanes = max(4, m.lanes)
    wide, single = rows * (columns // lanes), rows * (columns % lanes)
    prefix = "matmul_sgd.one_" if depth == 1 else "matmul_sgd."
    loops = {"matmul_sgd.call": 1}
    if depth == 1 and m.has_fours:
        fours, rows = divmod(rows, 4)
        wide, single = rows * (columns // 4), rows * (columns % 4)
        loops |= {"matmul_sgd.four": fours, "matmul_sgd.four_twelve": fours * (columns // 12)}
        loops |= {"matmul_sgd.four_quad": fours * (columns % 12 // 4), "matmul_sgd.four_single": fours * (columns % 4)}
    loops |= {f"{prefix}row": rows, f"{prefix}wide": wide, f"{prefix}single": single}
    if depth > 1:
        loops |= {"matmul_sgd.wide_term": wide * depth, "matmul_sgd.single_term": single * depth}
    return loops


@counts("matmul_sgd_packed")
def matmul_sgd_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedSgdProduct)
    rows, columns, k, depth, width = p.rows, p.columns, p.depth, p.terms, p.columns_at_once
    assert carve(m, p.block_floats, depth, 1, width, True)[0] >= min(width, columns)
    loops: Loops = {"matmul_sgd_packed.call": 1}
    for taken, many in parts(columns, width):
        part: Loops = {}
        for number, (terms, times) in enumerate(parts(k, depth)):
            first = 1 if number == 0 else 0
            add(part, pack(m, terms, taken), times)
            if m.has_fours and k <= depth:  # sums that are whole move the weights at once
                add(part, dict(run(m, rows, terms, 0, taken, taken, "contiguous", True)))
                continue
            for strip, strips in parts(rows, STRIP_ROWS):
                add(part, dict(run(m, strip, terms, 0, taken, width, "contiguous", False)), first * strips)
                add(part, dict(run(m, strip, terms, 0, taken, width, "contiguous", True)), (times - first) * strips)
        if not m.has_fours or k > depth:
            add(part, _descend(m, rows, taken))
        add(loops, part, many)
    return loops


@counts("conv_grad_weight_sgd_packed")
def conv_grad_weight_sgd_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedGradWeightSgd)
    w, moves = p.convolution, moves_at_once(m, p)
    plain = grad_weight(p, m, strip_columns(m, p), moves)
    loops = {name.replace("conv_grad_weight_packed", "conv_grad_weight_sgd_packed"): n for name, n in plain.items()}
    if moves:
        return loops
    width = w.channels // w.group * w.taps
    for columns, many in parts(width, strip_columns(m, p)):
        add(loops, _descend(m, w.outputs, columns), many)
    return loops


@counts(
    "conv_grad_weight_norm_packed", "conv_grad_weight_sgd_norm_packed", "depthwise_grad_weight_norm", without="_norm"
)
def made_again(kernel: Kernel, m: Machine) -> Loops:
    """The loops as without the work on x first, and that work apart, once for every pixel."""
    p, plain = kernel.parameters_as(ConvolutionParameters), kernel.symbol.replace("_norm", "")
    c = p.convolution
    table = norm_table_floats(c.channels)
    if isinstance(p, PackedGradWeight):
        p = replace(p, workspace_floats=p.workspace_floats - table)
    if isinstance(p, PackedGradWeightSgd):
        p = replace(p, total_floats=p.total_floats - table)
    loops = COUNTS[plain](Kernel(plain, p.with_convolution(bias_or_norm=0)), m)
    pixels = c.batch * c.channels * c.height * c.width
    add(loops, normalized(m, -(-pixels // m.lanes), c.channels))
    return loops


@counts("lstm_cell", "lstm_cell_grad", "gru_cell", "gru_cell_grad")
def cell(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(Cell), kernel.symbol.removeprefix("poetc_op_")
    batch, hidden = p.batch, p.hidden
    extra: Loops = {}  # of a unit: its other reads
    if isinstance(p, LstmCell):
        extra["before"] = int(p.has_before)
    if isinstance(p, LstmCellGrad | GruCellGrad):
        extra["more"] = p.gradients - 1
    if isinstance(p, LstmCellGrad):
        extra["cell"] = p.cell_gradients
    loops: Loops = {f"{name}.call": 1, f"{name}.row": batch}
    for units, count in (("wide", batch * (hidden // m.lanes)), ("single", batch * (hidden % m.lanes))):
        loops[f"{name}.{units}"] = count
        loops |= {f"{name}.{units}_{what}": count * number for what, number in extra.items()}
    return loops
