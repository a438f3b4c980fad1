"""The choice of an order of first executions: annealed orders and the low-traffic order are raced.

Short races of the eviction heuristic and bounds decide between the problem's own order and those that were found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.dependences import Dependences
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.bounds.ladder import single_cut_positions
from poetc.solvers.poetc.bounds.ram import tiny_tensors
from poetc.solvers.poetc.orders.annealing import Draws, Overflow, anneal, tidied
from poetc.solvers.poetc.orders.low_traffic import low_traffic_order
from poetc.solvers.poetc.orders.reordering import Order, reordered
from poetc.solvers.poetc.search.neighbourhoods import Windows
from poetc.solvers.poetc.search.race import Race, at_once
from poetc.solvers.poetc.settings import ORDERS, WORK
from poetc.solvers.poetc.work import Work


def best_order(problem: Problem, options: SolveOptions, work: Work, low_traffic_saves: float = 0.0) -> Order | None:
    """The order under which short races find the cheapest schedule; None for the problem's own.

    The low-traffic order is taken only where it saves more than the fraction `low_traffic_saves`. Half of `work` is for
    annealing, the rest for races; bounds get the remainder.
    """
    model = Model(problem)
    if model.n_ops > ORDERS.most_operators:
        return None
    capacity = model.capacity_for(model.must_page)
    overflow = Overflow(model, capacity)
    if overflow.of(np.arange(model.n_ops)) == 0.0:
        return None
    random = Draws(options.seed)
    annealing = Work(ORDERS.anneal_share * work.left_s, work.stop_at)
    move_s = ORDERS.move_s + ORDERS.move_operator_s * model.n_ops
    overflow_of: dict[Order, float] = {}
    for heat in ORDERS.heats:
        moves = int(min(ORDERS.moves(model.n_ops), annealing.left_s / move_s))
        if moves == 0 or annealing.over:
            break
        annealing.spent_s += moves * move_s
        least, order = anneal(model, capacity, random, moves=moves, heat=heat)
        if least == 0.0:
            return order  # nothing has to leave RAM
        order = tidied(model, overflow, order)
        overflow_of[order] = overflow.of(np.array(order, dtype=np.intp))
    work.spent_s += annealing.spent_s
    best, best_cost = None, math.inf
    dependences = Dependences(model)
    low_traffic = low_traffic_order(model, dependences.before, dependences.after)
    raced = [*sorted(overflow_of, key=lambda o: (overflow_of[o], o))[: ORDERS.raced], low_traffic]
    affordable = work.left_s / (len(raced) + 1) / (model.n_ops * WORK.run_s)
    runs = max(1, int(min(affordable, ORDERS.race_runs(model.n_ops))))
    for order in raced:
        cost = _raced(reordered(problem, order), options, runs, work)
        if cost < best_cost * (1 - low_traffic_saves if order == low_traffic else 1):
            best, best_cost = order, cost
    own_cost = _raced(problem, options, runs, work)
    if best is None or own_cost == math.inf:
        return best
    # Short races are far above the optimum, and bounds far below: the sum of both decides.
    half = work.left_s / 2
    problems = problem, reordered(problem, best)
    bounds = [_bound(p, Work(half, work.stop_at)) for p in problems]
    costs = [own_cost, best_cost]
    if abs(own_cost + bounds[0] - best_cost - bounds[1]) < ORDERS.near * own_cost:
        windows_s = min(ORDERS.windows_share * options.work_limit_s, work.left_s / 2)
        costs = [_raced(p, options, runs, work, windows_s) for p in problems]
    return best if costs[1] + bounds[1] < costs[0] + bounds[0] else None


def clear_order(problem: Problem, own_cost: float, options: SolveOptions) -> tuple[Order, Schedule] | None:
    """The low-traffic order and the schedule that a race begins with there, where that costs far less than `own_cost`.

    Longer races need not compare orders then. `own_cost`: of a schedule in the problem's own order.
    """
    model = Model(problem)
    if model.n_ops > ORDERS.most_operators:
        return None
    dependences = Dependences(model)
    order = low_traffic_order(model, dependences.before, dependences.after)
    schedule = at_once(reordered(problem, order), options)
    if schedule is None or schedule.proof.objective > (1 - ORDERS.clear) * own_cost:
        return None
    return order, schedule


def cheapest_order(
    problems: Sequence[Problem], orders: Sequence[Order | None], options: SolveOptions, work: Work
) -> Order | None:
    """The order, of `orders`, under which short races find the cheapest schedule of any of `problems`.

    None among `orders` stands for the order as it is. The problems differ in the placement of their state. Of several
    orders that are as good, it is the first.
    """
    n = len(problems[0].operators)
    runs = ORDERS.race_runs(n)
    costs = {
        order: min(_raced(p if order is None else reordered(p, order), options, runs, work) for p in problems)
        for order in orders
    }
    return min(costs, key=lambda order: costs[order])


def _bound(problem: Problem, work: Work) -> float:
    """The best bound from LPs with one cut."""
    model = Model(problem)
    bound, free = float(model.base_cost), tiny_tensors(model, ORDERS.tiny_share)
    for cut in single_cut_positions(model)[:: ORDERS.bound_every]:
        if work.over:
            break
        relaxed = CutModel(model, (cut,), free=free)
        bound = max(bound, relaxed.solve(time_limit_s=work.clock_left_s, relax=True).bound)
        work.spend_iterations(relaxed.mip.iterations, relaxed.mip.entries)
    return bound


def _raced(problem: Problem, options: SolveOptions, runs: int, work: Work, windows_s: float = 0.0) -> float:
    race = Race(problem, options.seed, work.stop_at)
    race.run(runs, 0.0)
    work.spend_runs(race.runs, len(problem.operators))
    if windows_s > 0:
        work.spent_s += Windows(race).run(windows_s, 0.0)
    return math.inf if race.incumbent is None else race.incumbent.cost
