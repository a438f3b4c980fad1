"""recurrent.c."""

from __future__ import annotations

from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, counts
from poetc.kernels.operators.parameters import Cell, GruCellGrad, LstmCell, LstmCellGrad


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
