"""Placements: the processor of each operator. Their costs with one processor at work, and rules that propose them."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from poetc.scheduling import OperatorSpec, Paging, Problem, TensorSpec, Variant
from poetc.solvers.highs import COST_SCALE, Mip

Placement = tuple[int, ...]  # the processor of each operator
ROUNDED_FJ = 1000  # energies are whole pJ
SWITCH_SAVES = 1.0  # times the hand-overs that a switch of processors costs, it must save at least
LONG_SHARE = 0.2  # of the longest chain: a longer write is not hidden beside it


def runs_on(operator: OperatorSpec, processor: int) -> bool:
    return operator.cost_on(processor) is not None


def are_equal(problem: Problem) -> bool:
    """Whether every operator costs the same on all processors."""
    operators, others = range(len(problem.operators)), range(1, len(problem.processors))
    return all(cost_the_same(problem, k, 0, p) for k in operators for p in others)


def cost_the_same(problem: Problem, k: int, p: int, q: int) -> bool:
    """Whether an operator takes the same time and the same energy above idling on two processors."""
    one, other = problem.operators[k].cost_on(p), problem.operators[k].cost_on(q)
    if one is None or other is None or one[0] != other[0]:
        return False
    idle_uw = problem.processors[p].idle_uw - problem.processors[q].idle_uw
    return abs(1000 * (one[1] - other[1]) - idle_uw * one[0]) <= ROUNDED_FJ


def makers_of(problem: Problem) -> list[int]:
    """By tensor, the operator that makes it; -1: none does."""
    makers = [-1] * len(problem.tensors)
    for k, operator in enumerate(problem.operators):
        for t in operator.outputs:
            makers[t] = k
    return makers


def read_bytes(problem: Problem, operator: OperatorSpec, makers: Sequence[int]) -> dict[int, int]:
    """The bytes that an operator reads of each other one."""
    read: dict[int, int] = {}
    for t in set(operator.inputs):
        if makers[t] >= 0:
            read[makers[t]] = read.get(makers[t], 0) + problem.tensors[t].size_bytes
    return read


def hand_over_ns(problem: Problem, k: int, placement: Placement, makers: list[int]) -> int:
    """The time by which operator `k` takes longer, because other processors make its operands."""
    processors = problem.processors
    own = processors[placement[k]]
    time_ns = flushed_ps = 0
    for t in set(problem.operators[k].inputs):
        if makers[t] >= 0 and placement[makers[t]] != placement[k]:
            other = processors[placement[makers[t]]]
            time_ns = max(time_ns, own.hand_over_ns, other.hand_over_ns)
            per_byte = max(own.flush_ps_per_byte, other.flush_ps_per_byte)
            flushed_ps += problem.tensors[t].size_bytes * per_byte
    return time_ns + flushed_ps // 1000


def placed(problem: Problem, placement: Placement) -> Problem:
    """The plain problem in which the processors of a placement work one at a time, while the others idle.

    No schedule with this placement and these actions costs more where they work side by side.
    """
    makers = makers_of(problem)
    idle = [p.idle_uw for p in problem.processors]

    def plain(part: OperatorSpec | Variant, k: int) -> tuple[int, int]:
        own = placement[k]
        costs = {e.processor: (e.time_ns, e.energy_pj) for e in part.elsewhere} | {0: (part.time_ns, part.energy_pj)}
        time_ns, energy_pj = costs[own]
        extra_ns = hand_over_ns(problem, k, placement, makers)
        others_uw = sum(idle) - idle[own]
        power = extra_ns * problem.processors[own].active_uw + (time_ns + extra_ns) * others_uw
        return time_ns + extra_ns, energy_pj + -(-power // 1000)

    operators = []
    for k, operator in enumerate(problem.operators):
        time_ns, energy_pj = plain(operator, k)
        variants, before = [], (time_ns, energy_pj)
        for variant in operator.low_workspace:  # the fastest first, on this processor too
            own_ns, own_pj = plain(variant, k)
            before = max(before[0], own_ns), max(before[1], own_pj)
            variants.append(replace(variant, time_ns=before[0], energy_pj=before[1], elsewhere=()))
        operators.append(
            replace(operator, time_ns=time_ns, energy_pj=energy_pj, elsewhere=(), low_workspace=tuple(variants))
        )
    others_uw = sum(idle[1:])
    tensors = tuple(_with_idle(problem, t, others_uw) for t in problem.tensors)
    return replace(problem, operators=tuple(operators), tensors=tensors, processors=())


def transfers_apart(problem: Problem) -> tuple[Problem, Placement] | None:
    """The plain problem in which the first processor does transfers alone, beside the work of another one.

    It also runs streamed operators, which have the store alone. The other one is the one that runs all operators for
    the least energy, or in the least time. Transfers overlap compute, and the idle power of all processors counts while
    it waits. None where there is no such processor.
    """
    idle, cost = [p.idle_uw for p in problem.processors], problem.objective.cost
    able = [p for p in range(1, len(idle)) if all(o.is_streamed or runs_on(o, p) for o in problem.operators)]
    if problem.paging is not Paging.SYNC or not able:
        return None

    def total(p: int) -> int:
        costs = (o.cost_on(p) or (0, 0) for o in problem.operators)
        return sum(cost(energy_pj, time_ns) for time_ns, energy_pj in costs)

    worker = min(able, key=total)
    placement = tuple(0 if o.is_streamed else worker for o in problem.operators)

    def above_idle(energy_pj: int, time_ns: int) -> int:
        return energy_pj - idle[0] * time_ns // 1000

    tensors = tuple(
        replace(
            t,
            page_out_pj=above_idle(t.page_out_pj, t.page_out_ns),
            page_in_pj=above_idle(t.page_in_pj, t.page_in_ns),
        )
        for t in problem.tensors
    )
    if any(min(t.page_out_pj, t.page_in_pj) < 0 for t in tensors):
        return None
    plain = placed(problem, placement)
    return replace(plain, tensors=tensors, paging=Paging.DMA, idle_uw=sum(idle)), placement


def without_long_transfers(problem: Problem, path_ns: int) -> Problem:
    """Nothing is paged whose write takes a large part of the longest chain, which lasts `path_ns`.

    Until it ends it frees nothing. So others wait for it, where many small ones would hide beside their work.
    """

    def stays(t: TensorSpec) -> bool:
        return t.page_out_ns > LONG_SHARE * path_ns and "store" not in (t.initial, t.final)

    return replace(problem, tensors=tuple(replace(t, pageable=False) if stays(t) else t for t in problem.tensors))


def _with_idle(problem: Problem, tensor: TensorSpec, others_uw: int) -> TensorSpec:
    """With the idle power of the other processors during its transfers and moves, which the first one does."""

    def more(time_ns: int | None) -> int:
        return -(-(time_ns or 0) * others_uw // 1000)

    moved = replace(tensor, move_pj=tensor.move_pj + more(tensor.move_ns))
    if problem.paging is not Paging.SYNC:
        return moved
    return replace(
        moved,
        page_out_pj=tensor.page_out_pj + more(tensor.page_out_ns),
        page_in_pj=tensor.page_in_pj + more(tensor.page_in_ns),
    )


def single_costs(problem: Problem) -> list[list[float | None]]:
    """By operator and processor, the cost of one execution while all other processors idle."""
    idle = [p.idle_uw for p in problem.processors]

    def cost(operator: OperatorSpec, p: int) -> float | None:
        time_and_energy = operator.cost_on(p)
        if time_and_energy is None:
            return None
        return problem.objective.cost(
            time_and_energy[1] + time_and_energy[0] * (sum(idle) - idle[p]) // 1000, time_and_energy[0]
        )

    return [[cost(o, p) for p in range(len(idle))] for o in problem.operators]


def one_at_a_time(problem: Problem, time_limit_s: float) -> tuple[Placement, float]:
    """The placement of least cost if every operator runs once and one processor works at a time, and a bound for it.

    A MIP over placements and hand-overs. For two processors its LP is a minimum cut, so that it is solved at the root.
    """
    costs, makers = single_costs(problem), makers_of(problem)
    count, processors = len(problem.processors), problem.processors
    scale = COST_SCALE / max(1.0, sum(c[0] or 0.0 for c in costs))
    total_idle = sum(p.idle_uw for p in processors)
    mip = Mip()
    x = [
        [mip.column(0.0 if c is None else c * scale, upper=0.0 if c is None else 1.0) for c in of_operator]
        for of_operator in costs
    ]
    for columns in x:
        mip.row(columns, [1.0] * count, 1.0, 1.0)
    for k, operator in enumerate(problem.operators):
        read = read_bytes(problem, operator, makers)
        for p in range(count) if read else ():
            own = processors[p]
            others = [q for i, q in enumerate(processors) if i != p]
            uw = own.active_uw + total_idle - own.idle_uw
            per_ns = scale * problem.objective.cost(1, 0) * uw / 1000 + scale * problem.objective.cost(0, 1)
            call_ns = min(max(own.hand_over_ns, q.hand_over_ns) for q in others)
            byte_ps = min(max(own.flush_ps_per_byte, q.flush_ps_per_byte) for q in others)
            if not call_ns and not byte_ps:
                continue
            called = mip.column(per_ns * call_ns, integer=False)
            for maker, size in read.items():
                crosses = mip.column(per_ns * size * byte_ps / 1000, integer=False)
                mip.row([crosses, x[k][p], x[maker][p]], [1.0, -1.0, 1.0], 0.0)
                mip.row([called, crosses], [1.0, -1.0], 0.0)
    answer = mip.solve(time_limit_s=time_limit_s, gap=1e-6)
    if answer.values is None:
        return (0,) * len(x), max(0.0, answer.bound) / scale
    values = answer.values
    return tuple(max(range(count), key=lambda p: values[c[p]]) for c in x), max(0.0, answer.bound) / scale


def heft(problem: Problem) -> Placement:
    """Heterogeneous earliest finish time (Topcuoglu et al., 2002), without insertion.

    Operators come by descending upward rank, which keeps their dependences, and each takes the processor on which it
    ends first.
    """
    makers, count = makers_of(problem), len(problem.processors)
    processors = range(count)
    readers: list[set[int]] = [set() for _ in problem.operators]
    for k, operator in enumerate(problem.operators):
        for t in operator.inputs:
            if makers[t] >= 0:
                readers[makers[t]].add(k)
    mean = [_mean(c[0] for p in processors if (c := o.cost_on(p)) is not None) for o in problem.operators]
    call_ns = _mean(p.hand_over_ns for p in problem.processors) * (count - 1) / count
    rank = [0.0] * len(mean)
    for k in reversed(range(len(mean))):
        rank[k] = mean[k] + max((call_ns + rank[r] for r in readers[k]), default=0.0)
    free, ends = [0] * count, [0] * len(mean)
    chosen = [0] * len(mean)
    for k in sorted(range(len(mean)), key=lambda k: (-rank[k], k)):
        operator = problem.operators[k]
        best: tuple[int, int] | None = None
        for p in processors:
            cost = operator.cost_on(p)
            if cost is None:
                continue
            chosen[k] = p
            ready = max((ends[makers[t]] for t in operator.inputs if makers[t] >= 0), default=0)
            end = max(ready, free[p]) + hand_over_ns(problem, k, tuple(chosen), makers) + cost[0]
            best = min(best, (end, p)) if best else (end, p)
        assert best is not None
        ends[k], chosen[k] = best
        free[best[1]] = best[0]
    return tuple(chosen)


def as_ready(problem: Problem, first: int = 0) -> Placement:
    """List scheduling (Graham, 1966) by upward rank: whenever a processor idles, it takes an operator that is ready.

    Of those the one with the longest chain behind it comes first. It takes the processor that idles, runs it in the
    least time and made its operands. Hand-overs are left aside. In a step of training the chain of activations and
    their gradients then never waits for gradients of weights.

    `first`: processors before that one run only operators that no other runs. They may have transfers to do.
    """
    makers, operators = makers_of(problem), problem.operators
    after: list[set[int]] = [set() for _ in operators]
    read_by: list[list[int]] = [[] for _ in problem.tensors]
    for k, operator in enumerate(operators):
        overwritten = {p.input for p in operator.in_place if p.required}  # behind its other readers
        for before in {makers[t] for t in operator.inputs} | {r for t in overwritten for r in read_by[t]}:
            if before >= 0:
                after[before].add(k)
        for t in operator.inputs:
            read_by[t].append(k)
    costs = [[o.cost_on(p) for p in range(len(problem.processors))] for o in operators]
    times: list[list[int | None]] = [[None if c is None else c[0] for c in of_operator] for of_operator in costs]
    for of_operator in times:
        if any(ns is not None for ns in of_operator[first:]):
            of_operator[:first] = [None] * first
    rank, waits = [0] * len(operators), [0] * len(operators)
    for k in reversed(range(len(operators))):
        rank[k] = min(t for t in times[k] if t is not None) + max((rank[r] for r in after[k]), default=0)
        for r in after[k]:
            waits[r] += 1
    ready = [(-rank[k], k) for k in range(len(operators)) if not waits[k]]
    heapq.heapify(ready)
    running, idle, chosen, now = list[tuple[int, int]](), set(range(len(problem.processors))), [0] * len(operators), 0
    while ready or running:
        later = []
        while ready and idle:
            item = heapq.heappop(ready)
            k, close = item[1], {chosen[makers[t]] for t in operators[item[1]].inputs if makers[t] >= 0}
            able = [(ns, p not in close, p) for p in idle if (ns := times[k][p]) is not None]
            if able:
                least_ns, _, chosen[k] = min(able)
                idle.discard(chosen[k])
                heapq.heappush(running, (now + least_ns, k))
            else:
                later.append(item)
        for item in later:
            heapq.heappush(ready, item)
        now, k = heapq.heappop(running)
        ended = [k]
        while running and running[0][0] == now:
            ended.append(heapq.heappop(running)[1])
        for k in ended:
            idle.add(chosen[k])
            for r in after[k]:
                waits[r] -= 1
                if not waits[r]:
                    heapq.heappush(ready, (-rank[r], r))
    return tuple(chosen)


def context_switches(problem: Problem) -> Placement:
    """Mandheling's rule (Xu et al., MobiCom 2022): as few switches of processors as operators leave profitable.

    Operators come in the order of the step. A run of them that another processor can execute goes there, if that saves
    more than the hand-overs at its ends.
    """
    costs, makers = single_costs(problem), makers_of(problem)
    chosen = [0] * len(costs)
    for p in range(1, len(problem.processors)):
        run: list[int] = []
        for k in range(len(costs) + 1):
            here = costs[k][p] if k < len(costs) else None
            if here is not None and chosen[k] == 0:
                run.append(k)
                continue
            if run:
                _send(problem, run, p, chosen, costs, makers)
            run = []
    return tuple(chosen)


def _send(
    problem: Problem,
    run: list[int],
    p: int,
    chosen: list[int],
    costs: list[list[float | None]],
    makers: list[int],
) -> None:
    readers = {k for k, o in enumerate(problem.operators) if any(makers[t] in run for t in o.inputs)}
    concerned = sorted({*run, *readers})

    def total(processor: int) -> float:
        placement = list(chosen)
        for k in run:
            placement[k] = processor
        fixed, sent = sum(costs[k][processor] or 0.0 for k in run), tuple(placement)
        crossing = 0.0
        for k in concerned:
            uw = sum(q.idle_uw for q in problem.processors) + problem.processors[sent[k]].active_uw
            time_ns = hand_over_ns(problem, k, sent, makers)
            crossing += problem.objective.cost(time_ns * uw // 1000, time_ns)
        return fixed + SWITCH_SAVES * crossing

    if total(p) < total(0):
        for k in run:
            chosen[k] = p


def weight_gradients(problem: Problem) -> Placement:
    """Gradients of weights, and the updates that read them, on the second processor; the rest on the first."""
    makers = makers_of(problem)
    updates = [k for k, o in enumerate(problem.operators) if o.phase == "update"]
    gradients = {makers[t] for k in updates for t in problem.operators[k].inputs if makers[t] >= 0}
    # A gradient that other operators than updates read too is on the way to the inputs.
    for operator in problem.operators:
        if operator.phase != "update":
            gradients -= {makers[t] for t in operator.inputs}
    moved = {*gradients, *updates}
    return tuple(1 if k in moved and runs_on(o, 1) else 0 for k, o in enumerate(problem.operators))


def improved(
    placement: Placement,
    problem: Problem,
    cost: Callable[[Placement], tuple[int, int]],
    tries: int,
    stop_at: float = math.inf,
) -> Placement:
    """The placement after moves of one operator at a time that lower `cost`, at most `tries` of them tried.

    `stop_at`: the end of the time, by `time.monotonic`.
    """
    best, least = list(placement), cost(placement)
    for k in sorted(range(len(best)), key=lambda k: (-problem.operators[k].time_ns, k)):
        for p in range(len(problem.processors)):
            if p == best[k] or not runs_on(problem.operators[k], p):
                continue
            if tries <= 0 or time.monotonic() > stop_at:
                return tuple(best)
            tries -= 1
            own, best[k] = best[k], p
            cost_there = cost(tuple(best))
            if cost_there < least:
                least = cost_there
            else:
                best[k] = own
    return tuple(best)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
