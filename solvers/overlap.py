"""Transfers that overlap compute: the energy of waiting as prices of operators and transfers.

A step takes at least the time of its operators, and at least that of its transfers. So it takes at least any weighted
mean of both. With weights 1 - s and s, the energy E of a schedule with energy A without waiting is, at idle power P,

    E = A + P * (time - time of operators) >= A + s * P * (time of transfers - time of operators).

The time itself is such an energy: operators of one unit a nanosecond, transfers of none, and waiting of one.

The right side is a sum of prices. That of an operator is its energy less s * P times its time. That of a transfer is
its energy and s * P times its time. The bound of that problem holds for the energy. A schedule that hides its transfers
has E = A, where s is 0. One whose transfers never pause has equality where s is 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from poetc.scheduling import (
    Objective,
    OperatorSpec,
    Paging,
    Problem,
    Schedule,
    Status,
    TensorSpec,
    Variant,
    verify_parts,
)
from poetc.solvers.interface import bound_beside

LEAST = 20  # share of times on either side, so that nothing is free
WHOLE = 1000  # shares are whole parts of it, so that bounds are computed in integers


def prices_waiting(problem: Problem) -> bool:
    """Whether the cost of a schedule is no sum over its steps, since waiting has a price."""
    if problem.paging is not Paging.DMA or problem.processors:
        return False
    return problem.idle_uw > 0 or problem.objective is Objective.TIME


def as_energy(problem: Problem) -> Problem:
    """A problem of `prices_waiting` whose objective is energy: itself, or one whose energies in pJ are times in ns."""
    if problem.objective is Objective.ENERGY:
        return problem

    def operator(op: OperatorSpec) -> OperatorSpec:
        variants = tuple(replace(v, energy_pj=v.time_ns) for v in op.low_workspace)
        return replace(op, energy_pj=op.time_ns, low_workspace=variants)

    return replace(
        problem,
        operators=tuple(operator(op) for op in problem.operators),
        tensors=tuple(replace(t, page_out_pj=0, page_in_pj=0, move_pj=t.move_ns or 0) for t in problem.tensors),
        objective=Objective.ENERGY,
        idle_uw=1000,
    )


def _as_time(problem: Problem) -> Problem:
    """`as_energy` backwards, where transfers are in turn."""

    def operator(op: OperatorSpec) -> OperatorSpec:
        variants = tuple(replace(v, time_ns=v.energy_pj) for v in op.low_workspace)
        return replace(op, time_ns=op.energy_pj, low_workspace=variants)

    def tensor(t: TensorSpec) -> TensorSpec:
        move_ns = None if t.move_ns is None else t.move_pj
        return replace(t, page_out_ns=t.page_out_pj, page_in_ns=t.page_in_pj, move_ns=move_ns)

    operators, tensors = tuple(map(operator, problem.operators)), tuple(map(tensor, problem.tensors))
    return replace(problem, operators=operators, tensors=tensors, objective=Objective.TIME)


def at_share(problem: Problem, share: int) -> Problem | None:
    """The problem in which prices add up, with the store's share s = `share` / WHOLE of the time.

    Without a deadline it has transfers in turn, which no cost depends on then. For times it has no deadline.
    None where a price would be negative, or a kernel with less workspace would be cheaper. Never for a share of 0.
    """
    if problem.objective is Objective.TIME:
        share = min(max(share, LEAST), WHOLE - LEAST)
        priced = at_share(as_energy(replace(problem, deadline_ns=None)), share)
        return None if priced is None else _as_time(priced)
    paging = Paging.SYNC if problem.deadline_ns is None else problem.paging  # times do not matter
    if not share:
        return replace(problem, idle_uw=0, paging=paging)
    idle_uw = problem.idle_uw * share
    per_way = 2 if problem.dma_full_duplex else 1  # both directions at once take half of their sum at least

    def busy(part: OperatorSpec | Variant) -> int:
        return part.energy_pj - -(-idle_uw * part.time_ns // (1000 * WHOLE))

    def page(energy_pj: int, time_ns: int) -> int:
        return energy_pj + idle_uw * time_ns // (1000 * WHOLE * per_way)

    def operator(op: OperatorSpec) -> OperatorSpec:
        variants = tuple(replace(v, energy_pj=busy(v)) for v in op.low_workspace)
        return replace(op, energy_pj=busy(op), low_workspace=variants)

    def tensor(t: TensorSpec) -> TensorSpec:
        moved_pj = t.move_pj - -(-idle_uw * (t.move_ns or 0) // (1000 * WHOLE))
        out_pj, in_pj = page(t.page_out_pj, t.page_out_ns), page(t.page_in_pj, t.page_in_ns)
        return replace(t, page_out_pj=out_pj, page_in_pj=in_pj, move_pj=moved_pj)

    operators = tuple(operator(op) for op in problem.operators)
    tensors = tuple(tensor(t) for t in problem.tensors)
    if any(not _is_ordered((op.energy_pj, *(v.energy_pj for v in op.low_workspace))) for op in operators):
        return None
    if any(t.move_pj < 0 for t in tensors):
        return None
    return replace(problem, operators=operators, tensors=tensors, idle_uw=0, paging=paging)


def with_waiting(problem: Problem, schedule: Schedule) -> Schedule:
    """`schedule`, of a problem of `at_share`, as one of `problem`: with its cost. Its bound holds."""
    proof, trace = schedule.proof, verify_parts([(problem, schedule.actions)])
    cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
    once = problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)
    bound, status = bound_beside(max(once, proof.bound), cost, proof.method), proof.status
    if status is Status.OPTIMAL and cost > bound:
        status = Status.FEASIBLE
    return replace(schedule, proof=replace(proof, objective=cost, bound=bound, status=status))


def _is_ordered(prices: Iterable[int]) -> bool:
    """Whether none is negative or below the one before."""
    before = 0
    for price in prices:
        if price < before:
            return False
        before = price
    return True
