"""The relaxation around one operator: `OpenPlacement` with its begin and its end as cuts, and when tensors are written.

Let t be made before the operator a, and not on the store from the start. These columns say when it is first written:

    W[t] = 1 if that is over when a begins,
    X[t] = 1 if it is not, but has begun when a ends.

A write takes t's bytes while it lasts. So X <= S[0] + R[0] + I[0]; and W + X <= O.

Where t is used after a has begun, and was neither there then nor made since, it was written before: W = 1. Where it is
used after a has ended, and was neither there then nor made since, it was written before, or beside a and freed. So

    I[g] serves a user of stage g only as Y[g] <= I[g], with Y[0] <= W, Y[1] <= W + Z, Y[1] <= 1 - S[1],
    Z <= X and Z <= S[0] + R[0] + I[0] - S[1],
    and both stages together as Y <= W.

Without these rows an LP reads back a part of a tensor and holds another part of the same one, though nobody wrote it.
"""

from __future__ import annotations

from poetc.solvers.model import NEVER
from poetc.solvers.poetc.placement.relaxation import OpenPlacement


class AroundOne(OpenPlacement):
    """`written`: W by tensor; `beside`: X."""

    def _build(self, between: bool) -> None:
        self._state = {t for chain in self.chains for t in chain}
        self.written: dict[int, int] = {}
        self.beside: dict[int, int] = {}
        self._freed: dict[int, int] = {}  # Z
        self._readable: dict[tuple[int, int], int] = {}  # Y, by stage
        self.rooms: dict[int, int] = {}  # by row, the bytes that it limits at a cut
        self._is_at_cut = False
        super()._build(between)

    def _ram(self, g: int, capacity: int) -> None:
        self._is_at_cut = True
        super()._ram(g, capacity)
        self._is_at_cut = False

    def ram_row(self, index: list[int], value: list[float], room: int) -> None:
        row = len(self.mip.row_lower)
        super().ram_row(index, value, room)
        if self._is_at_cut and len(self.mip.row_lower) > row:
            self.rooms[row] = room

    def has_times(self, t: int) -> bool:
        """Whether there are columns for the time when `t` is written."""
        model = self.model
        is_made = 0 <= model.producer[t] < self.cuts[0] and t in self.hold[0]
        return is_made and t in self.store and t not in self._state and model.expiry[t] == NEVER

    def readable(self, g: int, t: int) -> int:
        if not self.has_times(t):
            return super().readable(g, t)
        if (g, t) not in self._readable:
            self._readable[g, t] = column = self.mip.column(integer=False)
            self.mip.row([column, self.load[g][t]], [1.0, -1.0], upper=0.0)
            sources = [self._written(t)]
            if g == 1:
                sources.append(self._written_and_freed(t))
                if t in self.hold[1]:
                    self.mip.row([column, self.hold[1][t]], [1.0, 1.0], upper=1.0)
            self.mip.row([column, *sources], [1.0, *[-1.0] * len(sources)], upper=0.0)
        return self._readable[g, t]

    def readable_since(self, g: int, t: int, loaded: int) -> int:
        if g or not self.has_times(t):
            return super().readable_since(g, t, loaded)
        column = self.mip.column(integer=False)
        self.mip.row([column, loaded], [1.0, -1.0], upper=0.0)
        self.mip.row([column, self._written(t)], [1.0, -1.0], upper=0.0)
        return column

    def _written(self, t: int) -> int:
        if t not in self.written:
            self.written[t], self.beside[t] = self.mip.column(integer=False), self.mip.column(integer=False)
            columns = [self.written[t], self.beside[t], self.store[t]]
            self.mip.row(columns, [1.0, 1.0, -1.0], upper=0.0)
            self._while_there(self.beside[t], t, [])
        return self.written[t]

    def _written_and_freed(self, t: int) -> int:
        if t not in self._freed:
            self._written(t)
            self._freed[t] = column = self.mip.column(integer=False)
            self.mip.row([column, self.beside[t]], [1.0, -1.0], upper=0.0)
            self._while_there(column, t, [self.hold[1][t]] if t in self.hold[1] else [])
        return self._freed[t]

    def _while_there(self, column: int, t: int, stays: list[int]) -> None:
        """`column` and `stays` are 1 together only if `t` is there when the operator begins, or comes beside it."""
        producer = self.model.producer[t]
        there = [self.hold[0][t]]
        there += [self.run[0][producer]] if producer in self.run[0] else []
        there += [self.load[0][t]] if t in self.load[0] else []
        self.mip.row([column, *stays, *there], [*[1.0] * (1 + len(stays)), *[-1.0] * len(there)], upper=0.0)
