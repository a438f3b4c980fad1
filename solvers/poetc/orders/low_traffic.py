"""The low-traffic order: an order of first executions that hands on few bytes between operators of a pass.

Tensors that the forward pass saves for the backward pass do not count. Keep-all does not care in which order they are
made, so neither does annealing on its RAM. But schedules that make stretches of the forward pass again do. For example,
two stacked recurrent layers can go step by step together, with the states of one step between them. Or they go layer
after layer, with a whole sequence between them.

An operator is executed when another needs it, depth first from the last results, the longest path first. Operators that
are possible already are executed as soon as that leaves no more bytes between operators. A few that they need come
along, such as the parts of a weight's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

from poetc.solvers.model import Model
from poetc.solvers.poetc.settings import LOW_TRAFFIC


def low_traffic_order(model: Model, before: list[set[int]], after: list[set[int]]) -> tuple[int, ...]:
    """The order. Forward operators stay before the others.

    `before`, `after`: by operator, those that must come first, and the reverse (see `Dependences`).
    """
    return _Order(model, before, after).run()


class _Order:
    def __init__(self, model: Model, before: list[set[int]], after: list[set[int]]) -> None:
        self.model, self.before, self.after = model, before, after
        n, cut = model.n_ops, model.cut
        self.depth = [0] * n
        for v in range(n):
            self.depth[v] = 1 + max((self.depth[u] for u in before[v]), default=0)
        self.phase = [v >= cut for v in range(n)]
        # Readers within the phase that makes a tensor. Tensors that are there from the start stay, at no cost.
        self.readers = [0] * model.n_tensors
        for v in range(n):
            for t in model.inputs[v]:
                p = model.producer[t]
                if p >= 0 and self.phase[p] == self.phase[v]:
                    self.readers[t] += 1
        self.free = [self._is_summand(t) for t in range(model.n_tensors)]
        self.done = [False] * n
        self.order: list[int] = []

    def _is_summand(self, t: int) -> bool:
        """Whether `t` is read once, by an operator that overwrites it and reads others: the bytes of a sum stay."""
        model = self.model
        p = model.producer[t]
        if self.readers[t] != 1 or not self.phase[p]:
            return False
        reader = next(v for v in model.consumers[t] if self.phase[v] == self.phase[p])
        return len(self._inputs_of_phase(reader)) > 1 and any(i == t for i, _, _ in model.pairs[reader])

    def run(self) -> tuple[int, ...]:
        n, cut = self.model.n_ops, self.model.cut
        for operators in (range(cut), range(cut, n)):
            inside = set(operators)
            ends = [v for v in operators if not (self.after[v] & inside)]
            for v in sorted(ends, key=lambda v: (-self.depth[v], v)):
                self._pull(v)
        return tuple(self._sunk())

    def _sunk(self) -> list[int]:
        """The order with every operator right before its first reader, where that leaves less between operators.

        For example, the product with the state of a recurrent layer, four times as large, waits for that of the inputs.
        """
        model, order = self.model, self.order
        at = {v: k for k, v in enumerate(order)}
        for v in reversed(list(order)):
            here = at[v]
            to = min((at[u] for u in self.after[v]), default=len(order)) - 1
            if to <= here or any(self.phase[u] != self.phase[v] for u in order[here : to + 1]):
                continue
            read = [t for t in model.outputs[v] if any(self.phase[u] == self.phase[v] for u in model.consumers[t])]
            less = sum(model.size[t] for t in read) * (to - here)
            for t in self._inputs_of_phase(v):
                others = (at[u] for u in model.consumers[t] if u != v and self.phase[u] == self.phase[v])
                until = max((k - (here < k <= to) for k in others), default=here)
                less -= model.size[t] * max(0, to - max(here, until))
            if less > 0:
                order[here : to + 1] = [*order[here + 1 : to + 1], v]
                for k in range(here, to + 1):
                    at[order[k]] = k
        return order

    def _pull(self, last: int) -> None:
        stack = [last]
        while stack:
            v = stack[-1]
            if self.done[v]:
                stack.pop()
                continue
            missing = [u for u in self.before[v] if not self.done[u]]
            if missing:
                stack.append(max(missing, key=lambda u: (self.depth[u], u)))
                continue
            stack.pop()
            self._execute(v)
            self._ahead(v)

    def _execute(self, v: int) -> None:
        self.done[v] = True
        self.order.append(v)
        for t in self._inputs_of_phase(v):
            self.readers[t] -= 1

    def _inputs_of_phase(self, v: int) -> list[int]:
        model = self.model
        return [t for t in model.inputs[v] if model.producer[t] >= 0 and self.phase[model.producer[t]] == self.phase[v]]

    def _change(self, operators: Iterable[int]) -> int:
        """The bytes that these operators add between operators."""
        model, change = self.model, 0
        read: dict[int, int] = {}
        for v in operators:
            for t in self._inputs_of_phase(v):
                read[t] = read.get(t, 0) + 1
            change += sum(model.size[t] for t in model.outputs[v] if self.readers[t] and not self.free[t])
        for t, count in read.items():
            if count == self.readers[t] and not self.free[t]:
                change -= model.size[t]
        return change

    def _ahead(self, executed: int) -> None:
        """Execute operators that became possible, where that leaves no more bytes between operators."""
        queue = [executed]
        while queue:
            for v in sorted(self.after[queue.pop(0)]):
                if self.done[v] or self.phase[v] != self.phase[executed]:
                    continue
                together = self._together(v)
                if together:
                    for u in together:
                        self._execute(u)
                    queue += together

    def _together(self, v: int) -> list[int]:
        """`v` with operators that it needs and that can follow at once, a set that leaves no more bytes.

        Empty if there is none.
        """
        needed: list[int] = []
        stack = [v]
        while stack:
            u = stack.pop()
            if u not in needed:
                needed.append(u)
                if len(needed) > LOW_TRAFFIC.ahead:
                    return []
                stack += [w for w in self.before[u] if not self.done[w]]
        group = sorted(needed)
        while len(group) <= LOW_TRAFFIC.ahead:
            change = self._change(group)
            if change <= 0:
                return group
            there = set(group)
            more = []
            for u in sorted({w for x in group for w in self.after[x]} - there):
                ready = self.phase[u] == self.phase[v] and all(self.done[w] or w in there for w in self.before[u])
                if ready and not self.done[u]:
                    more.append((self._change([*group, u]), u))
            if not more:
                return []
            group.append(min(more)[1])
        return []
