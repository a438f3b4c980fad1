"""A race for operators side by side: evictions for one processor, of which the one whose list costs least is taken.

In turn all processors wait for a transfer. Side by side work hides part of it, and nothing but a list says how much.
So transfers and operators have a part of the idle power in their prices. Schedules that are nearly as cheap as the best
one are listed. Plans for less RAM leave room for the lists.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from poetc.scheduling import Action, OperatorSpec, Paging, Problem, TensorSpec
from poetc.solvers.poetc.orders.reordering import Order, reordered, restored_actions
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import LISTS, WORK
from poetc.solvers.processors import above_idle, as_ready, estimate_in_ram


def race_of_lists(
    problem: Problem, orders: Iterable[Order], seed: int, work_s: float, stop_at: float
) -> tuple[Action, ...] | None:
    """Actions for one processor, under one of these orders, whose list on its equal processors was the cheapest.

    `work_s`: seconds of a usual machine. None where nothing fits, or where time is the objective.
    """
    priced, best = _partly_hidden(problem), _Best(problem)
    if priced is None:
        return None
    races = []
    for order in dict.fromkeys(orders):
        for share in LISTS.shares:
            within = replace(priced, budget_bytes=math.floor(share * problem.budget_bytes))
            races.append(_ListedRace(best, within, order, seed, stop_at))
    for race in races:
        race.work(LISTS.first * work_s / len(races))
    races.sort(key=lambda race: race.least)
    races[0].work((LISTS.first / len(races) + 1 - LISTS.first) * work_s)
    return best.actions


NO_LIST = math.inf, math.inf


class _Best:
    """The actions with the cheapest list so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.placement = problem, as_ready(problem, first=1)  # the first one has the transfers
        self.cost: tuple[float, float] = NO_LIST
        self.actions: tuple[Action, ...] | None = None

    def list(self, actions: Sequence[Action]) -> tuple[float, float]:
        """By how much the list of these actions is late, and its cost."""
        cost = estimate_in_ram(self.problem, actions, self.placement)
        if cost is None:
            return NO_LIST
        if cost < self.cost:
            self.cost, self.actions = cost, tuple(actions)
        return cost


class _ListedRace(Race):
    """Under an order: operator order[k] of the problem comes k-th."""

    def __init__(self, lists: _Best, problem: Problem, order: Order, seed: int, stop_at: float) -> None:
        super().__init__(reordered(problem, order), seed, stop_at, is_needed=False)
        self.lists, self.order, self.listed, self.listed_s = lists, order, set[tuple[int, ...]](), 0.0
        self.least: tuple[float, float] = NO_LIST

    def work(self, work_s: float) -> None:
        """Go on until so much work was done in all."""
        run_s = self.model.n_ops * WORK.run_s
        while self.runs * run_s + self.listed_s < work_s and time.monotonic() < self.stop_at:
            self.run(1, -math.inf)

    def offer(self, codes: list[int], origin: str) -> bool:
        is_met, key = super().offer(codes, origin), tuple(codes)
        if not is_met or self.incumbent is None or key in self.listed:
            return is_met
        if self.model.cost(codes) <= LISTS.near * self.incumbent.cost:
            self.listed.add(key)
            self.listed_s += len(codes) * LISTS.list_s
            actions = self.completer.run(self.model.decisions(codes)).actions
            self.least = min(self.least, self.lists.list(restored_actions(actions, self.order)))
        return is_met


def _partly_hidden(problem: Problem) -> Problem | None:
    """The plain problem with a part of the idle power of all processors in its prices, above those of idling."""
    shifted = above_idle(problem)
    if shifted is None:
        return None
    plain, total_uw = shifted[0], sum(p.idle_uw for p in problem.processors)

    def idle_pj(time_ns: int, share: float) -> int:
        return int(share * total_uw * time_ns / 1000)

    def operator(o: OperatorSpec) -> OperatorSpec:
        variants = (replace(v, energy_pj=v.energy_pj + idle_pj(v.time_ns, LISTS.work)) for v in o.low_workspace)
        energy_pj = o.energy_pj + idle_pj(o.time_ns, LISTS.work)
        return replace(o, energy_pj=energy_pj, low_workspace=tuple(variants))

    def tensor(t: TensorSpec) -> TensorSpec:
        share = LISTS.transfers if problem.paging is Paging.SYNC else 0.0
        out_pj = t.page_out_pj + idle_pj(t.page_out_ns, share)
        return replace(t, page_out_pj=out_pj, page_in_pj=t.page_in_pj + idle_pj(t.page_in_ns, share))

    operators, tensors = tuple(map(operator, plain.operators)), tuple(map(tensor, plain.tensors))
    return replace(plain, operators=operators, tensors=tensors, deadline_ns=None)
