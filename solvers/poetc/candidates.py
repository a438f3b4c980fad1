"""Schedules from elsewhere than the race: each function offers the race its schedules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.search.exhaustive import search
from poetc.solvers.poetc.search.flatten import flatten
from poetc.solvers.poetc.search.heuristics import offer_published
from poetc.solvers.poetc.search.plans import lazy_codes, overfull
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.unrolled import Unrolled
from poetc.solvers.poetc.settings import CANDIDATES, CUTS, HEURISTICS, RELAXING
from poetc.solvers.poetc.solving import Solving


def repair(solving: Solving, codes: list[int], runs: int) -> None:
    """Offer evictions from a plan that needs too much RAM, with the plan as the order to follow."""
    unrolled = Unrolled(solving.model, codes)
    race = Race(unrolled.problem, solving.options.seed, solving.stop_at)
    race.run(runs, solving.target)
    if race.incumbent is not None:
        restored = unrolled.restored(race.incumbent.codes)
        if restored is None:
            return
        solving.offer_improved(restored, "evictions from a relaxed MIP")


def unwrite(solving: Solving) -> None:
    """Offer the best schedule with fewer writes."""
    incumbent = solving.race.incumbent
    if incumbent is not None and not solving.done:
        solving.race.offer_unwritten(incumbent.codes, incumbent.origin)


def tighten(solving: Solving, relaxation: Relaxation, excess_bytes: int, free: frozenset[int] = frozenset()) -> None:
    """Offer plans of the same cuts for a little less RAM: less by the excess of the last plan."""
    model, race, cuts, less = solving.model, solving.race, relaxation.cuts, 0
    for _ in range(CANDIDATES.tightened):
        less += excess_bytes
        known = (cuts, less) in solving.tightened
        if solving.done or race.out_of_time or known or less > CANDIDATES.tightened_share * model.capacity:
            return
        solving.tightened.add((cuts, less))
        problem = replace(solving.problem, budget_bytes=solving.problem.budget_bytes - less)
        relaxed = CutModel(Model(problem), cuts, between=True, free=free, ties=True)
        plan = relaxed.solve(
            time_limit_s=race.left_s,
            max_nodes=RELAXING.nodes,
            max_rounds=RELAXING.rounds,
            gap=CUTS.tie,
            cutoff=solving.known_cost,
            threads=solving.options.threads,
            seed=solving.options.seed,
        )
        codes = lazy_codes(model, plan) if plan.held else None
        if codes is None:
            return
        excess = overfull(model, codes, race.capacity_for(codes))
        if not excess:
            solving.offer_improved(codes, f"relaxed MIP with {len(cuts)} cuts and less RAM")
            return
        flatten_plan(solving, codes, len(cuts))
        excess_bytes = excess[0][0]


def flatten_plan(solving: Solving, codes: list[int], cuts: int) -> None:
    """Offer a plan flattened, which works where it is not scattered over operators that are alike."""
    origin = f"relaxed MIP with {cuts} cuts, flattened"
    _flatten(solving, codes, solving.race.pages(codes), CANDIDATES.lateness, _flattening_cutoff(solving), origin)


def flatten_keep_all(solving: Solving) -> None:
    """Offer keep-all flattened."""
    model = solving.model
    if solving.done or model.n_ops > CANDIDATES.flattened_operators:
        return
    cutoff = _flattening_cutoff(solving)
    lateness = CANDIDATES.lateness
    if model.n_ops > CANDIDATES.flattened_late_operators:
        lateness = lateness[:1]
    ways = [True] if model.can_page else []  # with and without paging
    if not (model.must_page or (model.can_page and model.n_ops > CANDIDATES.flattened_twice_operators)):
        ways.insert(0, False)
    if all(_flatten(solving, model.keep_all(), paging, lateness, cutoff, "keep-all flattened") for paging in ways):
        unwrite(solving)
        solving.say("flattened")


def _flattening_cutoff(solving: Solving) -> float:
    """The cost from which on a sequence is not worth following."""
    model, incumbent = solving.model, solving.race.incumbent
    if incumbent is None:
        return math.inf
    return model.base_cost + CANDIDATES.overhead_factor * (incumbent.cost - model.base_cost)


def _flatten(
    solving: Solving, codes: list[int], paging: bool, lateness: Sequence[float], cutoff: float, origin: str
) -> bool:
    """Offer a sequence flattened, once for each lateness. False if the search ended before that."""
    model, capacity = solving.model, solving.race.capacity(paging)
    for beta in lateness:
        if solving.done or solving.race.out_of_time:
            return False
        flat = flatten(
            model,
            codes,
            capacity,
            paging=paging,
            beta=beta,
            most=2 * model.n_ops,
            cutoff=cutoff,
            stop_at=solving.stop_at,
        )
        if flat is not None:
            solving.race.offer(improve(model, flat, capacity), origin)
    return True


def published(solving: Solving, *, quick_alone: bool) -> None:
    """Offer the schedules of published heuristics."""
    if not solving.done and not solving.race.out_of_time:
        stop_at = time.monotonic() + HEURISTICS.stop_share * (solving.stop_at - time.monotonic())
        offer_published(solving.race, solving.options, solving.target, stop_at, quick_alone=quick_alone)
        unwrite(solving)
        solving.say("published heuristics")


def exhaust(solving: Solving) -> None:
    """Search all schedules of a tiny problem under its order."""
    if solving.done or solving.exhausted or solving.model.n_ops > CANDIDATES.exhaustive_operators:
        return
    solving.exhausted = True
    incumbent = solving.race.incumbent
    cutoff = math.inf if incumbent is None else float(incumbent.cost)
    result = search(solving.model, max_states=CANDIDATES.exhaustive_states, stop_at=solving.stop_at, cutoff=cutoff)
    if result.codes is not None:
        solving.race.offer(result.codes, "exhaustive search")
    elif result.complete and incumbent is None:
        raise solving.infeasible("proven by exhaustive search")
    bound = min(result.bound, cutoff)
    solving.take_bound(bound, "exhaustive search")
    solving.say("exhaustive search")
