"""`poetc solve --band`: a schedule's cost and gap where numbers of the profile are at the ends of their bands.

The schedule stays, and is priced anew. The problem at each end is solved again, with the kernels and the places of
state that were chosen. That gives the bound there, and other schedules to compare this one with.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from poetc.artifact import Artifact
from poetc.commands.requests import SolveRequest, problem_of, ways_of
from poetc.devices import DeviceProfile
from poetc.devices.modelled import End, at_end, bands
from poetc.errors import InfeasibleError, LimitError
from poetc.events import Progress, silent
from poetc.graph import TrainingGraph
from poetc.planning.solution import least_cost
from poetc.scheduling import Problem, Schedule, verify_parts
from poetc.scheduling.problem import OperatorSpec, TensorSpec, Variant

SECTIONS = ("compute", "stores", "power", "threads")
ENDS: tuple[End, ...] = ("low", "high")
WORTH_A_WORD = 1e-3  # of the cost, by which another schedule is called better
_TENSOR_COSTS = ("page_out_ns", "page_out_pj", "page_in_ns", "page_in_pj", "move_ns", "move_pj")


@dataclass(frozen=True, slots=True)
class _At:
    """An end of the band of a section, and the problem with its prices."""

    section: str
    end: End
    numbers: int
    problem: Problem


def band_of(artifact: Artifact, request: SolveRequest, progress: Progress = silent) -> list[dict[str, Any]]:
    """A row for each end: costs of the schedule, the bound, and a better schedule among those that were seen.

    Takes up to the time limit once more.
    """
    assert artifact.graph is not None and artifact.profile is not None
    ends = list(_ends(artifact, request, artifact.profile, artifact.graph))
    seen: list[tuple[str, Schedule]] = [("", artifact.schedule)]
    bounds: list[tuple[int | None, int | None]] = []
    for at in ends:
        progress(f"solving where {at.section} is {at.end}")
        bound = with_choices = None
        planner = replace(request.planner(request.options.time_limit_s / len(ends), progress), reductions=())
        with suppress(InfeasibleError, LimitError):
            solution = planner.solve(at.problem)
            claimed, scope = artifact.schedule.proof.scope, solution.proof.scope
            if scope.covers(claimed):
                bound = solution.proof.bound
            if scope.covers(replace(scope, order=claimed.order, repetition=claimed.repetition)):
                with_choices = solution.proof.bound
            seen.append((f"{at.section} {at.end}", solution.schedule))
        bounds.append((bound, _at_least(with_choices, at.problem)))
    return [_row(at, *found, seen) for at, found in zip(ends, bounds, strict=True)]


def _ends(artifact: Artifact, request: SolveRequest, profile: DeviceProfile, step: TrainingGraph) -> Sequence[_At]:
    found = []
    for section in SECTIONS:
        numbers = 0 if section == "threads" and artifact.summary["threads"] < 2 else bands(profile, section)
        for end in ENDS if numbers else ():
            priced = at_end(profile, section, end)
            there = problem_of(request, step, priced)
            ways = ways_of(request, there, step, priced)
            there = ways.get(artifact.summary["threads"], there)
            found.append(_At(section, end, numbers, priced_as(artifact.problem, there)))
    return found


def _at_least(bound: int | None, problem: Problem) -> int:
    """`bound`, or that of any order where it is less or there is none: every operator runs once."""
    return max(bound or 0, least_cost(problem))


def _row(at: _At, bound: int | None, with_choices: int | None, seen: Sequence[tuple[str, Schedule]]) -> dict[str, Any]:
    """`with_choices`: a bound for the kernels and the places of state that the schedule has."""
    traces = [(name, verify_parts([(at.problem, schedule.steps)])) for name, schedule in seen]
    costs = [(name, at.problem.objective.cost(t.energy_pj, t.time_ns)) for name, t in traces]
    own, cost = traces[0][1], costs[0][1]
    deadline = at.problem.deadline_ns
    in_time = [c for c, (_, t) in zip(costs, traces, strict=True) if deadline is None or t.time_ns <= deadline]
    best = min(in_time, key=lambda pair: pair[1], default=costs[0])
    better = best[1] < cost * (1 - WORTH_A_WORD)
    return {
        "section": at.section,
        "end": at.end,
        "numbers": at.numbers,
        "energy_pj": own.energy_pj,
        "time_ns": own.time_ns,
        "cost": cost,
        "bound": bound,
        "gap": _gap(cost, bound),
        "gap_with_these_choices": _gap(cost, with_choices),
        "in_time": deadline is None or own.time_ns <= deadline,
        "better": {"found_at": best[0], "cost": best[1]} if better else None,
    }


def _gap(cost: int, bound: int | None) -> float | None:
    return None if bound is None or cost <= 0 else max(0.0, (cost - bound) / cost)


def priced_as(problem: Problem, other: Problem) -> Problem:
    """`problem` with the prices that `other` gives to the same operators, kernels and tensors."""
    operators = {op.name: op for op in other.operators}
    tensors = {t.name: t for t in other.tensors}
    return replace(
        problem,
        operators=tuple(_priced(op, operators.get(op.name)) for op in problem.operators),
        tensors=tuple(_priced_tensor(t, tensors.get(t.name)) for t in problem.tensors),
        processors=other.processors if len(other.processors) == len(problem.processors) else problem.processors,
    )


def _priced(op: OperatorSpec, other: OperatorSpec | None) -> OperatorSpec:
    if other is None:
        return op
    kernels: tuple[OperatorSpec | Variant, ...] = (other, *other.low_workspace)
    for kernel in kernels:
        if kernel.kernel == op.kernel:
            kept = {e.processor for e in op.elsewhere}
            elsewhere = tuple(e for e in kernel.elsewhere if e.processor in kept)
            return replace(op, time_ns=kernel.time_ns, energy_pj=kernel.energy_pj, elsewhere=elsewhere)
    return op


def _priced_tensor(tensor: TensorSpec, other: TensorSpec | None) -> TensorSpec:
    return tensor if other is None else replace(tensor, **{name: getattr(other, name) for name in _TENSOR_COSTS})
