"""The search for a state placement, among those that a relaxation with open placement suggests.

State that lives on the store is read once in a step at least, and written once if the step updates it. State that lives
in RAM costs nothing as long as it stays there. It occupies RAM from the end of one step to the beginning of the next.
"""

from __future__ import annotations

import bisect
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from poetc.scheduling import (
    ANY,
    Completer,
    Problem,
    Proof,
    Schedule,
    Scope,
    SolveOptions,
    Status,
    movable_state,
    on_store,
    unchanged_state,
)
from poetc.solvers.interface import ENGINE_NAME, ROUNDING, Event, Progress, bound_beside
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.beside import BackgroundTask
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.gaps import GapModel
from poetc.solvers.poetc.bounds.ladder import fullest_operator, has_wide_gap, new_cuts, single_cut_positions
from poetc.solvers.poetc.bounds.ram import lower_bound_bytes, tiny_tensors
from poetc.solvers.poetc.bounds.spread import best_spread, small_tensors
from poetc.solvers.poetc.placement.relaxation import OpenPlacement, open_model
from poetc.solvers.poetc.search.neighbourhoods import Windows
from poetc.solvers.poetc.search.nested import nest
from poetc.solvers.poetc.search.plans import chain_ends, lazy_codes, overfull
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import PLACEMENT, RELAXING, SPREAD, WORK


class PlacementSearch:
    """The cost of placing state of `problem` on the store, under its order of operators. All of it lives in RAM.

    The relaxation is solved with more and more cuts, where its last plan needs too much RAM. Each time short races find
    the cost of the placement that it suggests; then placements beside the best are raced. `bound` holds for schedules
    in the problem's order, with any placement of state.
    """

    def __init__(self, problem: Problem, options: SolveOptions, stop_at: float, progress: Progress | None) -> None:
        self.problem, self.options, self.stop_at, self.progress = problem, options, stop_at, progress
        self.chains = movable_state(problem)
        self.everything = frozenset(chain[0] for chain in self.chains)
        self.model = open_model(problem)
        self.bound = float(sum(self.model.op_cost))
        self.free: frozenset[int] = frozenset()
        if self.model.n_tensors > PLACEMENT.coarse_tensors:
            self.free = tiny_tensors(self.model, PLACEMENT.free_share)
        self.effort = 1
        self.raced: dict[frozenset[int], float] = {}  # by placement: the cost that short races found
        self.solved: dict[frozenset[int], float] = {}  # and the cost that the whole solver found
        self.too_tight: set[frozenset[int]] = set()  # placements that pack only with less in RAM between steps
        self.suggested: frozenset[int] | None = None  # by the last relaxation
        self.settled = False  # two relaxations in turn suggested the same
        self.impossible = False  # proven under the order, with any placement
        self.spent = 0.0
        self.cuts: tuple[int, ...] = ()  # of the next relaxation
        self.known: dict[frozenset[int], float] = {}  # the cheapest schedules, longer searches too
        self._codes: dict[frozenset[int], list[int]] = {}
        self._most_cuts = 2  # of a relaxation that is not too large, about
        self._relaxing_s = 0.0  # work on the last relaxation with several cuts, seconds of a usual machine
        self._longer: tuple[frozenset[int], Race, Windows] | None = None  # a search for schedules with this placement
        self._follows_first = False
        self._has_spread = False  # in this solve
        self._spread: dict[tuple[int, ...], Relaxation] = {}  # by spread cuts; the next solve goes on with more
        self._taken: set[frozenset[int]] = set()  # placements whose first runs of a race are known
        self._stages = self._all_stages()

    def go_on(self, options: SolveOptions, stop_at: float, progress: Progress | None) -> None:
        """Take up these options, in another solve of the problem."""
        self.options, self.stop_at, self.progress = options, stop_at, progress
        self.settled, self._has_spread = self.suggested is not None, False

    def spread(self, stop_at: float) -> None:
        """Raise the bound with cuts spread over the step, once a solve, where a wide gap is left."""
        if has_wide_gap(self.bound, self.least) and not self.impossible and not self._has_spread:
            is_widest = self.bound < (1 - SPREAD.widest_gap) * self.least
            work_s = (SPREAD.work_share if is_widest else SPREAD.placement_share) * self.options.work_limit_s
            known = self._spread
            bound, spent_s = bound_of_spread(
                self.model, self.chains, self.least, work_s=work_s, stop_at=stop_at, known=known
            )
            self.spent += spent_s
            self._has_spread = True
            self.impossible = bound == math.inf
            self.bound = max(self.bound, bound if bound < math.inf else 0.0)
            self._report("state placement")

    def rest(self) -> None:
        """Let go of the last relaxation, which can take much memory, until the search goes on."""
        self.__dict__.pop("relaxed", None)

    def best(self) -> frozenset[int]:
        """The placement for which races found the cheapest schedule: the state on the store."""
        # Where races found nothing, all state on the store may still be the only placement that fits.
        costs, usual = self.raced, self.everything
        return min(
            costs.keys() - self.too_tight, key=lambda s: (costs[s], s != usual, len(s), sorted(s)), default=usual
        )

    def untried(self) -> frozenset[int] | None:
        """The cheapest unsolved placement, if its races found about the cost of one that was solved."""
        open_ = [s for s in self.raced if s not in self.solved]
        known = min((self.raced[s] for s in self.solved if s in self.raced), default=math.inf)
        cheapest = min(open_, key=lambda s: (s in self.too_tight, self.raced[s], len(s), sorted(s)), default=None)
        return cheapest if cheapest is not None and self.raced[cheapest] <= PLACEMENT.near * known < math.inf else None

    def run(self, work_s: float = math.inf, *, until_settled: bool = False) -> bool:
        """Search for `work_s` seconds of a usual machine more. False if there is nothing left to do.

        `until_settled`: it ends once two relaxations in turn suggest the same placement.
        """
        limit = self.spent + work_s
        while self.spent < limit and not (until_settled and self.settled):
            if self.done or not next(self._stages, False):
                return False
        return True

    def schedule(self, stored: frozenset[int]) -> Schedule | None:
        """The cheapest schedule that was found with this placement."""
        if stored not in self._codes:
            return None
        placed = on_store(self.problem, stored)
        codes, cost = self._codes[stored], int(self.known[stored])
        actions = Completer(placed).run(Model(placed).decisions(codes)).actions
        least = bound_beside(self.bound, cost, "state placement")
        scope = Scope(order=tuple(range(len(self.problem.operators)))).with_choice("state", ANY)
        proof = Proof(status=Status.FEASIBLE, objective=cost, bound=least, scope=scope, method="race")
        return Schedule(solver=ENGINE_NAME, actions=actions, proof=proof)

    def take(self, stored: frozenset[int], schedule: Schedule) -> None:
        """Record a placement and its schedule from another search; later runs start from both."""
        cost = float(schedule.proof.objective)
        self._taken.add(stored)
        if cost < self.known.get(stored, math.inf):
            self.known[stored] = self.raced[stored] = cost
            self._codes[stored] = Model(on_store(self.problem, stored)).codes(schedule.actions)

    def loosen(self, stored: frozenset[int], excess_bytes: int) -> bool:
        """Race a placement with `excess_bytes` less in RAM between steps than `stored`, which does not pack.

        False if none is found.
        """
        needed, other = excess_bytes, stored
        while needed > 0 and other != self.everything:
            inside = sorted(self.everything - other, key=lambda t: (self.model.size[t], t))
            added = next((t for t in inside if self.model.size[t] >= needed), inside[-1])
            needed -= self.model.size[added]
            other |= {added}
        if other == stored:
            return False
        self._race(other, None)
        if self.raced.get(other, math.inf) == math.inf:
            return False
        self.too_tight.add(stored)
        return True

    @property
    def least(self) -> float:
        """The cost of the cheapest schedule known."""
        return min((*self.known.values(), *self.solved.values()), default=math.inf)

    @property
    def done(self) -> bool:
        return time.monotonic() >= self.stop_at or self.proven or self.impossible

    @property
    def proven(self) -> bool:
        return self.bound >= self.least * (1 - max(self.options.gap, ROUNDING))

    def _all_stages(self) -> Iterator[bool]:
        bound_at: dict[int, float] = {}  # by operator: the bound of a cut there alone
        excess: list[tuple[int, int]] = []
        small = self.model.n_ops <= PLACEMENT.small_operators
        if not small:  # the plan of a cut where RAM is scarcest often is a schedule, or nearly one
            at = fullest_operator(self.model)
            relaxation = self._relax((at,))
            if relaxation is not None and relaxation.held:
                bound_at[at], excess = relaxation.bound, self._follow(relaxation)
                self._follows_first = True  # two suggestions in turn are those of relaxations after this one
            yield True
        self._race(frozenset(), None)
        self._race(self.everything, None)
        frozen = unchanged_state(self.problem)
        if frozen not in self.raced:
            self._race(frozen, None)
        for thrifty in thrifty_placements(self.problem, self.model):
            if thrifty not in self.raced:
                self._race(thrifty, None)
        waiting = positions = single_cut_positions(self.model)
        every = PLACEMENT.coarse_cuts
        if len(positions) > every:
            waiting = [v for v in waiting[every // 2 :: every] if v not in bound_at]  # then those beside the best

        def best() -> int:
            return max(bound_at, key=lambda v: (bound_at[v], v))

        while waiting:
            v, *waiting = waiting
            relaxation = self._relax((v,), lp=not small)
            bound_at[v] = 0.0 if relaxation is None else relaxation.bound
            yield True
            if not waiting:
                k = positions.index(max(positions, key=lambda v: (bound_at.get(v, -1.0), v)))
                waiting = [v for v in positions[max(0, k - 1) : k + 2] if v not in bound_at]
        cuts = {self.model.cut, *([best()] if bound_at else [])}
        if excess and best() == at:
            cuts = {at, *new_cuts({at}, [v for _, v in excess], self.model.n_ops)[: self._most_cuts - 1]}
        self.cuts = tuple(sorted(cuts))  # a solve of a placement begins with them, should the time be up
        self.spread(self.stop_at)
        yield True
        new: list[int] = []
        while True:
            self.cuts = tuple(sorted(cuts))
            relaxation = self._relax(self.cuts)
            if self.too_large and new:
                if len(new) == 1 or self.done:
                    self.cuts = tuple(sorted(cuts - set(new)))  # the cuts that were solved
                    break
                half = len(new) // 2
                cuts.difference_update(new[half:])
                new = new[:half]  # where the plan needs the most RAM
                continue
            if relaxation is None or relaxation.infeasible:
                self.cuts = ()
                break
            excess = self._follow(relaxation) if relaxation.held else []
            new = new_cuts(cuts, [v for _, v in excess], self.model.n_ops)[: max(1, self._most_cuts - len(cuts))]
            cuts.update(new)
            self.cuts = tuple(sorted(cuts))
            yield True
            if new:
                continue
            if self.free:
                self.free = frozenset()  # now the smallest tensors matter
            elif relaxation.exact or self.effort > PLACEMENT.most_effort:
                break
            else:
                self.effort *= PLACEMENT.effort_factor
        yield from self._neighbours()

    def keep_in_ram(self) -> None:
        """Leave state in RAM that saves the most for its bytes, where the steps of the best schedule then still fit."""
        for thrifty in thrifty_placements(self.problem, self.model):
            stored = self.best() & thrifty
            race = Race(on_store(self.problem, stored), self.options.seed, self.stop_at)
            self._offer_steps_of_best(stored, race)
            self._keep(stored, race)
            self.raced[stored] = min(self.known.get(stored, math.inf), self.raced.get(stored, math.inf))

    def _offer_steps_of_best(self, stored: frozenset[int], race: Race) -> None:
        """Offer the best schedule without transfers of the state that `stored` leaves in RAM.

        Nothing where it reads an old version of such state after its update: only the store has that.
        """
        best, n, m = self.best(), self.model.n_ops, self.model.n_tensors
        if not best > stored or best not in self._codes:
            return
        kept = {t for chain in self.chains if chain[0] in best - stored for t in chain}
        codes, gone = [c for c in self._codes[best] if c < n or (c - n) % m not in kept], set[int]()
        for v in (c for c in codes if c < n):
            if not gone.isdisjoint(self.model.inputs[v]):
                return
            gone |= self.model.overwritten[v] & kept
        race.offer_improved(codes, "state placement")

    def _has_rows_between(self, cuts: tuple[int, ...]) -> bool:
        """Whether a relaxation has rows inside its stages, which grow with the square of the operators."""
        return len(cuts) > 1 and self.model.n_ops <= RELAXING.between_operators

    @property
    def too_large(self) -> bool:
        """Whether the last relaxation was too large to be solved."""
        return len(self.relaxed.cuts) > 1 and self.relaxed.mip.entries > PLACEMENT.most_entries

    def _relax(self, cuts: tuple[int, ...], lp: bool = False) -> Relaxation | None:
        free = self.free if len(cuts) > 1 else frozenset[int]()
        between = self._has_rows_between(cuts)
        self.relaxed = OpenPlacement(self.model, cuts, self.chains, between=between, free=free)
        if len(cuts) == 1:
            self._most_cuts = max(2, PLACEMENT.most_entries // max(1, self.relaxed.mip.entries))
        if self.too_large:
            return None
        nothing_known, gap = self.least == math.inf, max(PLACEMENT.gap, PLACEMENT.gap_share * self.options.gap)
        if self.relaxed.mip.entries >= PLACEMENT.large_entries:
            gap = max(gap, PLACEMENT.slack * (1 - self.bound / self.least))
        solve = functools.partial(
            self.relaxed.solve,
            time_limit_s=max(WORK.least_left_s, self.stop_at - time.monotonic()),
            relax=lp,
            max_nodes=self.effort * PLACEMENT.nodes,
            max_rounds=self.effort * PLACEMENT.rounds,
            gap=gap,
            cutoff=self.least,
            threads=self.options.threads,
            seed=self.options.seed,
        )
        relaxation = solve() if len(cuts) == 1 else self._beside(lambda stop: solve(stop=stop))
        if relaxation is None:
            return None
        work_s = self.relaxed.work_s(lp=False)
        self.spent += work_s
        if len(cuts) > 1:
            self._relaxing_s = work_s
        if not relaxation.infeasible:
            self.bound = max(self.bound, relaxation.bound)
        elif nothing_known:  # else it proves only that nothing is cheaper
            self.impossible = True
        return relaxation

    def _report(self, stage: str) -> None:
        if self.progress is not None:
            known = None if self.least == math.inf else int(self.least)
            self.progress(Event(stage=stage, objective=known, bound=math.ceil(self.bound)))

    def _beside(self, task: Callable[[threading.Event], Relaxation]) -> Relaxation | None:
        """The relaxation of `task`, with a search beside it for schedules with the best placement so far.

        None if that search ends all. Beside the first relaxation, which is soon solved, nothing is searched.
        """
        if self._relaxing_s == 0.0:
            return task(threading.Event())
        relaxing = BackgroundTask(task)
        try:
            relaxing.start()
            self._search_longer(max(self._relaxing_s, PLACEMENT.least_beside_share * self.options.work_limit_s))
            if not self.proven:
                return relaxing.result()
        finally:
            relaxing.cancel()
        return None

    def _search_longer(self, work_s: float) -> None:
        """Search for schedules with the best placement: half the work for a race, half for windows."""
        stored = self.best()
        if stored not in self._codes:
            return
        if self._longer is None or self._longer[0] != stored:
            race = Race(on_store(self.problem, stored), self.options.seed, self.stop_at)
            race.offer(self._codes[stored], "state placement")
            self._longer = stored, race, Windows(race)
        _, race, windows = self._longer
        race.stop_at = self.stop_at
        target = self.bound / (1 - max(self.options.gap, ROUNDING)) if self.options.gap < 1 else math.inf
        race.run(min(PLACEMENT.most_runs, int(work_s / 2 / (self.model.n_ops * WORK.run_s))), target)
        windows.run(work_s / 2, target)
        self._keep(stored, race)
        self._report("best state placement so far")

    def _keep(self, stored: frozenset[int], race: Race) -> None:
        incumbent = race.incumbent
        if incumbent is not None and incumbent.cost < self.known.get(stored, math.inf):
            self.known[stored], self._codes[stored] = incumbent.cost, incumbent.codes

    def _follow(self, relaxation: Relaxation) -> list[tuple[int, int]]:
        """Take the sequence of a plan, and race its placement.

        Returns by how much the plan needs too much RAM, and at which operators.
        """
        stored = self.relaxed.stored
        self.settled |= stored == self.suggested and not self._follows_first
        self._follows_first = False
        self.suggested = stored
        excess, codes = self._take_plan(stored, relaxation)
        if self.model.n_ops > PLACEMENT.small_operators:
            self._tighten(relaxation.cuts, excess, codes)
        if not self.proven:
            self._race(stored, relaxation)
        return excess

    def _take_plan(self, stored: frozenset[int], relaxation: Relaxation) -> tuple[list[tuple[int, int]], list[int]]:
        """Take the sequence of a plan, if it fits; returns by how much it needs too much RAM, and where, and itself."""
        race = Race(on_store(self.problem, stored), self.options.seed, self.stop_at)
        codes = lazy_codes(race.model, relaxation)
        if codes is None:
            return [], []
        codes = improve(race.model, codes, race.capacity_for(codes))
        excess = overfull(race.model, codes, race.capacity_for(codes))
        if not excess and race.offer(codes, "relaxed MIP"):
            self._keep(stored, race)
            self.raced[stored] = min(self.known[stored], self.raced.get(stored, math.inf))
        return excess, codes

    def _tighten(self, cuts: tuple[int, ...], excess: list[tuple[int, int]], codes: list[int]) -> None:
        """Take plans of the same cuts that need less RAM, until one fits.

        Where the last plan makes a chain of tensors again at once, the next one holds some of them. Else it has less
        RAM, by the excess of the last one.
        """
        less, held = 0, set[tuple[int, int]]()
        for _ in range(PLACEMENT.tightened):
            if not excess or excess[0][0] > PLACEMENT.tightened_share * self.model.capacity or self.done:
                return
            at = excess[0][1]
            g = bisect.bisect_right(cuts, at) - 1
            ends = {(g, t) for t in chain_ends(self.model, codes, at)} if g >= 0 else set()
            if len(ends) > 1 and not ends <= held:
                held |= ends
            else:
                less += excess[0][0]
            model = open_model(replace(self.problem, budget_bytes=self.problem.budget_bytes - less))
            between = self._has_rows_between(cuts)
            relaxed = OpenPlacement(model, cuts, self.chains, between=between, free=self.relaxed.uncounted)
            relaxed.keep(held)
            plan = relaxed.solve(
                time_limit_s=max(WORK.least_left_s, self.stop_at - time.monotonic()),
                max_nodes=PLACEMENT.nodes,
                max_rounds=PLACEMENT.rounds,
                gap=max(PLACEMENT.tightened_gap, self.options.gap),
                cutoff=self.least,
                threads=self.options.threads,
                seed=self.options.seed,
            )
            self.spent += relaxed.work_s(lp=False)
            if not plan.held:
                return
            excess, codes = self._take_plan(relaxed.stored, plan)

    def _neighbours(self) -> Iterator[bool]:
        """Race placements that differ from the best by one tensor, or by two that swap, until none is better."""
        sizes = {c[0]: self.model.size[c[0]] for c in self.chains}
        largest = sorted(sizes, key=lambda t: (-sizes[t], t))[: PLACEMENT.largest]
        improved = True
        while improved:
            best, improved = self.best(), False
            inside, outside = ([t for t in largest if (t in best) == there] for there in (True, False))
            changes = [{t} for t in largest]
            changes += [{t, min(inside, key=lambda u: (abs(sizes[t] - sizes[u]), u))} for t in outside if inside]
            for change in changes:
                other = best ^ change
                if other not in self.raced:
                    self._race(other, None)
                    improved |= other in self.raced and self.raced[other] < self.raced[best]
                    yield True

    def _race(self, stored: frozenset[int], relaxation: Relaxation | None) -> None:
        placed = on_store(self.problem, stored)
        if lower_bound_bytes(placed) > placed.budget_bytes:
            return
        race = Race(placed, self.options.seed, self.stop_at)
        if relaxation is not None:
            race.add_arms(relaxation, "state placement")
        least = len(race.arms)
        runs = max(least, min(PLACEMENT.runs, PLACEMENT.runs_x_operators // self.model.n_ops))
        if relaxation is None and runs == least and stored in self._taken:
            return  # the schedule that is known came from the same runs
        race.run(runs, 0.0)
        self._offer_steps_of_best(stored, race)
        if stored in (frozenset(), self.everything) and race.model.base_cost < PLACEMENT.nested_from * self.least:
            self.spent += nest(race, 0.0, quick=True)
        cost = math.inf
        if race.incumbent is not None:
            cost = float(race.incumbent.cost)
            self._keep(stored, race)
        self.spent += race.runs * self.model.n_ops * WORK.run_s
        self.raced[stored] = min(cost, self.raced.get(stored, math.inf))
        self._report("state placement")


def thrifty_placements(problem: Problem, model: Model | None = None) -> list[frozenset[int]]:
    """Placements with the state in RAM that saves the most for its bytes, in shares of the room there is.

    A transfer may take its latency whatever its size, so that small tensors are dear to have on the store.
    `model`: that of open placement, if it is there.
    """
    model, chains = model or open_model(problem), movable_state(problem)
    firsts = frozenset(chain[0] for chain in chains)
    everything = on_store(problem, firsts)
    room_bytes = everything.budget_bytes - lower_bound_bytes(everything)
    size = {t: max(1, model.size[t]) for t in firsts}
    saved = {c[0]: model.in_cost[c[0]] + (len(c) > 1) * model.out_cost[c[-1]] for c in chains}
    placements: list[frozenset[int]] = []
    for share in PLACEMENT.thrifty_shares:
        left_bytes, in_ram = share * room_bytes, set[int]()
        for t in sorted(size, key=lambda t: (-saved[t] / size[t], t)):
            if size[t] <= left_bytes:
                left_bytes -= size[t]
                in_ram.add(t)
        placements.append(firsts - in_ram)
    return list(dict.fromkeys(placements))


def bound_of_any_placement(problem: Problem, cutoff: float, *, work_s: float, stop_at: float) -> int:
    """No schedule costs less in the problem's order, wherever its state lives; at most `cutoff`.

    From one cut at the operator beside which the most is in RAM, and cuts spread over the step.
    """
    model, chains = open_model(problem), movable_state(problem)
    relaxed = OpenPlacement(model, (fullest_operator(model),), chains)
    relaxation = relaxed.solve(
        time_limit_s=max(WORK.least_left_s, stop_at - time.monotonic()),
        max_nodes=PLACEMENT.nodes,
        max_rounds=PLACEMENT.rounds,
        gap=PLACEMENT.gap,
        cutoff=cutoff,
    )
    left_s, least = work_s - relaxed.work_s(lp=False), min(relaxation.bound, cutoff)
    if has_wide_gap(least, cutoff):
        bound, _ = bound_of_spread(model, chains, cutoff, work_s=left_s, stop_at=stop_at)
        least = max(least, bound)
    return math.ceil(least)


def bound_of_spread(
    model: Model,
    chains: Sequence[tuple[int, ...]],
    cutoff: float,
    *,
    work_s: float,
    stop_at: float,
    known: dict[tuple[int, ...], Relaxation] | None = None,
) -> tuple[float, float]:
    """The bound of cuts spread over the step with any placement of `chains`, at most `cutoff`; and the work on it.

    `known`: relaxations whose bounds were taken before, by cuts. It adds its own, but for those that the clock ended.
    """
    spent_s, last_s, least = 0.0, 0.0, 0.0
    known, free = {} if known is None else known, small_tensors(model)

    def relax(cuts: tuple[int, ...]) -> Relaxation | None:
        nonlocal spent_s, last_s, least
        if cuts in known:
            return known[cuts]
        over = spent_s + SPREAD.growth * last_s >= work_s or time.monotonic() >= stop_at
        if over or least >= cutoff:
            return None
        relaxed = GapModel(model, cuts, chains=chains, free=free)
        if relaxed.mip.entries > PLACEMENT.most_entries:
            return None
        relaxation = relaxed.solve(
            time_limit_s=max(WORK.least_left_s, stop_at - time.monotonic()),
            max_nodes=PLACEMENT.nodes,
            max_rounds=SPREAD.rounds,
            gap=PLACEMENT.gap,
            cutoff=cutoff,
        )
        last_s = relaxed.work_s(lp=False)
        spent_s += last_s
        least = max(least, min(relaxation.bound, cutoff))
        if relaxation.exact or time.monotonic() < stop_at:
            known[cuts] = relaxation
        return relaxation

    best_spread(model, relax)
    return least, spent_s
