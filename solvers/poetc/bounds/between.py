"""Rows for the RAM inside a stage, between two cuts: for operators executed there, for the first time or again."""

from __future__ import annotations

from collections.abc import Iterator

from poetc.solvers.poetc.bounds.columns import Columns
from poetc.solvers.poetc.bounds.ram import working_set_bytes
from poetc.solvers.poetc.settings import BETWEEN


class Between:
    """Rows for stage `g` of a relaxation, which ends before the first execution of operator `end`."""

    def __init__(self, relaxed: Columns, g: int, end: int, capacity: int) -> None:
        self.relaxed, self.g, self.end, self.capacity = relaxed, g, end, capacity
        self.model, self.mip, self.unit, self.is_pinned = relaxed.model, relaxed.mip, relaxed.unit, relaxed.is_pinned
        self.cut, self.stages = relaxed.cuts[g], len(relaxed.cuts)
        self.hold, self.run, self.load = relaxed.hold[g], relaxed.run[g], relaxed.load[g]
        self.stays: dict[int, int] = {}  # by tensor, a column that is 1 if it is in RAM during all recomputations
        self.pinned: list[int] = []  # tensors that are there in any case
        self.again: int | None = None  # a_g once more, where nothing else is executed first in the stage

    def rows(self) -> None:
        """Add the rows for the operators that are executed inside the stage.

        Beside an operator's operands, RAM holds each tensor that the stage or the next cut still needs. Those that are
        made again or paged in during the stage do not count.
        """
        model, cut, end = self.model, self.cut, self.end
        following = self._following()
        again: dict[int, int] = {}  # first executed in this stage, and executed once more before it ends

        def sources(t: int) -> list[int]:
            p = model.producer[t]
            columns = [self.load[t]] if t in self.load else []
            if p < cut:
                return columns + ([self.run[p]] if p in self.run else [])
            if model.recomputable[p]:
                if p not in again:
                    again[p] = self.mip.column(model.op_cost[p] / self.unit)
                columns.append(again[p])
            return columns

        present: list[dict[int, int]] = [{} for _ in range(cut, end)]  # by operator and tensor: a column
        always = [0] * (end - cut)  # bytes that are there in any case
        for t in range(model.n_tensors):
            p = model.producer[t]
            uses = [w for w in model.consumers[t] if cut < w < end]
            if p >= end - 1 or not (uses or t in following) or self.is_pinned(t, cut):
                continue
            if p < cut and t not in self.hold:
                continue
            first, last = max(p, cut) + 1, uses[-1] if uses else cut
            if first < last and self.relaxed.rules.cuts_needed_rows:
                columns = sources(t)
                needed = None
                if columns:
                    needed = self.mip.column(integer=False)
                    self.mip.row([needed, *columns], [1.0] * (1 + len(columns)), lower=1.0)
                for w in range(first, last):
                    if needed is None:
                        always[w - cut] += 0 if self._is_operand(t, w) or self.is_pinned(t, w) else model.size[t]
                    else:
                        present[w - cut][t] = needed
            if t in following and (p < cut or self.relaxed.rules.cuts_needed_rows):
                z = self._stay(following[t], sources(t))
                if p < cut:
                    self.stays[t] = z
                for w in range(max(first, last), end):
                    present[w - cut][t] = z
        rows: list[tuple[float, int, dict[int, int], int]] = []
        for w in range(cut + 1, end):
            operands = frozenset((*model.inputs[w], *model.outputs[w]))
            fixed = self.relaxed.fixed_bytes(w, operands) + working_set_bytes(model, w) + always[w - cut]
            terms = {t: c for t, c in present[w - cut].items() if t not in operands and not self.is_pinned(t, w)}
            terms = self.relaxed.done(self.g, w, operands) | terms
            rows.append((fixed + sum(model.size[t] for t in terms), w, terms, fixed))
        # The stage is divided into stretches. Each has a row for the operator at which the most could be in RAM.
        stretches = min(len(rows), max(BETWEEN.first_rows, BETWEEN.first_total // self.stages))
        for k in range(stretches):
            inside = rows[len(rows) * k // stretches : len(rows) * (k + 1) // stretches]
            _, _, terms, fixed = max(inside, key=lambda row: (row[0], -row[1]))
            self.relaxed.ram_row(list(terms.values()), [float(model.size[t]) for t in terms], self.capacity - fixed)
        if self.relaxed.rules.cuts_recomputation_rows:
            self._during_recomputation()

    def _following(self) -> dict[int, int]:
        """Columns that are 1 if a tensor is in RAM where the stage ends, by tensor that is not pinned there.

        Behind the last stage these are the tensors that end in RAM.
        """
        if self.g + 1 < self.stages:
            return self.relaxed.hold[self.g + 1]
        model, one = self.model, self.mip.column(lower=1.0, integer=False)
        return {t: one for t in range(model.n_tensors) if model.ends_in_ram[t] and not self.is_pinned(t, model.n_ops)}

    def _is_operand(self, t: int, w: int) -> bool:
        return t in self.model.inputs[w] or t in self.model.outputs[w]

    def _stay(self, column: int, sources: list[int]) -> int:
        """A column that is 1 if a tensor in RAM at the next cut was neither made nor paged in during the stage."""
        z = self.mip.column(integer=False)
        self.mip.row([column, z, *sources], [1.0, -1.0, *[-1.0] * len(sources)], upper=0.0)
        return z

    def _during_recomputation(self) -> None:
        """Add the rows for operators that are executed again: the operands are beside the tensors that stay."""
        model, cut, end = self.model, self.cut, self.end
        if end == cut + 1:
            # All other actions of this stage come after a_g. So its outputs stay too, unless a_g is executed once more.
            if model.recomputable[cut]:
                self.again = self.mip.column(model.op_cost[cut] / self.unit)
            following = self._following()
            for t in model.outputs[cut]:
                if t in following:
                    sources = [c for c in (self.again, self.load.get(t)) if c is not None]
                    self.stays[t] = self._stay(following[t], sources)
        pinned = self.is_pinned
        self.pinned = [t for t in range(model.n_tensors) if pinned(t, end) and (pinned(t, cut) or end == cut + 1)]
        candidates = sorted(self.run, key=lambda v: (-working_set_bytes(model, v), v))
        most = max(BETWEEN.again_rows, BETWEEN.again_total // self.stages)
        for k, v in enumerate(candidates):
            operands = set(model.inputs[v]) | set(model.outputs[v])
            fixed = self._pinned_bytes(operands)
            kept = self.relaxed.done(self.g, cut + 1, operands)
            kept |= {t: z for t, z in self.stays.items() if t not in operands}
            index, value = list(kept.values()), [float(model.size[t]) for t in kept]
            needed = float(working_set_bytes(model, v))
            if fixed + needed > self.capacity:
                self.mip.upper[self.run[v]] = 0.0
            elif k < most:
                self.relaxed.ram_row([*index, self.run[v]], [*value, needed], self.capacity - fixed)
        if self.relaxed.rules.cuts_chain_rows and self.g + 1 < self.stages:
            for v in candidates[: max(BETWEEN.chain_rows, BETWEEN.chain_total // self.stages)]:
                self._in_midst(v)

    def _pinned_bytes(self, operands: set[int]) -> int:
        return sum(self.relaxed.counted[t] for t in self.pinned if t not in operands)

    def _in_midst(self, v: int) -> None:
        """Add the row for the RAM when `v` is executed again.

        A tensor that is in RAM at the next cut is there already (P), or is made or paged in later from those there (D).
        So D <= P + I + R, and D <= P + I + D of each operand. Only large tensors count.
        """
        model, mip, cut, end = self.model, self.mip, self.cut, self.end
        following = self.relaxed.hold[self.g + 1]
        operands = set(model.inputs[v]) | set(model.outputs[v])
        large = BETWEEN.large_share * self.capacity
        present: dict[int, int] = {}
        derived: dict[int, int] = {}

        def there(t: int) -> int:
            if t not in present:
                present[t] = mip.column(integer=False)
                if t in self.stays:
                    mip.row([present[t], self.stays[t]], [1.0, -1.0], lower=0.0)
            return present[t]

        def is_free(t: int) -> bool:
            p = model.producer[t]
            if t in operands or model.size[t] < large or self.is_pinned(t, cut):
                return True
            return cut <= p < end and (p > cut or end > cut + 1)

        def explore(t: int) -> Iterator[int]:
            """Make the column of `t`; yield the operands whose columns it needs next."""
            derived[t] = column = mip.column(integer=False)
            p = model.producer[t]
            sources = [there(t)]
            if t in self.load:
                sources.append(self.load[t])
            maker = self.again if p == cut else self.run.get(p)
            mip.row(
                [column, *sources, *([] if maker is None else [maker])],
                [1.0] + [-1.0] * (len(sources) + (maker is not None)),
                upper=0.0,
            )
            if maker is not None:
                for u in model.inputs[p]:
                    if not is_free(u):
                        yield u
                        mip.row([column, *sources, derived[u]], [1.0, *[-1.0] * (len(sources) + 1)], upper=0.0)

        def derive(t: int) -> int:
            """A column that is 1 only if `t` is there or can be made from tensors that are there.

            The loop stands for a recursion: chains are longer than calls may be nested.
            """
            waiting = [] if t in derived else [explore(t)]
            while waiting:
                operand = next(waiting[-1], None)
                if operand is None:
                    waiting.pop()
                elif operand not in derived:
                    waiting.append(explore(operand))
            return derived[t]

        run = self.run[v]
        for t in following:
            if not is_free(t):
                mip.row([following[t], run, derive(t)], [1.0, 1.0, -1.0], upper=1.0)
        for t, reasons in self._made_before(v).items():
            if not is_free(t):
                for terms in reasons:
                    mip.row([there(t), *terms], [1.0, *(-x for x in terms.values())], lower=-1.0)
        index, value = [run], [float(working_set_bytes(model, v))]
        kept = self.relaxed.done(self.g, cut + 1, operands) | self.stays | present
        for t in sorted(kept):
            if t not in operands:
                index.append(kept[t])
                value.append(float(model.size[t]))
        self.relaxed.ram_row(index, value, self.capacity - self._pinned_bytes(operands))

    def _made_before(self, v: int) -> dict[int, list[dict[int, float]]]:
        """Tensors in RAM at the next cut that were made in this stage before `v`, for the operands of `v`.

        By tensor, columns whose sum less 1 is a lower bound of its presence when `v` is executed again. A tensor that
        is made twice is left out.
        """
        model, twice, of_tensor = self.model, self.relaxed.twice, dict[int, list[dict[int, float]]]()
        following = self.relaxed.hold[self.g + 1]

        def before(t: int) -> dict[int, float]:
            """Columns all of which are 0 if `t`, when it is read, was made in this stage."""
            return {group[t]: -1.0 for group in (self.hold, self.load) if t in group}

        for u in model.inputs[v]:
            x = model.producer[u]
            if x not in self.run or self.is_pinned(u, self.cut):
                continue
            for t in model.inputs[x]:
                p = model.producer[t]
                if t in following and p in self.run and not self.is_pinned(t, self.cut):
                    if (self.g, p) not in twice:
                        twice[self.g, p] = self.mip.column(model.op_cost[p] / self.unit, integer=False)
                    terms = {following[t]: 1.0, self.run[v]: 1.0, twice[self.g, p]: -1.0}
                    of_tensor.setdefault(t, []).append(terms | before(u) | before(t))
        return of_tensor
