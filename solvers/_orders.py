"""Orders of first executions: which ones are possible, and a search for one under which less has to leave RAM.

Simulated annealing over topological orders, by what keep-all would need above the capacity under each (its maximum and
its mean): the bytes that any schedule has to recompute or page, whatever it chooses. Short races of the eviction
heuristic and bounds then decide between the problem's own order and what was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from poetc.scheduling import Compute, Problem, Schedule, Semantics, SolveOptions
from poetc.solvers._cuts import CutModel
from poetc.solvers._ladder import single_cut_positions
from poetc.solvers._lean import lean_order
from poetc.solvers._model import Model
from poetc.solvers._ram import tiny_tensors
from poetc.solvers._search import Race
from poetc.solvers._types import OWN_ORDER, PROBLEMS_ORDER, RUN_S, Work
from poetc.solvers._windows import Windows

Order = tuple[int, ...]

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


class Dependences:
    """What must come first: the producers of an operator's inputs, and the other readers of what it overwrites."""

    def __init__(self, model: Model) -> None:
        n = model.n_ops
        self.before: list[set[int]] = [set() for _ in range(n)]
        for v in range(n):
            self.before[v] = {model.producer[t] for t in model.inputs[v] if model.producer[t] >= 0}
            for i, _, required in model.pairs[v]:
                if required:
                    self.before[v] |= {u for u in model.consumers[i] if u != v}
        self.after: list[set[int]] = [set() for _ in range(n)]
        for v in range(n):
            for u in self.before[v]:
                self.after[u].add(v)


def reordered(problem: Problem, order: Order) -> Problem:
    """The problem with operator order[k] as its k-th."""
    return replace(problem, operators=tuple(problem.operators[v] for v in order))


def restored(schedule: Schedule, order: Order) -> Schedule:
    """A schedule of the reordered problem as one of the problem itself; its bound is for this order."""
    steps = tuple(replace(s, operator=order[s.operator]) if isinstance(s, Compute) else s for s in schedule.steps)
    of_class = schedule.proof.schedule_class.replace(PROBLEMS_ORDER, OWN_ORDER)
    return replace(schedule, steps=steps, proof=replace(schedule.proof, schedule_class=of_class))


class Overflow:
    """What keep-all needs above a capacity under an order, in units of the capacity: 0 where it fits."""

    def __init__(self, model: Model, capacity: int) -> None:
        n, m = model.n_ops, model.n_tensors
        self.n, self.capacity = n, max(1, capacity)
        self.size = np.array(model.size, dtype=np.float64)
        self.workspace = np.array(model.workspace, dtype=np.float64)
        self.producer = np.array(model.producer, dtype=np.intp)
        made = [t for t in range(m) if model.producer[t] >= 0]
        self.made = np.array(made, dtype=np.intp)
        self.readers = np.array([v for t in range(m) for v in model.consumers[t]], dtype=np.intp)
        self.read = np.array([t for t in range(m) for _ in model.consumers[t]], dtype=np.intp)
        self.stays = np.array(model.ends_in_ram, dtype=bool)
        # One pair an input and an output: the first.
        pairs: list[tuple[int, int, int]] = []
        for v in range(n):
            used: set[int] = set()
            for i, o, _ in model.pairs[v]:
                if i not in used and o not in used:
                    used |= {i, o}
                    pairs.append((v, i, o))
        self.pairs = np.array(pairs, dtype=np.intp).reshape(-1, 3)

    def of(self, order: npt.NDArray[np.intp]) -> float:
        """Half the largest excess and half the mean one."""
        return self._of(self._ram(order))

    def with_mean(self, order: npt.NDArray[np.intp]) -> tuple[float, float]:
        """That, and the mean of all that is in RAM."""
        ram = self._ram(order)
        return self._of(ram), float(ram.mean())

    def _of(self, ram: npt.NDArray[np.float64]) -> float:
        excess = np.maximum(0.0, ram - self.capacity)
        return float(0.5 * excess.max() + 0.5 * excess.mean()) / self.capacity

    def _ram(self, order: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Of keep-all, by position."""
        position = np.empty(self.n, dtype=np.intp)
        position[order] = np.arange(self.n)
        birth = np.zeros(len(self.size), dtype=np.intp)
        birth[self.made] = position[self.producer[self.made]]
        death = birth.copy()
        np.maximum.at(death, self.read, position[self.readers])
        death[self.stays] = self.n - 1
        change = np.bincount(birth, self.size, self.n + 1) - np.bincount(death + 1, self.size, self.n + 1)
        ram = np.cumsum(change[: self.n]) + self.workspace[order]
        if len(self.pairs):
            at = position[self.pairs[:, 0]]
            replaced = death[self.pairs[:, 1]] == at
            ram -= np.bincount(at[replaced], self.size[self.pairs[replaced, 2]], self.n)
        return np.asarray(ram, np.float64)


def tidied(model: Model, overflow: Overflow, order: Order) -> Order:
    """Each operator as early as its inputs are there, where less is in RAM on average then, and no more above the
    capacity: annealing leaves where it is what makes no difference to keep-all, such as the gradient of a weight whose
    operands stay anyway, but a schedule that lets go of them makes them again for it.
    """
    dependences = Dependences(model)
    best, result = overflow.with_mean(np.array(order, dtype=np.intp)), list(order)
    for v in order:
        at = result.index(v)
        earliest = max((k + 1 for k, u in enumerate(result[:at]) if u in dependences.before[v]), default=0)
        if earliest == at:
            continue
        moved = [*result[:earliest], v, *result[earliest:at], *result[at + 1 :]]
        value = overflow.with_mean(np.array(moved, dtype=np.intp))
        if value[0] <= best[0] and value[1] < best[1]:
            best, result = value, moved
    return tuple(result)


def anneal(model: Model, capacity: int, random: np.random.Generator, *, moves: int, heat: float) -> tuple[float, Order]:
    """The least overflow found from the problem's order on, and its order. Temperatures start at `heat` x overflow."""
    n = model.n_ops
    dependences, overflow = Dependences(model), Overflow(model, capacity)
    order = list(range(n))
    value = overflow.of(np.arange(n))
    best, best_order = value, list(order)
    position = list(range(n))
    hot, cold = max(1e-6, heat * value), max(1e-9, 1e-5 * value)
    for k in range(moves):
        if best == 0.0:
            break
        v = int(random.integers(n))
        at = position[v]
        low = max((position[u] for u in dependences.before[v]), default=-1) + 1
        high = min((position[u] for u in dependences.after[v]), default=n) - 1
        if low >= high:
            continue
        to = int(random.integers(low, high))
        to += to >= at
        order.pop(at)
        order.insert(to, v)
        candidate = overflow.of(np.array(order, dtype=np.intp))
        temperature = hot * (cold / hot) ** (k / moves)
        if candidate <= value or random.random() < np.exp((value - candidate) / temperature):
            value = candidate
            for i in range(min(at, to), max(at, to) + 1):
                position[order[i]] = i
            if value < best:
                best, best_order = value, list(order)
        else:
            order.pop(to)
            order.insert(at, v)
    return best, tuple(best_order)


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
