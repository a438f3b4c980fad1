"""Two steps of one model, with other micro-batches, as parts of one run: tensors of one name are one tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from poetc.scheduling.problem import OperatorSpec, Problem
from poetc.scheduling.schedule import Action, Compute, Free, Move, PageIn, PageOut


def joined(
    a: Problem,
    before: Sequence[Action],
    resident: Collection[int],
    b: Problem,
    transition: Sequence[Action],
    after: Sequence[Action],
) -> tuple[tuple[Problem, Sequence[Action]], ...]:
    """The parts for `verify_parts`: `before` of `a`, then `transition` and `after` in the numbers of `b`.

    The problems have the operators of both that run. `resident`: the tensors of `a` in RAM after `before`. Those that
    `b` does not have are freed then. `transition` may use as much RAM as the larger budget.
    """
    numbers = {tensor.name: t for t, tensor in enumerate(b.tensors)}
    tensors = list(b.tensors)
    for tensor in a.tensors:
        if tensor.name not in numbers:
            numbers[tensor.name] = len(tensors)
            tensors.append(replace(tensor, final=""))
    own = [numbers[tensor.name] for tensor in a.tensors]
    operators: list[OperatorSpec] = []
    of_a = _operators(a, before, own, operators)
    of_b = _operators(b, (*transition, *after), range(len(b.tensors)), operators)
    larger = max(a.budget_bytes, b.budget_bytes)
    whole = replace(b, tensors=tuple(tensors), operators=tuple(operators))
    first = tuple(_renumbered(action, own, of_a) for action in before)
    dropped = (Free(own[t]) for t in sorted(resident) if own[t] >= len(b.tensors))
    same = range(len(b.tensors))
    return (
        (replace(whole, budget_bytes=a.budget_bytes), first),
        (replace(whole, budget_bytes=larger), (*dropped, *(_renumbered(action, same, of_b) for action in transition))),
        (whole, tuple(_renumbered(action, same, of_b) for action in after)),
    )


def _operators(
    problem: Problem, actions: Sequence[Action], tensors: Sequence[int], operators: list[OperatorSpec]
) -> dict[int, int]:
    """The operators that run are added to `operators`; their places there."""
    number_of: dict[int, int] = {}
    for action in actions:
        if isinstance(action, Compute) and action.operator not in number_of:
            op = problem.operators[action.operator]
            number_of[action.operator] = len(operators)
            pairs = (replace(p, input=tensors[p.input], output=tensors[p.output]) for p in op.in_place)
            operators.append(
                replace(
                    op,
                    inputs=tuple(tensors[t] for t in op.inputs),
                    outputs=tuple(tensors[t] for t in op.outputs),
                    in_place=tuple(pairs),
                )
            )
    return number_of


def _renumbered(action: Action, tensors: Sequence[int], operators: Mapping[int, int]) -> Action:
    match action:
        case Compute(operator, in_place):
            pairs = tuple((tensors[i], tensors[o]) for i, o in in_place)
            return replace(action, operator=operators[operator], in_place=pairs)
        case Free(tensor) | PageIn(tensor) | PageOut(tensor) | Move(tensor):
            return replace(action, tensor=tensors[tensor])
