"""poetc's own solver: schedules from a race of clairvoyant evictions, lower bounds from relaxed MIPs at a few cuts.

Anytime and deterministic: work is counted in runs and nodes; the time limit only stops it. HiGHS solves relaxations in
a thread beside the search for schedules; either sees what the other found only where they are joined.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.scheduling import Completer, Problem, Proof, Schedule, SolveOptions, Status, keep_all
from poetc.solvers import capuchin, chen_greedy, dtr, dtr_eq, kusumoto_approx, melon
from poetc.solvers._beside import Beside
from poetc.solvers._cuts import TIE, CutModel, Relaxation, has_many_alike
from poetc.solvers._exact import search
from poetc.solvers._flatten import flatten
from poetc.solvers._ladder import CLIMB, Ladder, around, left, single_cut_positions
from poetc.solvers._liveness import improve
from poetc.solvers._minimum import lower_bound_bytes, min_budget
from poetc.solvers._model import Model
from poetc.solvers._nested import nest
from poetc.solvers._orders import best_order, reordered, restored
from poetc.solvers._plans import codes_of, lazy_codes, overfull
from poetc.solvers._search import Race, at_once
from poetc.solvers._staged import StagedModel
from poetc.solvers._types import (
    ALL_SCHEDULES,
    CLASS,
    ITERATION_S,
    ROUNDING,
    RUN_S,
    STAGED_CLASS,
    BudgetError,
    Event,
    Progress,
    SolverInfo,
    Work,
)
from poetc.solvers._unrolled import Unrolled
from poetc.solvers._windows import Windows

INFO = SolverInfo(
    name="poetc",
    title="Clairvoyant eviction with lower bounds from relaxed MIPs",
    paging=True,
    energy=True,
    deadline=True,
    proof=True,
)

PUBLISHED, PUBLISHED_OPERATORS = (chen_greedy, kusumoto_approx, dtr, dtr_eq, melon, capuchin), 400
TINY_OPERATORS, EXHAUSTIVE_OPERATORS, EXHAUSTIVE_STATES = 12, 40, 30_000
# Work on a relaxation: HiGHS's rounds at the root (its bound stands still after about as many), then nodes.
CUT_ROUNDS, CUT_NODES, CUT_NODES_X_ENTRIES = 100, 200, 10_000_000
CUT_ENTRIES = 1_500_000  # relaxations with more coefficients are not tried
STAGED_OPERATORS, STAGED_NODES = 100, 200
FLATTENED_OPERATORS, LATENESS = 3000, (0.05, 0.5)
FLATTENED_TWICE, FLATTENED_LATE = 500, 1500  # up to so many also without paging; with the other lateness
TIGHTENED, TIGHTER = 3, 0.01  # plans for less RAM, less by how much of it at most
TIES_SHARE = 4  # relaxations that decide between what is alike cost at most the inverse of it of the gap
# Runs of the heuristic, between two relaxations a quarter of them: about as long as a relaxation takes.
LEAST_RUNS, MOST_RUNS, RUNS_OF_SMALL = 8, 600, 240
SHORT_S = 1.0  # work on a relaxation of a small problem, up to which its plan is followed before the next is solved
RACE_SHARE = 0.3  # of what a relaxation took, at least, for the runs beside the next one
# Work on windows of the best schedule: at first, of the work limit; then of what the last relaxation took.
FIRST_WINDOWS_SHARE, WINDOWS_SHARE = 0.08, 0.3
RUNS_X_OPERATORS, RUNS_X_OPERATORS_SQUARED = 60_000, 24_000_000
# Up to so many, single cuts come first, since they take no longer than some runs.
QUICK_OPERATORS, QUICK_RUNS, QUICK_GAP = 200, 32, 1e-6
PROMISING_CUTS = 2  # of the LPs with one cut of a small problem, those with the best bounds are solved as MIPs
COARSE_CUTS = 4  # of the positions of single cuts, every so many first
REFINEMENTS, POLISH_ROUND = 30, 2  # rounds of relaxations with more and more cuts; before which the staged MILP comes
STAGED_FORWARD = "; nothing computed again or read back before the loss"
# The search for an order: of the time limit, counted in work; on the clock, when it stops on a slow machine.
ORDER_SHARE, ORDER_STOP_SHARE = 0.2, 0.5


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Solved:
    """What came of solving a relaxation; None if it is too large."""

    relaxation: Relaxation | None
    work_s: float = 0.0  # of a usual machine
    cut_short: bool = False  # by the clock
    aim: float = math.inf  # a bound this good was all that was asked for


@dataclass(frozen=True, slots=True)
class _Rung:
    """A relaxation with several cuts, and what follows from its plan."""

    solved: _Solved
    cuts: int
    codes: list[int] | None = None  # of the plan, if it can be executed
    excess_bytes: int = 0  # that it needs too much
    more: bool = False  # another relaxation is of use
    free: frozenset[int] = frozenset()  # what it does not decide about


class _Solve:
    def __init__(
        self, problem: Problem, options: SolveOptions, progress: Progress | None, to_beat: float = math.inf
    ) -> None:
        self.problem, self.options, self.progress = problem, options, progress
        self.to_beat = to_beat  # the cost of a schedule of another order: dearer ones are of no use
        self.small = len(problem.operators) <= QUICK_OPERATORS
        # Of a small problem, a gap that was asked for is closed further as long as that costs next to nothing.
        self.gap = min(options.gap, QUICK_GAP) if self.small else options.gap
        self.stop_at = time.monotonic() + options.time_limit_s
        self.race = Race(problem, options.seed, self.stop_at)
        self.model = self.race.model
        self.windows = Windows(self.race)
        self.bound = float(self.model.base_cost)
        self.bound_by = "every operator once"
        if options.proven > self.bound:
            self.bound, self.bound_by = float(options.proven), "what was proven before"
        self.log: list[str] = []
        self.cut_short = False
        self.relaxing_s = 0.0  # what the last relaxation took on a usual machine
        self.exhausted = self.polished = False
        self.staged_bound, self.staged_class = 0.0, ""
        self.ties = not self.small and has_many_alike(self.model)
        self.tightened: set[tuple[tuple[int, ...], int]] = set()  # cuts and bytes of what `tighten` has solved
        self.ladder = Ladder(self.model, most_new=1 if self.ties else None)
        self.beside: Beside[Any] | None = None  # what is being solved in the background

    # --- state ---

    @property
    def target(self) -> float:
        """An incumbent this cheap ends the search."""
        if self.gap >= 1:
            return math.inf
        optimal = self.bound / (1 - ROUNDING)
        return max(optimal, self.asked_from(self.bound) / (1 - self.gap))

    def asked_from(self, bound: float) -> float:
        """What a gap is from that was asked for, where so much is proven for this budget."""
        return bound if self.options.bound is None else min(bound, self.options.bound)

    @property
    def done(self) -> bool:
        incumbent = self.race.incumbent
        if self.bound >= self.to_beat:
            return True
        if incumbent is None:
            return False
        if incumbent.cost <= self.target:
            return True
        # A gap that was asked for may be proven for a smaller class, which the answer then names.
        gap = self.gap
        return gap > 0 and self.staged_bound > 0 and incumbent.cost * (1 - gap) <= self.asked_from(self.staged_bound)

    def say(self, stage: str) -> None:
        incumbent = self.race.incumbent
        cost = None if incumbent is None else incumbent.cost
        text = f"{stage}: " + ("no schedule yet" if cost is None else f"schedule {cost}") + f", bound {int(self.bound)}"
        self.log.append(text)
        if self.progress is not None:
            self.progress(Event(stage=stage, objective=cost, bound=int(self.bound)))

    def raise_bound(self, relaxation: Relaxation, name: str) -> None:
        if relaxation.infeasible:
            raise self.infeasible(f"proven by {name}")
        self.take_bound(relaxation.bound, name)

    def take_bound(self, bound: float, name: str) -> None:
        if bound > self.bound:
            self.bound, self.bound_by = bound, name
        incumbent = self.race.incumbent
        if incumbent is not None and self.bound > incumbent.cost * (1 + ROUNDING) + 1:
            raise AssertionError(f"the bound {self.bound} from {self.bound_by} exceeds a schedule of {incumbent.cost}")

    # --- stages ---

    def run(self) -> Schedule:
        trivial = self.trivial()
        if trivial is not None:
            return trivial
        try:
            self.search()
        finally:
            if self.beside is not None:
                self.beside.cancel()
        return self.finish()

    def start_beside(self, task: Callable[..., T]) -> Beside[T]:
        self.beside = beside = Beside(task)  # known before it starts, so that it ends whatever happens
        return beside.start()

    def search(self) -> None:
        n = self.model.n_ops
        runs = RUNS_OF_SMALL
        if n > STAGED_OPERATORS:
            runs = max(LEAST_RUNS, RUNS_X_OPERATORS // n, min(MOST_RUNS, RUNS_X_OPERATORS_SQUARED // n**2))
        if self.options.start is not None:
            self.race.offer(self.model.codes(self.options.start.steps), "the start")
        self.race.run(2, self.target)
        self.say("first schedules")
        relaxation = self.relax_one(self.model.cut, "the cut at the loss")
        self.say("cut at the loss")
        self.guide(relaxation, "held at the loss")
        ladder = self.ladder
        known = () if self.ties else self.options.cuts  # where much is alike, one good one comes first
        ladder.cuts = set(known)
        single: Beside[list[_Solved]] | None = None
        climbing: Beside[list[_Rung]] | None = None
        if ladder.cuts:
            pass
        elif self.small:
            ladder.cuts = self.single_cuts([] if self.done else self.single_cutting()())
        elif not self.done:
            single = self.start_beside(self.single_cutting())
        self.race.run(QUICK_RUNS // 4 if self.small else runs // 4, self.target)
        self.say("race")
        quick, self.gap = self.gap, self.options.gap
        if known and not self.done:
            climbing = self.start_beside(self.climbing(CLIMB * FIRST_WINDOWS_SHARE * self.options.work_limit_s))
        elif self.small:
            refined = self.refine(runs // 8)
            self.gap = quick
            self.race.run(QUICK_RUNS * 3 // 4, self.target)
            self.say("race")
            self.gap = self.options.gap
            if refined and self.refine(runs // 8):
                self.race.run(runs // 4, self.target)
                self.say("race")
        self.nest()
        self.flatten()
        self.published()
        self.slide(FIRST_WINDOWS_SHARE * self.options.work_limit_s)
        if self.model.n_ops <= TINY_OPERATORS:
            self.exhaust()
        if single is not None and not self.done:
            ladder.cuts = self.single_cuts(single.result())
        now, windows_s = runs // 2, 0.0  # what is done beside relaxations, of the length that the last one had
        for round_ in range(REFINEMENTS):
            if round_ == POLISH_ROUND:
                self.polish()
            if self.done or self.race.out_of_time:
                break
            if climbing is None:
                # Plans are of use soon where they are made in no time, or are mended to be schedules.
                soon = self.ties or (self.small and self.relaxing_s < SHORT_S)
                climbing = self.start_beside(self.climbing(0.0 if soon else CLIMB * (now * n * RUN_S + windows_s)))
            self.race.run(now, self.target)
            self.say("race")
            self.slide(windows_s)
            if self.done or not all(self.follow(rung, runs // 8) for rung in climbing.result()):
                break
            climbing = None
            now = max(runs // 4, int(RACE_SHARE * self.relaxing_s / (n * RUN_S)))
            windows_s = WINDOWS_SHARE * self.relaxing_s
        if not self.polished:
            self.polish()
        self.exhaust()
        if not self.done:
            self.race.run(runs, self.target)
            self.say("race")
            self.slide(FIRST_WINDOWS_SHARE * self.options.work_limit_s)

    def refine(self, runs: int) -> bool:
        """Solve the next relaxation, and `follow` it."""
        return not self.done and all(self.follow(rung, runs) for rung in self.climbing()())

    def climbing(self, work_s: float = 0.0) -> Callable[..., list[_Rung]]:
        """A task: relaxations with more and more cuts, at least one, until they were so much work."""
        known, cost, gap = self.bound, self.known_cost, self.gap

        def task(stop: threading.Event | None = None) -> list[_Rung]:
            rungs: list[_Rung] = []
            bound, spent_s = known, 0.0
            while True:
                rung = self.climb(bound, cost, stop)
                rungs.append(rung)
                spent_s += rung.solved.work_s
                if rung.solved.relaxation is not None:
                    bound = max(bound, rung.solved.relaxation.bound)
                stopped = self.race.out_of_time or (stop is not None and stop.is_set())
                if not rung.more or spent_s >= work_s or stopped or bound >= cost * (1 - gap):
                    return rungs

        return task

    def climb(self, bound: float, cost: float, stop: threading.Event | None) -> _Rung:
        """The next relaxation. The operators at which its plan needs too much RAM become cuts."""
        ladder = self.ladder
        cuts, free = tuple(sorted(ladder.cuts)), ladder.free
        solved = self.relaxing(cuts, between=True, bound=bound, cost=cost)(stop)
        relaxation = solved.relaxation
        if relaxation is None or relaxation.infeasible:
            return _Rung(solved, len(cuts))
        excess: list[tuple[int, int]] = []
        codes = lazy_codes(self.model, relaxation) if relaxation.held else None
        if codes is not None:
            excess = overfull(self.model, codes, self.race.capacity(any(code >= self.model.n_ops for code in codes)))
        more = ladder.climb(relaxation, solved.aim, excess, followed=codes is not None)
        return _Rung(solved, len(cuts), codes, excess[0][0] if excess else 0, more, free)

    def follow(self, rung: _Rung, runs: int) -> bool:
        """Take the bound of a relaxation and what its plan is good for. False where this leads no further."""
        relaxation = self.take(rung.solved, f"{rung.cuts} cuts")
        if relaxation is None:
            return False
        self.spell_out(relaxation)
        if rung.codes is not None:
            capacity = self.race.capacity(any(code >= self.model.n_ops for code in rung.codes))
            self.race.offer(improve(self.model, rung.codes, capacity), f"relaxed MIP with {rung.cuts} cuts")
            if rung.excess_bytes and not self.done:
                self.repair(rung.codes, runs)
            if rung.excess_bytes and self.ties:
                self.flatten_plan(rung.codes, rung.cuts)
                self.tighten(relaxation, rung.excess_bytes, rung.free)
        self.guide(relaxation, f"held at {rung.cuts} cuts")
        self.say(f"{rung.cuts} cuts")
        return rung.more

    def repair(self, codes: list[int], runs: int) -> None:
        """Evictions from a plan that needs too much RAM, the plan being the order to follow."""
        unrolled = Unrolled(self.model, codes)
        race = Race(unrolled.problem, self.options.seed, self.stop_at)
        race.run(runs, self.target)
        if race.incumbent is not None:
            found = unrolled.restored(race.incumbent.codes)
            if found is None:
                return
            capacity = self.race.capacity(any(code >= self.model.n_ops for code in found))
            self.race.offer(improve(self.model, found, capacity), "evictions from a relaxed MIP")

    def tighten(self, relaxation: Relaxation, excess_bytes: int, free: frozenset[int] = frozenset()) -> None:
        """Plans of the same cuts for a little less RAM, as much as the last one needs too much."""
        model, cuts, less = self.model, relaxation.cuts, 0
        for _ in range(TIGHTENED):
            less += excess_bytes
            if self.done or self.race.out_of_time or less > TIGHTER * model.capacity or (cuts, less) in self.tightened:
                return
            self.tightened.add((cuts, less))
            problem = replace(self.problem, budget_bytes=self.problem.budget_bytes - less)
            relaxed = CutModel(Model(problem), cuts, between=True, free=free, ties=True)
            plan = relaxed.solve(
                time_limit_s=max(0.1, self.stop_at - time.monotonic()),
                max_nodes=CUT_NODES,
                max_rounds=CUT_ROUNDS,
                gap=TIE,
                cutoff=self.known_cost,
                threads=self.options.threads,
                seed=self.options.seed,
            )
            codes = lazy_codes(model, plan) if plan.held else None
            if codes is None:
                return
            capacity = self.race.capacity(any(code >= model.n_ops for code in codes))
            excess = overfull(model, codes, capacity)
            if not excess:
                self.race.offer(improve(model, codes, capacity), f"relaxed MIP with {len(cuts)} cuts and less RAM")
                return
            self.flatten_plan(codes, len(cuts))
            excess_bytes = excess[0][0]

    def flatten_plan(self, codes: list[int], cuts: int) -> None:
        """A plan that is not scattered over what is alike, brought below the capacity from its peak down."""
        model, incumbent = self.model, self.race.incumbent
        paging = any(code >= model.n_ops for code in codes)
        capacity = self.race.capacity(paging)
        cutoff = math.inf if incumbent is None else model.base_cost + 1.5 * (incumbent.cost - model.base_cost)
        for beta in LATENESS:
            if self.done or self.race.out_of_time:
                return
            found = flatten(
                model,
                codes,
                capacity,
                paging=paging,
                beta=beta,
                most=2 * model.n_ops,
                cutoff=cutoff,
                stop_at=self.stop_at,
            )
            if found is not None:
                self.race.offer(improve(model, found, capacity), f"relaxed MIP with {cuts} cuts, flattened")

    def nest(self) -> None:
        """Nested checkpoints, where much is made again."""
        if not self.done and nest(self.race, self.target):
            self.say("nested checkpoints")

    def flatten(self) -> None:
        """Keep-all, brought below the capacity from its peak down."""
        model, incumbent = self.model, self.race.incumbent
        if self.done or model.n_ops > FLATTENED_OPERATORS:
            return
        cutoff = math.inf
        if incumbent is not None:  # cleaning up takes away a third of what is made again, at most
            cutoff = model.base_cost + 1.5 * (incumbent.cost - model.base_cost)
        for paging in (False, True):
            if model.must_page if not paging else not model.can_page:
                continue
            if not paging and model.can_page and model.n_ops > FLATTENED_TWICE:
                continue
            capacity = self.race.capacity(paging)
            for beta in LATENESS if model.n_ops <= FLATTENED_LATE else LATENESS[:1]:
                if self.done or self.race.out_of_time:
                    return
                found = flatten(
                    model,
                    model.keep_all(),
                    capacity,
                    paging=paging,
                    beta=beta,
                    most=2 * model.n_ops,
                    cutoff=cutoff,
                    stop_at=self.stop_at,
                )
                if found is not None:
                    self.race.offer(improve(model, found, capacity), "keep-all flattened")
        self.say("flattened")

    def slide(self, work_s: float) -> None:
        """Windows of the best schedule decided anew."""
        if not self.done and self.windows.run(work_s, self.target):
            self.say("windows")

    def published(self) -> None:
        """What published heuristics find, cleaned up."""
        if self.model.n_ops > PUBLISHED_OPERATORS:
            return
        for method in PUBLISHED:
            if self.done or self.race.out_of_time:
                return
            left_s = max(0.1, self.stop_at - time.monotonic())
            try:
                found = method.solve(self.problem, replace(self.options, time_limit_s=left_s))
            except PoetcError:
                continue
            codes = self.model.codes(found.steps)
            pages = any(code >= self.model.n_ops for code in codes)
            self.race.offer(improve(self.model, codes, self.race.capacity(pages)), method.INFO.name)
        self.say("published heuristics")

    def guide(self, relaxation: Relaxation, name: str) -> None:
        if relaxation.held and not self.done:
            self.race.add_arms(relaxation, name)

    def spell_out(self, relaxation: Relaxation) -> None:
        """Where every operator is a cut the relaxation is a sequence already: take it if it fits."""
        if not relaxation.held or len(relaxation.cuts) < self.model.n_ops - relaxation.cuts[0]:
            return
        codes = codes_of(self.model, relaxation)
        if codes is not None and self.race.offer(codes, "relaxed MIP"):
            self.say("relaxed MIP")

    def polish(self) -> None:
        """The staged MILP, from the incumbent on."""
        model, incumbent = self.model, self.race.incumbent
        if self.done or self.race.out_of_time or model.n_ops > STAGED_OPERATORS:
            return
        self.polished = True
        # Where nothing can be paged before the forward pass needs it, stages begin at the loss.
        whole = model.n_ops <= STAGED_OPERATORS // 2 or any(
            there and pageable for there, pageable in zip(model.in_ram, model.pageable, strict=True)
        )
        staged = StagedModel(model, 0 if whole or incumbent is None else model.cut)
        result = staged.solve(
            time_limit_s=max(0.1, self.stop_at - time.monotonic()),
            max_nodes=STAGED_NODES,
            gap=self.options.gap * 0.9,
            start=None if incumbent is None else staged.start_of(incumbent.codes),
            threads=self.options.threads,
            seed=self.options.seed,
        )
        codes = codes_of(model, result) if result.held else None
        if codes is not None:
            self.race.offer(codes, "staged MILP")
        self.staged_bound = 0.0 if result.infeasible else result.bound
        self.staged_class = STAGED_CLASS + ("" if staged.cuts[0] == 0 else STAGED_FORWARD)
        self.say("staged MILP")

    def exhaust(self) -> None:
        """Tiny problems: the optimum over the whole class."""
        if self.done or self.exhausted or self.model.n_ops > EXHAUSTIVE_OPERATORS:
            return
        self.exhausted = True
        incumbent = self.race.incumbent
        cutoff = math.inf if incumbent is None else float(incumbent.cost)
        result = search(self.model, max_states=EXHAUSTIVE_STATES, stop_at=self.stop_at, cutoff=cutoff)
        if result.codes is not None:
            self.race.offer(result.codes, "exhaustive search")
        elif result.complete and incumbent is None:
            raise self.infeasible("proven by exhaustive search")
        bound = min(result.bound, cutoff)
        self.take_bound(bound, "exhaustive search")
        self.say("exhaustive search")

    def single_cutting(self) -> Callable[..., list[_Solved]]:
        """A task: relaxations with one cut, along the backward pass, where RAM is scarce."""
        positions, small = single_cut_positions(self.model), self.small
        known, gap, cost = self.bound, self.gap, self.known_cost

        def task(stop: threading.Event | None = None) -> list[_Solved]:
            found: dict[int, _Solved] = {}  # by index into positions; of a small problem first LPs
            solved: list[_Solved] = []

            def bound(k: int) -> float:
                relaxation = found[k].relaxation
                assert relaxation is not None
                return relaxation.bound

            def solve(k: int, lp: bool) -> None:
                least = max([known, *map(bound, found)])
                found[k] = self.relaxing((positions[k],), lp=lp, bound=least, cost=cost)(stop)
                solved.append(found[k])

            def best() -> int:
                return max(found, key=lambda k: (bound(k), k))

            def over() -> bool:
                stopped = self.race.out_of_time or (stop is not None and stop.is_set())
                return stopped or (bool(found) and bound(best()) >= cost * (1 - gap))

            waiting = list(range(COARSE_CUTS // 2, len(positions), COARSE_CUTS))  # then beside the best
            while waiting and not over():
                solve(waiting.pop(0), small)
                if not waiting:
                    waiting = [j for j in (best() - 1, best() + 1) if 0 <= j < len(positions) and j not in found]
            if small and found:
                promising = sorted(found, key=lambda k: (-bound(k), -k))[:PROMISING_CUTS]
                found.clear()
                for k in promising:
                    solve(k, False)
            if self.ties and found and not over():  # which of those around the best it is can matter more than where
                k = best()
                positions[k] = self.best_cut(k, bound(k), cost, stop)
                if positions[k] != single_cut_positions(self.model)[k]:
                    solve(k, False)
            # The best comes last.
            return [*(s for s in solved if s is not found[best()]), found[best()]] if found else []

        return task

    def best_cut(self, k: int, bound: float, cost: float, stop: threading.Event | None) -> int:
        """The operator of the k-th stretch whose LP proves the most."""
        bounds: dict[int, float] = {}
        left_s = FIRST_WINDOWS_SHARE * self.options.work_limit_s
        for v in around(self.model, k):
            if bounds and (left_s <= 0 or self.race.out_of_time or (stop is not None and stop.is_set())):
                break
            solved = self.relaxing((v,), lp=True, bound=bound, cost=cost)(stop)
            assert solved.relaxation is not None
            bounds[v] = solved.relaxation.bound
            left_s -= solved.work_s
        return max(bounds, key=lambda v: (bounds[v], -v))

    def single_cuts(self, solved: list[_Solved]) -> set[int]:
        """The cut at the loss and the best of these."""
        for one in solved:
            relaxation = self.take(one, "one cut")
        if not solved or relaxation is None:
            return {self.model.cut}
        self.guide(relaxation, "held at the best single cut")
        self.say("single cuts")
        return {*relaxation.cuts} if self.ties else {self.model.cut, *relaxation.cuts}

    def trivial(self) -> Schedule | None:
        problem, model = self.problem, self.model
        schedule = keep_all(problem)
        needed = lower_bound_bytes(problem)
        least_ns = model.time(model.keep_all())
        if problem.deadline_ns is not None and least_ns > problem.deadline_ns:
            raise InfeasibleError(
                f"the deadline of {problem.deadline_ns / 1e6:.6g} ms cannot be met: every operator once takes "
                f"{least_ns / 1e6:.6g} ms; allow at least that"
            )
        stored = sum(model.footprint[t] for t in model.page_outs_needed)
        if stored > model.store_free:
            limit = problem.write_limit_bytes
            if limit is not None and stored > limit:
                raise InfeasibleError(
                    f"what must end on the store takes {stored} bytes of writing, the limit is {limit}; allow that"
                )
            raise InfeasibleError(
                f"the store is too small: {stored - model.store_free} bytes more are needed at the end"
            )
        completion = Completer(problem).run(model.actions(model.keep_all()))
        in_time = problem.deadline_ns is None or completion.time_ns <= problem.deadline_ns
        if completion.peak_bytes <= problem.budget_bytes and in_time:
            self.log.append("keep-all fits")
            proof = Proof(
                status=Status.OPTIMAL,
                objective=schedule.proof.objective,
                bound=schedule.proof.objective,
                schedule_class=ALL_SCHEDULES,
                method="every operator once",
            )
            return Schedule(solver=INFO.name, steps=schedule.steps, proof=proof, log=tuple(self.log))
        if needed > problem.budget_bytes:
            raise self.infeasible("an operator's operands alone need more")
        return None

    @property
    def known_cost(self) -> float:
        return math.inf if self.race.incumbent is None else self.race.incumbent.cost

    def relaxing(
        self,
        cuts: tuple[int, ...],
        *,
        between: bool = False,
        lp: bool = False,
        bound: float | None = None,
        cost: float | None = None,
    ) -> Callable[..., _Solved]:
        """A task: solve the relaxation with these cuts, or its LP, with so much work, or until the time is up. `bound`
        and `cost`: what is known, if that is not what is known now.
        """
        bound = self.bound if bound is None else bound
        cost = self.known_cost if cost is None else cost
        ladder = self.ladder
        effort, free = ladder.effort if between else 1, ladder.free
        # As long as that costs little of the gap.
        ties = self.ties and cost - bound > TIES_SHARE * TIE * (cost - self.model.base_cost)
        aim = ladder.aim(bound, cost, self.gap) if between else cost
        # No closer than a quarter of what was asked for, or of what is aimed at.
        gap = min(self.gap, left(bound, aim)) / 4
        if cost < math.inf:
            gap = max(gap, ladder.slack * left(bound, cost))

        def task(stop: threading.Event | None = None) -> _Solved:
            model = CutModel(self.model, cuts, between=between, free=free, ties=ties)
            if len(cuts) > 1 and model.mip.entries > CUT_ENTRIES:
                return _Solved(None)
            nodes = max(CUT_NODES // 10, min(CUT_NODES, CUT_NODES_X_ENTRIES // max(1, model.mip.entries)))
            relaxation = model.solve(
                time_limit_s=max(0.1, self.stop_at - time.monotonic()),
                max_nodes=effort * nodes,
                max_rounds=effort * CUT_ROUNDS,
                gap=gap,
                cutoff=aim if aim == cost else aim * (1 + ROUNDING),  # HiGHS's tolerances
                threads=self.options.threads,
                seed=self.options.seed,
                relax=lp,
                plain=self.small,
                stop=stop,
            )
            if aim < cost and not relaxation.infeasible:
                relaxation = replace(relaxation, bound=min(relaxation.bound, aim))
            work_s = model.mip.iterations * math.sqrt(model.mip.entries) * ITERATION_S
            return _Solved(relaxation, work_s, not relaxation.exact and time.monotonic() >= self.stop_at, aim)

        return task

    def take(self, solved: _Solved, name: str) -> Relaxation | None:
        """Its bound."""
        relaxation = solved.relaxation
        if relaxation is not None:
            self.relaxing_s = solved.work_s
            self.cut_short |= solved.cut_short
            self.raise_bound(relaxation, name)
        return relaxation

    def relax_one(self, cut: int, name: str) -> Relaxation:
        relaxation = self.take(self.relaxing((cut,))(), name)
        assert relaxation is not None
        return relaxation

    # --- endings ---

    def infeasible(self, why: str) -> InfeasibleError:
        if self.to_beat < math.inf:
            return InfeasibleError("nothing fits under this order")
        smallest = min_budget(self.problem, time_limit_s=max(2.0, min(20.0, self.stop_at - time.monotonic())))
        budget = self.problem.budget_bytes
        written = self.problem.write_limit_bytes
        within = "" if written is None else f" with at most {written} bytes written to the store"
        text = f"no schedule fits in {budget} bytes{within} ({why})"
        if smallest.smallest_bytes is None or smallest.smallest_bytes <= budget:
            text += " together with the deadline; allow more of either"
        else:
            text += f"; the smallest budget known to work is {smallest.smallest_bytes} bytes (nothing below "
            text += f"{smallest.lower_bound_bytes} can)"
        if smallest.tensors:
            text += "; at its peak: " + ", ".join(f"{name} ({size})" for name, size in smallest.tensors[:5])
        return BudgetError(
            text,
            smallest_bytes=smallest.smallest_bytes,
            lower_bound_bytes=smallest.lower_bound_bytes,
            tensors=smallest.tensors,
        )

    def finish(self) -> Schedule:
        if self.race.incumbent is None and self.to_beat < math.inf:
            raise LimitError("found nothing under this order")
        if self.race.incumbent is None:
            # The bisection runs the heuristic with less RAM, which now and then succeeds where it failed with more.
            smallest = min_budget(self.problem, time_limit_s=max(2.0, min(20.0, self.stop_at - time.monotonic())))
            found = smallest.smallest_bytes
            if found is not None and found <= self.problem.budget_bytes and smallest.schedule is not None:
                self.race.offer(self.model.codes(smallest.schedule.steps), "smallest budget")
        if self.race.incumbent is None:
            advice = "allow more time" if found is None else f"the smallest budget with a schedule is {found} bytes"
            raise LimitError(
                f"found no schedule for {self.problem.budget_bytes} bytes, nor a proof that there is none; {advice}"
            )
        incumbent = self.race.incumbent
        self.take_bound(self.bound, self.bound_by)
        bound, bound_by, schedule_class = math.ceil(self.bound), self.bound_by, CLASS
        if bound < self.staged_bound <= incumbent.cost:
            # A better bound, for fewer schedules: the class says so.
            bound, bound_by, schedule_class = math.ceil(self.staged_bound), "staged MILP", self.staged_class
        bound = min(bound, incumbent.cost)
        gap = (incumbent.cost - bound) / max(1, incumbent.cost)
        if gap <= ROUNDING:
            status = Status.OPTIMAL
        elif gap <= self.options.gap or not (self.race.out_of_time or self.cut_short):
            status = Status.FEASIBLE
        else:
            status = Status.LIMIT
        completion = Completer(self.problem).run(self.model.actions(incumbent.codes))
        proof = Proof(
            status=status,
            objective=incumbent.cost,
            bound=bound,
            schedule_class=schedule_class,
            method=f"schedule: {incumbent.origin}; bound: {bound_by}",
        )
        return Schedule(solver=INFO.name, steps=completion.steps, proof=proof, log=tuple(self.log))


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """The cheapest schedule found, with a lower bound. Raises InfeasibleError only if proven, else LimitError."""
    if options.fixed_order:
        return _Solve(problem, options, progress, math.inf if options.to_beat is None else options.to_beat).run()
    started = time.monotonic()
    first = at_once(problem, options)
    if first is None:
        return _solve_any_order(problem, options, progress)
    least = first.proof.objective

    def report(event: Event) -> None:
        if progress is not None:
            known = least if event.objective is None else min(least, event.objective)
            progress(replace(event, objective=known))

    report(Event(stage="at once", objective=least, bound=first.proof.bound))
    left_s = max(0.1, options.time_limit_s - (time.monotonic() - started))
    try:
        found = _solve_any_order(problem, replace(options, time_limit_s=left_s), report)
    except LimitError:
        return first
    return first if least < found.proof.objective else found


def _solve_any_order(problem: Problem, options: SolveOptions, progress: Progress | None) -> Schedule:
    """Under the order that short races choose."""
    started = time.monotonic()
    stop_at = started + ORDER_STOP_SHARE * options.time_limit_s
    order = best_order(problem, options, Work(ORDER_SHARE * options.work_limit_s, stop_at))
    if order is None:
        return _Solve(problem, options, progress).run()
    left_s = max(0.1, options.time_limit_s - (time.monotonic() - started))
    schedule = restored(_Solve(reordered(problem, order), replace(options, time_limit_s=left_s), progress).run(), order)
    proof, left_s = schedule.proof, options.time_limit_s - (time.monotonic() - started)
    proven = proof.schedule_class == ALL_SCHEDULES and proof.status is Status.OPTIMAL
    close = options.gap > 0 and proof.gap() <= options.gap
    if proven or close or left_s <= 0 or len(problem.operators) > STAGED_OPERATORS:
        return schedule
    # Short races chose the order: in what time is left, a small problem's own order is solved as well.
    try:
        own = _Solve(problem, replace(options, time_limit_s=left_s), progress, to_beat=proof.objective).run()
        if own.proof.objective < proof.objective:
            return own
    except (InfeasibleError, LimitError):
        pass
    if time.monotonic() - started >= options.time_limit_s:  # nor would more time have been of no use
        return replace(schedule, proof=replace(proof, status=Status.LIMIT))
    return schedule
