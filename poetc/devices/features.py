"""The features of an operator that decide its time: work for the roofline, loops for a fit to measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from poetc.devices.reuse import Fetched
from poetc.graph import Operator
from poetc.kernels.convolution_window import share_inside
from poetc.kernels.loops import group_of, loops_of
from poetc.kernels.machine import Machine
from poetc.ops import Bound, Kernel, bind, spec

NOTHING_FETCHED = Fetched()
DEPTHWISE = "/depthwise"


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one execution.

    `cost_class` is the key of a profile's `efficiency`; `loops` maps "group.loop" to how often it runs. A kernel whose
    loops are not counted has its work instead, in a group that is called as the class.
    """

    cost_class: str
    macs: int
    flops: int
    bytes_moved: int
    loops: Mapping[str, int]
    is_integer: bool = False  # values of 8 bits with sums of 32: no floats to emulate


def cost_class(op: Operator, bound: Bound) -> str:
    """The key of a profile's `efficiency`: the kind, with `/depthwise` for one channel a group."""
    group = bound.attributes.get("group", 1)
    if isinstance(group, int) and group > 1 and any(group in t.shape[1:2] for t in (*bound.inputs, *bound.outputs)):
        return op.kind + DEPTHWISE
    return op.kind


def features_of(
    op: Operator,
    tensors: Mapping[str, Any],
    machine: Machine,
    fetched: Fetched = NOTHING_FETCHED,
    zeros: float = 0.0,
    kernel: Kernel | None = None,
) -> Features:
    """The features of one execution of an operator.

    `tensors` maps names to Tensor. `fetched`: the part of the operands that is not in the first level of cache
    (poetc.devices.reuse). `zeros` is the share of products and sums in which a zero saves time (poetc.devices.zeros).
    `kernel`: the one that runs, by default the fastest.
    """
    bound = bind(op, tensors)
    kind = spec(op.kind)
    work = kind.work(bound)
    moved = work.bytes_moved
    if moved is None:
        moved = sum(tensors[t].size_bytes for t in {*op.inputs, *op.outputs})
    name = cost_class(op, bound)
    kernel = kernel or kind.kernel(bound)
    if kernel.repeats > 1:
        work = replace(work, macs=kernel.repeats * work.macs, flops=kernel.repeats * work.flops)
    counted = loops_of(kernel, machine)
    if counted is not None:
        group, loops = group_of(kernel), counted
    else:
        width = max((t.shape[-1] for t in (*bound.inputs, *bound.outputs) if t.shape), default=1)
        rows = (work.macs or work.flops) // max(1, width)
        group, plain = name, {"call": 1, "mac": work.macs, "flop": work.flops, "row": rows}
        loops = {f"{group}.{key}": n for key, n in plain.items()}
    loops |= {f"{group}.byte": moved, f"{group}.second": fetched.second}
    loops |= {f"{group}.far": fetched.far, f"{group}.far_written": fetched.far_written}
    is_integer = kernel.symbol.startswith("poetc_op_int8_")
    if machine.is_soft and not is_integer:
        inside = share_inside(kernel) if work.macs and name.startswith("Conv") else 1.0
        loops[f"{group}.nonzero"] = round((work.macs or work.flops) * (1 - zeros) * inside)
    return Features(name, work.macs, work.flops, moved, {key: n for key, n in loops.items() if n}, is_integer)
