"""Options of poetc's own engine: those of every solver, and a warm start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from poetc.scheduling import Problem, Schedule, SolveOptions

Ladders = dict[Problem, Any]  # by problem, the `bounds.ladder.Ladder` of a solve


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Knowledge that a solve begins with. Costs are in pJ, or in ns where the objective is time."""

    to_beat: int | None = None  # upper bound to beat: the search ends once nothing cheaper exists
    start: Schedule | None = None  # a schedule that fits, in the problem's order
    proven: int = 0  # lower bound for schedules in the problem's order
    cuts: tuple[int, ...] = ()  # operators at which the last relaxation in that order enforced RAM
    ladders: Ladders | None = None  # of the problems that were solved before: their relaxations go on there
    looser_bound: int | None = None  # for a larger budget, same order: the gap is measured from it if it is lower


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(SolveOptions):
    """`SolveOptions` with a warm start, which other solvers do not read."""

    warm_start: WarmStart = WarmStart()

    @classmethod
    def of(cls, options: SolveOptions, warm_start: WarmStart) -> EngineOptions:
        """`options` with this warm start."""
        common = {field.name: getattr(options, field.name) for field in fields(SolveOptions)}
        return cls(**common, warm_start=warm_start)


def warm_start_of(options: SolveOptions) -> WarmStart:
    """The warm start of `options`, if they have one."""
    return options.warm_start if isinstance(options, EngineOptions) else WarmStart()
