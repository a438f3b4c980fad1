"""Dependences: the operators that must come before each other one."""

from __future__ import annotations

from poetc.solvers.model import Model


class Dependences:
    """For each operator, the operators that must be executed `before` and `after` it.

    Before it come the producers of its inputs, and the other readers of the tensors that it overwrites.
    """

    def __init__(self, model: Model) -> None:
        n = model.n_ops
        self.before: list[set[int]] = [set() for _ in range(n)]
        for v in range(n):
            self.before[v] = {model.producer[t] for t in model.inputs[v] if model.producer[t] >= 0}
            for i, _, required in model.pairs[v]:
                if required:
                    self.before[v] |= {u for u in model.consumers[i] if u != v}
        self.after: list[set[int]] = [set() for _ in range(n)]
        for v in range(n):
            for u in self.before[v]:
                self.after[u].add(v)
