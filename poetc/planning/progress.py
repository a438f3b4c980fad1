"""Progress of a plan in words: the best schedule of all searches so far, the bound, the gap and the work at hand."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from poetc import solvers
from poetc.devices import format_cost, format_share
from poetc.planning.search_log import SearchLog
from poetc.scheduling.problem import Problem

# The limit that ended a search before the gap that was asked for.
TIME_LIMIT, WORK_LIMIT = "time limit", "work limit"
ORDER, BETTER, TIGHTER = "ordering operators", "improving the schedule", "tightening the bound"
PLACING = "choosing where state lives"

# An event comes at the end of a stage of the engine. Its words name the next work, which the user waits for. Stages of
# other solvers keep their names.
STAGES = {
    "at once": ORDER,
    "first schedules": TIGHTER,
    "cut at the loss": BETTER,
    "single cuts": BETTER,
    "race": BETTER,
    "flattened": BETTER,
    "nested checkpoints": BETTER,
    "relaxed MIP": BETTER,
    "windows": BETTER,
    "published heuristics": BETTER,
    "staged MILP": BETTER,
    "exhaustive search": BETTER,
    "state placement": PLACING,
    "best state placement so far": PLACING,
}
_CUTS = re.compile(r"\d+ cuts")


def stage_words(stage: str) -> str:
    """The work after a stage of a solver, in words that need no knowledge of it."""
    return BETTER if _CUTS.fullmatch(stage) else STAGES.get(stage, stage)


def progress_line(problem: Problem, event: solvers.Event) -> str:
    """The best schedule and the bound in the unit of the objective, the gap, and the work at hand.

    A bound above the best schedule is about a part of the choices. None of them is better, and there is no gap to
    state.
    """
    show = functools.partial(format_cost, problem.objective)
    stage = stage_words(event.stage)
    if event.objective is None:
        return f"no schedule yet, bound {show(event.bound)} ({stage})"
    if event.bound > event.objective:
        return f"best {show(event.objective)}, every schedule tried next costs at least {show(event.bound)} ({stage})"
    gap = 1 - event.bound / event.objective if event.objective else 0.0
    return f"best {show(event.objective)}, bound {show(event.bound)}, gap {format_share(gap)} ({stage})"


class Choice(Protocol):
    """A part of a `Reduction`."""

    name: ClassVar[str]

    def is_open(self, problem: Problem) -> bool: ...


@dataclass(slots=True)
class BestSoFar:
    """The least objective of all searches of one planner, by budget: a later search may begin with a worse schedule."""

    bounds: dict[tuple[str, int], int] = field(default_factory=dict)  # on all choices, the best so far
    choices: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)  # those that are open, by name
    packed: dict[tuple[str, int], int] = field(default_factory=dict)  # of schedules whose arena fits
    searched: dict[tuple[str, int], int] = field(default_factory=dict)  # of schedules that nobody has packed yet
    log: SearchLog | None = None
    is_late: bool = False  # the clock has ended a search

    def begin(self, problem: Problem, reductions: Sequence[Choice], least_cost: Callable[[Problem], int]) -> None:
        """Note the choices that the first problem of a budget leaves open, and the bound that holds for all of them."""
        key = _key(problem)
        if key not in self.choices:
            self.choices[key] = frozenset(r.name for r in reductions if r.is_open(problem))
            self.bounds[key] = least_cost(problem)

    def seen(
        self, problem: Problem, event: solvers.Event, *, is_real: bool = True, covers: frozenset[str] = frozenset()
    ) -> solvers.Event:
        """`event` with the best objective and the best bound so far. `is_real`: its own schedule is the problem's.

        `covers`: the names of the choices for whose every option its bound holds. A bound on a part of the choices is
        none on all. `event` keeps it only where it is above the best schedule.
        """
        key = _key(problem)
        if not self.choices.get(key, frozenset()) - covers:
            self.bounds[key] = max(event.bound, self.bounds.get(key, 0))
        if event.objective is not None and is_real:
            self.searched[key] = min(event.objective, self.searched.get(key, event.objective))
        best = min(self.packed.get(key, math.inf), self.searched.get(key, math.inf))
        bound = event.bound if event.bound > best else min(self.bounds.get(key, 0), best)
        if self.log is not None:
            known = int(min(self.bounds.get(key, 0), best))
            stage, objective = stage_words(event.stage), None if best == math.inf else int(best)
            self.log.take(stage, objective, known, event.bound)
        return replace(event, objective=None if best == math.inf else int(best), bound=int(bound))

    def keep(self, problem: Problem, objective: int) -> None:
        """Take up a schedule that packs."""
        key = _key(problem)
        self.packed[key] = min(objective, self.packed.get(key, objective))

    def drop(self, problem: Problem) -> None:
        """Forget schedules that were found and do not pack."""
        self.searched.pop(_key(problem), None)


def _key(problem: Problem) -> tuple[str, int]:
    return problem.objective, problem.budget_bytes
