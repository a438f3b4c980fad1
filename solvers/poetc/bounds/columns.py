"""The columns of a relaxation with cuts, and its RAM rows.

Stage g runs from the first execution of cut a_g to that of a_{g+1}. `cuts` gives the columns their meaning and writes
the rows of a stage; `between` adds those of the operators inside one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from poetc.solvers.highs import COST_SCALE, Mip
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.ram import pinned_interval
from poetc.solvers.poetc.pruning import Rules


class Columns:
    """The columns of each stage by tensor or operator; empty until a relaxation makes them."""

    def __init__(self, model: Model, cuts: Sequence[int], *, free: frozenset[int], tie: float, rules: Rules) -> None:
        """`free` and `tie`: see `CutModel`."""
        self.model, self.rules = model, rules
        self.cuts = tuple(cuts)
        self.mip = Mip(offset=COST_SCALE)
        self.unit = max(1.0, float(model.base_cost)) / COST_SCALE
        self.tie = tie
        self.hold: list[dict[int, int]] = []  # S
        self.run: list[dict[int, int]] = []  # R, only the optional ones
        self.load: list[dict[int, int]] = []  # I
        self.store: dict[int, int] = {}  # O
        self.twice: dict[tuple[int, int], int] = {}  # 1 if an operator is executed again more than once in a stage
        self.pinned = [pinned_interval(model, t) if rules.cuts_pinned else None for t in range(model.n_tensors)]
        self.counted = list(model.size)  # bytes that a pinned tensor counts
        for t in free:
            if pinned_interval(model, t) is None and not model.on_store[t]:
                self.pinned[t] = (model.producer[t] + 1, NEVER)
                self.counted[t] = 0
        self.free = frozenset(t for t in free if self.counted[t] == 0)
        change = [0] * (model.n_ops + 1)
        for t, interval in enumerate(self.pinned):
            if interval is not None:
                change[min(max(interval[0], 0), model.n_ops)] += self.counted[t]
                change[min(interval[1] + 1, model.n_ops)] -= self.counted[t]
        self.pinned_bytes = list(itertools.accumulate(change))  # by operator
        self.proven_infeasible = False
        self.pages = -1  # a column that is 1 if anything is paged; -1: paging takes no room of its own

    def is_pinned(self, t: int, cut: int) -> bool:
        interval = self.pinned[t]
        return interval is not None and interval[0] <= cut <= interval[1]

    def fixed_bytes(self, cut: int, skip: frozenset[int] = frozenset()) -> int:
        return self.pinned_bytes[cut] - sum(self.counted[t] for t in skip if self.is_pinned(t, cut))

    def done(self, g: int, position: int, operands: set[int] | frozenset[int]) -> dict[int, int]:
        """Further columns that take RAM at `position` in stage g, by tensor; none of `operands` is among them.

        Each is 1 if the tensor stays in RAM until the stage or the step ends, though no first execution from
        `position` on reads it. Only relaxations with further decisions have such columns.
        """
        return {}

    def ram_row(self, index: list[int], value: list[float], room: int) -> None:
        if room < 0:
            self.proven_infeasible = True
            return
        most = sum(value) + (self.model.problem.page_buffer_bytes if self.pages >= 0 else 0)
        if most <= room and self.rules.cuts_slack_rows:
            return
        if self.pages >= 0:
            index, value = [*index, self.pages], [*value, float(self.model.problem.page_buffer_bytes)]
        self.mip.within(index, value, room)
