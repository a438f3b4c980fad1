"""What of an operator its time depends on: the features of a roofline, and of a fit to measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poetc.devices.cost import cost_class
from poetc.graph import Operator
from poetc.ops import Work, bind, spec


@dataclass(frozen=True, slots=True)
class Features:
    """`cost_class` is what a profile's numbers are keyed by; `width` the longest innermost extent of the operands."""

    cost_class: str
    macs: int
    flops: int
    bytes_moved: int
    width: int

    @property
    def rows(self) -> int:
        """Inner loops that are started: arithmetic divided by what one of them does."""
        return (self.macs or self.flops) // max(1, self.width)

    @property
    def work(self) -> Work:
        return Work(macs=self.macs, flops=self.flops, bytes_moved=self.bytes_moved)


def features_of(op: Operator, tensors: Mapping[str, Any]) -> Features:
    """`tensors` maps names to Tensor."""
    bound = bind(op, tensors)
    work = spec(op.kind).work(bound)
    moved = work.bytes_moved
    if moved is None:
        moved = sum(tensors[t].size_bytes for t in {*op.inputs, *op.outputs})
    widths = [t.shape[-1] for t in (*bound.inputs, *bound.outputs) if t.shape]
    return Features(cost_class(op, bound), work.macs, work.flops, moved, max(widths, default=1))
