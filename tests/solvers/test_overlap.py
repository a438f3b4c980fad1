"""Prices that stand for waiting: their sums are never above the energy of a schedule, whatever share they are for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from poetc.planning.repricing import carried_bound
from poetc.scheduling import Action, Completer, Compute, PageOut, Paging, Problem, verify_parts
from poetc.solvers.overlap import WHOLE, at_share
from tests.scheduling.test_dma import line
from tests.support.problems import random_dag, random_decisions

SHARES = (0, 1, 300, 500, 999, WHOLE)


def energy_of(problem: Problem, actions: tuple[Action, ...]) -> int:
    return verify_parts([(problem, actions)]).energy_pj


def paged() -> Iterator[tuple[Random, Problem, tuple[Action, ...]]]:
    """Problems whose processor waits at half of the power that the least busy operator draws, and a schedule each."""
    for seed in range(200):
        random = Random(seed)
        problem = random_dag(random, random.randint(2, 8), paging=True)
        slow = random.choice((1, 5))  # the store
        tensors = (
            replace(t, page_out_ns=slow * t.page_out_ns, page_in_ns=slow * t.page_in_ns, move_ns=None, move_pj=0)
            for t in problem.tensors
        )
        problem = replace(problem, tensors=tuple(tensors))
        decisions = random_decisions(random, problem, random.randint(0, 8))
        peak_bytes = Completer(replace(problem, paging=Paging.SYNC)).run(decisions).peak_bytes
        power_uw = min(1000 * op.energy_pj // max(1, op.time_ns) for op in problem.operators)
        problem = replace(
            problem,
            paging=Paging.DMA,
            dma_full_duplex=seed % 2 == 0,
            idle_uw=power_uw // 2,
            budget_bytes=peak_bytes + random.choice((0, 64, 1000)),
        )
        yield random, problem, Completer(problem).run(decisions).actions


def test_no_share_gives_more_than_the_energy() -> None:
    near = checked = 0
    for _, problem, actions in paged():
        trace = verify_parts([(problem, actions)])
        sums = []
        for share in SHARES:
            made = at_share(problem, share)
            if made is not None:
                assert made.paging is Paging.SYNC and not made.idle_uw
                sums.append(energy_of(made, actions))
        assert max(sums) <= trace.energy_pj
        assert trace.energy_pj == sums[0] + problem.idle_uw * trace.stall_ns // 1000
        checked += len(sums)
        near += trace.stall_ns > 0 and max(sums) > sums[0]
    assert checked > 900
    assert near > 30, "a share above 0 tells of the waiting"


def test_times_count_where_there_is_a_deadline() -> None:
    _, problem, _ = next(paged())
    made = at_share(replace(problem, deadline_ns=10**9), 500)
    assert made is not None and made.paging is Paging.DMA


def test_no_share_where_waiting_costs_more_than_work() -> None:
    _, problem, _ = next(paged())
    dear = replace(problem, idle_uw=10**9)
    assert at_share(dear, WHOLE) is None
    assert at_share(dear, 0) == replace(dear, idle_uw=0, paging=Paging.SYNC)


def test_a_bound_is_carried_to_faster_operators_and_dearer_waiting() -> None:
    """As for kernels in threads: each schedule in the other way costs what is carried over from its own cost."""
    above = 0
    for random, problem, actions in paged():
        operators = tuple(
            replace(
                op,
                time_ns=int(op.time_ns * random.uniform(0.2, 1.0)),
                energy_pj=round(op.energy_pj * random.uniform(0.6, 1.4)),
                low_workspace=(),
            )
            for op in problem.operators
        )
        known = replace(problem, operators=tuple(replace(op, low_workspace=()) for op in problem.operators))
        other = replace(problem, operators=operators, idle_uw=problem.idle_uw + random.choice((0, 5)))
        carried = carried_bound(known, energy_of(known, actions), other)
        assert carried is not None and carried <= energy_of(other, actions)
        above += carried > other.compute_once_pj
        slower = replace(operators[0], time_ns=known.operators[0].time_ns + 1)
        assert carried_bound(known, 1, replace(other, operators=(slower, *operators[1:]))) is None
    assert above > 100


def test_no_bound_is_carried_to_a_store_that_is_waited_for_less() -> None:
    """Of faster transfers, or of both directions at once: the same actions wait less."""
    faster = duplex = 0
    for _, problem, actions in paged():
        problem = replace(problem, dma_full_duplex=False)
        cost = energy_of(problem, actions)
        tensors = tuple(replace(t, page_in_ns=t.page_in_ns // 4) for t in problem.tensors)
        others = replace(problem, tensors=tensors), replace(problem, dma_full_duplex=True)
        costs = [energy_of(other, actions) for other in others]
        faster, duplex = faster + (costs[0] < cost), duplex + (costs[1] < cost)
        for other, its_cost in zip(others, costs, strict=True):
            assert (carried_bound(problem, cost, other) or 0) <= its_cost
    assert faster > 20 and duplex > 5


def test_no_bound_is_carried_to_operators_that_leave_the_bus_to_transfers() -> None:
    other = replace(line(), idle_uw=50)
    streamed = replace(other.operators[1], writes_store=(1,), cut="x", block=1)
    last = replace(other.operators[2], inputs=(0,))
    other = replace(other, operators=(*other.operators[:2], last))
    known = replace(other, operators=(other.operators[0], streamed, last))
    actions = (Compute(0), PageOut(0), Compute(1), PageOut(0), Compute(2))
    assert energy_of(other, actions) < energy_of(known, actions)
    assert (carried_bound(known, energy_of(known, actions), other) or 0) <= energy_of(other, actions)
