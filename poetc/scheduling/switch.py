"""A switch in mid-step: a prefix of one plan, a transition, a suffix of another plan of the same step."""

from __future__ import annotations

from dataclasses import dataclass

from poetc.scheduling.schedule import Action, MemoryPlan


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor, or the workspace of a computation (tensor -1), at one place during actions [first, end)."""

    tensor: int
    offset_bytes: int
    size_bytes: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """`actions`, and the places of all that is in RAM meanwhile; action -1 is the one before the transition."""

    actions: tuple[Action, ...]
    stays: tuple[Stay, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """From plan `source` before its action `at` to plan `target`, which goes on with its action `join`.

    `rest`: the cost of the transition and of the rest of the target, in the unit of the objective. `bound`: nothing
    that goes on from here within the target's budget, with its kernels and its order of operators, costs less.
    `stored`: the tensors on the store before the transition. `time_ns`: of the transition.
    """

    source: int
    target: int
    at: int
    join: int
    transition: Transition
    stored: frozenset[int]
    rest: int
    bound: int
    time_ns: int


def buffer_offset(plan: MemoryPlan) -> int | None:
    """Where the page buffer is, if the plan has one."""
    return next((a.offset_bytes for a in plan.allocations if not a.tensors and a.operator is None), None)
