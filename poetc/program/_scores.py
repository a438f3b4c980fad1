"""Where a program has the scores of its classes, and the labels beside them: operands of its cross-entropies."""

from __future__ import annotations

import math
from typing import NamedTuple

from poetc.program._ir import Call, Program, Space


class Scores(NamedTuple):
    """The fields of `poetc_scores` in poetc_data.h."""

    instruction: int  # of the program, before which both are in the arena
    scores: int  # offset
    labels: int  # offset
    before: int  # the shape of the scores: before, classes, after
    classes: int
    after: int
    ignored: int  # the label that does not count


def class_scores(program: Program, target: str | None = None) -> tuple[Scores, ...]:
    """The scores of every cross-entropy of `program`, or of those with the labels `target`."""
    scores_of = []
    for at, call in enumerate(program.instructions):
        if not isinstance(call, Call) or call.kind != "CrossEntropy":
            continue
        scores, labels = call.inputs[:2]
        axis, ignored = call.attributes.get("axis", -1), call.attributes.get("ignore_index", -(2**31))
        in_arena = scores.space is labels.space is Space.ARENA
        if not in_arena or target not in (None, labels.tensor) or not isinstance(axis, int):
            continue
        shape = scores.type.shape
        axis %= len(shape)
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        last = ignored if isinstance(ignored, int) else -(2**31)
        scores_of.append(Scores(at, scores.offset_bytes, labels.offset_bytes, before, shape[axis], after, last))
    return tuple(scores_of)
