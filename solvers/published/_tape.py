"""The tape: it writes an action sequence and keeps track of the tensors that a published method holds on to.

A method says which operators to compute and which tensors to drop and page. Operands that an operator misses are
brought back on demand: from the store if they lie there, else by recomputing in ascending order. `scheduling.complete`
decides when a copy really leaves RAM: after its last use before the next recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable

from poetc.errors import InfeasibleError
from poetc.solvers.model import Model


class Irretrievable(InfeasibleError):
    """The method gave up a tensor that cannot be brought back when it is needed."""


class Tape:
    """A tape. `available`: the tensors that the method can read now; `codes`: the actions so far (see `model`)."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.codes: list[int] = []
        self.available = {t for t in range(model.n_tensors) if model.in_ram[t]}
        self.stored = {t for t in range(model.n_tensors) if model.on_store[t]}
        self.executed = [False] * model.n_ops
        for t in range(model.n_tensors):
            if model.ends_on_store[t] and model.in_ram[t]:
                self.page_out(t)

    def page_out(self, t: int) -> None:
        """Write `t` to the store, once; it stays available until dropped."""
        if t not in self.stored:
            self.codes.append(self.model.n_ops + self.model.n_tensors + t)
            self.stored.add(t)

    def page_in(self, t: int) -> None:
        if t not in self.available:
            self.codes.append(self.model.n_ops + t)
            self.available.add(t)

    def drop(self, tensors: Iterable[int]) -> None:
        self.available.difference_update(tensors)

    def fetch(self, tensors: Iterable[int]) -> set[int]:
        """Make all of `tensors` available. Returns the tensors that were brought back for it."""
        model = self.model
        brought: set[int] = set()
        operators: set[int] = set()
        pages: set[int] = set()
        stack = list(tensors)
        while stack:
            t = stack.pop()
            if t in self.available or t in pages:
                continue
            if t in self.stored:
                pages.add(t)
                continue
            v = model.producer[t]
            if v in operators:
                continue
            if v < 0 or (self.executed[v] and not model.recomputable[v]):
                name = model.problem.tensors[t].name
                raise Irretrievable(f"{name!r} was given up but cannot be made again when it is needed")
            operators.add(v)
            stack.extend(model.inputs[v])
        for v in sorted(operators):
            for t in model.inputs[v]:
                if t in pages and t not in self.available:
                    self.page_in(t)
                    brought.add(t)
            self._emit(v)
            brought.update(model.outputs[v])
        for t in sorted(pages - self.available):
            self.page_in(t)
            brought.add(t)
        return brought

    def compute(self, v: int) -> set[int]:
        """Execute operator `v` after bringing back the operands that it misses. Returns these."""
        brought = self.fetch(self.model.inputs[v])
        self._emit(v)
        return brought

    def _emit(self, v: int) -> None:
        model = self.model
        if self.executed[v] and not model.recomputable[v]:
            name = model.problem.operators[v].name
            raise Irretrievable(f"operator {name!r} would have to be executed again")
        self.codes.append(v)
        self.executed[v] = True
        self.available.difference_update(model.overwritten[v])
        self.available.update(model.outputs[v])
        for t in model.outputs[v]:
            if model.ends_on_store[t]:
                self.page_out(t)

    def finish(self) -> list[int]:
        """Bring back the tensors that must be in RAM at the end. Returns the whole sequence."""
        self.fetch(t for t in range(self.model.n_tensors) if self.model.ends_in_ram[t])
        return self.codes
