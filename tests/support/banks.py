"""Banks of RAM by brute force: the cheapest of all schedules of a small problem, with any bank for anything."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from poetc.reporting import Solved
from poetc.scheduling import BankSpec, Problem, keep_all, keep_all_peak_bytes, pack, trace_of
from poetc.solvers.banks import place_in_banks
from tests.support.problems import random_dag

State = tuple[tuple[int, ...], int]  # by tensor its bank, -1: not in RAM; the operators that were executed, as bits


def banked(random: Random, operators: int, banks: int = 2) -> Problem:
    """A random problem whose banks have about the bytes of keep-all together. The first bank is the cheapest."""
    problem = random_dag(random, operators)
    peak = keep_all_peak_bytes(problem)
    total = max(64, int(peak * random.uniform(0.7, 1.3)))
    shares = [random.uniform(0.3, 1.0) for _ in range(banks)]
    specs = tuple(
        BankSpec(
            name=f"bank{b}",
            budget_bytes=int(total * share / sum(shares)) // 16 * 16,
            address=random.randint(0, 3),
            read_fj_per_byte=b * random.randint(0, 90),
            write_fj_per_byte=b * random.randint(0, 90),
            read_ps_per_byte=b * random.randint(0, 40),
            write_ps_per_byte=b * random.randint(0, 40),
        )
        for b, share in enumerate(shares)
    )
    return replace(problem, banks=specs, budget_bytes=sum(s.budget_bytes for s in specs))


def cheapest(problem: Problem) -> int | None:
    """The least energy of a schedule that ends before the deadline, in pJ; None if nothing fits.

    Without paging. Live bytes count, not packing.
    """
    tensors, count = problem.tensors, len(problem.banks)
    state = {t for t, tensor in enumerate(tensors) if tensor.initial == "ram"}
    for o in problem.operators:
        state |= {p.output for p in o.in_place if p.required and p.input in state}
    queue: list[tuple[int, int, State]] = []
    best: dict[State, list[tuple[int, int]]] = {}  # costs and times, none better than another in both

    def push(cost: int, time_ns: int, at: State) -> None:
        if problem.deadline_ns is None:
            time_ns = 0
        elif time_ns > problem.deadline_ns:
            return
        known = best.setdefault(at, [])
        if not any(c <= cost and t <= time_ns for c, t in known):
            known[:] = [(c, t) for c, t in known if c < cost or t < time_ns] + [(cost, time_ns)]
            heapq.heappush(queue, (cost, time_ns, at))

    initial = [t for t, tensor in enumerate(tensors) if tensor.initial == "ram"]
    for choice in itertools.product(range(count), repeat=len(initial)):
        place = [-1] * len(tensors)
        for t, b in zip(initial, choice, strict=True):
            place[t] = b
        push(0, 0, (tuple(place), 0))
    everything = (1 << len(problem.operators)) - 1
    final = [t for t, tensor in enumerate(tensors) if tensor.final == "ram"]
    while queue:
        cost, time_ns, at = heapq.heappop(queue)
        if (cost, time_ns) not in best[at]:
            continue
        place, done = at
        if done == everything and all(place[t] >= 0 for t in final):
            return cost
        for more, more_ns, after in _actions(problem, at, state):
            push(cost + more, time_ns + more_ns, after)
    return None


def _actions(problem: Problem, at: State, state: set[int]) -> Iterator[tuple[int, int, State]]:
    """The energy, the time and the end of each action."""
    place, done = at
    sizes = [t.size_bytes for t in problem.tensors]
    used = [problem.base_bytes if b == 0 else 0 for b in range(len(problem.banks))]
    for t, b in enumerate(place):
        if b >= 0:
            used[b] += sizes[t]
    rooms = [bank.budget_bytes - u for bank, u in zip(problem.banks, used, strict=True)]
    if min(rooms) < 0:
        return
    for t, b in enumerate(place):
        if b < 0:
            continue
        yield 0, 0, (_with(place, {t: -1}), done)
        move_ns = problem.tensors[t].move_ns
        for to, bank in enumerate(problem.banks):
            if to != b and t not in state and move_ns is not None and rooms[to] >= sizes[t]:
                fj = (problem.banks[b].read_fj_per_byte + bank.write_fj_per_byte) * sizes[t]
                ps = (problem.banks[b].read_ps_per_byte + bank.write_ps_per_byte) * sizes[t]
                yield problem.tensors[t].move_pj - (-fj // 1000), move_ns - (-ps // 1000), (_with(place, {t: to}), done)
    for k, op in enumerate(problem.operators):
        if any(place[t] < 0 for t in op.inputs) or any(place[t] >= 0 for t in op.outputs):
            continue
        if (done >> k & 1) and not op.recomputable:
            continue
        required = {p.output: p.input for p in op.in_place if p.required}
        optional = [p for p in op.in_place if not p.required]
        for chosen in itertools.product((False, True), repeat=len(optional)):
            pairs = dict(required)
            added = [p for p, take in zip(optional, chosen, strict=True) if take]
            if len({p.output for p in added} | set(pairs)) < len(added) + len(pairs):
                continue
            pairs |= {p.output: p.input for p in added}
            if len(set(pairs.values())) < len(pairs):
                continue
            if any(sizes[o] != sizes[i] for o, i in pairs.items()):
                continue  # it would keep the larger size
            free = [t for t in op.outputs if t not in pairs]
            for banks in itertools.product(range(len(problem.banks)), repeat=len(free) + 1):
                *own, workspace = banks
                placed = dict(zip(free, own, strict=True)) | {o: place[i] for o, i in pairs.items()}
                need = [0] * len(problem.banks)
                for t, b in zip(free, own, strict=True):
                    need[b] += sizes[t]
                need[workspace] += op.workspace_bytes
                if any(n > room for n, room in zip(need, rooms, strict=True)):
                    continue
                read = [(problem.banks[place[t]], sizes[t], 0) for t in set(op.inputs)]
                written = [(problem.banks[b], 0, sizes[t]) for t, b in placed.items()]
                accesses = [*read, *written, (problem.banks[workspace], op.workspace_bytes, op.workspace_bytes)]
                fj = sum(b.read_fj_per_byte * n + b.write_fj_per_byte * m for b, n, m in accesses)
                ps = sum(b.read_ps_per_byte * n + b.write_ps_per_byte * m for b, n, m in accesses)
                after = _with(place, dict.fromkeys(pairs.values(), -1) | placed)
                yield op.energy_pj - (-fj // 1000), op.time_ns - (-ps // 1000), (after, done | 1 << k)


def _with(place: tuple[int, ...], changes: dict[int, int]) -> tuple[int, ...]:
    return tuple(changes.get(t, b) for t, b in enumerate(place))


def solved_in_banks() -> Solved:
    """A random training step whose tensors lie in two banks."""
    problem = banked(Random(12), 4)
    schedule = keep_all(replace(problem, banks=(), budget_bytes=2**40))
    banks = tuple(replace(b, budget_bytes=2**20) for b in problem.banks)
    problem = replace(problem, banks=banks, budget_bytes=2**21)
    half = keep_all_peak_bytes(problem) * 3 // 5
    placed = place_in_banks(problem, schedule, (half, half), time_limit_s=5.0)
    assert placed is not None
    schedule = replace(schedule, actions=placed.actions, banks=placed.banks, workspace_banks=placed.workspace_banks)
    plan = pack(problem, schedule)
    return Solved(problem=problem, schedule=schedule, trace=trace_of(problem, schedule), plan=plan)
