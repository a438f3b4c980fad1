"""Schedules from elsewhere than the race: each function offers the race its schedules."""

from __future__ import annotations

import itertools
import math
import time

from poetc.solvers.liveness import improve
from poetc.solvers.poetc.search.exhaustive import search
from poetc.solvers.poetc.search.flatten import flatten
from poetc.solvers.poetc.search.heuristics import offer_published
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.unrolled import Unrolled
from poetc.solvers.poetc.settings import CANDIDATES, HEURISTICS
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


def flatten_keep_all(solving: Solving) -> None:
    """Offer keep-all flattened, with and without paging, once for each lateness."""
    model, race, incumbent = solving.model, solving.race, solving.race.incumbent
    if solving.done or model.n_ops > CANDIDATES.flattened_operators:
        return
    cutoff = math.inf  # the cost from which on a sequence is not worth following
    if incumbent is not None:
        cutoff = model.base_cost + CANDIDATES.overhead_factor * (incumbent.cost - model.base_cost)
    lateness = CANDIDATES.lateness
    if model.n_ops > CANDIDATES.flattened_late_operators:
        lateness = lateness[:1]
    ways = [True] if model.can_page else []
    if not (model.must_page or (model.can_page and model.n_ops > CANDIDATES.flattened_twice_operators)):
        ways.insert(0, False)
    for paging, beta in itertools.product(ways, lateness):
        if solving.done or race.out_of_time:
            return
        capacity = model.capacity_for(paging)
        flat = flatten(
            model,
            model.keep_all(),
            capacity,
            paging=paging,
            beta=beta,
            most=2 * model.n_ops,
            cutoff=cutoff,
            stop_at=solving.stop_at,
        )
        if flat is not None:
            race.offer(improve(model, flat, capacity), "keep-all flattened")
    unwrite(solving)
    solving.say("flattened")


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
