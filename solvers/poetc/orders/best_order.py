"""The choice of an order of first executions: annealed orders and the low-traffic order are raced.

Short races of the eviction heuristic and bounds decide between the problem's own order and what was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.scheduling import Problem, Semantics, SolveOptions
from poetc.solvers.dependences import Dependences
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.bounds.ladder import single_cut_positions
from poetc.solvers.poetc.bounds.ram import tiny_tensors
from poetc.solvers.poetc.orders.annealing import Overflow, anneal, tidied
from poetc.solvers.poetc.orders.low_traffic import lean_order
from poetc.solvers.poetc.orders.reordering import Order, reordered
from poetc.solvers.poetc.search.neighbourhoods import Windows
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.work import RUN_S, Work

HEATS = (0.2, 0.05, 0.01, 0.2, 0.05)  # of the annealings
MOVES_PER_OPERATOR, MOVES, MOVES_X_OPERATORS = 150, 8000, 1_000_000  # per annealing: the least of three limits
MOVE_S, MOVE_OPERATOR_S = 25e-6, 55e-9  # of a usual machine: a move, and as much an operator on top
ANNEAL_SHARE = 0.5  # of the work, at most
RACED, RUNS, RUNS_X_OPERATORS = 3, 12, 2000  # orders that are raced, and runs of each
BOUND_EVERY, TINY_SHARE = 4, 1e-3  # of the single cuts, every so many bound an order, without the smallest tensors
# What the sum of cost and bound says about two orders counts for little within this fraction of the cost: windows of
# the schedules that were found, for such a share of the work limit each, say more.
NEAR, WINDOWS_SHARE = 0.01, 0.05
MOST_OPERATORS = 1500  # larger problems keep their order: a few hundred moves find nothing there


def best_order(problem: Problem, options: SolveOptions, work: Work, lean_saves: float = 0.0) -> Order | None:
    """The order under which short races find the cheapest schedule; None for the problem's own. The lean order is taken
    only where it saves more than this fraction.

    Of `work`, half is for annealing, what is left for races, what is left then for bounds.
    """
    model = Model(problem)
    if model.n_ops > MOST_OPERATORS or problem.semantics is Semantics.POET:
        return None
    capacity = model.paging_capacity if model.must_page else model.capacity
    overflow = Overflow(model, capacity)
    if overflow.of(np.arange(model.n_ops)) == 0.0:
        return None
    random = np.random.Generator(np.random.PCG64(options.seed))
    annealing, move_s = Work(ANNEAL_SHARE * work.left_s, work.stop_at), MOVE_S + MOVE_OPERATOR_S * model.n_ops
    most = min(MOVES_PER_OPERATOR * model.n_ops, MOVES, MOVES_X_OPERATORS // model.n_ops)
    found: dict[Order, float] = {}
    for heat in HEATS:
        moves = int(min(most, annealing.left_s / move_s))
        if moves == 0 or annealing.over:
            break
        annealing.spent_s += moves * move_s
        least, order = anneal(model, capacity, random, moves=moves, heat=heat)
        if least == 0.0:
            return order  # nothing has to leave RAM
        order = tidied(model, overflow, order)
        found[order] = overflow.of(np.array(order, dtype=np.intp))
    work.spent_s += annealing.spent_s
    best, best_cost = None, math.inf
    dependences = Dependences(model)
    lean = lean_order(model, dependences.before, dependences.after)
    raced = [*sorted(found, key=lambda o: (found[o], o))[:RACED], lean]
    affordable = work.left_s / (len(raced) + 1) / (model.n_ops * RUN_S)
    runs = max(1, int(min(affordable, max(3, min(RUNS, RUNS_X_OPERATORS // model.n_ops)))))
    for order in raced:
        cost = _raced(reordered(problem, order), options, runs, work)
        if cost < best_cost * (1 - lean_saves if order == lean else 1):
            best, best_cost = order, cost
    own_cost = _raced(problem, options, runs, work)
    if best is None or own_cost == math.inf:
        return best
    # Short races are far from the optimum, as are bounds from the other side: the sum decides.
    half = work.left_s / 2
    problems = problem, reordered(problem, best)
    bounds = [_bound(p, Work(half, work.stop_at)) for p in problems]
    costs = [own_cost, best_cost]
    if abs(own_cost + bounds[0] - best_cost - bounds[1]) < NEAR * own_cost:
        windows_s = min(WINDOWS_SHARE * options.work_limit_s, work.left_s / 2)
        costs = [_raced(p, options, runs, work, windows_s) for p in problems]
    return best if costs[1] + bounds[1] < costs[0] + bounds[0] else None


def cheapest_order(
    problems: Sequence[Problem], orders: Sequence[Order | None], options: SolveOptions, work: Work
) -> Order | None:
    """Of `orders` (None: as it is) the one under which short races find the cheapest schedule of any of `problems`,
    which differ in the homes of their state; the first of several.
    """
    n = len(problems[0].operators)
    runs = max(3, min(RUNS, RUNS_X_OPERATORS // n))
    costs = {
        order: min(_raced(p if order is None else reordered(p, order), options, runs, work) for p in problems)
        for order in orders
    }
    return min(costs, key=lambda order: costs[order])


def _bound(problem: Problem, work: Work) -> float:
    """The best bound from LPs with one cut."""
    model = Model(problem)
    bound, free = float(model.base_cost), tiny_tensors(model, TINY_SHARE)
    for cut in single_cut_positions(model)[::BOUND_EVERY]:
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
