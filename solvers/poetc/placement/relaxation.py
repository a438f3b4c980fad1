"""Relaxations that leave open which state lives on the store.

State that lives on the store is read once in a step at least, and written once if the step updates it. State that lives
in RAM costs nothing as long as it stays there. It occupies RAM from the end of one step to the beginning of the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from poetc.scheduling import Problem, movable_state, on_store
from poetc.solvers.highs import Answer
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation, chosen
from poetc.solvers.poetc.settings import CUTS


def open_model(problem: Problem) -> Model:
    """The model that `OpenPlacement` works on, with all movable state on the store.

    The limit on bytes written is part of the relaxation; the room on the store is not. Neither is the page buffer,
    since a schedule with all state in RAM need not page.
    """
    everything = on_store(problem, {chain[0] for chain in movable_state(problem)})
    return Model(replace(everything, store_capacity_bytes=None, page_buffer_bytes=0))


class OpenPlacement(CutModel):
    """`CutModel` with the placement of state as a further decision; in the model, all movable state is on the store.

    For each chain of versions w .. w', h = 1 (`in_ram`) if it lives in RAM. That saves the read of w and the write of
    w', which the offset counts. There are three rows. All state that lives in RAM fits there between two steps. Version
    w is read from the store only after it was written there (e = 1, `evicted`, at its cost). After the last use, w' is
    in RAM, or it is written and read back (l = 1, `late`). The rows of `CutModel` hold for w before its last use.
    """

    def __init__(
        self,
        model: Model,
        cuts: Sequence[int],
        chains: Sequence[tuple[int, ...]],
        *,
        between: bool = False,
        free: frozenset[int] = frozenset(),
    ) -> None:
        """`model`: `open_model` of a problem whose movable state is `chains`."""
        self.chains = chains
        self.uncounted = free  # state so small that it takes no room beside operators
        self.saved = {c[0]: model.in_cost[c[0]] + (model.out_cost[c[-1]] if len(c) > 1 else 0.0) for c in chains}
        super().__init__(model, cuts, between=between, free=free - {t for c in chains for t in c})

    def _build(self, between: bool) -> None:
        model, mip, unit = self.model, self.mip, self.unit
        self.in_ram = {first: mip.column(-saved / unit) for first, saved in self.saved.items()}
        self.evicted = {first: mip.column(model.out_cost[first] / unit) for first in self.in_ram}
        self.late = {
            chain[0]: mip.column((model.out_cost[chain[-1]] + model.in_cost[chain[-1]]) / unit) for chain in self.chains
        }
        self.there: dict[int, int] = {}
        self.again: dict[tuple[int, int], int] = {}  # by stage too, where operators of the stage may read it again
        for chain in self.chains:  # the last version is in RAM from its birth on
            self.there[chain[-1]] = there = mip.column(integer=False)
            mip.row([self.in_ram[chain[0]], there, self.late[chain[0]]], [1.0, -1.0, -1.0], upper=0.0)
        super()._build(between)
        # Other tensors are in RAM too when a step begins.
        fixed = sum(model.size[t] for t in range(model.n_tensors) if model.in_ram[t])
        self.ram_row(list(self.in_ram.values()), [float(model.size[t]) for t in self.in_ram], model.capacity - fixed)

    def keep(self, held: Iterable[tuple[int, int]]) -> None:
        """Hold tensors at cuts: pairs of the number of a cut and a tensor. The bound is then one for such plans."""
        for g, t in held:
            if t in self.hold[g]:
                self.mip.lower[self.hold[g][t]] = 1.0

    def _needed_page_in(self, t: int) -> None:
        if t not in self.in_ram:
            super()._needed_page_in(t)
            return
        first = min(self.model.consumers[t], default=NEVER)
        columns = [load[t] for load in self.load if t in load]
        if first <= self.cuts[0] or not columns:
            return
        self.mip.row([self._credit(t, columns), self.in_ram[t]], [1.0, 1.0], upper=1.0)

    def _link(self, t: int, column: int) -> None:
        super()._link(t, column)
        if t in self.in_ram:
            self.mip.row([column, self.in_ram[t], self.evicted[t]], [1.0, 1.0, -1.0], upper=1.0)

    def _links(self) -> None:
        """Links, with a limit on bytes written that counts the write of w' only where it lives on the store."""
        model, limited = self.model, self.model.store_limited
        model.store_limited = False
        super()._links()
        model.store_limited = limited
        if limited:
            updated = [c for c in self.chains if len(c) > 1]
            terms = {
                column: model.footprint[t] for t, column in self.store.items() if t not in {c[-1] for c in updated}
            }
            for c in updated:
                terms[self.in_ram[c[0]]] = -model.footprint[c[-1]]
                terms[self.late[c[0]]] = model.footprint[c[-1]]
            terms |= {self.evicted[c[0]]: model.footprint[c[0]] for c in self.chains}
            room = model.store_free - sum(model.footprint[c[-1]] for c in updated)
            self.mip.within(list(terms), list(terms.values()), room, model.store_free)

    def _ram(self, g: int, capacity: int) -> None:
        """The RAM at a_g, where state that lives in RAM is after its last use, unless it comes back later."""
        super()._ram(g, capacity)
        for chain in self.chains:
            last = chain[-1]
            if last in self.hold[g] and self._last_use(last) < self.cuts[g]:
                back = [self.late[chain[0]], *(load[last] for load in self.load[g:] if last in load)]
                back += [run[p] for run in self.run[g:] if (p := self.model.producer[last]) in run]
                columns = [self.in_ram[chain[0]], self.hold[g][last], *back]
                self.mip.row(columns, [1.0, *[-1.0] * (len(columns) - 1)], upper=0.0)
            first = chain[0]
            if first in self.hold[g] and self.model.expiry[first] < self.cuts[g]:  # overwritten: it was evicted before
                columns = [self.hold[g][first], self.in_ram[first], self.evicted[first]]
                self.mip.row(columns, [1.0, 1.0, -1.0], upper=1.0)

    def _last_use(self, t: int) -> int:
        """The last operator that makes or reads `t`; -1 if none does."""
        return max(self.model.producer[t], *self.model.consumers[t], -1)

    def done(self, g: int, position: int, operands: set[int] | frozenset[int]) -> dict[int, int]:
        columns = dict[int, int]()
        uncounted = {*operands, *self.uncounted, *(self.hold[g + 1] if g + 1 < len(self.cuts) else ())}
        for chain in self.chains:
            last = chain[-1]
            if self._last_use(last) < position and last not in uncounted:
                columns[last] = self._there_again(g, chain) if last in self.hold[g] else self.there[last]
        return columns

    def _there_again(self, g: int, chain: Sequence[int]) -> int:
        """A column like `there`, for stage g, in which operators may read it again: its page-in is paid there."""
        if (g, chain[-1]) not in self.again:
            self.again[g, chain[-1]] = there = self.mip.column(integer=False)
            others = [there, self.late[chain[0]], self.load[g][chain[-1]]]
            self.mip.row([self.in_ram[chain[0]], *others], [1.0, -1.0, -1.0, -1.0], upper=0.0)
        return self.again[g, chain[-1]]

    def _other_time(
        self, early: Sequence[int], in_ns: Sequence[int], out_ns: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """State that lives in RAM is neither read nor written, unless it leaves RAM."""
        saved = {self.in_ram[t]: -in_ns[t] for t in early if t in self.in_ram}
        for first, *_, last in (c for c in self.chains if len(c) > 1):
            saved[self.in_ram[first]] = saved.get(self.in_ram[first], 0) - out_ns[last]
        moved = {self.evicted[c[0]]: out_ns[c[0]] for c in self.chains}
        moved |= {self.late[c[0]]: out_ns[c[-1]] + in_ns[c[-1]] for c in self.chains}
        terms = saved | moved
        return list(terms), list(terms.values())

    def bound_of(self, answer: Answer) -> float:
        least = float(sum(self.model.op_cost))
        if not math.isfinite(answer.bound):
            return least
        return max(least, math.ceil((answer.bound - CUTS.margin) * self.unit))

    def relaxation_of(self, answer: Answer, values: npt.NDArray[np.float64]) -> Relaxation:
        """The plan for the problem with the state in `stored` on the store."""
        plan = super().relaxation_of(answer, values)
        late, evicted = chosen(self.late, values), chosen(self.evicted, values)
        in_ram = chosen(self.in_ram, values)
        self.stored = frozenset(self.in_ram) - in_ram
        last = {chain[-1] for chain in self.chains if chain[0] in in_ram}
        back = {chain[-1] for chain in self.chains if chain[0] in in_ram & late}
        return replace(
            plan,
            paged=plan.paged | (evicted & in_ram) | back,
            load=(*plan.load[:-1], plan.load[-1] | back),
            pinned=tuple(
                pinned | {t for t in last - back if self.model.producer[t] < cut}
                for cut, pinned in zip(self.cuts, plan.pinned, strict=True)
            ),
        )
