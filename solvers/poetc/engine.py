"""poetc's own solver: schedules from a race of clairvoyant evictions, lower bounds from relaxed MIPs at a few cuts.

It is anytime and deterministic: work is counted in runs and nodes, and the time limit only stops it. HiGHS solves
relaxations in a thread beside the search for schedules. Each sees the other's results only where they are joined.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import Problem, Schedule, SolveOptions, Status
from poetc.solvers.interface import ENGINE_NAME, Event, Progress, SolverInfo
from poetc.solvers.poetc import candidates
from poetc.solvers.poetc.beside import BackgroundTask
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.options import warm_start_of
from poetc.solvers.poetc.orders.best_order import best_order, clear_order
from poetc.solvers.poetc.orders.reordering import reordered, restored
from poetc.solvers.poetc.relaxing import Relaxing, Rung, Solved
from poetc.solvers.poetc.search.heuristics import offer_published
from poetc.solvers.poetc.search.neighbourhoods import Windows
from poetc.solvers.poetc.search.nested import nest
from poetc.solvers.poetc.search.race import Incumbent, Race
from poetc.solvers.poetc.settings import ENGINE, HEURISTICS, LADDER, SPREAD, WORK
from poetc.solvers.poetc.solving import Solving
from poetc.solvers.poetc.work import Work

INFO = SolverInfo(
    name=ENGINE_NAME,
    title="Clairvoyant eviction with lower bounds from relaxed MIPs",
    paging=True,
    energy=True,
    deadline=True,
    proof=True,
    milp=True,
)


T = TypeVar("T")


class _Solve(Solving):
    """A solve under one order of operators, in stages."""

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        progress: Progress | None,
        to_beat: float = math.inf,
        first: Incumbent | None = None,
    ) -> None:
        """`first`: a sequence that no published heuristic is ahead of, where they have been asked."""
        super().__init__(problem, options, progress, to_beat)
        self.first = first
        self.windows = Windows(self.race)
        self.relaxing = Relaxing(self)
        self.background: BackgroundTask[Any] | None = None  # the task in the background

    def run(self) -> Schedule:
        trivial = self.trivial()
        if trivial is not None:
            return trivial
        try:
            self.search()
        finally:
            if self.background is not None:
                self.background.cancel()
        return self.finish()

    def start_background(self, task: Callable[..., T]) -> BackgroundTask[T]:
        self.background = worker = BackgroundTask(task)  # known before it starts, so that `run` ends it in any case
        return worker.start()

    def search(self) -> None:
        n = self.model.n_ops
        runs = ENGINE.runs(n)
        start = self.warm_start.start
        if start is not None:
            self.race.offer(self.model.codes(start.actions), "the start")
        if self.first is not None:
            self.race.offer(self.first.codes, self.first.origin)
        self.race.run(ENGINE.first_runs, self.target)
        self.say("first schedules")
        if self.first is None:
            candidates.published(self, quick_alone=self.options.is_quick or not self.options.fixed_order)
        if self.options.is_quick and not self.small:
            self.search_unproven(runs)
            return
        relaxation = self.relax_one(self.model.cut, "the cut at the loss")
        self.say("cut at the loss")
        self.guide(relaxation, "held at the loss")
        # Single cuts come first for a small problem, and one good cut where many operators are alike. A bound that is
        # known comes from cuts like these.
        at_once = not self.small and not self.ties and self.warm_start.proven == 0
        if at_once:
            self.spread(runs // 4)
        ladder = self.relaxing.ladder
        if not ladder.cuts and not self.ties:
            ladder.cuts = set(self.warm_start.cuts)
        known = bool(ladder.cuts)
        single: BackgroundTask[list[Solved]] | None = None
        climbing: BackgroundTask[list[Rung]] | None = None
        if known:
            pass
        elif self.small:
            ladder.cuts = self.single_cuts([] if self.done else self.relaxing.single_cutting()())
        elif not self.done:
            single = self.start_background(self.relaxing.single_cutting())
        # Where the gap is widest, spread cuts are in place of a few. Without any schedule, those may suggest the first.
        is_wide = self.small and self.bound < (1 - SPREAD.widest_gap) * self.known_cost < math.inf
        if is_wide and not known:  # else an earlier search had them, and windows come first
            self.spread(ENGINE.quick_runs)
        self.race.run(ENGINE.quick_runs // 4 if self.small else runs // 4, self.target)
        self.say("race")
        quick, self.gap = self.gap, self.options.gap
        if known and not is_wide and not self.done:
            climbing = self.start_background(
                self.relaxing.climbing(LADDER.climb * ENGINE.first_windows_share * self.options.work_limit_s)
            )
        elif self.small:
            refined = not is_wide and self.refine(runs // 8)
            self.gap = quick
            self.race.run(ENGINE.quick_runs * 3 // 4, self.target)
            self.say("race")
            self.gap = self.options.gap
            if refined and self.refine(runs // 8):
                self.race.run(runs // 4, self.target)
                self.say("race")
        if not self.done and nest(self.race, self.target):
            self.say("nested checkpoints")
        candidates.flatten_keep_all(self)
        self.slide(ENGINE.first_windows_share * self.options.work_limit_s)
        if self.model.n_ops <= ENGINE.tiny_operators:
            candidates.exhaust(self)
        if single is not None and not self.done:
            ladder.cuts = self.single_cuts(single.result())
        if not at_once and (known or not is_wide):
            self.spread(ENGINE.quick_runs if is_wide else runs // 4)
        now, windows_s = runs // 2, 0.0  # beside the next relaxation, by the work on the last one
        for _ in range(ENGINE.refinements):
            if self.done or self.race.out_of_time:
                break
            if climbing is None:
                # Plans are of use soon where they take no time, or where they are mended to be schedules.
                soon = self.ties or (self.small and self.relaxing.work_s < ENGINE.short_s)
                climbing = self.start_background(
                    self.relaxing.climbing(0.0 if soon else LADDER.climb * (now * n * WORK.run_s + windows_s))
                )
            self.race.run(now, self.target)
            self.say("race")
            self.slide(windows_s)
            if self.done or not all(self.follow(rung, runs // 8) for rung in climbing.result()):
                break
            climbing = None
            now = max(runs // 4, int(ENGINE.race_share * self.relaxing.work_s / (n * WORK.run_s)))
            windows_s = ENGINE.windows_share * self.relaxing.work_s
        candidates.exhaust(self)
        if not self.done:
            self.race.run(runs, self.target)
            self.say("race")
            self.slide(ENGINE.first_windows_share * self.options.work_limit_s)

    def search_unproven(self, runs: int) -> None:
        """Schedules without a relaxation: the bound is every operator once."""
        self.race.run(runs, self.target)
        self.say("race")
        if not self.done and nest(self.race, self.target):
            self.say("nested checkpoints")
        candidates.flatten_keep_all(self)
        self.slide(ENGINE.first_windows_share * self.options.work_limit_s)

    def refine(self, runs: int) -> bool:
        """Solve the next relaxation, and `follow` it."""
        return not self.done and all(self.follow(rung, runs) for rung in self.relaxing.climbing()())

    def follow(self, rung: Rung, runs: int) -> bool:
        """Take the bound of a relaxation and schedules from its plan. False where another leads no further."""
        relaxation = self.relaxing.take(rung.solved, f"{rung.cuts} cuts")
        if relaxation is None:
            return False
        if rung.codes is not None:
            self.offer_improved(rung.codes, f"relaxed MIP with {rung.cuts} cuts")
            if rung.is_overfull and not self.done:
                candidates.repair(self, rung.codes, runs)
        self.guide(relaxation, f"held at {rung.cuts} cuts")
        self.say(f"{rung.cuts} cuts")
        return rung.more

    def slide(self, work_s: float) -> None:
        """Decide windows of the best schedule anew."""
        if not self.done and self.windows.run(work_s, self.target):
            candidates.unwrite(self)
            self.say("windows")

    def spread(self, runs: int) -> None:
        """Solve a relaxation with cuts spread over the step, beside a race, where a wide gap is left."""
        if self.done or not self.relaxing.worth_spreading:
            return
        spreading = self.start_background(self.relaxing.spreading())
        self.race.run(runs, self.target)
        rung = spreading.result()
        if rung is not None:
            self.follow(rung, runs)

    def single_cuts(self, solved: list[Solved]) -> set[int]:
        """Take the bounds of single cuts; the cut at the loss and the best of these."""
        for one in solved:
            relaxation = self.relaxing.take(one, "one cut")
        if not solved or relaxation is None:
            return {self.model.cut}
        self.guide(relaxation, "held at the best single cut")
        self.say("single cuts")
        return {*relaxation.cuts} if self.ties else {self.model.cut, *relaxation.cuts}

    def relax_one(self, cut: int, name: str) -> Relaxation:
        relaxation = self.relaxing.take(self.relaxing.task((cut,))(), name)
        assert relaxation is not None
        return relaxation


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """The cheapest schedule found, with a lower bound. Raises InfeasibleError only if proven, else LimitError."""
    if options.fixed_order:
        to_beat = warm_start_of(options).to_beat
        return _Solve(problem, options, progress, math.inf if to_beat is None else to_beat).run()
    started = time.monotonic()
    race = Race(problem, options.seed, math.inf)
    race.begin()
    stop_at = started + HEURISTICS.stop_share * options.time_limit_s
    offer_published(race, options, race.model.base_cost, stop_at, quick_alone=options.is_quick)
    first = race.best()
    if first is None:
        return _solve_any_order(problem, options, progress)
    least = first.proof.objective

    def report(event: Event) -> None:
        if progress is not None:
            if event.objective is not None and event.objective > least:
                event = replace(event, objective=None, schedule=None)  # the cheaper one may have another order
            progress(event)

    bound = first.proof.bound
    report(Event(stage="at once", objective=least, bound=bound, schedule=lambda: first, order=problem.order))
    left_s = max(WORK.least_left_s, options.time_limit_s - (time.monotonic() - started))
    try:
        schedule = _solve_any_order(problem, replace(options, time_limit_s=left_s), report, race.incumbent)
    except LimitError:
        return first
    return first if least < schedule.proof.objective else schedule


def _solve_any_order(
    problem: Problem, options: SolveOptions, progress: Progress | None, first: Incumbent | None = None
) -> Schedule:
    """Solve under the order that short races choose; `first`: a sequence under the problem's own."""
    started = time.monotonic()
    stop_at = started + ENGINE.order_stop_share * options.time_limit_s
    work = Work(ENGINE.order_share * options.work_limit_s, stop_at)
    clear = None if first is None else clear_order(problem, first.cost, options)
    order = clear[0] if clear else best_order(problem, options, work)
    rest = replace(options, time_limit_s=max(WORK.least_left_s, options.time_limit_s - (time.monotonic() - started)))
    if order is None:
        return _Solve(problem, rest, progress, first=first).run()

    def report(event: Event) -> None:
        if progress is not None:
            schedule = event.schedule
            progress(event if schedule is None else replace(event, schedule=lambda: restored(schedule(), order)))

    try:
        schedule = restored(_Solve(reordered(problem, order), rest, report).run(), order)
    except LimitError:
        if clear is None:
            raise
        return restored(clear[1], order)
    proof, left_s = schedule.proof, options.time_limit_s - (time.monotonic() - started)
    proven = proof.scope.is_everything and proof.status is Status.OPTIMAL
    close = options.gap > 0 and proof.gap() <= options.gap
    if proven or close or left_s <= 0 or len(problem.operators) > ENGINE.own_order_operators:
        return schedule
    # Short races chose the order: in the time that is left, a small problem is solved under its own order as well.
    try:
        own = _Solve(problem, replace(options, time_limit_s=left_s), progress, to_beat=proof.objective).run()
        if own.proof.objective < proof.objective:
            return own
    except (InfeasibleError, LimitError):
        pass
    if time.monotonic() - started >= options.time_limit_s:  # with more time the own order might have been better
        return replace(schedule, proof=replace(proof, status=Status.LIMIT))
    return schedule
