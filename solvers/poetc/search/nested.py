"""Nested checkpoints: a dynamic program over the forward pass as a chain of short segments.

It decides which segments to record for the backward pass, which to run again and from where, on as many levels as pay.
Segments begin where little is handed on. H(a) are the tensors that are made before segment a and read by forward
operators in or behind it. The set saved(a) has those that the backward operators of segment a read. T(m, a, b) is the
least cost of all runs of segments a ... b until their backward operators have been executed. Given is H(a), and m bytes
beside it:

    T(m, a, a) = the cost of making saved(a)                                            if m >= undo_bytes(a)
    T(m, a, b) = min( record(a) + T(m - saved(a) and H(a + 1), a + 1, b)                if m >= undo_bytes(a),
                      min over j of advance(a ... j - 1) + T(m - H(j), j, b) + T(m, a, j - 1)
                               if m >= the bytes to run a ... j - 1 beside the gradients that are there then )

This is rotor's program (see `published.rotor`) with sets of tensors in place of single ones that separate a chain. So
single steps of stacked recurrent layers are segments. Some tensors are cheap to make from others that stay in RAM
anyway, such as weights in another layout. They are not handed on, and count as operands only.

The sequence of a plan makes operators again as their results are wanted, and may need too much RAM here and there. So
programs for more memory than there is are tried as well. Evictions from the sequence (`Unrolled`) or `flatten` then
bring it below the capacity.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.search.eviction import Policy, Simulation, Stuck
from poetc.solvers.poetc.search.flatten import flatten
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.unrolled import Unrolled
from poetc.solvers.poetc.settings import NESTED

POLICIES = (Policy(), Policy(alpha=1.0, beta=1.5, gamma=0.7))
RECORD = -1  # the choice to record a segment, in place of a segment to start from


def nest(race: Race, target: float, *, quick: bool = False) -> float:
    """Offer `race` the schedules of programs for several memories, until the incumbent costs at most `target`.

    Where little is made again, nothing is tried. `quick`: the smaller program alone, until two schedules fit. Returns
    the work, in seconds of a usual machine.
    """
    model = race.model
    cheap = race.incumbent is not None and race.incumbent.cost <= NESTED.dear * model.base_cost
    if cheap or model.n_ops > NESTED.most_operators:
        return 0.0
    work_s = 0.0
    paging = model.must_page or (
        race.incumbent is not None and any(code >= model.n_ops for code in race.incumbent.codes)
    )
    capacity = race.model.capacity_for(paging)
    slot_bytes = max(1, -(-capacity // NESTED.slots))
    for most in NESTED.most_segments[-1:] if quick else NESTED.most_segments:
        chain = segments_of(model, most)
        if chain is None or len(chain.starts) < NESTED.fewest_segments or race.out_of_time:
            break
        program = Program(model, chain, slot_bytes, int(NESTED.memory * NESTED.slots))
        work_s += len(chain.starts) ** 3 * program.slots * NESTED.entry_s
        least, failures, fitted = program.least, 0, 0
        if least is None:
            continue
        for more in NESTED.memories:
            slots = least + more
            if NESTED.failures in (failures, fitted if quick else 0) or slots > program.slots:
                break
            if race.out_of_time or (race.incumbent is not None and race.incumbent.cost <= target):
                return work_s
            codes = program.codes(slots)
            work_s += NESTED.try_s * len(codes)
            if race.incumbent is not None and model.cost(codes) >= race.incumbent.cost:
                continue
            fits = _fitted(race, codes, paging)
            failures, fitted = 0 if fits else failures + 1, fitted + fits
    return work_s


def _fitted(race: Race, codes: list[int], paging: bool) -> bool:
    """Offer schedules from evictions from a sequence, as it is and flattened. True if one fits."""
    lower = flatten(
        race.model,
        codes,
        int(NESTED.near * race.model.capacity_for(paging)),
        paging=paging,
        beta=NESTED.lateness,
        most=NESTED.flattenings,
        cutoff=_cutoff(race),
        stop_at=race.stop_at,
    )
    fits = lower is not None and _evict(race, lower, paging)
    return (lower != codes and _evict(race, codes, paging)) or fits


def _evict(race: Race, codes: list[int], paging: bool) -> bool:
    """Offer schedules from evictions from the sequence, which know when each copy is read. True if one fits."""
    model, fits = race.model, False
    unrolled = Unrolled(model, codes)
    plan = Model(unrolled.problem)
    capacity = plan.capacity_for(paging)
    for policy in POLICIES:
        try:
            run = Simulation(plan, capacity, policy, paging=paging, cutoff=_cutoff(race), stop_at=race.give_up_at)
            evicted = run.run()
        except Stuck:
            continue
        restored = None if evicted is None else unrolled.restored(evicted)
        if restored is not None:
            fits |= race.offer(improve(model, restored, race.model.capacity_for(paging)), "nested checkpoints")
    return fits


def _cutoff(race: Race) -> float:
    base = race.model.base_cost
    return math.inf if race.incumbent is None else base + NESTED.margin * (race.incumbent.cost - base)


@dataclass(slots=True)
class Segments:
    """The chain: the starts of its segments, and by segment their tensors, costs and bytes."""

    starts: list[int]
    handed: list[frozenset[int]]  # H; empty behind the last segment
    saved: list[frozenset[int]]
    backward: list[list[int]]  # operators
    cheap: frozenset[int]
    advance: list[float] = field(default_factory=list)  # cost of making H of the next segment
    record: list[float] = field(default_factory=list)  # cost of making that and `saved`
    leaf: list[float] = field(default_factory=list)  # cost of making `saved` alone
    run_bytes: list[int] = field(default_factory=list)  # for running it, beside H
    undo_bytes: list[int] = field(default_factory=list)  # for its backward operators, all gradients included
    leaf_bytes: list[int] = field(default_factory=list)  # for the run of the segment and then its backward operators
    gradient_bytes: list[int] = field(default_factory=list)  # of gradients that are there before its backward operators


def segments_of(model: Model, most: int) -> Segments | None:
    """A chain of at most `most` segments; None where nothing is handed on."""
    cut, sizes = model.cut, model.size
    cheap = _cheap(model)
    last = [max((v for v in model.consumers[t] if v < cut), default=-1) for t in range(model.n_tensors)]
    local = [t for t in range(model.n_tensors) if 0 <= model.producer[t] < cut and t not in cheap]
    change = np.zeros(cut + 2, dtype=np.int64)
    for t in local:
        if last[t] >= 0:
            change[model.producer[t] + 1] += sizes[t]
            change[last[t] + 1] -= sizes[t]
    handed = np.cumsum(change)
    minima = [q for q in range(1, cut) if handed[q - 1] > handed[q] <= handed[q + 1]]
    if len(minima) < NESTED.fewest_segments:  # every step hands on as much
        minima = [q for q in range(1, cut) if handed[q - 1] >= handed[q] <= handed[q + 1]]
    spent = np.concatenate(([0.0], np.cumsum(model.op_cost[:cut])))
    while len(minima) + 1 > most:  # of the highest, the one whose neighbours are closest goes
        edges = [0, *minima, cut]
        k = max(range(len(minima)), key=lambda k: (handed[minima[k]], spent[edges[k]] - spent[edges[k + 2]]))
        minima.pop(k)
    if not minima:
        return None
    starts = [0, *minima]
    sets = [frozenset(t for t in local if model.producer[t] < q <= last[t]) for q in starts]
    chain = _assigned(model, starts, [*sets, frozenset()], cheap)
    _measure(model, chain, last)
    return chain


def _cheap(model: Model) -> frozenset[int]:
    """Tensors that take little to make from others in RAM during the backward pass anyway, or from the store."""
    limit = NESTED.cheap * sum(model.op_cost[: model.cut])
    cost: dict[int, float] = {}
    for t in range(model.n_tensors):
        if model.on_store[t]:
            cost[t] = model.in_cost[t]
        elif model.in_ram[t] and (model.ends_in_ram[t] or max(model.consumers[t], default=-1) >= model.cut):
            cost[t] = 0.0
    cheap: set[int] = set()
    for v in range(model.cut):
        total = model.op_cost[v] + sum(cost.get(t, math.inf) for t in model.inputs[v])
        if model.recomputable[v] and total <= limit:
            cost |= dict.fromkeys(model.outputs[v], total)
            cheap.update(model.outputs[v])
    return frozenset(cheap)


def _assigned(model: Model, starts: list[int], handed: list[frozenset[int]], cheap: frozenset[int]) -> Segments:
    """Assign each backward operator to the last segment that makes or hands on its operands.

    Segments are taken from that of the operator before it on. Operands that an early operator reads are handed on to
    the segment where it is executed.
    """
    n, cut, count = model.n_ops, model.cut, len(starts)
    of = [bisect.bisect_right(starts, v) - 1 for v in range(cut)]
    reads = [[t for t in model.inputs[v] if 0 <= model.producer[t] < cut and t not in cheap] for v in range(cut, n)]
    newest = [max((of[model.producer[t]] for t in r), default=-1) for r in reads]
    saved: list[set[int]] = [set() for _ in range(count)]
    backward: list[list[int]] = [[] for _ in range(count)]
    now = count - 1
    for k, r in enumerate(reads):
        missing = [of[model.producer[t]] for t in r if t not in handed[now] and of[model.producer[t]] < now]
        if missing:
            now = min(now, max(missing + newest[k : k + NESTED.ahead]))
        backward[now].append(cut + k)
        for t in r:
            made_in = of[model.producer[t]]
            for a in range(made_in + 1, now + 1):
                handed[a] |= {t}
            if made_in >= now:
                saved[made_in].add(t)
    return Segments(starts, handed, [frozenset(s) for s in saved], backward, cheap)


def _measure(model: Model, chain: Segments, last: list[int]) -> None:
    cut, sizes, count = model.cut, model.size, len(chain.starts)
    edges = [*chain.starts, cut]
    gradients = _gradients(model)
    there = int(gradients[-1])
    for a in range(count):
        handed, saved, after = chain.handed[a], chain.saved[a], chain.handed[a + 1]
        first, end = edges[a], edges[a + 1]
        for costs, wanted in ((chain.advance, after), (chain.record, after | saved), (chain.leaf, saved)):
            costs.append(sum(model.op_cost[v] for v in _needed(model, wanted, first, end, handed | chain.cheap)))
        peak = 0
        for v in range(first, end):
            touched = {*model.inputs[v], *model.outputs[v]}
            used = sum(sizes[t] for t in touched if model.producer[t] >= 0 and t not in handed)
            used += sum(
                sizes[t]
                for u in range(first, v)
                for t in model.outputs[u]
                if last[t] > v and t not in touched and t not in chain.cheap
            )
            used -= sum(sizes[o] for i, o in _in_place(model, v, last))
            peak = max(peak, used + model.workspace[v])
        chain.run_bytes.append(peak)
        backward = chain.backward[a]
        ends = {t: v for v in backward for t in model.inputs[v] if t in saved}
        undo = 0
        for v in backward:
            used = int(gradients[v]) + model.workspace[v]
            used += sum(sizes[t] for t in model.inputs[v] if t in chain.cheap)
            used += sum(sizes[t] for t, after_ in ends.items() if after_ >= v)
            undo = max(undo, used)
        chain.undo_bytes.append(undo)
        chain.gradient_bytes.append(int(gradients[backward[0] - 1]) if backward else -1)
    for a in range(count - 1, -1, -1):
        if chain.gradient_bytes[a] < 0:
            chain.gradient_bytes[a] = chain.gradient_bytes[a + 1] if a + 1 < count else there
        saved_bytes = sum(sizes[t] for t in chain.saved[a])
        run = max(saved_bytes, chain.run_bytes[a]) if chain.leaf[a] else saved_bytes
        chain.leaf_bytes.append(max(chain.undo_bytes[a], chain.gradient_bytes[a] + run))
    chain.leaf_bytes.reverse()


def _in_place(model: Model, v: int, ends: list[int]) -> list[tuple[int, int]]:
    used: set[int] = set()
    pairs = []
    for i, o, required in model.pairs[v]:
        if i not in used and o not in used and (required or ends[i] == v):
            used |= {i, o}
            pairs.append((i, o))
    return pairs


def _gradients(model: Model) -> npt.NDArray[np.int64]:
    """Bytes in RAM at every operator, as in keep-all, of gradients and of tensors that start in RAM."""
    n, sizes = model.n_ops, model.size
    ends = [n if model.ends_in_ram[t] else max(model.consumers[t], default=-1) for t in range(model.n_tensors)]
    change = np.zeros(n + 2, dtype=np.int64)
    for t in range(model.n_tensors):
        p = model.producer[t]
        if p >= model.cut or model.in_ram[t]:
            change[max(p, 0)] += sizes[t]
            change[max(p, 0, ends[t]) + 1] -= sizes[t]
    there: npt.NDArray[np.int64] = np.cumsum(change)[: n + 1]
    for v in range(n):
        there[v] -= sum(sizes[o] for _, o in _in_place(model, v, ends) if model.producer[o] >= model.cut)
    return there


def _needed(model: Model, wanted: Collection[int], first: int, end: int, there: Collection[int]) -> list[int]:
    """The operators from `first` to before `end` that make `wanted` from the tensors that are `there`."""
    needed: set[int] = set()
    stack = [t for t in wanted if t not in there]
    while stack:
        v = model.producer[stack.pop()]
        if v not in needed and first <= v < end and model.recomputable[v]:  # tensors of other operators stay
            needed.add(v)
            stack += [t for t in model.inputs[v] if t not in there]
    return sorted(needed)


class Program:
    """The dynamic program of nested checkpoints over a chain of segments.

    `cost[a, b, m]` is T(m, a, b) with m slots of memory, inf where they do not suffice. `choice[a, b, m]` is RECORD, or
    the segment j that attains it.
    """

    def __init__(self, model: Model, chain: Segments, slot_bytes: int, slots: int) -> None:
        self.model, self.chain, self.slots = model, chain, slots
        count = len(chain.starts)
        memory = np.arange(slots + 1)

        def in_slots(size_bytes: int) -> int:
            return min(-(-size_bytes // slot_bytes), slots + 1)

        def bytes_of(tensors: Collection[int]) -> int:
            return sum(model.size[t] for t in tensors)

        handed = chain.handed
        self.kept_slots = [in_slots(bytes_of((chain.saved[a] | handed[a + 1]) - handed[a])) for a in range(count)]
        undo = [in_slots(x) for x in chain.undo_bytes]
        self.entered = np.zeros((count, count), dtype=np.int64)
        running = np.zeros((count, count), dtype=np.int64)  # [a, k]: bytes while a ... k run
        for a in range(count):
            for k in range(a, count):
                handed_bytes = bytes_of(handed[k] - handed[a])
                self.entered[a, k] = in_slots(handed_bytes)
                running[a, k] = max(running[a, k - 1] if k > a else 0, handed_bytes + chain.run_bytes[k])
        prefix = np.concatenate(([0.0], np.cumsum(chain.advance)))
        self.cost = np.full((count, count, slots + 1), math.inf)
        self.choice = np.full((count, count, slots + 1), RECORD, dtype=np.int16)
        for a in range(count):
            self.cost[a, a] = np.where(memory >= in_slots(chain.leaf_bytes[a]), chain.leaf[a], math.inf)
        for length, a in itertools.product(range(1, count), range(count)):
            b = a + length
            if b >= count:
                continue
            gradients = chain.gradient_bytes[b] if b + 1 < count else 0
            record = np.full(slots + 1, math.inf)
            kept = self.kept_slots[a]
            record[kept:] = chain.record[a] + self.cost[a + 1, b][: max(0, slots + 1 - kept)]
            record[: max(undo[a], in_slots(chain.run_bytes[a] + gradients))] = math.inf
            self.cost[a, b] = record
            if a == 0:
                continue  # the first tensors are there until the end: they are recorded
            js = np.arange(a + 1, b + 1)
            left = memory[None, :] - self.entered[a, js][:, None]
            rest = np.take_along_axis(self.cost[js, b], np.maximum(left, 0), axis=1)
            total = rest + self.cost[a, js - 1] + (prefix[js] - prefix[a])[:, None]
            needed = -(-(running[a, js - 1] + gradients) // slot_bytes)
            total[(left < 0) | (memory[None, :] < needed[:, None])] = math.inf
            best = np.argmin(total, axis=0)
            cost = total[best, memory]
            self.cost[a, b] = np.minimum(record, cost)
            self.choice[a, b] = np.where(cost < record, js[best], RECORD)

    @property
    def least(self) -> int | None:
        """The least memory, in slots, for which there is a plan."""
        possible = np.flatnonzero(np.isfinite(self.cost[0, -1]))
        return int(possible[0]) if len(possible) else None

    def codes(self, slots: int) -> list[int]:
        """The sequence of the best plan within `slots` slots, with the paging that nothing avoids."""
        self._operators: list[int] = []
        self._reached = 0  # operators that were executed for the first time
        self._write(0, len(self.chain.starts) - 1, slots, frozenset())
        return _paged(self.model, self._operators)

    def _run(self, a: int, b: int, wanted: Collection[int], there: frozenset[int]) -> None:
        """Run segments a ... b - 1, as far as `wanted` needs them or they come for the first time."""
        edges = [*self.chain.starts, self.model.cut]
        first, end = edges[a], edges[b]
        operators = _needed(self.model, wanted, first, end, there | self.chain.cheap)
        if end > self._reached:
            operators = [v for v in operators if v < self._reached] + list(range(self._reached, end))
            self._reached = end
        self._operators += operators

    def _write(self, a: int, b: int, slots: int, there: frozenset[int]) -> None:
        """Write the actions of T(m, a, b); `there`: the tensors that are held, H(a) among them."""
        chain = self.chain
        choice = int(self.choice[a, b, slots])
        if a == b:
            self._run(a, a + 1, chain.saved[a], there)
        elif choice == RECORD:
            wanted = chain.saved[a] | chain.handed[a + 1]
            self._run(a, a + 1, wanted, there)
            self._write(a + 1, b, slots - self.kept_slots[a], there | wanted)
        else:
            self._run(a, choice, chain.handed[choice], there)
            self._write(choice, b, slots - int(self.entered[a, choice]), there | chain.handed[choice])
            self._write(a, choice - 1, slots, there)
            return
        self._operators += chain.backward[a]


def _paged(model: Model, operators: list[int]) -> list[int]:
    """The sequence with the page-ins and page-outs that nothing avoids."""
    n, m = model.n_ops, model.n_tensors
    codes = [n + m + t for t in model.page_outs_needed if model.in_ram[t]]
    waiting, unwritten = set(model.page_ins_needed), set(model.page_outs_needed)
    for v in operators:
        codes += [n + t for t in model.inputs[v] if t in waiting]
        waiting.difference_update(model.inputs[v])
        codes.append(v)
        codes += [n + m + t for t in model.outputs[v] if t in unwritten]
        unwritten.difference_update(model.outputs[v])
    return codes + [n + t for t in sorted(waiting)]
