"""Lower bounds from a relaxed MIP that counts each gap between two uses of a tensor, for budgets near the smallest.

A tensor's points are its first birth, the first executions that read it, and the cuts after its birth. The start or the
end of the step is one where the tensor is there. Between two points a and b in turn is a gap. For every schedule that
executes the operators for the first time in the problem's order, set:

    S[c,t] = 1 if t is in RAM while the cut c is first executed; at the other points it is,
    K[t,a] = 1 if t is in RAM all the time from a to b,
    I[t,a] = 1 if t is paged in between a and b,   R[t,a] = 1 if it is made again there,
    O[t]   = 1 if t is paged out at all.

The rows are:

    S[b,t] <= K[t,a] + I[t,a] + R[t,a];   K[t,a] <= S[a,t];   I[t,a] <= O[t];
    R[t,a] <= S[c,u] + I[u,c] + R[u,c] for each u that makes t, of its gap c around a; nothing, if u is read there.

RAM at each first execution is its working set, the S of cuts, and the K of each tensor that is not its operand. An
operator that runs again between a and b has its working set beside every tensor that stays from a to b.

Two operands of one operator are in RAM at the same time. If neither can be made beside the other, one of them is paged
in, or a tensor from which one is made. The I of their gaps add up to 1 at least. See `_together`.

Relaxations of `cuts` count a tensor once a stage, however often the stage reads it. Here every reader has its own gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poetc.solvers.highs import Answer
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.bounds.ram import working_set_bytes
from poetc.solvers.poetc.settings import CUTS, SPREAD

ONE, ZERO = -1, -2  # columns that are constants


@dataclass(frozen=True, slots=True)
class Gap:
    """The time of tensor `t` between two of its points, with its columns."""

    t: int
    start: int
    end: int
    before: int  # S at the start
    stays: int  # K
    load: int  # I
    run: int  # R


class GapModel(CutModel):
    """The relaxed MIP for one list of cuts; `chains`: versions of state whose placement is a decision.

    With chains, the model is that of `open_model`, where all such state is on the store. For each chain w .. w', h = 1
    if it lives in RAM. Then w is there at the start, and w' at the end. Else w is read, and w' is written.
    """

    def __init__(
        self,
        model: Model,
        cuts: Sequence[int],
        *,
        chains: Sequence[tuple[int, ...]] = (),
        resident: Sequence[tuple[int, ...]] = (),
        free: frozenset[int] = frozenset(),
    ) -> None:
        """`free`: tensors too small to decide about; see `CutModel`. Such state is decided about together.

        `resident`: versions of such state that lives in RAM where its placement is no decision; see `spread.residents`.
        """
        self.chains = [chain for chain in chains if chain[0] not in free]
        self.resident = frozenset(chain[0] for chain in resident)
        self.small = [*(chain for chain in chains if chain[0] in free), *resident]
        self.no_decision = {t for chain in self.small for t in chain}
        self.met: dict[tuple[int, int, int, int, int], set[int] | None] = {}  # see `_met`
        super().__init__(model, cuts, free=free - {t for chain in chains for t in chain})

    def _build(self, between: bool) -> None:
        model, mip = self.model, self.mip
        self.capacity = model.capacity_for(model.must_page)
        if model.can_page and not model.must_page and model.problem.page_buffer_bytes:
            self.pages = mip.column()
        self.in_ram = {chain[0]: mip.column() for chain in self.chains}
        self.evicted = {t: mip.column(model.out_cost[t] / self.unit) for t in self.in_ram}
        self.lives = {chain[-1]: self.in_ram[chain[0]] for chain in self.chains}  # by last version: h
        open_ = self.in_ram.keys() | self.lives.keys() | self.no_decision
        self.reads = [t for t in model.page_ins_needed if t not in open_]  # no schedule avoids these
        self.writes = [t for t in model.page_outs_needed if t not in open_]
        self.constant = sum(model.op_cost) + sum(model.in_cost[t] for t in self.reads)
        self.constant += sum(model.out_cost[t] for t in self.writes)
        mip.offset = self.constant / self.unit
        # Columns that cost time: of operators that run again, of reads and of writes.
        self.executed: dict[int, int] = {}
        self.loaded: dict[int, int] = {}
        self.written: dict[int, int] = {column: t for t, column in self.evicted.items()}
        self.of_tensor: list[list[Gap]] = []
        self.kept: list[dict[int, int]] = [{} for _ in range(model.n_ops)]  # by operator: columns, and their bytes
        for t in range(model.n_tensors):
            decided = self.pinned[t] is None and t not in self.no_decision
            self.of_tensor.append(self._gaps(t) if decided else [])
        gaps = [gap for gaps in self.of_tensor for gap in gaps if gap.stays >= 0]
        self.staying = np.array([(g.start, g.end, model.size[g.t], g.stays, g.t) for g in gaps]).reshape(-1, 5)
        pinned = [(t, interval) for t, interval in enumerate(self.pinned) if interval is not None and self.counted[t]]
        self.always = [(t, *interval, self.counted[t]) for t, interval in pinned]
        self.operands = [frozenset((*model.inputs[v], *model.outputs[v])) for v in range(model.n_ops)]
        self.needed = [working_set_bytes(model, v) for v in range(model.n_ops)]
        stay, stay_bytes, beside = self._small_state()
        fixed = [self.fixed_bytes(v, operands) for v, operands in enumerate(self.operands)]
        self.room = [self.capacity - held - needed for held, needed in zip(fixed, self.needed, strict=True)]
        for v in range(model.n_ops):
            self._again(v, stay, stay_bytes, beside[v])
            index, value = list(self.kept[v]), [float(size) for size in self.kept[v].values()]
            self.ram_row([*index, *stay], [*value, *stay_bytes], self.room[v] + beside[v])
            if beside[v]:  # its operands are there even if they do not stay
                self.ram_row(index, value, self.room[v])
            self._together(v)
        if self.in_ram:  # other tensors are there too when a step begins
            room = model.capacity - sum(model.size[t] for t in range(model.n_tensors) if model.in_ram[t])
            self.ram_row(list(self.in_ram.values()), [float(model.size[t]) for t in self.in_ram], room)
        if model.store_limited:
            room = model.store_free - sum(model.footprint[t] for t in self.writes)
            mip.within(list(self.written), [model.footprint[t] for t in self.written.values()], room)

    def ram_row(self, index: list[int], value: list[float], room: int) -> None:
        """A row that a large MIP has only if it has a dual in the LP, as one in fifty of them has."""
        rows = len(self.mip.row_lower)
        super().ram_row(index, value, room)
        self.mip.optional.append(range(rows, len(self.mip.row_lower)))

    def _points(self, t: int) -> dict[int, int]:
        """By position, the column that is 1 if `t` is in RAM there; -1 is the start, and `n_ops` the end."""
        model, n = self.model, self.model.n_ops
        p, uses = model.producer[t], model.consumers[t]
        points = dict.fromkeys((p, *uses), ONE)
        read_again = any(model.recomputable[v] for v in uses)
        if p < 0:
            points[-1] = self.in_ram.get(t, ZERO) if model.on_store[t] else ONE
        if model.ends_in_ram[t] or t in self.lives or read_again:
            points[n] = ONE if model.ends_in_ram[t] else self.lives.get(t, ZERO)
        # Nobody needs it in RAM before its first reader, so that a cut before that is no point.
        first = min(uses, default=n) if model.on_store[t] and t not in self.in_ram else p
        for c in self.cuts:
            if first < c < max(points) and c not in points:
                points[c] = self.mip.column()
        return points

    def _gaps(self, t: int) -> list[Gap]:
        model, mip, unit = self.model, self.mip, self.unit
        points, p, gaps = self._points(t), model.producer[t], list[Gap]()
        pageable = model.pageable[t] or model.on_store[t]
        if pageable and not model.on_store[t] and t not in self.writes and len(points) > 1:
            self.store[t] = written = mip.column(model.out_cost[t] / unit)
            self.written[written] = t
            if t in self.lives:
                mip.row([written, self.lives[t]], [1.0, 1.0], lower=1.0)
        for a, b in itertools.pairwise(sorted(points)):
            before, behind = points[a], points[b]
            stays = load = run = ZERO
            # An update takes over the bytes of the version before it.
            if ZERO not in (before, behind) and not (self.rules.cuts_expiry and model.expiry[t] == a):
                stays = mip.column()
                if before >= 0:
                    mip.row([stays, before], [1.0, -1.0], upper=0.0)
            if pageable and a < 0 and t in self.reads:
                load = mip.column(lower=1.0)
            elif pageable:
                load = mip.column(model.in_cost[t] / unit)
                self.loaded[load] = t
                self._link(t, load)
                if t in self.in_ram:
                    mip.row([load, self.in_ram[t], self.evicted[t]], [1.0, 1.0, -1.0], upper=1.0)
            if p >= 0 and model.recomputable[p]:
                run = mip.column()
            sources = [column for column in (stays, load, run) if column >= 0]
            if behind == ONE:
                self._require(sources)
            elif behind >= 0:
                mip.row([behind, *sources], [1.0, *[-1.0] * len(sources)], upper=0.0)
            if stays >= 0:
                for v in range(a + 1, min(b, model.n_ops)):
                    self.kept[v][stays] = model.size[t]
            if behind >= 0 and b < model.n_ops:
                self.kept[b][behind] = model.size[t]
            gaps.append(Gap(t, a, b, before, stays, load, run))
        return gaps

    def _small_state(self) -> tuple[list[int], list[float], list[int]]:
        """A column for the share of small state that stays in RAM, and its bytes; none where there is no such state.

        A chain is in RAM all the time, or it is read, and written if the step changes it, or if it lives in RAM.
        Of chains that save about as much for their bytes, any share may be away. The last list has, by operator, the
        bytes of such state among its operands. These count in its working set already.
        """
        model, size_of = self.model, dict[int, int]()  # bytes, by the logarithm of the cost saved for each
        beside, saves, total = [0] * model.n_ops, dict[int, float](), 0
        for chain in self.small:
            size, away = min(model.size[t] for t in chain), 0.0
            if chain[0] in model.page_ins_needed or chain[0] in self.resident:
                away += min(model.in_cost[t] for t in chain)
            if chain[-1] in model.page_outs_needed or chain[0] in self.resident:
                away += min(model.out_cost[t] for t in chain)
            for v in {v for t in chain for v in (*model.consumers[t], *[model.producer[t]] * (model.producer[t] >= 0))}:
                beside[v] += size
            if size and away:
                kind = math.floor(math.log(away / size) / SPREAD.alike)
                size_of[kind] = size_of.get(kind, 0) + size
                saves[kind] = min(saves.get(kind, math.inf), away / size)
                total += size
        if not total:
            return [], [], [0] * model.n_ops
        stay = self.mip.column(integer=False)
        gone = {kind: self.mip.column(saves[kind] * size / self.unit, integer=False) for kind, size in size_of.items()}
        shares = [size / total for size in size_of.values()]
        self.mip.row([stay, *gone.values()], [1.0, *shares], lower=1.0)
        return [stay], [float(total)], beside

    def _again(self, v: int, stay: list[int], stay_bytes: list[float], small_bytes: int) -> None:
        """Add the rows for executing `v` again: its cost, its operands, and the RAM beside it.

        `stay`, `stay_bytes`: of small state. `small_bytes`: of such state among the operands.
        """
        model, mip = self.model, self.mip
        gaps = [gap for t in model.outputs[v] for gap in self.of_tensor[t] if gap.run >= 0]
        if len(model.outputs[v]) == 1:
            for gap in gaps:
                mip.cost[gap.run] = model.op_cost[v] / self.unit
                self.executed[gap.run] = v
        elif gaps:
            times = mip.column(model.op_cost[v] / self.unit, upper=math.inf, integer=False)
            self.executed[times] = v
            for t in model.outputs[v]:
                runs = [gap.run for gap in self.of_tensor[t] if gap.run >= 0]
                mip.row([times, *runs], [1.0, *[-1.0] * len(runs)], lower=0.0)
        operands, needed = self.operands[v], float(self.needed[v])
        pairs = list(itertools.combinations([u for u in model.inputs[v] if self.of_tensor[u]], 2))
        start, end, size, stays, of = self.staying.T
        for gap in gaps:
            for u in model.inputs[v]:
                self._operand(gap, u)
            for x, y in pairs:
                loads = self._met(x, y, gap.start, gap.end, SPREAD.chain)
                if loads is not None:
                    mip.row([gap.run, *sorted(loads)], [1.0, *[-1.0] * len(loads)], upper=0.0)
            beside = (start <= gap.start) & (end >= gap.end) & ~np.isin(of, list(operands))
            fixed = self._always(gap.start + 1, gap.end, operands)
            if fixed + needed > self.capacity:
                mip.upper[gap.run] = 0.0
            few = needed < SPREAD.again_share * self.capacity or mip.entries > SPREAD.most_again_entries
            if few or fixed + needed > self.capacity:
                continue
            index, value = [gap.run, *stays[beside].tolist()], size[beside].astype(float).tolist()
            self.ram_row([*index, *stay], [needed - small_bytes, *value, *stay_bytes], self.capacity - fixed)
            if small_bytes:
                self.ram_row(index, [needed, *value], self.capacity - fixed)

    def _together(self, v: int) -> None:
        """Add the rows for operands of `v` that are in RAM together, and of which none can be made beside the other.

        Where the later one of their gaps starts, both may be in RAM, and stay. Else something is paged in.
        """
        ending = [gap for t in self.model.inputs[v] for gap in self.of_tensor[t] if gap.end == v]
        for x, y in itertools.combinations(sorted(ending, key=lambda gap: gap.start), 2):
            loads = self._met(x.t, y.t, v - 1, v, SPREAD.chain)
            if loads is not None:
                self._require(sorted(loads))
            fits = self._fits({x.t, y.t}, y.start)
            loads = self._meet(x.t, y.t, y.start, v, SPREAD.chain) if fits else None
            for gap in (x, y) if x.start == y.start else (y,):
                if loads is not None:
                    self._require(sorted(loads) + [gap.stays] * (gap.stays >= 0))

    def _met(self, x: int, y: int, b: int, v: int, depth: int) -> set[int] | None:
        """Columns of page-ins of which one is 1, if two tensors are in RAM together some time between b and v.

        None if they may be there without. Both are in RAM at b, or come later. So b goes back to an operator beside
        which they do not fit, or which makes one of them. Its operands are in RAM together with the other one.
        """
        model = self.model
        if model.size[x] + model.size[y] < SPREAD.pair_share * self.capacity:
            return None  # they fit beside nearly all operators
        makers = model.producer[x], model.producer[y]
        while b >= 0 and b not in makers and self._fits({x, y}, b):
            b -= 1
        key = min(x, y), max(x, y), b, v, depth
        if key not in self.met:
            self.met[key] = self._met_since(*key)
        return self.met[key]

    def _met_since(self, x: int, y: int, b: int, v: int, depth: int) -> set[int] | None:
        model, loads = self.model, set[int]()
        born = [t for t in (x, y) if model.producer[t] == b]
        if b < 0 or len(born) == 2:
            return None
        if born and self._fits({x, y}, b):
            beside = self._met_operand(b, y if born[0] == x else x, b - 1, b, depth)
            if beside is None:
                return None
            loads |= beside
        more = self._meet(x, y, b, v, depth)
        return None if more is None else loads | more

    def _meet(self, x: int, y: int, b: int, v: int, depth: int) -> set[int] | None:
        """The same for two that are not both in RAM at b: the later one is paged in, or made beside the other one."""
        if self.model.producer[x] == self.model.producer[y] >= 0:
            return None  # they may be made together
        loads = {g.load for t in (x, y) for g in self.of_tensor[t] if g.load >= 0 and g.start < v and g.end > b}
        for t, other in ((x, y), (y, x)):
            if self._executes(self.model.producer[t], other, b, v):
                beside = self._met_operand(self.model.producer[t], other, b, v, depth)
                if beside is None:
                    return None
                loads |= beside
        return loads

    def _met_operand(self, maker: int, other: int, b: int, v: int, depth: int) -> set[int] | None:
        """`_met` of an operand of `maker` and another tensor: the fewest columns."""
        operands = [u for u in self.model.inputs[maker] if u != other and self.of_tensor[u]] if depth else []
        loads = [self._met(u, other, b, v, depth - 1) for u in operands]
        return min((columns for columns in loads if columns is not None), key=len, default=None)

    def _executes(self, v: int, t: int, first: int, last: int) -> bool:
        """Whether `v` can be executed again beside `t`, some time between two operators."""
        if v < 0 or not self.model.recomputable[v]:
            return False
        if t in self.operands[v]:
            return True
        fixed = self._always(first + 1, last, self.operands[v])
        return self.needed[v] + self.model.size[t] + fixed <= self.capacity

    def _fits(self, tensors: set[int], v: int) -> bool:
        """Whether these tensors can be in RAM while `v` is first executed."""
        if v < 0:
            return True
        return sum(self.model.size[u] for u in tensors - self.operands[v]) <= self.room[v]

    def _always(self, first: int, last: int, operands: frozenset[int]) -> int:
        """The bytes of pinned tensors, but for `operands`, that are in RAM from one operator to another."""
        return sum(size for t, a, b, size in self.always if a <= first and b >= last and t not in operands)

    def _operand(self, gap: Gap, u: int) -> None:
        """Where `gap.run` is 1, `u` is in RAM some time between the gap's points, after a first execution or before."""
        around = [g for g in self.of_tensor[u] if g.start < gap.end and g.end > gap.start]
        if not around or around[0].before == ONE or any(gap.start <= v <= gap.end for v in self.model.consumers[u]):
            return
        sources = [c for g in around for c in (g.load, g.run) if c >= 0]
        sources += [around[0].before] if around[0].before >= 0 else []
        if sources:
            self.mip.row([gap.run, *sources], [1.0, *[-1.0] * len(sources)], upper=0.0)
        else:
            self.mip.upper[gap.run] = 0.0

    def _time_row(self, deadline_ns: int, op_ns: Sequence[int], in_ns: Sequence[int], out_ns: Sequence[int]) -> None:
        fixed = sum(op_ns) + sum(in_ns[t] for t in self.reads) + sum(out_ns[t] for t in self.writes)
        terms = {column: op_ns[v] for column, v in self.executed.items()}
        terms |= {column: in_ns[t] for column, t in self.loaded.items()}
        terms |= {column: out_ns[t] for column, t in self.written.items()}
        if fixed > deadline_ns:
            self.proven_infeasible = True
        elif any(terms.values()):
            self.mip.within(list(terms), list(terms.values()), deadline_ns - fixed)

    def bound_of(self, answer: Answer) -> float:
        if not math.isfinite(answer.bound):
            return self.constant
        return max(self.constant, math.ceil((answer.bound - CUTS.margin) * self.unit))

    def relaxation_of(self, answer: Answer, values: npt.NDArray[np.float64]) -> Relaxation:
        """The plan that a solution stands for, of the stages from the first cut on."""
        model, edges = self.model, (*self.cuts, NEVER)
        held, run, load = [], [], []
        for first, last in itertools.pairwise(edges):
            there = {t for t in model.inputs[first] if self.of_tensor[t]}
            of_stage = [g for gaps in self.of_tensor for g in gaps if first <= g.start and g.end <= last]
            there |= {g.t for g in of_stage if g.start == first and g.before >= 0 and values[g.before] > 0.5}
            held.append(frozenset(there))
            run.append(frozenset(model.producer[g.t] for g in of_stage if g.run >= 0 and values[g.run] > 0.5))
            load.append(frozenset(g.t for g in of_stage if g.load >= 0 and values[g.load] > 0.5))
        paged = frozenset(t for t, column in self.store.items() if values[column] > 0.5)
        pinned = tuple(frozenset(t for t in range(model.n_tensors) if self.is_pinned(t, c)) for c in self.cuts)
        return Relaxation(
            self.cuts, self.bound_of(answer), False, answer.optimal, tuple(held), paged, tuple(run), tuple(load), pinned
        )
