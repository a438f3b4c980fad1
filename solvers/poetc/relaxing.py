"""The relaxations that poetc solves: their choice, their work, and their results.

Tasks run beside the search for schedules, or at once. They know the bound and the cost of the moment when they were
made, so that results do not depend on the clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poetc.solvers.interface import ROUNDING
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.bounds.gaps import GapModel
from poetc.solvers.poetc.bounds.ladder import Ladder, around, gap_share, has_wide_gap, single_cut_positions
from poetc.solvers.poetc.bounds.spread import best_spread, residents, small_tensors
from poetc.solvers.poetc.search.plans import lazy_codes, overfull
from poetc.solvers.poetc.settings import CUTS, LADDER, RELAXING, SPREAD
from poetc.solvers.poetc.solving import Solving


@dataclass(frozen=True, slots=True)
class Solved:
    """The result of a relaxation; `relaxation` is None if it is too large."""

    relaxation: Relaxation | None
    work_s: float = 0.0  # seconds of a usual machine
    cut_short: bool = False  # the clock ended it early
    aim: float = math.inf  # the bound that was enough


@dataclass(frozen=True, slots=True)
class Rung:
    """A relaxation with several cuts, and the use of its plan."""

    solved: Solved
    cuts: int
    codes: list[int] | None = None  # the sequence of the plan, if it can be executed
    is_overfull: bool = False  # it needs too much RAM
    more: bool = False  # another relaxation is of use


class Relaxing:
    """Tasks that solve relaxations of the problem of `solving`."""

    def __init__(self, solving: Solving) -> None:
        self.solving, self.options = solving, solving.options
        self.race, self.model = solving.race, solving.model
        self.ladder = self._ladder()
        self.work_s = 0.0  # work on the last relaxation, seconds of a usual machine

    def _ladder(self) -> Ladder:
        """That of an earlier solve of the problem, if there was one."""
        reach = LADDER.small_reach if self.solving.small else LADDER.reach
        ladder = Ladder(self.model, most_new=1 if self.solving.ties else None, reach=reach)
        known = self.solving.warm_start.ladders
        if known is not None:
            ladder = known.setdefault(self.solving.problem, ladder)
        return ladder

    def single_cutting(self) -> Callable[..., list[Solved]]:
        """A task that solves relaxations with one cut along the backward pass, where RAM is scarce."""
        positions, small = single_cut_positions(self.model), self.solving.small
        known, gap, cost = self.solving.bound, self.solving.gap, self.solving.known_cost

        def task(stop: threading.Event | None = None) -> list[Solved]:
            solved_at: dict[int, Solved] = {}  # by index into positions; LPs first, for a small problem
            solved: list[Solved] = []

            def bound(k: int) -> float:
                relaxation = solved_at[k].relaxation
                assert relaxation is not None
                return relaxation.bound

            def solve(k: int, lp: bool) -> None:
                least = max([known, *map(bound, solved_at)])
                solved_at[k] = self.task((positions[k],), lp=lp, bound=least, cost=cost)(stop)
                solved.append(solved_at[k])

            def best() -> int:
                return max(solved_at, key=lambda k: (bound(k), k))

            def over() -> bool:
                stopped = self.race.out_of_time or (stop is not None and stop.is_set())
                return stopped or (bool(solved_at) and bound(best()) >= cost * (1 - gap))

            every = RELAXING.coarse_cuts
            waiting = list(range(every // 2, len(positions), every))  # then beside the best
            while waiting and not over():
                solve(waiting.pop(0), small)
                if not waiting:
                    waiting = [j for j in (best() - 1, best() + 1) if 0 <= j < len(positions) and j not in solved_at]
            if small and solved_at:
                promising = sorted(solved_at, key=lambda k: (-bound(k), -k))[: RELAXING.promising_cuts]
                solved_at.clear()
                for k in promising:
                    solve(k, False)
            if self.solving.ties and solved_at and not over():
                # The choice within the best stretch can matter more than that of the stretch.
                k = best()
                positions[k] = self.best_cut(k, bound(k), cost, stop)
                if positions[k] != single_cut_positions(self.model)[k]:
                    solve(k, False)
            # The best comes last, as `engine` expects.
            return [*(s for s in solved if s is not solved_at[best()]), solved_at[best()]] if solved_at else []

        return task

    @property
    def worth_spreading(self) -> bool:
        """Whether cuts have left a gap that is worth cuts spread over the step."""
        return has_wide_gap(self.solving.bound, self.solving.known_cost)

    def spreading(self) -> Callable[..., Rung | None]:
        """A task that solves the relaxation with the best cuts spread over the step.

        The ladder goes on with them. None where that proves no more than is known.
        """
        known, cost, free = self.solving.bound, self.solving.known_cost, small_tensors(self.model)

        def task(stop: threading.Event | None = None) -> Rung | None:
            left_s, last_s = SPREAD.work_share * self.options.work_limit_s, 0.0
            mips = list[Solved]()

            def relax(cuts: tuple[int, ...]) -> Relaxation | None:
                nonlocal left_s, last_s
                over = SPREAD.growth * last_s >= left_s or self.race.out_of_time
                if over or (stop is not None and stop.is_set()):
                    return None
                solved = self.task(cuts, gaps=True, bound=known, cost=cost, free=free)(stop)
                mips.append(solved)
                proven = solved.relaxation is not None and solved.relaxation.bound >= cost * (1 - self.solving.gap)
                last_s, left_s = solved.work_s, 0.0 if proven else left_s - solved.work_s
                return solved.relaxation

            best = best_spread(self.model, relax)
            if best is None or best.bound <= known:
                return None
            mip = next(solved for solved in mips if solved.relaxation is best)
            self.ladder.cuts, self.ladder.free = set(best.cuts), free
            return self._rung(best.cuts, mip)

        return task

    def best_cut(self, k: int, bound: float, cost: float, stop: threading.Event | None) -> int:
        """The operator of the k-th stretch whose LP has the best bound."""
        bounds: dict[int, float] = {}
        left_s = RELAXING.best_cut_share * self.options.work_limit_s
        for v in around(self.model, k):
            if bounds and (left_s <= 0 or self.race.out_of_time or (stop is not None and stop.is_set())):
                break
            solved = self.task((v,), lp=True, bound=bound, cost=cost)(stop)
            assert solved.relaxation is not None
            bounds[v] = solved.relaxation.bound
            left_s -= solved.work_s
        return max(bounds, key=lambda v: (bounds[v], -v))

    def climbing(self, work_s: float = 0.0) -> Callable[..., list[Rung]]:
        """A task that solves relaxations with more and more cuts, at least one, until `work_s` is spent."""
        known, cost, gap = self.solving.bound, self.solving.known_cost, self.solving.gap

        def task(stop: threading.Event | None = None) -> list[Rung]:
            rungs: list[Rung] = []
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

    def climb(self, bound: float, cost: float, stop: threading.Event | None) -> Rung:
        """Solve the next relaxation. Operators at which its plan needs too much RAM become cuts."""
        cuts = tuple(sorted(self.ladder.cuts))
        return self._rung(cuts, self.task(cuts, between=True, bound=bound, cost=cost)(stop))

    def _rung(self, cuts: tuple[int, ...], solved: Solved) -> Rung:
        """The use of a relaxation; operators at which its plan needs too much RAM become cuts of the ladder."""
        relaxation = solved.relaxation
        if relaxation is None or relaxation.infeasible:
            return Rung(solved, len(cuts))
        excess: list[tuple[int, int]] = []
        codes = lazy_codes(self.model, relaxation) if relaxation.held else None
        if codes is not None:
            excess = overfull(self.model, codes, self.race.capacity_for(codes))
        more = self.ladder.climb(relaxation, solved.aim, excess, followed=codes is not None)
        return Rung(solved, len(cuts), codes, bool(excess), more)

    def task(
        self,
        cuts: tuple[int, ...],
        *,
        between: bool = False,
        gaps: bool = False,
        lp: bool = False,
        bound: float | None = None,
        cost: float | None = None,
        free: frozenset[int] | None = None,
    ) -> Callable[..., Solved]:
        """A task that solves the relaxation with these cuts, or its LP, with limited work or until the time is up.

        `bound` and `cost`: the best that are known, in place of those known now. `free`: in place of the
        ladder's. `gaps`: the relaxation of `bounds.gaps`.
        """
        bound = self.solving.bound if bound is None else bound
        cost = self.solving.known_cost if cost is None else cost
        ladder = self.ladder
        effort = ladder.effort if between else 1
        free = ladder.free if free is None else free
        # Ties are broken as long as that costs little of the gap.
        ties = self.solving.ties and cost - bound > RELAXING.ties_share * CUTS.tie * (cost - self.model.base_cost)
        aim = ladder.aim(bound, cost, self.solving.gap) if between else cost
        gap = RELAXING.gap_share * min(self.solving.gap, gap_share(bound, aim))
        if cost < math.inf and not gaps:  # no plan of those shows soon which cuts are missing
            gap = max(gap, ladder.slack * gap_share(bound, cost))

        has_rows = between and self.model.n_ops <= RELAXING.between_operators

        def task(stop: threading.Event | None = None) -> Solved:
            if between and not has_rows and len(cuts) > 1:
                return Solved(None)  # it would be too large, which shows only after minutes
            if gaps:
                model: CutModel = GapModel(self.model, cuts, resident=residents(self.model, free), free=free)
            else:
                model = CutModel(self.model, cuts, between=has_rows, free=free, ties=ties)
            if len(cuts) > 1 and model.mip.entries > RELAXING.most_entries:
                return Solved(None)
            relaxation = model.solve(
                time_limit_s=self.race.left_s,
                max_nodes=effort * RELAXING.most_nodes(model.mip.entries),
                max_rounds=SPREAD.rounds if gaps else effort * RELAXING.rounds,
                gap=gap,
                cutoff=aim if aim == cost else aim * (1 + ROUNDING),  # beyond HiGHS's tolerances
                threads=self.options.threads,
                seed=self.options.seed,
                relax=lp,
                plain=self.solving.small,
                stop=stop,
            )
            if aim < cost and not relaxation.infeasible:
                relaxation = replace(relaxation, bound=min(relaxation.bound, aim))
            cut_short = not relaxation.exact and time.monotonic() >= self.solving.stop_at
            return Solved(relaxation, model.work_s(lp=lp), cut_short, aim)

        return task

    def take(self, solved: Solved, name: str) -> Relaxation | None:
        """Take the bound of a solved relaxation; returns the relaxation."""
        relaxation = solved.relaxation
        if relaxation is not None:
            self.work_s = solved.work_s
            self.solving.cut_short |= solved.cut_short
            self.solving.raise_bound(relaxation, name)
        return relaxation
