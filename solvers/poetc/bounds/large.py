"""Lower bounds from a search in which only the large tensors take RAM, for budgets that hold few of them at once.

Near the smallest budget a relaxation with cuts makes tensors again by halves, in RAM that is not there. Here each state
is whole: the operators executed so far, the large tensors in RAM, and those whose write has been paid. Small tensors
are always there and take room beside operators that use them only. So the cheapest path costs no more than any schedule
in the problem's order of first executions. Its rules are:

- A tensor is read from the store right before an operator that needs it. The first read pays the write as well, which
  could have come at any time since the tensor was made.
- One state dominates another if it pays less even after it has read and written the tensors that only the other has.
- A tensor with one reader, which makes no more bytes of it, is not written for reads after that reader: its output is.
- The states after an operator are at most `width`. Of dearer ones, those with the same tensors in RAM are merged: the
  least cost, and every write that one of them has paid. This is a relaxed decision diagram (Bergman, Cire, van Hoeve,
  Hooker, "Decision Diagrams for Optimization", 2016).

Work is counted in transitions: a state whose tensors leave in many ways takes as much as many states.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from poetc.scheduling import Problem, on_store
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.ladder import has_wide_gap
from poetc.solvers.poetc.bounds.ram import pinned_interval
from poetc.solvers.poetc.pruning import ALL, Rules
from poetc.solvers.poetc.settings import LARGE

_State = tuple[int, int]  # large tensors in RAM, and those whose write is paid, as bit masks


@dataclass(frozen=True, slots=True)
class Found:
    """A bound in the unit of the cost, at most the cutoff, and the transitions that it took.

    `is_merged`: more states at once may prove more.
    """

    bound: float
    transitions: int
    is_merged: bool = False


class Diagram:
    """The search for one problem, whose state has its places.

    Tensors from `least_bytes` on are the large ones, but for those of `small`.
    """

    def __init__(self, model: Model, least_bytes: int, small: frozenset[int] = frozenset(), rules: Rules = ALL) -> None:
        self.model, self.rules = model, rules
        self.large = [t for t in range(model.n_tensors) if model.size[t] >= least_bytes and t not in small]
        self.bit = {t: 1 << i for i, t in enumerate(self.large)}
        self.reads = [self._mask(inputs) for inputs in model.inputs]
        self.makes = [self._mask(outputs) for outputs in model.outputs]
        self.end = self._mask([t for t in self.large if model.ends_in_ram[t]])
        self.base = sum(model.op_cost) + sum(model.out_cost[t] for t in model.page_outs_needed)
        self.base += sum(model.in_cost[t] for t in model.page_ins_needed if t not in self.bit)
        self.choices = [self._choices(v) for v in range(model.n_ops)]
        self.room, self.room_first = self._room()
        self.passing = self._passing()
        self._bytes: dict[int, int] = {}
        self._in: dict[int, float] = {}
        self._out: dict[int, float] = {}
        self._drops: dict[tuple[int, int], tuple[int, ...]] = {}

    def _mask(self, tensors: Sequence[int]) -> int:
        mask = 0
        for t in tensors:
            mask |= self.bit.get(t, 0)
        return mask

    def _choices(self, v: int) -> list[tuple[int, int]]:
        """Every choice of in-place pairs that make large tensors: inputs that cease to exist, and bytes saved."""
        pairs = [pair for pair in self.model.pairs[v] if pair[1] in self.bit]
        choices: set[tuple[int, int]] = set()
        for bits in range(1 << len(pairs)):
            chosen = [pair for k, pair in enumerate(pairs) if bits >> k & 1]
            whole = all(pair in chosen for pair in pairs if pair[2])
            if whole and len({i for i, _, _ in chosen}) == len(chosen) == len({o for _, o, _ in chosen}):
                choices.add((self._mask([i for i, _, _ in chosen]), sum(self.model.size[o] for _, o, _ in chosen)))
        return sorted(choices)

    def _room(self) -> tuple[list[int], list[int]]:
        """By operator, the bytes that large tensors may take beside it: again, and when it is first executed."""
        model, room = self.model, []
        self.capacity = model.paging_capacity if model.must_page else model.capacity
        for v in range(model.n_ops):
            small = sum(model.size[t] for t in {*model.inputs[v], *model.outputs[v]} if t not in self.bit)
            small -= sum(model.size[o] for _, o, _ in model.pairs[v] if o not in self.bit)
            room.append(self.capacity - model.workspace[v] - max(0, small))
        first = list(room)
        for t in range(model.n_tensors):
            interval = None if t in self.bit else pinned_interval(model, t)
            for v in range(interval[0], min(interval[1] + 1, model.n_ops)) if interval is not None else ():
                if v >= 0 and t not in model.inputs[v] and t not in model.outputs[v]:
                    first[v] -= model.size[t]
        return room, first

    def _passing(self) -> list[int | None]:
        """By large tensor, its only reader, if that makes one tensor of it which is no dearer to hold or to page.

        No update takes over the reader's output, which would then be read again.
        """
        model, only_readers = self.model, list[int | None]()
        for t in self.large:
            readers = model.consumers[t]
            stays = model.ends_in_ram[t] or model.ends_on_store[t] or model.on_store[t]
            only_readers.append(None)
            if not self.rules.large_passing:
                continue
            if stays or len(readers) != 1 or len(model.outputs[readers[0]]) != 1:
                continue
            (o,) = model.outputs[readers[0]]
            alone = self.reads[readers[0]] == self.bit[t] and o in self.bit and model.pageable[o]
            alone = alone and model.expiry[o] == NEVER
            dear = any(of[o] > of[t] for of in (model.size, model.in_cost, model.out_cost))
            if alone and not dear:
                only_readers[-1] = readers[0]
        return only_readers

    def _each(self, mask: int) -> Iterator[int]:
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def bytes_of(self, mask: int) -> int:
        size_bytes = self._bytes.get(mask)
        if size_bytes is None:
            size_bytes = self._bytes[mask] = sum(self.model.size[self.large[i]] for i in self._each(mask))
        return size_bytes

    def _reading(self, mask: int) -> float:
        """The cost of reading tensors from the store."""
        cost = self._in.get(mask)
        if cost is None:
            cost = self._in[mask] = sum(
                self.model.in_cost[t] if self.model.pageable[t] or self.model.on_store[t] else math.inf
                for t in map(self.large.__getitem__, self._each(mask))
            )
        return cost

    def _writing(self, mask: int) -> float:
        cost = self._out.get(mask)
        if cost is None:
            cost = self._out[mask] = sum(self.model.out_cost[self.large[i]] for i in self._each(mask))
        return cost

    def _leaving(self, ram: int, excess: int) -> tuple[int, ...]:
        """Inclusion-minimal sets of tensors in `ram` whose leaving frees `excess` bytes."""
        if excess <= 0:
            return (0,)
        known = self._drops.get((ram, excess))
        if known is not None:
            return known
        sizes = {i: self.model.size[self.large[i]] for i in self._each(ram)}
        tensors = sorted(sizes, key=lambda i: (-sizes[i], i))
        tails = [*itertools.accumulate((sizes[i] for i in reversed(tensors)), initial=0)][::-1]
        stack, subsets = [(0, 0, 0)], list[int]()
        while stack and len(subsets) < LARGE.most_drops:
            k, chosen, freed = stack.pop()
            if freed >= excess:
                subsets.append(chosen)
            elif k < len(tensors) and freed + tails[k] >= excess:
                stack.append((k + 1, chosen, freed))
                stack.append((k + 1, chosen | 1 << tensors[k], freed + sizes[tensors[k]]))
        if stack:  # too many: none leaves, which relaxes
            subsets = [0] if self.bytes_of(ram) >= excess else []
        self._drops[ram, excess] = tuple(subsets)
        return self._drops[ram, excess]

    def _useful(self) -> list[int]:
        """By the number of operators executed, the tensors that later ones read, or that others are made of again."""
        n, by_executed, read = self.model.n_ops, list[int](), self.end
        if not self.rules.large_useful:
            return [(1 << len(self.large)) - 1] * (n + 1)
        for v in range(n, -1, -1):
            if v < n:
                read |= self.reads[v]
            useful = read
            for w in range(v - 1, -1, -1):
                if self.model.recomputable[w] and self.makes[w] & useful:
                    useful |= self.reads[w]
            by_executed.append(useful)
        return by_executed[::-1]

    def _executed(self, v: int, w: int, ram: int, paid: int) -> Iterator[tuple[int, int, float]]:
        """States and costs after operator `w` with `v` executed so far."""
        missing, cost, again = self.reads[w] & ~ram, 0.0, w < v
        if missing:
            for i in self._each(missing):
                reader = self.passing[i]
                if reader is not None and reader < v and not paid >> i & 1:  # if paid, the output's write may be dearer
                    return
            cost = self._reading(missing) + self._writing(missing & ~paid)
            paid |= missing
        outputs = self.makes[w]
        rest, room = (ram | missing) & ~outputs, self.room[w] if again else self.room_first[w]
        if again:
            cost += self.model.op_cost[w]
        for consumed, saved in self.choices[w]:
            excess = self.bytes_of(rest) + self.bytes_of(outputs) - saved - room
            for left in self._leaving(rest & ~self.reads[w], excess):
                yield rest & ~left & ~consumed | outputs, paid, cost

    def run(self, cutoff: float, most: int, width: int, stop_at: float = math.inf) -> Found:
        """The least cost of a path, or the bound that `most` transitions prove; at most `cutoff`."""
        model, rules, n, spare = self.model, self.rules, self.model.n_ops, cutoff - self.base
        useful, transitions, looked, is_merged = self._useful(), 0, 0, False
        start = self._mask([t for t in self.large if model.in_ram[t]])
        if self.bytes_of(start) > self.capacity:
            return Found(cutoff, 0)
        paid = self._mask([*(t for t in self.large if model.on_store[t]), *model.page_outs_needed])
        level: dict[_State, float] = {(start & useful[0], paid & useful[0]): 0.0}
        least, limit = spare, spare if rules.large_cutoff else math.inf
        for v in range(n + 1):  # behind the last operator, those that run again come too
            again = [w for w in range(v) if model.recomputable[w] and self.makes[w] & useful[v]]
            queue = [(cost, state) for state, cost in level.items()]
            heapq.heapify(queue)
            leaders: list[tuple[int, int, float]] = []
            alike: dict[int, list[tuple[int, int, float]]] = {}
            following: dict[_State, float] = {}
            while queue:
                cost, state = heapq.heappop(queue)
                if level[state] < cost:
                    continue
                ram, paid = state
                others = itertools.chain(leaders, alike.get(ram, ())) if rules.large_dominance else ()
                if self._dominated(ram, paid, cost, others):
                    continue
                looked += 1
                if transitions >= most or (looked % LARGE.look == 0 and time.monotonic() > stop_at):
                    return Found(self.base + min((cost, least, *following.values())), transitions)
                if len(leaders) < LARGE.leaders:
                    leaders.append((ram, paid, cost))
                alike.setdefault(ram, []).append((ram, paid, cost))
                if v == n:
                    missing = self.end & ~ram
                    least = min(least, cost + self._reading(missing) + self._writing(missing & ~paid))
                for w in (v, *again) if v < n else again:
                    if w < v and not self.makes[w] & useful[v] & ~ram:
                        continue
                    keep, into = (useful[v + 1], following) if w == v else (useful[v], level)
                    for now, written, more in self._executed(v, w, ram, paid):
                        transitions += 1
                        after = now & keep, written & keep
                        if cost + more < min(limit, into.get(after, math.inf)):
                            into[after] = cost + more
                            if w < v:
                                heapq.heappush(queue, (cost + more, after))
            level = _merged(following, width)
            is_merged |= len(following) > width
        return Found(self.base + least, transitions, is_merged)

    def _dominated(self, ram: int, paid: int, cost: float, others: Iterable[tuple[int, int, float]]) -> bool:
        """Whether another state can turn into this one and has still paid no more."""
        for other, other_paid, other_cost in others:
            missing = (paid | ram & ~other) & ~other_paid
            if other_cost + self._reading(ram & ~other) + self._writing(missing) <= cost:
                return True
        return False


def _merged(states: dict[_State, float], width: int) -> dict[_State, float]:
    """At most `width` states, and one more for each set of tensors in RAM."""
    if len(states) <= width:
        return states
    order = sorted(states.items(), key=lambda item: (item[1], item[0]))
    merged: dict[int, tuple[int, float]] = {}
    for (ram, paid), cost in order[width:]:
        others, least = merged.get(ram, (0, cost))
        merged[ram] = others | paid, least
    kept = dict(order[:width])
    for ram, (paid, cost) in merged.items():
        kept[ram, paid] = min(cost, kept.get((ram, paid), math.inf))
    return kept


def worth_large_tensors(model: Model, bound: float, cost: float) -> bool:
    """Whether cuts have left a gap between `bound` and `cost` that is worth this search."""
    return model.n_ops <= LARGE.most_operators and has_wide_gap(bound, cost)


def bound_of_large(
    problem: Problem,
    cutoff: float,
    *,
    chains: Sequence[tuple[int, ...]] = (),
    first: frozenset[int] = frozenset(),
    known: float = 0.0,
    work_s: float = math.inf,
    stop_at: float = math.inf,
    rules: Rules = ALL,
) -> Found:
    """The best bound of ever smaller large tensors, in the problem's order; from `known` to `cutoff`.

    State of `chains` may live in RAM or on the store: the bound holds for both. Each set of the largest of them is
    placed on the store, beginning with those of `first`; others take no room. Where that proves more than was known,
    the tensors that proved the most are searched again with more states at once. The first width may take little work.
    """
    search = _Shares(problem, cutoff, chains, first, known, stop_at, rules)
    most = work_s / LARGE.transition_s
    search.most = int(min(LARGE.first_transitions, LARGE.first_share * most))
    for share in LARGE.shares:
        search.run(share, LARGE.widths[0])
    search.most = int(min(LARGE.most_transitions, most))
    for width in LARGE.widths[1:]:
        if search.best is None or not search.run(search.best, width):
            break
    return Found(search.bound, search.transitions)


class _Shares:
    """The bounds of `bound_of_large`, by the smallest large tensor."""

    def __init__(
        self,
        problem: Problem,
        cutoff: float,
        chains: Sequence[tuple[int, ...]],
        first: frozenset[int],
        known: float,
        stop_at: float,
        rules: Rules,
    ) -> None:
        self.problem, self.cutoff, self.chains, self.first = problem, cutoff, chains, first
        self.bound, self.stop_at, self.rules = known, stop_at, rules
        self.transitions, self.most, self.seen = 0, 0, set[tuple[int, int, int]]()
        self.transitions_of: dict[float, int] = {}  # transitions of the last run, by share
        self.best: float | None = None  # the share that proved the bound, if more states at once may prove more

    @property
    def is_over(self) -> bool:
        return self.transitions >= self.most or self.bound >= self.cutoff or time.monotonic() > self.stop_at

    def run(self, share: float, width: int) -> bool:
        """Raise the bound by tensors from that share of the RAM on. Whether more states at once may prove more."""
        left = self.most - self.transitions
        if self.is_over or self.transitions_of.get(share, 0) > left / LARGE.wider:
            return False
        least_bytes = max(1, math.ceil(share * (self.problem.budget_bytes - self.problem.base_bytes)))
        sizes = {chain[0]: self.problem.tensors[chain[0]].size_bytes for chain in self.chains}
        placed = sorted((t for t in sizes if sizes[t] >= least_bytes), key=lambda t: (-sizes[t], t))
        small = frozenset(t for c in self.chains if c[0] in placed[LARGE.most_chains :] for t in c)
        placed = placed[: LARGE.most_chains]
        like = sum(t.size_bytes >= least_bytes for t in self.problem.tensors), len(placed), width
        if like in self.seen:
            return False
        self.seen.add(like)
        subsets = [frozenset(t for k, t in enumerate(placed) if bits >> k & 1) for bits in range(1 << len(placed))]
        least, begun, is_merged = self.cutoff, self.transitions, False
        subsets.sort(key=lambda stored: len(stored ^ (self.first & set(placed))))
        for stored in subsets:
            diagram = Diagram(Model(on_store(self.problem, stored)), least_bytes, small, self.rules)
            result = diagram.run(least, self.most - self.transitions, width, self.stop_at)
            least, is_merged = min(least, result.bound), is_merged or result.is_merged
            self.transitions += result.transitions
            left = max(0, self.most - self.transitions)  # a run may take a few more than it may
            if stored == subsets[0] and result.transitions * (len(subsets) - 1) > 2 * left:
                least = self.bound  # the others would not be done, which proves nothing
            if least <= self.bound:
                break
        self.transitions_of[share] = self.transitions - begun
        if least > self.bound:
            self.bound, self.best = least, share if is_merged else None
        return is_merged
