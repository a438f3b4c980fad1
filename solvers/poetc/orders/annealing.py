"""Simulated annealing over topological orders, by the bytes that keep-all would need above the capacity.

Their maximum and mean over the operators count: any schedule has to recompute or page so many, whatever it chooses.
Thousands of moves are looked at, and each touches the few operators between an old and a new position (`Moves`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from poetc.solvers.dependences import Dependences
from poetc.solvers.model import Model
from poetc.solvers.poetc.orders.reordering import Order


class Overflow:
    """The bytes that keep-all needs above a capacity under an order, in units of the capacity; 0 where it fits."""

    def __init__(self, model: Model, capacity: int) -> None:
        n, m = model.n_ops, model.n_tensors
        self.n, self.capacity = n, max(1, capacity)
        self.size = np.array(model.size, dtype=np.float64)
        self.workspace = np.array(model.workspace, dtype=np.float64)
        self.producer = np.array(model.producer, dtype=np.intp)
        computed = [t for t in range(m) if model.producer[t] >= 0]
        self.computed = np.array(computed, dtype=np.intp)
        self.readers = np.array([v for t in range(m) for v in model.consumers[t]], dtype=np.intp)
        self.read = np.array([t for t in range(m) for _ in model.consumers[t]], dtype=np.intp)
        self.stays = np.array(model.ends_in_ram, dtype=bool)
        # Only the first pair of an input or output counts.
        pairs: list[tuple[int, int, int]] = []
        for v in range(n):
            used: set[int] = set()
            for i, o, _ in model.pairs[v]:
                if i not in used and o not in used:
                    used |= {i, o}
                    pairs.append((v, i, o))
        self.pairs = np.array(pairs, dtype=np.intp).reshape(-1, 3)

    def of(self, order: npt.NDArray[np.intp]) -> float:
        """Half the largest excess plus half the mean one."""
        return self._of(self._ram(order))

    def with_mean(self, order: npt.NDArray[np.intp]) -> tuple[float, float]:
        """That, and the mean of the bytes in RAM."""
        ram = self._ram(order)
        return self._of(ram), float(ram.mean())

    def _of(self, ram: npt.NDArray[np.float64]) -> float:
        excess = np.maximum(0.0, ram - self.capacity)
        return float(0.5 * excess.max() + 0.5 * excess.mean()) / self.capacity

    def _ram(self, order: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """The RAM of keep-all by position, bytes."""
        position = np.empty(self.n, dtype=np.intp)
        position[order] = np.arange(self.n)
        birth = np.zeros(len(self.size), dtype=np.intp)
        birth[self.computed] = position[self.producer[self.computed]]
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
    """The order with each operator as early as its inputs are there, where that needs less RAM on average.

    The overflow may not grow. Annealing does not move an operator that makes no difference to keep-all, such as the
    gradient of a weight whose operands stay anyway. But a schedule that lets go of these operands would make them again
    for it.
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


class Moves:
    """An order, and the overflow that one move of an operator leads to: the same number as `Overflow.of`.

    A move changes the bytes in RAM between the old and the new position alone, and by tensors that the operator reads
    or makes. All sums are of whole bytes, so the way to an order does not change its overflow.
    """

    def __init__(self, model: Model, overflow: Overflow) -> None:
        n, size, stays = model.n_ops, model.size, model.ends_in_ram
        self.n, self.size, self.capacity = n, size, overflow.capacity
        self.order, self.position = list(range(n)), list(range(n))
        self.readers = model.consumers
        self.last = [max(readers, default=-1) for readers in model.consumers]  # by tensor, its last reader
        # A tensor that stays ends with the last position: no reader matters to it.
        self.reads = [tuple(t for t in inputs if not stays[t]) for inputs in model.inputs]
        self.makes = [sum(size[t] for t in outputs) for outputs in model.outputs]
        self.leaves = [sum(size[t] for t in outputs if stays[t] or self.readers[t]) for outputs in model.outputs]
        self.ends = [a - b for a, b in zip(self.makes, self.leaves, strict=True)]  # bytes that end with an operator
        for t, v in enumerate(self.last):
            if v >= 0 and not stays[t]:
                self.ends[v] += size[t]
        initial = [t for t, p in enumerate(model.producer) if p < 0]
        self.start = sum(size[t] for t in initial if stays[t] or self.readers[t])
        self.at_first = sum(size[t] for t in initial) - self.start  # unread tensors are there at the first position
        # Bytes of outputs that take their input's place, by operator and input; and of inputs that stay, by operator:
        # these end at the last position.
        self.replaces: dict[tuple[int, int], int] = {}
        self.at_last = [0] * n
        for v, i, o in overflow.pairs.tolist():
            if stays[i]:
                self.at_last[v] += size[o]
            else:
                self.replaces[v, i] = size[o]
        self.workspace_excess = [space - self.capacity for space in model.workspace]  # beside tensors in RAM
        for (v, i), saved in self.replaces.items():
            if self.last[i] == v:
                self.workspace_excess[v] -= saved
        self.in_ram: list[int] = []  # bytes of tensors, by position
        before = self.start
        for v in self.order:
            self.in_ram.append(before + self.makes[v])
            before = self.in_ram[-1] - self.ends[v]
        self.excess = [max(0, self._excess(at, v, self.in_ram[at])) for at, v in enumerate(self.order)]
        self.largest, self.total = max(self.excess), sum(self.excess)

    def _excess(self, at: int, v: int, in_ram: int) -> int:
        """The bytes above the capacity at a position, or how many are left below it as a negative number."""
        excess = in_ram + self.workspace_excess[v]
        if at == 0:
            excess += self.at_first
        if at == self.n - 1:
            excess -= self.at_last[v]
        return excess

    @property
    def value(self) -> float:
        """Half the largest excess plus half the mean one, in units of the capacity."""
        return (0.5 * self.largest + 0.5 * (self.total / self.n)) / self.capacity

    def move(self, v: int, to: int) -> Callable[[], None]:
        """Move operator `v` to the position `to`. The function that it returns undoes that.

        No operator between may depend on `v`, nor `v` on it.
        """
        at, order, position, last, size = self.position[v], self.order, self.position, self.last, self.size
        later = to > at
        first, behind = (at, to + 1) if later else (to, at + 1)
        passed = order[at + 1 : behind] if later else order[to:at]
        # The outputs of `v` are there for fewer of the operators that it passes, or for more.
        change = -self.leaves[v] if later else self.leaves[v]
        steps, relayed = [], []  # bytes for operators behind a position; tensors with another last reader
        for t in self.reads[v]:
            reader = last[t]
            if later:
                if reader == v:
                    change += size[t]
                elif position[reader] <= to:
                    steps.append((position[reader] - at, size[t]))
                    relayed.append((t, reader, v))
            elif reader == v:
                before, other = max(((position[u], u) for u in self.readers[t] if u != v), default=(-1, -1))
                if before < to:
                    change -= size[t]
                else:
                    steps.append((before - to + 1, -size[t]))
                    relayed.append((t, v, other))
        in_ram = [ram + change for ram in (self.in_ram[at + 1 : behind] if later else self.in_ram[to:at])]
        for index, more in steps:
            for k in range(index, len(in_ram)):
                in_ram[k] += more
        for t, old, new in relayed:
            last[t] = new
            self.ends[old] -= size[t]
            self.ends[new] += size[t]
            if self.replaces:
                self.workspace_excess[old] += self.replaces.get((old, t), 0)
                self.workspace_excess[new] -= self.replaces.get((new, t), 0)
        if later:
            in_ram.append(in_ram[-1] - self.ends[passed[-1]] + self.makes[v])
            moved = [*passed, v]
        else:
            before = self.in_ram[to - 1] - self.ends[order[to - 1]] if to else self.start
            in_ram.insert(0, before + self.makes[v])
            moved = [v, *passed]
        other_bytes = self.workspace_excess
        excess = [e if (e := ram + other_bytes[u]) > 0 else 0 for u, ram in zip(moved, in_ram, strict=True)]
        if first == 0:
            excess[0] = max(0, self._excess(0, moved[0], in_ram[0]))
        if behind == self.n:
            excess[-1] = max(0, self._excess(behind - 1, v if later else passed[-1], in_ram[-1]))
        old_order, old_ram, old_excess = order[first:behind], self.in_ram[first:behind], self.excess[first:behind]
        old_largest, old_total = self.largest, self.total

        self.total += sum(excess) - sum(old_excess)
        self.largest = max(excess)
        if self.largest < old_largest:
            if max(old_excess) < old_largest:
                self.largest = old_largest
            else:
                self.largest = max([self.largest, *self.excess[:first], *self.excess[behind:]])
        self._place(first, moved, in_ram, excess)

        def undo() -> None:
            self.largest, self.total = old_largest, old_total
            self._place(first, old_order, old_ram, old_excess)
            for t, old, new in relayed:
                last[t] = old
                self.ends[old] += size[t]
                self.ends[new] -= size[t]
                if self.replaces:
                    self.workspace_excess[old] -= self.replaces.get((old, t), 0)
                    self.workspace_excess[new] += self.replaces.get((new, t), 0)

        return undo

    def _place(self, first: int, order: list[int], in_ram: list[int], excess: list[int]) -> None:
        behind = first + len(order)
        self.order[first:behind], self.in_ram[first:behind], self.excess[first:behind] = order, in_ram, excess
        for at, v in enumerate(order, first):
            self.position[v] = at


class Draws:
    """Random numbers one at a time: those of numpy's `Generator` on a PCG64, at a fifth of the time a number.

    Numbers below a bound are drawn by Lemire's method ("Fast random integer generation in an interval", 2019).
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self._words: list[int] = []
        self._half = -1  # upper half of a word whose lower half was drawn

    def _word(self) -> int:
        if not self._words:
            self._words = self._bits.random_raw(1024)[::-1].tolist()
        return self._words.pop()

    def _half_word(self) -> int:
        half = self._half
        if half >= 0:
            self._half = -1
            return half
        word = self._word()
        self._half = word >> 32
        return word & 0xFFFFFFFF

    def below(self, bound: int) -> int:
        """An integer of at least 0, below a bound of at most 2**32 - 1."""
        if bound == 1:
            return 0
        product = self._half_word() * bound
        if product & 0xFFFFFFFF < bound:  # the first few of 2**32 numbers would be drawn too often
            fewest = (0x100000000 - bound) % bound
            while product & 0xFFFFFFFF < fewest:
                product = self._half_word() * bound
        return product >> 32

    def fraction(self) -> float:
        """The next random number of [0, 1), with 53 bits."""
        return (self._word() >> 11) * 2.0**-53


def anneal(model: Model, capacity: int, random: Draws, *, moves: int, heat: float) -> tuple[float, Order]:
    """The least overflow that annealing from the problem's order finds, and its order.

    Temperatures start at `heat` times the overflow of the problem's order.
    """
    n = model.n_ops
    dependences, state = Dependences(model), Moves(model, Overflow(model, capacity))
    before, after = ([tuple(others) for others in side] for side in (dependences.before, dependences.after))
    position = state.position
    value = state.value
    best, best_order = value, list(state.order)
    hot, cold = max(1e-6, heat * value), max(1e-9, 1e-5 * value)
    for k in range(moves):
        if best == 0.0:
            break
        v = random.below(n)
        low = max([position[u] for u in before[v]], default=-1) + 1
        high = min([position[u] for u in after[v]], default=n) - 1
        if low >= high:
            continue
        to = low + random.below(high - low)
        to += to >= position[v]
        undo = state.move(v, to)
        candidate = state.value
        if candidate > value:
            temperature = hot * (cold / hot) ** (k / moves)
            if random.fraction() >= np.exp((value - candidate) / temperature):
                undo()
                continue
        value = candidate
        if value < best:
            best, best_order = value, list(state.order)
    return best, tuple(best_order)
