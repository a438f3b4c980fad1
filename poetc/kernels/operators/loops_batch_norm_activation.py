"""batch_norm_activation.c."""

from __future__ import annotations

from dataclasses import replace

from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts
from poetc.kernels.operators.loops import elementwise, plane_sums, planes
from poetc.kernels.operators.parameters import Elements, Planes, SummedPlanes

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
