"""`poetc solve --band`: a schedule's cost and gap where numbers of the profile are at the ends of their bands.

The schedule stays, and is priced anew. The problem at each end is solved again, with the kernels and the places of
state that were chosen. That gives the bound there, and other schedules to compare this one with. Where all costs are
as high or higher, the bound of the schedule itself holds, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import ge
from typing import Any

from poetc.artifact import Artifact
from poetc.commands.requests import SolveRequest, problem_of, streams_of, ways_of
from poetc.devices import DeviceProfile
from poetc.devices.modelled import End, at_end, bands
from poetc.errors import InfeasibleError, LimitError
from poetc.events import Progress, silent
from poetc.graph import TrainingGraph
from poetc.planning.banks import Banks
from poetc.planning.processors import Processors
from poetc.planning.solution import least_cost
from poetc.planning.streaming import Streaming, Streams
from poetc.planning.ways import ALONE
from poetc.scheduling import Objective, Problem, Schedule, verify_parts
from poetc.scheduling.problem import OperatorSpec, TensorSpec, Variant

SECTIONS = ("compute", "stores", "power", "threads")
ENDS: tuple[End, ...] = ("low", "high")
PLACES = (Banks(), Processors())  # chosen again at each end, so that idle processors cost there
WORTH_A_WORD = 1e-3  # of the cost, by which another schedule is called better
_TENSOR_COSTS = ("page_out_ns", "page_out_pj", "page_in_ns", "page_in_pj", "move_ns", "move_pj")


@dataclass(frozen=True, slots=True)
class At:
    """An end of the band of a section, and the problem with its prices."""

    section: str
    end: End
    numbers: int
    problem: Problem

    @property
    def changes_nothing(self) -> bool:
        """Whether no cost depends on the section: the time of a step needs no power."""
        return self.section == "power" and self.problem.objective is Objective.TIME

    def keeps_bound_of(self, problem: Problem) -> bool:
        """Whether every schedule, with other choices too, costs here as much as in `problem` or more."""
        return (self.end == "high" or self.changes_nothing) and _costs_at_least(self.problem, problem)


def band_of(
    artifact: Artifact, request: SolveRequest, progress: Progress = silent
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each end of the profile's ranges: cost of the schedule, bound, and the best schedule that was seen.

    The notes name schedules that are better at the profile's own numbers, too. Takes up to the time limit once more.
    """
    assert artifact.graph is not None and artifact.profile is not None
    ends = list(_ends(artifact, request, artifact.profile, artifact.graph))
    seen: list[tuple[str, Schedule]] = [("", artifact.schedule)]
    bounds: list[tuple[int | None, int | None]] = []
    to_solve = sum(not at.changes_nothing for at in ends)
    for at in ends:
        bound = artifact.schedule.proof.bound if at.keeps_bound_of(artifact.problem) else None
        with_choices = bound
        if at.changes_nothing:
            bounds.append((bound, proven_at_least(with_choices, at.problem)))
            continue
        progress(f"solving where {at.section} is {at.end}")
        planner = replace(request.planner(request.options.time_limit_s / to_solve, progress), reductions=PLACES)
        with suppress(InfeasibleError, LimitError):
            solution = planner.solve(at.problem)
            claimed, scope = artifact.schedule.proof.scope, solution.proof.scope
            if scope.covers(claimed):
                bound = max(bound or 0, solution.proof.bound)
            if scope.covers(replace(scope, order=claimed.order, repetition=claimed.repetition)):
                with_choices = max(with_choices or 0, solution.proof.bound)
            seen.append((f"{at.section} {at.end}", solution.schedule))
        bounds.append((bound, proven_at_least(with_choices, at.problem)))
    rows = [row_of(at, *bounds_there, seen) for at, bounds_there in zip(ends, bounds, strict=True)]
    return rows, better_at_home(artifact.problem, seen)


def _ends(artifact: Artifact, request: SolveRequest, profile: DeviceProfile, step: TrainingGraph) -> Sequence[At]:
    ends, threads = [], artifact.summary["threads"]
    way = threads if artifact.problem.processors or threads > 1 else ALONE

    def whole_at(priced: DeviceProfile) -> tuple[Problem, Streaming]:
        """The step in the way of the schedule, without streams, and those that it offers."""
        problem = problem_of(request, step, priced)
        ways = ways_of(request, problem, step, priced)
        offers = streams_of(step, profile=priced, request=request, ways=(ways,) if ways else ())
        return ways.get(way, problem), Streaming(offers)

    streams: Streams = ()
    if any(op.is_streamed for op in artifact.problem.operators):
        whole, streaming = whole_at(profile)
        streams = streaming.chosen(whole, artifact.problem) or ()
    for section in SECTIONS:
        numbers = 0 if section == "threads" and threads < 2 else bands(profile, section)
        for end in ENDS if numbers else ():
            there, streaming = whole_at(at_end(profile, section, end))
            there = streaming.fix(there, streams)
            ends.append(At(section, end, numbers, priced_as(artifact.problem, there)))
    return ends


def proven_at_least(bound: int | None, problem: Problem) -> int:
    """`bound`, or that of any order where it is less or there is none: every operator runs once."""
    return max(bound or 0, least_cost(problem))


def better_at_home(problem: Problem, seen: Sequence[tuple[str, Schedule]]) -> list[str]:
    """A note where a schedule that was found at an end is better with the profile's own numbers, too."""
    own, better = _own_and_best(problem, seen)
    if better is None:
        return []
    place, cost = better
    saved = f"{(own - cost) / own:.1%}".replace("%", " %")
    return [
        f"a schedule that --band found for {place} needs {saved} less with the profile's own numbers, too; "
        "a longer --time-limit may find it"
    ]


def _own_and_best(problem: Problem, seen: Sequence[tuple[str, Schedule]]) -> tuple[int, tuple[str, int] | None]:
    """The cost of the first schedule, and where another one that meets the deadline was found which costs less."""
    traces = [(name, verify_parts([(problem, schedule.actions)])) for name, schedule in seen]
    costs = [(name, problem.objective.cost(t.energy_pj, t.time_ns)) for name, t in traces]
    deadline = problem.deadline_ns
    in_time = [c for c, (_, t) in zip(costs, traces, strict=True) if deadline is None or t.time_ns <= deadline]
    cost, best = costs[0][1], min(in_time, key=lambda pair: pair[1], default=costs[0])
    return cost, best if best[1] < cost * (1 - WORTH_A_WORD) else None


def row_of(at: At, bound: int | None, with_choices: int | None, seen: Sequence[tuple[str, Schedule]]) -> dict[str, Any]:
    """`with_choices`: a bound for the kernels and the places of state that the schedule has."""
    own = verify_parts([(at.problem, seen[0][1].actions)])
    cost, better = _own_and_best(at.problem, seen)
    deadline = at.problem.deadline_ns
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
        "better": None if better is None else {"found_at": better[0], "cost": better[1]},
    }


def _gap(cost: int, bound: int | None) -> float | None:
    return None if bound is None or cost <= 0 else max(0.0, (cost - bound) / cost)


def _costs_at_least(problem: Problem, other: Problem) -> bool:
    """Whether nothing costs less in `problem` than in `other`, nor takes less time where there is a deadline."""
    price = problem.objective.cost
    timed = problem.deadline_ns is not None

    def all_of(of: Problem) -> Iterator[int]:
        for op in of.operators:
            for energy_pj, time_ns in ((op.energy_pj, op.time_ns), *((e.energy_pj, e.time_ns) for e in op.elsewhere)):
                yield from (price(energy_pj, time_ns), time_ns if timed else 0)
        for t in of.tensors:
            for pj, ns in zip(_TENSOR_COSTS[1::2], _TENSOR_COSTS[::2], strict=True):
                needed_ns = getattr(t, ns) or 0  # none: it may not be moved
                yield from (price(getattr(t, pj), needed_ns), needed_ns if timed else 0)

    return problem.processors == other.processors and all(map(ge, all_of(problem), all_of(other)))


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


def without_price(problem: Problem, other: Problem) -> list[str]:
    """The operators whose kernel `other` has no price for: in `priced_as` they keep that of `problem`."""
    operators = {op.name: op for op in other.operators}
    return [op.name for op in problem.operators if _kernel_of(op, operators.get(op.name)) is None]


def _kernel_of(op: OperatorSpec, other: OperatorSpec | None) -> OperatorSpec | Variant | None:
    """The chosen kernel in the other problem."""
    kernels: tuple[OperatorSpec | Variant, ...] = () if other is None else (other, *other.low_workspace)
    return next((kernel for kernel in kernels if kernel.kernel == op.kernel), None)


def _priced(op: OperatorSpec, other: OperatorSpec | None) -> OperatorSpec:
    kernel = _kernel_of(op, other)
    if kernel is None:
        return op
    kept = {e.processor for e in op.elsewhere}
    elsewhere = tuple(e for e in kernel.elsewhere if e.processor in kept)
    return replace(op, time_ns=kernel.time_ns, energy_pj=kernel.energy_pj, elsewhere=elsewhere)


def _priced_tensor(tensor: TensorSpec, other: TensorSpec | None) -> TensorSpec:
    return tensor if other is None else replace(tensor, **{name: getattr(other, name) for name in _TENSOR_COSTS})
