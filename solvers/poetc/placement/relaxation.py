"""Relaxations that leave open which state lives on the store.

State that lives on the store is read once in a step at least, and written once if the step updates it. State that lives
in RAM costs nothing as long as it stays there, and occupies RAM from the end of one step to the beginning of the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from poetc.scheduling import Problem, movable_state, on_store
from poetc.solvers.highs import Answer
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation, chosen
from poetc.solvers.poetc.settings import CUTS


def open_model(problem: Problem) -> Model:
    """What `OpenHomes` works on: all movable state on the store. Its room is no part of the relaxation, what may be
    written is; nor is the page buffer, since a schedule with all state in RAM need not page.
    """
    everything = on_store(problem, {chain[0] for chain in movable_state(problem)})
    return Model(replace(everything, store_capacity_bytes=None, page_buffer_bytes=0))


class OpenHomes(CutModel):
    """`CutModel` of a problem all of whose movable state lives on the store, with the home as another decision.

    For each chain of versions w .. w' a column h = 1 if RAM is its home, which saves the read of w and the write of w'
    that the offset has in it. Then: all homes fit in RAM together, between two steps; w is read from the store only
    after it was written there (e = 1, at its price); after the last use, w' is in RAM, or written and read
    back (l = 1). What the first version needs before its last use, the rows of `CutModel` say.
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
        self.of_first = {chain[0]: chain for chain in chains}
        self.uncounted = free  # state this small takes no room beside other operators
        self.saved = {c[0]: model.in_cost[c[0]] + (model.out_cost[c[-1]] if len(c) > 1 else 0.0) for c in chains}
        super().__init__(model, cuts, between=between, free=free - {t for c in chains for t in c})

    def _build(self, between: bool) -> None:
        model, mip, unit = self.model, self.mip, self.unit
        self.home = {first: mip.column(-saved / unit) for first, saved in self.saved.items()}
        self.evicted = {first: mip.column(model.out_cost[first] / unit) for first in self.home}
        self.late = {
            chain[0]: mip.column((model.out_cost[chain[-1]] + model.in_cost[chain[-1]]) / unit) for chain in self.chains
        }
        self.there: dict[int, int] = {}
        self.again: dict[tuple[int, int], int] = {}  # by stage too, for what may be read again in it
        for chain in self.chains:  # the last version is in RAM from its birth on
            self.there[chain[-1]] = there = mip.column(integer=False)
            mip.row([self.home[chain[0]], there, self.late[chain[0]]], [1.0, -1.0, -1.0], upper=0.0)
        super()._build(between)
        # What else is in RAM when a step begins.
        fixed = sum(model.size[t] for t in range(model.n_tensors) if model.in_ram[t])
        self.ram_row(list(self.home.values()), [float(model.size[t]) for t in self.home], model.capacity - fixed)

    def _needed_page_in(self, t: int) -> None:
        if t not in self.home:
            super()._needed_page_in(t)
            return
        first = min(self.model.consumers[t], default=NEVER)
        columns = [load[t] for load in self.load if t in load]
        if first <= self.cuts[0] or not columns:
            return
        self.mip.row([self._credit(t, columns), self.home[t]], [1.0, 1.0], upper=1.0)

    def _link(self, t: int, column: int) -> None:
        super()._link(t, column)
        if t in self.home:
            self.mip.row([column, self.home[t], self.evicted[t]], [1.0, 1.0, -1.0], upper=1.0)

    def _links(self) -> None:
        """A limit on what is written counts the write of w' only where it lives on the store."""
        model, limited = self.model, self.model.store_limited
        model.store_limited = False
        super()._links()
        model.store_limited = limited
        if limited:
            scale = float(max(1, model.store_free))
            updated = [c for c in self.chains if len(c) > 1]
            terms = {
                column: model.footprint[t] for t, column in self.store.items() if t not in {c[-1] for c in updated}
            }
            for c in updated:
                terms[self.home[c[0]]] = -model.footprint[c[-1]]
                terms[self.late[c[0]]] = model.footprint[c[-1]]
            terms |= {self.evicted[c[0]]: model.footprint[c[0]] for c in self.chains}
            room = model.store_free - sum(model.footprint[c[-1]] for c in updated)
            self.mip.row(list(terms), [x / scale for x in terms.values()], upper=room / scale)

    def done(self, g: int, position: int, operands: set[int] | frozenset[int]) -> dict[int, int]:
        model, found = self.model, dict[int, int]()
        uncounted = {*operands, *self.uncounted, *(self.hold[g + 1] if g + 1 < len(self.cuts) else ())}
        for chain in self.chains:
            last = chain[-1]
            done = max(model.producer[last], *model.consumers[last], -1) < position
            if done and last not in uncounted:
                found[last] = self._there_again(g, chain) if last in self.hold[g] else self.there[last]
        return found

    def _there_again(self, g: int, chain: Sequence[int]) -> int:
        """The same where what is executed again in stage g may read it: what brings it back then is paid already."""
        if (g, chain[-1]) not in self.again:
            self.again[g, chain[-1]] = there = self.mip.column(integer=False)
            others = [there, self.late[chain[0]], self.load[g][chain[-1]]]
            self.mip.row([self.home[chain[0]], *others], [1.0, -1.0, -1.0, -1.0], upper=0.0)
        return self.again[g, chain[-1]]

    def _other_time(
        self, early: Sequence[int], in_ns: Sequence[int], out_ns: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """What lives in RAM is neither read nor written, unless it leaves RAM."""
        saved = {self.home[t]: -in_ns[t] for t in early if t in self.home}
        for first, *_, last in (c for c in self.chains if len(c) > 1):
            saved[self.home[first]] = saved.get(self.home[first], 0) - out_ns[last]
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
        """As a plan for the problem with `stored(values)` on the store."""
        plan = super().relaxation_of(answer, values)
        late, evicted = chosen(self.late, values), chosen(self.evicted, values)
        in_ram = chosen(self.home, values)
        self.stored = frozenset(self.home) - in_ram
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
