"""A lower bound that counts hand-overs: a linear program over the processors on which each operator runs.

x[v, p] says that operator v runs on processor p at least once, and sum over p of x[v, p] >= 1. An execution on p reads
a tensor of another processor unless the maker runs on p, too. So it takes a hand-over longer by x[v, p] - x[maker, p].
The makespan is no less than the longest chain, nor than the load of each processor, both with hand-overs. Energy is
that above idling, and the idle power of all processors for the makespan. Recomputation and paging only add to this.

For two processors that work one at a time this is a minimum cut. The bound is computed from dual values, whatever
these are, so that it holds without trust in their accuracy. With whole operators the MIP of a small problem has a
higher bound: an operator does not wait for half of a hand-over.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from poetc.scheduling import Paging, Problem
from poetc.solvers.highs import COST_SCALE, Mip
from poetc.solvers.processors.copies import costs_on, one_copy_each
from poetc.solvers.processors.placing import are_equal, makers_of, read_bytes

LIMIT_S = 30.0  # for a machine so slow that the limits of work do not end a solve, each
LARGEST, CHAINED = 60_000, 5_000  # coefficients, and those before chains are added
LONGEST = 100.0  # times every operator once on the main processor: the longest step
WHOLE, MAX_NODES = 10_000, 200  # coefficients of a MIP that is tried, and nodes of its tree
ROUND_ENTRIES = 1_000_000  # rounds of HiGHS at the root, times the coefficients: about three seconds
SAFE = 1e-9  # relative, for rounding of floats
MIP_SAFE = 1e-3  # below the bound of a MIP, whose tolerances count: a millionth of every operator once


def least_with_hand_overs(problem: Problem, path_ns: int) -> int:
    """No schedule costs less, in the unit of the objective; 0 where nothing was found.

    `path_ns`: no schedule takes less time. There is no bound where an execution or a transfer costs less than idling.
    """
    if not any(p.hand_over_ns or p.flush_ps_per_byte for p in problem.processors) or _saves(problem):
        return 0
    bound, copies = _solved(problem, path_ns)[0], one_copy_each(problem, path_ns)
    if copies is not None and copies.bound > bound:
        # Each step takes either no longer than that, or longer.
        longer = _solved(problem, max(path_ns, copies.longest_ns))[0]
        bound = max(bound, math.floor(min(copies.bound, longer)))
    return bound


def _saves(problem: Problem) -> bool:
    """Whether an execution or a transfer may cost less than idling, beyond the rounding of its energy."""
    idle_uw = [p.idle_uw for p in problem.processors]
    costs = [(p, *cost) for o in problem.operators for p in range(len(idle_uw)) for cost in costs_on(o, p)]
    for tensor in problem.tensors if problem.paging is not Paging.NONE else ():
        if tensor.pageable:
            costs += [(0, tensor.page_in_ns, tensor.page_in_pj), (0, tensor.page_out_ns, tensor.page_out_pj)]
    return any(1000 * (pj + 1) <= idle_uw[p] * ns for p, ns, pj in costs)


def runs_of_least(problem: Problem, path_ns: int) -> tuple[frozenset[int], ...]:
    """By operator, the processors on which it runs where that bound is reached; () where nobody knows."""
    if not any(p.hand_over_ns or p.flush_ps_per_byte for p in problem.processors):
        return ()
    return _solved(problem, path_ns)[1]


def _solved(problem: Problem, path_ns: int) -> tuple[int, tuple[frozenset[int], ...]]:
    if len(problem.processors) > 2 and are_equal(problem):
        return 0, ()  # the LP divides each operator among all of them, and the MIP takes as many seconds for nothing
    return _least(replace(problem, budget_bytes=0, deadline_ns=None, write_limit_bytes=None), path_ns)


@functools.lru_cache(maxsize=64)
def _least(problem: Problem, path_ns: int) -> tuple[int, tuple[frozenset[int], ...]]:
    processors, makers = problem.processors, makers_of(problem)
    energy, per_ns = problem.objective.cost(1, 0) / 1000, float(problem.objective.cost(0, 1))
    once = float(problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns))
    scale = COST_SCALE / max(1.0, once)
    unit_ns = max(1, problem.compute_once_ns)
    idle_uw = sum(p.idle_uw for p in processors)
    lp = Mip()
    makespan = lp.column(scale * unit_ns * (energy * idle_uw + per_ns), path_ns / unit_ns, math.inf, integer=False)
    loads: list[tuple[list[int], list[float]]] = [([makespan], [1.0]) for _ in processors]
    runs: list[dict[int, int]] = []

    def load(p: int, cost: float, ns: float) -> int:
        """A column that costs so much above idling, and loads processor `p`."""
        column = lp.column(scale * cost, integer=False)
        loads[p][0].append(column)
        loads[p][1].append(-ns / unit_ns)
        return column

    for operator in problem.operators:
        own: dict[int, int] = {}
        for p, processor in enumerate(processors):
            costs = costs_on(operator, p)
            if costs:
                above = min(1000 * pj - processor.idle_uw * ns for ns, pj in costs)
                own[p] = load(p, energy * above, min(ns for ns, _ in costs))
        runs.append(own)
        lp.row(list(own.values()), [1.0] * len(own), 1.0)
    rounded_ns = 0
    for k, operator in enumerate(problem.operators):
        read = read_bytes(problem, operator, makers)
        for p, column in runs[k].items() if read else ():
            own_p = processors[p]
            others = [q for n, q in enumerate(processors) if n != p]
            call_ns = min(max(own_p.hand_over_ns, q.hand_over_ns) for q in others)
            byte_ps = min(max(own_p.flush_ps_per_byte, q.flush_ps_per_byte) for q in others)
            rounded_ns += bool(byte_ps)
            above_uw = max(0, own_p.active_uw - own_p.idle_uw)
            called = load(p, energy * above_uw * call_ns, call_ns) if call_ns else None
            for maker, size in read.items():
                maker_here = [(runs[maker][p], 1.0)] if p in runs[maker] else []
                crossing = [called] if called is not None else []
                if byte_ps:
                    ns = size * byte_ps / 1000
                    crossing.append(load(p, energy * above_uw * ns, ns))
                for crosses in crossing:
                    terms = [(crosses, 1.0), (column, -1.0), *maker_here]
                    lp.row([c for c, _ in terms], [v for _, v in terms], 0.0)
    for columns, values in loads:
        lp.row(columns, values, 0.0)
    costs_time = lp.cost[makespan] > 0 and lp.entries <= CHAINED
    if costs_time:
        _chains(problem, lp, makespan, runs, unit_ns)
    if lp.entries > LARGEST:
        return 0, ()
    # Times of flushes are rounded down, and energies to picojoules.
    slack = rounded_ns * (energy * (idle_uw + max(p.active_uw for p in processors)) + per_ns) + 2000 * energy
    where: tuple[frozenset[int], ...] = ()
    bound = lp.dual_bound(time_limit_s=LIMIT_S)
    if math.isinf(bound):
        return 0, ()  # the LP took longer than its limit
    if lp.entries <= WHOLE:
        lp.integer = [upper <= 1.0 for upper in lp.upper]
        answer = lp.solve(time_limit_s=LIMIT_S, max_nodes=MAX_NODES, max_rounds=ROUND_ENTRIES // max(1, lp.entries))
        bound = max(bound, answer.bound - MIP_SAFE)
        if answer.values is not None:
            chosen = answer.values > 0.5
            where = tuple(frozenset(p for p, column in own.items() if chosen[column]) for own in runs)
    if costs_time:
        bound = min(bound, lp.cost[makespan] * LONGEST)
    return max(0, math.floor((bound / scale - slack) * (1 - SAFE))), where


def _chains(problem: Problem, lp: Mip, makespan: int, runs: Sequence[Mapping[int, int]], unit_ns: int) -> None:
    """The first end of each operator, which comes no earlier than those of its operands and its own time.

    y[v, p] says that the execution that ends first runs on p. It waits for a hand-over where the maker never runs.
    `runs`: the columns x. Steps that take more than LONGEST units are left out.
    """
    makers, processors, ends = makers_of(problem), problem.processors, list[int]()
    for k, operator in enumerate(problem.operators):
        ends.append(lp.column(0.0, 0.0, LONGEST, integer=False))
        before = sorted({makers[t] for t in operator.inputs if makers[t] >= 0})
        takes = list[tuple[int, float]]()
        first = list[int]()
        for p, column in runs[k].items():
            first.append(lp.column(integer=False))
            lp.row([column, first[-1]], [1.0, -1.0], 0.0)
            takes.append((first[-1], -min(ns for ns, _ in costs_on(operator, p)) / unit_ns))
            call_ns = min(max(processors[p].hand_over_ns, q.hand_over_ns) for n, q in enumerate(processors) if n != p)
            if before and call_ns:
                called = lp.column(integer=False)
                takes.append((called, -call_ns / unit_ns))
                for maker in before:
                    maker_here = [(runs[maker][p], 1.0)] if p in runs[maker] else []
                    terms = [(called, 1.0), (first[-1], -1.0), *maker_here]
                    lp.row([c for c, _ in terms], [v for _, v in terms], 0.0)
        lp.row(first, [1.0] * len(first), 1.0)
        for begin in [[(ends[maker], -1.0)] for maker in before] or [[]]:
            terms = [(ends[k], 1.0), *begin, *takes]
            lp.row([c for c, _ in terms], [v for _, v in terms], 0.0)
        lp.row([makespan, ends[k]], [1.0, -1.0], 0.0)
