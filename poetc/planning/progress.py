"""Progress of a plan in words: the best schedule of all searches so far, the bound, the gap and the work at hand."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from poetc import solvers
from poetc.devices import format_cost, format_gap
from poetc.planning.search_log import SearchLog
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import MemoryPlan, Schedule

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
    "windows": BETTER,
    "published heuristics": BETTER,
    "exhaustive search": BETTER,
    "state placement": PLACING,
    "best state placement so far": PLACING,
}
_CUTS = re.compile(r"\d+ cuts")


def stage_words(stage: str) -> str:
    """The work after a stage of a solver, in words that need no knowledge of it."""
    return BETTER if _CUTS.fullmatch(stage) else STAGES.get(stage, stage)


@dataclass(frozen=True, slots=True)
class Seen(solvers.Event):
    """An event beside all searches. Its objective is that of a schedule that packs.

    `unpacked`: of a cheaper one that nobody has packed yet. `is_about_others`: the bound is about other schedules than
    the one before, and less.
    """

    unpacked: int | None = None
    is_about_others: bool = False


def progress_line(problem: Problem, event: solvers.Event) -> str:
    """A line such as "best 8.31 mJ, bound 8.20 mJ, gap 1.3 % (cuts)".

    While the search is in a part of the choices, their bound may be above the best schedule. The line then says so, and
    gives no gap.
    """
    show = functools.partial(format_cost, problem.objective)
    stage = stage_words(event.stage)
    unpacked = event.unpacked if isinstance(event, Seen) else None
    if event.objective is None and unpacked is not None:
        return f"{show(unpacked)} before packing, bound {show(event.bound)} ({stage})"
    if event.objective is None:
        return f"no schedule yet, bound {show(event.bound)} ({stage})"
    if event.bound > event.objective:
        return f"best {show(event.objective)}, every schedule tried next costs at least {show(event.bound)} ({stage})"
    gap = 1 - event.bound / event.objective if event.objective else 0.0
    before_packing = "" if unpacked is None else f", {show(unpacked)} before packing"
    return f"best {show(event.objective)}{before_packing}, bound {show(event.bound)}, gap {format_gap(gap)} ({stage})"


# The options that a search takes as given, by the names of their choices. Only choices whose options bounds may name.
Chosen = frozenset[tuple[str, Any]]
NOTHING_CHOSEN: Chosen = frozenset()
ORDER = "order"  # among the options: the order of first executions that a bound or a schedule is about
REPETITION = "repetition"  # likewise: the class of schedules, where a bound is about one
UNKNOWN = "unknown"  # an option that the best schedule will suggest


class Choice(Protocol):
    """A part of a `Reduction`."""

    name: ClassVar[str]

    def is_open(self, problem: Problem) -> bool: ...


@dataclass(slots=True)
class BestSoFar:
    """The least objective of all searches of one planner, by budget: a later search may begin with a worse schedule.

    The best schedule is one that packs, as soon as there is one. The bound is about the order and the options of the
    cheapest one, packed or not, and of searches that are announced. So it falls only where these become others.
    """

    bounds: dict[tuple[str, int], dict[Chosen, int]] = field(default_factory=dict)  # the best, by the options
    choices: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)  # those that are open, by name
    packed: dict[tuple[str, int], tuple[int, Chosen]] = field(
        default_factory=dict
    )  # the best schedule whose arena fits
    searched: dict[tuple[str, int], tuple[int, Chosen]] = field(default_factory=dict)  # and that nobody has packed yet
    # Options that were announced, and whether their search has begun.
    expected: dict[tuple[str, int], dict[Chosen, bool]] = field(default_factory=dict)
    # A choice that is open, and the bound for all of its options that one for the option at hand proves.
    carry: tuple[str, Callable[[int, Mapping[str, Any]], int]] | None = None
    shown: dict[tuple[str, int], tuple[float, Hashable]] = field(default_factory=dict)  # the last bound, its scope
    log: SearchLog = field(default_factory=SearchLog)
    is_late: bool = False  # the clock has ended a search
    has_first: bool = False  # whoever asks has a schedule already, should the time be up
    at_once: list[tuple[int, Problem, Schedule | None]] = field(
        default_factory=list
    )  # seeds, problems, and the schedules found at once
    kept: tuple[Problem, Schedule, tuple[Schedule, MemoryPlan]] | None = None  # the last one that packed: as it was
    outer: BestSoFar | None = None  # that of the problem for which these searches find steps

    def begin(self, problem: Problem, reductions: Sequence[Choice], least_cost: Callable[[Problem], int]) -> None:
        """Note the choices that the first problem of a budget leaves open, and the bound that holds for all of them."""
        key = _key(problem)
        if key not in self.choices:
            self.choices[key] = frozenset(r.name for r in reductions if r.is_open(problem))
            self.bounds[key] = {NOTHING_CHOSEN: least_cost(problem)}

    def expect(
        self,
        problem: Problem,
        chosen: Mapping[str, Any],
        name: str,
        options: Mapping[Any, int],
        covers: frozenset[str] = frozenset(),
    ) -> None:
        """Note options of the choice `name` that will be searched, each with the cost of computing everything once.

        Until then no bound above these costs is shown. `chosen`: the other options that are taken. `covers`: the names
        of the choices for whose every option these costs hold. Where another one is open, they are not shown.
        """
        key = _key(problem)
        for option, least in options.items():
            own = frozenset({**chosen, name: option}.items())
            self.expected.setdefault(key, {}).setdefault(own, False)
            if not self.choices.get(key, frozenset()) - covers - {n for n, _ in own}:
                bounds = self.bounds.setdefault(key, {NOTHING_CHOSEN: 0})
                bounds[own] = max(least, bounds.get(own, 0))

    def expect_more(
        self,
        problem: Problem,
        chosen: Mapping[str, Any],
        name: str,
        least: int | None,
        covers: frozenset[str] = frozenset(),
    ) -> None:
        """Note options of the choice `name` that are not known yet, at no less than `least`; None: they are now."""
        if least is not None:
            self.expect(problem, chosen, name, {UNKNOWN: least}, covers)
        else:
            self.expected.get(_key(problem), {}).pop(frozenset({**chosen, name: UNKNOWN}.items()), None)

    def no_longer_expect(self, problem: Problem, chosen: Mapping[str, Any], name: str, option: Any) -> None:
        """An option that was announced is not searched any more."""
        self.expected.get(_key(problem), {}).pop(frozenset({**chosen, name: option}.items()), None)

    def settle(
        self, problem: Problem, objective: int, bound: int, chosen: Mapping[str, Any], order: tuple[str, ...]
    ) -> None:
        """Take the best schedule of all with the bound that is proven for it and others like it."""
        key, own = _key(problem), frozenset({**chosen, ORDER: order}.items())
        if objective <= self.packed.get(key, (math.inf,))[0]:
            self.packed[key] = objective, own
        self.searched.pop(key, None)
        self.expected.pop(key, None)
        self.shown.pop(key, None)
        bounds = self.bounds.setdefault(key, {NOTHING_CHOSEN: 0})
        bounds[own] = max(bound, bounds.get(own, 0))

    def proven(self, problem: Problem, chosen: Mapping[str, Any], order: tuple[str, ...]) -> tuple[int, frozenset[str]]:
        """The best bound for schedules with these options in this order, and the choices that it names."""
        bounds, options = self.bounds.get(_key(problem), {}), frozenset({**chosen, ORDER: order}.items())
        own = max((o for o in bounds if o <= options), key=lambda o: bounds[o], default=NOTHING_CHOSEN)
        return bounds.get(own, 0), frozenset(name for name, _ in own)

    def observe(
        self,
        problem: Problem,
        event: solvers.Event,
        *,
        is_real: bool = True,
        covers: frozenset[str] = frozenset(),
        chosen: Mapping[str, Any] = MappingProxyType({}),
    ) -> Seen:
        """`event` with the best objective so far, and the best bound for schedules with the same options.

        `is_real`: its own schedule is the problem's. `covers`: the names of the choices for whose every option its
        bound holds. `chosen`: the options that it is for. Where other choices are open, its bound says nothing.
        `event` keeps it only where it is above the best schedule.
        """
        key = _key(problem)
        own = frozenset((name, option) for name, option in chosen.items() if name not in covers)
        order = frozenset({(ORDER, event.order)} if event.order else ())
        bounds = self.bounds.setdefault(key, {NOTHING_CHOSEN: 0})
        left, proven = self.choices.get(key, frozenset()) - covers - {name for name, _ in own}, event.bound
        if self.carry is not None and left == {self.carry[0]}:
            left, proven = frozenset(), self.carry[1](proven, chosen)
        if not left:
            bounds[own | order] = max(proven, bounds.get(own | order, 0))
        if event.objective is not None and is_real:
            options = frozenset(chosen.items()) | order
            known = self.searched.get(key, (math.inf, options))
            if event.objective < known[0] or (event.objective == known[0] and options > known[1]):
                self.searched[key] = event.objective, options
        best = self._best(key)[0]
        least, options = min(self._best(key), self.searched.get(key, self._best(key)), key=lambda known: known[0])
        at_hand, expected = frozenset(chosen.items()), self.expected.get(key, {})
        begun = {other for other in expected if other <= at_hand}
        expected.update(dict.fromkeys(begun, True))
        open_ = {options, *(other for other, has_begun in expected.items() if not has_begun)}
        open_ |= {at_hand} if begun else set()
        known_bound = min(least, *(_bound_of(bounds, of) for of in open_))
        packed, scheduled = (known[key][0] if key in known else None for known in (self.packed, self.searched))
        unpacked = scheduled if scheduled is not None and (packed is None or scheduled < packed) else None
        known_bound, scope = self.shown[key] = self._rising(key, least, known_bound, frozenset(open_))
        bound = event.bound if event.bound > best else known_bound
        falls = self.log.take(stage_words(event.stage), packed, int(known_bound), event.bound, unpacked, scope=scope)
        return Seen(stage=event.stage, objective=packed, bound=int(bound), unpacked=unpacked, is_about_others=falls)

    def _rising(self, key: tuple[str, int], least: float, bound: float, scope: Hashable) -> tuple[float, Hashable]:
        """A bound and its scope, or the ones shown before, if those are above it.

        The best schedule has come from another scope, about which less is proven yet. Nothing is shown above its cost.
        """
        before = self.shown.get(key, (0.0, scope))
        return before if bound < before[0] <= least else (bound, scope)

    def keep(self, problem: Problem, objective: int, chosen: Mapping[str, Any], order: tuple[str, ...] = ()) -> None:
        """Take up a schedule that packs. `order`: of its operators, by name."""
        key = _key(problem)
        known = self.packed.get(key)
        if known is None or objective < known[0]:
            self.packed[key] = objective, frozenset(chosen.items()) | ({(ORDER, order)} if order else set())

    def packed_cost(self, problem: Problem) -> float:
        """The objective of the best schedule that packs."""
        return self.packed.get(_key(problem), (math.inf,))[0]

    @property
    def is_answered(self) -> bool:
        """Whether a schedule that packs is known for any budget, or for the problem that this one serves."""
        return bool(self.packed) or (self.outer is not None and self.outer.is_answered)

    @property
    def is_safe(self) -> bool:
        """Whether `has_first` holds here, or for the problem that this one serves."""
        return self.has_first or (self.outer is not None and self.outer.is_safe)

    def has_packed(self, problem: Problem) -> bool:
        """Whether a schedule that packs is known."""
        return _key(problem) in self.packed

    def kept_first(self, problem: Problem, schedule: Schedule | None) -> tuple[Schedule, MemoryPlan] | None:
        """The last schedule found at once that packed, if it is `schedule`, or any, of this problem."""
        if self.kept is None or schedule not in (None, self.kept[1]) or self.kept[0] != problem:
            return None
        return self.kept[2]

    def _best(self, key: tuple[str, int]) -> tuple[float, Chosen]:
        """The least objective, and the options of its schedule: of those that pack, if there is one."""
        return self.packed.get(key) or self.searched.get(key) or (math.inf, NOTHING_CHOSEN)

    def drop(self, problem: Problem) -> None:
        """Forget schedules that were found and do not pack."""
        self.searched.pop(_key(problem), None)


def _bound_of(bounds: Mapping[Chosen, int], options: Chosen) -> int:
    """The best bound for schedules with these options: in their order, or the best of any order where none is named."""
    if any(name == ORDER for name, _ in options):
        return max(bound for own, bound in bounds.items() if own <= options)
    return max(bound for own, bound in bounds.items() if {(n, o) for n, o in own if n != ORDER} <= options)


def _key(problem: Problem) -> tuple[str, int]:
    return problem.objective, problem.budget_bytes
