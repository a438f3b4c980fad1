"""Lower bounds for several processors, whatever runs where and however much of it at once.

The makespan is no less than any weighted mean of the processors' loads. Weights y add up to 1. An execution of operator
v then adds at least min over p of y[p] * time[v, p] to that mean. So a problem for one processor with these
numbers as costs is a relaxation: its bound counts recomputation, paging and RAM too. Energy adds the idle power of all
processors times the makespan, less that of a processor while it works. The weights are the duals of a linear program
that divides the work among the processors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from poetc.scheduling import OperatorSpec, Paging, Problem, TensorSpec, Variant
from poetc.solvers.highs import Mip
from poetc.solvers.processors.hand_overs import least_with_hand_overs
from poetc.solvers.processors.placing import makers_of

LP_LIMIT_S = 10.0
GRAIN = 10**6  # weights are whole parts of it, so that bounds are computed in integers


@dataclass(frozen=True, slots=True)
class Relaxed:
    """`problem`: plain, no schedule of the problem with processors costs less than its own. `least`: neither than that.

    `problem` is None where costs are not above those of an idle processor, so that nothing is known.
    """

    problem: Problem | None
    least: int


def critical_path_ns(problem: Problem) -> int:
    """The longest chain of operators, each on its fastest processor."""
    makers, ends = makers_of(problem), list[int]()
    for operator in problem.operators:
        begin = max((ends[makers[t]] for t in operator.inputs if makers[t] >= 0), default=0)
        ends.append(begin + _fastest_ns(operator))
    return max(ends, default=0)


def shortest_ns(problem: Problem) -> int:
    """No schedule takes less time: the critical path, and the work divided among the processors."""
    if not problem.processors:
        return problem.compute_once_ns
    weights = weights_of(problem, by_time=True)
    divided = sum(_weighted_ns(o, weights) for o in problem.operators)
    return max(critical_path_ns(problem), -(-divided // GRAIN))


@functools.lru_cache(maxsize=16)
def relaxed(problem: Problem, transfers_ns: int = 0) -> Relaxed:
    """The relaxation, and a bound from the energy by kind, or the time, and the critical path.

    `transfers_ns`: the time of transfers that a schedule probably has. Weights are good for it, and valid anyway.
    """
    weights = weights_of(problem, by_time=problem.objective.cost(1, 0) == 0, transfers_ns=transfers_ns)
    idle = [p.idle_uw for p in problem.processors]
    total_uw = sum(idle)

    def costs(operator: OperatorSpec, first: int = 0) -> tuple[int, int, int]:
        """The least energy and time of an execution in the relaxation, and the least energy above idling.

        In kernel number `first`, or in one with less workspace.
        """
        # In thousandths of picojoules, and GRAIN parts of nanoseconds.
        above = [(p, t, 1000 * e - idle[p] * t) for p, t, e in _costs_of_kernels(operator, first)]
        energy = min(a * GRAIN + total_uw * weights[p] * t for p, t, a in above) // (1000 * GRAIN)
        return energy, min(weights[p] * t for p, t, _ in above) // GRAIN, min(a for _, _, a in above)

    def plain(operator: OperatorSpec) -> OperatorSpec:
        prices = [costs(operator, number)[:2] for number in range(1 + len(operator.low_workspace))]
        return _with_prices(operator, prices)

    def transfer(energy_pj: int, time_ns: int) -> tuple[int, int]:
        time_ns = time_ns if problem.paging is Paging.SYNC else 0
        energy = (energy_pj * 1000 - idle[0] * time_ns) * GRAIN + total_uw * weights[0] * time_ns
        return energy // (1000 * GRAIN), weights[0] * time_ns // GRAIN

    tensors, least_transfer = list[TensorSpec](), 0
    for tensor in problem.tensors:
        out, back = transfer(tensor.page_out_pj, tensor.page_out_ns), transfer(tensor.page_in_pj, tensor.page_in_ns)
        least_transfer = min(least_transfer, out[0], back[0])
        lowest = replace(tensor, page_out_pj=out[0], page_in_pj=back[0], move_ns=None, move_pj=0)
        if problem.paging is not Paging.DMA:
            lowest = replace(lowest, page_out_ns=out[1], page_in_ns=back[1])
        tensors.append(lowest)
    above = sum(costs(o)[2] for o in problem.operators)
    path_ns = critical_path_ns(problem)
    least = problem.objective.cost(max(0, (above + total_uw * path_ns) // 1000), path_ns)
    operators = tuple(plain(o) for o in problem.operators)
    if least_transfer < 0 or any(o.energy_pj < 0 for o in operators):
        return Relaxed(None, max(0, least))
    least = max(least, least_with_hand_overs(problem, path_ns))
    plain_problem = replace(problem, operators=operators, tensors=tuple(tensors), processors=())
    once = problem.objective.cost(plain_problem.compute_once_pj, plain_problem.compute_once_ns)
    return Relaxed(plain_problem, max(least, once))


def above_idle(problem: Problem) -> tuple[Problem, int] | None:
    """A plain problem with the energies of `problem` above those of idle processors, and the idle energy beside them.

    A schedule of `problem` costs at least as much as both together: its idle energy lasts as long as the critical path
    at least. None where time is the objective, or where a price is below that of idling.
    """
    if problem.objective.cost(1, 0) == 0:
        return None
    idle = [p.idle_uw for p in problem.processors]

    def above(operator: OperatorSpec) -> OperatorSpec:
        times = (operator.time_ns, *(v.time_ns for v in operator.low_workspace))
        energies = [
            min((1000 * e - idle[p] * t) // 1000 for p, t, e in _costs_of_kernels(operator, n))
            for n in range(len(times))
        ]
        return _with_prices(operator, list(zip(energies, times, strict=True)))

    operators = tuple(map(above, problem.operators))
    takes_time = problem.paging is Paging.SYNC
    tensors = tuple(
        replace(
            t,
            page_out_pj=t.page_out_pj - -(-idle[0] * t.page_out_ns // 1000) * takes_time,
            page_in_pj=t.page_in_pj - -(-idle[0] * t.page_in_ns // 1000) * takes_time,
            move_ns=None,
            move_pj=0,
        )
        for t in problem.tensors
    )
    prices = [p for o in operators for p in (o.energy_pj, *(v.energy_pj for v in o.low_workspace))]
    prices += [p for t in tensors for p in (t.page_out_pj, t.page_in_pj)]
    if min(prices, default=0) < 0:
        return None
    idle_pj = sum(idle) * critical_path_ns(problem) // 1000
    return replace(problem, operators=operators, tensors=tensors, processors=()), idle_pj


def _costs_of_kernels(operator: OperatorSpec, first: int = 0) -> list[tuple[int, int, int]]:
    """Processors with their times and energies, of kernel number `first` and of those with less workspace.

    Elsewhere, or above idling, one with less workspace may cost less than the one before.
    """
    kernels: tuple[OperatorSpec | Variant, ...] = (operator, *operator.low_workspace)
    own = [(0, k.time_ns, k.energy_pj) for k in kernels[first:]]
    return own + [(e.processor, e.time_ns, e.energy_pj) for k in kernels[first:] for e in k.elsewhere]


def _with_prices(operator: OperatorSpec, prices: list[tuple[int, int]]) -> OperatorSpec:
    """Of a plain problem, with the energy and the time of each kernel."""
    (energy_pj, time_ns), *others = prices
    variants = tuple(
        replace(variant, energy_pj=energy, time_ns=time, elsewhere=())
        for variant, (energy, time) in zip(operator.low_workspace, others, strict=True)
    )
    return replace(operator, energy_pj=energy_pj, time_ns=time_ns, elsewhere=(), low_workspace=variants)


def _fastest_ns(operator: OperatorSpec) -> int:
    return min(time_ns for _, time_ns, _ in _costs_of_kernels(operator))


def _weighted_ns(operator: OperatorSpec, weights: list[int]) -> int:
    return min(weights[p] * time_ns for p, time_ns, _ in _costs_of_kernels(operator))


def weights_of(problem: Problem, *, by_time: bool, transfers_ns: int = 0) -> list[int]:
    """Parts of GRAIN, one a processor: the duals of the loads in the LP that divides the work.

    The first processor has the transfers besides, if it waits for them.
    """
    idle, count = [p.idle_uw for p in problem.processors], len(problem.processors)
    unit_ns = max(1, problem.compute_once_ns)
    total_w = sum(idle) / 1e6
    lp = Mip()
    makespan = lp.column(1.0 if by_time else total_w, upper=math.inf, integer=False)
    loads: list[tuple[list[int], list[float]]] = [([], []) for _ in range(count)]
    for operator in problem.operators:
        columns = []
        for p in range(count):
            cost = operator.cost_on(p)
            if cost is None:
                continue
            above_w = 0.0 if by_time else (1000 * cost[1] - idle[p] * cost[0]) / 1e6
            columns.append(lp.column(above_w / unit_ns, integer=False))
            loads[p][0].append(columns[-1])
            loads[p][1].append(cost[0] / unit_ns)
        lp.row(columns, [1.0] * len(columns), 1.0, 1.0)
    fixed = [transfers_ns / unit_ns if problem.paging is Paging.SYNC else 0.0, *([0.0] * (count - 1))]
    rows = [
        lp.row([makespan, *columns], [1.0, *(-v for v in values)], least)
        for (columns, values), least in zip(loads, fixed, strict=True)
    ]
    solved = lp.duals(time_limit_s=LP_LIMIT_S)
    duals = [0.0 if solved is None else max(0.0, float(solved[row])) for row in rows]
    total = sum(duals)
    if not total:
        return [GRAIN // count] * count
    return [int(GRAIN * d / total) for d in duals]  # rounded down: together at most GRAIN, so that they are valid
