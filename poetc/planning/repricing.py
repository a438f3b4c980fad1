"""A bound for one way of using processors as a bound for another way: the same step at other prices."""

from __future__ import annotations

from dataclasses import replace

from poetc.planning.solution import Solution
from poetc.scheduling import (
    Objective,
    OperatorSpec,
    Paging,
    PlanError,
    Problem,
    ScheduleError,
    TensorSpec,
    Variant,
    verify_parts,
    verify_plan,
)
from poetc.solvers.overlap import as_energy, prices_waiting
from poetc.solvers.processors import above_idle, relaxed

GRAIN = 10**9  # the share of prices is in whole parts of it, so that bounds are computed in integers


def carried_bound(known: Problem, bound: int, other: Problem) -> int | None:
    """No schedule of `other` costs less, if none of `known` costs less than `bound`; None where that says nothing.

    Both are plain, the same step with other prices. Let s be the largest number with every price of `other` at least s
    times that of `known`. A schedule of `other` is one of `known`, where it costs `bound` at least. In `other` each
    execution and each transfer costs s times that or more, and every operator is executed once at least. So

        cost in other >= s * bound + sum over operators of (price in other - s * price in known).

    Where transfers overlap compute, waiting has a price too: its power. The same steps wait no less in `other` if no
    operator takes longer there, since a path loses no more time than all operators together. Nor may the store be
    faster there, or busy with fewer operators.

    A schedule that moves tensors within RAM is one without these moves, which cost nothing less. An operator with
    several kernels counts with the one for which the difference is least.
    """
    if prices_waiting(known) and prices_waiting(other) and known.objective is other.objective:
        known, other = as_energy(known), as_energy(other)
    if not _is_looser(known, other):
        return None
    prices = [_pairs_of_costs(known, a, b) for a, b in zip(known.operators, other.operators, strict=True)]
    pages = [
        pair
        for a, b in zip(known.tensors, other.tensors, strict=True)
        if known.paging is not Paging.NONE
        for pair in (
            (known.objective.cost(a.page_out_pj, a.page_out_ns), known.objective.cost(b.page_out_pj, b.page_out_ns)),
            (known.objective.cost(a.page_in_pj, a.page_in_ns), known.objective.cost(b.page_in_pj, b.page_in_ns)),
        )
    ]
    shares = [there * GRAIN // here for here, there in (*(p for kernels in prices for p in kernels), *pages) if here]
    shares += [other.idle_uw * GRAIN // known.idle_uw] if known.idle_uw else []
    share = min(shares, default=GRAIN)
    beyond = sum(min(there * GRAIN - share * here for here, there in kernels) for kernels in prices)
    return (share * bound + beyond) // GRAIN


def carried_to(known: Problem, bound: int, asked: Problem) -> int:
    """The bound of a way with operators in turn as one for another way; 0 where it says nothing."""
    if not asked.processors:
        return carried_bound(known, bound, asked) or 0
    least, plain = 0, relaxed(asked).problem
    if plain is not None:
        least = carried_bound(known, bound, plain) or 0
    shifted = above_idle(asked)
    if shifted is not None:
        above, idle_pj = shifted
        carried = carried_bound(known, bound, above)
        least = max(least, 0 if carried is None else carried + idle_pj)
    return least


def at_prices_of(problem: Problem, known: Solution) -> Solution | None:
    """The same steps and the same places in RAM at the prices of `problem`; None where they take too long."""
    try:
        trace = verify_parts([(problem, known.schedule.actions)])
        verify_plan(problem, known.schedule, known.plan)
    except (PlanError, ScheduleError):
        return None
    if problem.deadline_ns is not None and trace.time_ns > problem.deadline_ns:
        return None
    cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
    return replace(known, problem=problem).with_proof(replace(known.proof, objective=cost))


def _is_looser(known: Problem, other: Problem) -> bool:
    """Whether every schedule of `other`, without moves within RAM, is one of `known`."""
    if known.processors or other.processors or known.banks or other.banks:
        return False
    if known.paging is Paging.DMA and (known.deadline_ns is not None or known.objective is Objective.TIME):
        return False
    same = (known.paging, known.objective) == (other.paging, other.objective)
    same = same and (known.write_limit_bytes, known.page_buffer_bytes, known.store_capacity_bytes) == (
        other.write_limit_bytes,
        other.page_buffer_bytes,
        other.store_capacity_bytes,
    )
    if not same or known.budget_bytes - known.base_bytes < other.budget_bytes - other.base_bytes:
        return False
    if len(known.operators) != len(other.operators) or len(known.tensors) != len(other.tensors):
        return False
    pairs = list(zip(known.operators, other.operators, strict=True))
    tensors = list(zip(known.tensors, other.tensors, strict=True))
    if any(_shape(a) != _shape(b) for a, b in pairs) or any(with_prices_of(a, b) != b for a, b in tensors):
        return False
    kernels = [both for a, b in pairs for both in zip(_kernels(a), _kernels(b), strict=True)]
    if known.idle_uw:
        slower = any(b.time_ns > a.time_ns for a, b in kernels)
        store_is_faster = any(b.page_out_ns < a.page_out_ns or b.page_in_ns < a.page_in_ns for a, b in tensors)
        store_is_free = known.dma_full_duplex < other.dma_full_duplex or any(
            a.is_streamed > b.is_streamed for a, b in pairs
        )
        idle_is_dearer = any(b.move_pj * 1000 < other.idle_uw * (b.move_ns or 0) for _, b in tensors)
        if slower or store_is_faster or store_is_free or idle_is_dearer:  # than moves in RAM, which would save energy
            return False
    if known.deadline_ns is None:
        return True
    if other.deadline_ns is None or other.deadline_ns > known.deadline_ns:
        return False
    return all(a.time_ns <= b.time_ns for a, b in kernels) and all(
        a.page_out_ns <= b.page_out_ns and a.page_in_ns <= b.page_in_ns for a, b in tensors
    )


def _shape(operator: OperatorSpec) -> tuple[object, ...]:
    workspaces = tuple(kernel.workspace_bytes for kernel in _kernels(operator))
    return operator.name, operator.inputs, operator.outputs, operator.in_place, operator.recomputable, workspaces


def with_prices_of(tensor: TensorSpec, other: TensorSpec) -> TensorSpec:
    """The tensor with the times and energies of transfers and moves that `other` has."""
    return replace(
        tensor,
        page_out_ns=other.page_out_ns,
        page_out_pj=other.page_out_pj,
        page_in_ns=other.page_in_ns,
        page_in_pj=other.page_in_pj,
        move_ns=other.move_ns,
        move_pj=other.move_pj,
    )


def _kernels(operator: OperatorSpec) -> tuple[OperatorSpec | Variant, ...]:
    return operator, *operator.low_workspace


def _pairs_of_costs(problem: Problem, a: OperatorSpec, b: OperatorSpec) -> list[tuple[int, int]]:
    """The costs of each kernel of operator `a` and of the same kernel of `b`."""
    cost = problem.objective.cost
    kernels = zip(_kernels(a), _kernels(b), strict=True)
    return [(cost(here.energy_pj, here.time_ns), cost(there.energy_pj, there.time_ns)) for here, there in kernels]
