"""Simulated annealing over topological orders, by the bytes that keep-all would need above the capacity.

Their maximum and mean over the operators count: any schedule has to recompute or page so many, whatever it chooses.
"""

from __future__ import annotations

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
        made = [t for t in range(m) if model.producer[t] >= 0]
        self.made = np.array(made, dtype=np.intp)
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
        birth[self.made] = position[self.producer[self.made]]
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


def anneal(model: Model, capacity: int, random: np.random.Generator, *, moves: int, heat: float) -> tuple[float, Order]:
    """The least overflow that annealing from the problem's order finds, and its order.

    Temperatures start at `heat` times the overflow of the problem's order.
    """
    n = model.n_ops
    dependences, overflow = Dependences(model), Overflow(model, capacity)
    order = list(range(n))
    value = overflow.of(np.arange(n))
    best, best_order = value, list(order)
    position = list(range(n))
    hot, cold = max(1e-6, heat * value), max(1e-9, 1e-5 * value)
    for k in range(moves):
        if best == 0.0:
            break
        v = int(random.integers(n))
        at = position[v]
        low = max((position[u] for u in dependences.before[v]), default=-1) + 1
        high = min((position[u] for u in dependences.after[v]), default=n) - 1
        if low >= high:
            continue
        to = int(random.integers(low, high))
        to += to >= at
        order.pop(at)
        order.insert(to, v)
        candidate = overflow.of(np.array(order, dtype=np.intp))
        temperature = hot * (cold / hot) ** (k / moves)
        if candidate <= value or random.random() < np.exp((value - candidate) / temperature):
            value = candidate
            for i in range(min(at, to), max(at, to) + 1):
                position[order[i]] = i
            if value < best:
                best, best_order = value, list(order)
        else:
            order.pop(to)
            order.insert(at, v)
    return best, tuple(best_order)
