"""The arrays that a step takes, seen as samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poetc.graph import DType, TrainingGraph
from poetc.ops import Use
from poetc.program import Limit, boxes_of, is_added_to_scores, is_scaled, limit_of, missing_of

_HIDES, _HIDES_F16 = -1e9, -3e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """An input of the step, or its target. `shape` is that of a batch, `sample_shape` the part of one sample.

    In some models the arrays have first axes of different lengths, such as a batch of texts and the row of all their
    words. Each sample then has several rows of the longer ones.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    is_target: bool
    sample_shape: tuple[int, ...]
    batch_axis: int = 0  # of the samples in `shape`
    limit: Limit | None = None  # of integers that are a class or an index
    may_miss: tuple[bool, ...] = ()  # elements of a sample that the model replaces where they are NaN
    boxes: str = ""  # the format of boxes that must have sides of at least 0
    takes_any_range: bool = False  # the model itself scales or normalises this input, or adds it to scores
    hides: float = 0.0  # for -infinity in a mask that is added to scores: hides as much, and stays finite

    @property
    def elements(self) -> int:
        """The number of elements of one sample."""
        return math.prod(self.sample_shape)

    @property
    def rows(self) -> int:
        """Samples of a batch."""
        return self.shape[self.batch_axis] // (self.sample_shape[0] if len(self.sample_shape) == len(self.shape) else 1)

    @property
    def is_class(self) -> bool:
        """Whether a sample's value is one class."""
        return self.is_target and self.dtype is DType.I32 and self.elements == 1

    @property
    def shape_text(self) -> str:
        """The shape that an array of samples must have, in words."""
        return f"[{', '.join(('samples', *map(str, self.sample_shape)))}]"


def batch_size(shapes: Sequence[tuple[int, ...]]) -> int:
    """Samples of a batch: the greatest number that divides every first axis. 1 where there is none."""
    return math.gcd(*(shape[0] for shape in shapes if shape)) or 1


def slots_of(graph: TrainingGraph, targets: Sequence[str] = ()) -> tuple[Slot, ...]:
    """Inputs, then the target, of a training step.

    `targets`: inputs that are the targets of further losses. A target without axes is of the model's own loss: no slot.
    """
    names = [n for n in (*graph.inputs, graph.target) if graph.tensors[n].shape]
    axes = {n: 0 if (fact := graph.fact("batch axis", n)) is None else int(fact.value) for n in names}
    batch = batch_size([graph.tensors[n].shape[axes[n] :] for n in names])
    uses = [Use(o.kind, o.attributes, o.inputs, o.outputs, graph.tensors[o.inputs[0]].type) for o in graph.operators]
    most = _HIDES_F16 if any(t.dtype is DType.F16 for t in graph.tensors.values()) else _HIDES
    slots = []
    for name in names:
        tensor = graph.tensors[name]
        axis = axes[name]
        each = tensor.shape[:axis] + tensor.shape[axis + 1 :]
        rows = tensor.shape[axis] // batch
        is_mask = tensor.dtype is DType.F32 and is_added_to_scores(uses, {name})
        slots.append(
            Slot(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                is_target=name == graph.target or name in targets,
                sample_shape=each if rows == 1 else (rows, *each),
                batch_axis=axis,
                limit=limit_of(uses, {name}, tensor.shape) if tensor.dtype is DType.I32 else None,
                may_miss=missing_of(uses, {name}, tensor.shape) if tensor.dtype is DType.F32 else (),
                boxes=boxes_of(uses, {name}),
                takes_any_range=is_mask or (tensor.dtype is DType.F32 and is_scaled(uses, {name})),
                hides=most if is_mask else 0.0,
            )
        )
    return tuple(slots)
