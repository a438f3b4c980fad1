"""Large neighbourhood search: a MIP decides part of the best schedule anew, the rest stays as it is.

The part is a window, a stretch of the sequence, or all decisions about which an LP over the whole sequence disagrees
with the schedule. The MIP decides which tensors are kept, paged and made again.

Candidates are added to the executions of the sequence. Before each reader of a tensor in the window, they are the
operator that makes it again, and the makers of absent operands. A tensor's touches are the executions that read or make
it. Between two touches, K = 1 if it stays in RAM. X = 1 for an execution that happens (first ones do). I = 1 for a
page-in right before a reader, and O = 1 for a page-out right behind the birth.

    X[reader] <= K[before] + I <= 1,  I <= X,  I <= O;
    K[behind] <= K[before] + X[maker] or I,  K = 0 once the tensor is overwritten;
    RAM at every execution: tensors that stay, operands and workspace, less c for each output in place,
    c <= X,  c <= 1 - K[behind].

The checker counts the same, so every solution is a schedule at its exact cost, but for the time of transfers that
overlap compute. Page-outs behind the birth and page-ins right before the reader need no RAM that the execution there
does not need anyway.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from poetc.solvers.highs import COST_SCALE, Mip
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import NEIGHBOURHOODS, WIDE, WORK
from poetc.solvers.poetc.work import simplex_s

ZERO, ONE = -1, -2  # columns that are constants

Terms = list[tuple[int, float]]
# A tensor and the index of its touch: does it stay? Or -1 and a position: does the operator there run?
Decision = tuple[int, int]


@dataclass(slots=True)
class Touch:
    """A position that makes or reads a tensor; -1 is the start, and the number of positions is the end."""

    position: int
    makes: bool
    paged: bool = False  # the schedule so far pages it in for this
    stays: bool = False  # the schedule so far keeps it from here to the next touch


@dataclass(slots=True)
class Executions:
    """Executions in order, and how the schedule so far supplies their operands."""

    model: Model
    operators: list[int]
    executed: list[bool]  # executed in the schedule so far (others are candidates)
    first: list[bool]
    touches: list[list[Touch]]
    written: set[int]


def parse(model: Model, codes: Sequence[int], candidates: dict[int, list[int]] | None = None) -> Executions:
    """The executions of a sequence, with `candidates[k]` inserted before the k-th of them."""
    n, m = model.n_ops, model.n_tensors
    operators: list[int] = []
    executed: list[bool] = []
    first: list[bool] = []
    seen = [False] * n
    touches: list[list[Touch]] = [[] for _ in range(m)]
    written = {t for t in range(m) if model.ends_on_store[t] and not model.on_store[t]}
    loaded: set[int] = set()
    for t in range(m):
        if model.in_ram[t]:
            touches[t].append(Touch(-1, True))

    def touch(t: int, new: Touch, happens: bool) -> None:
        if happens and not new.makes:
            new.paged = t in loaded
            loaded.discard(t)
            if not new.paged:
                for old in reversed(touches[t]):  # it has been there since the last touch that took place
                    old.stays = True
                    if old.position < 0 or executed[old.position]:
                        break
        elif happens:
            loaded.discard(t)
        touches[t].append(new)

    def append(v: int, happens: bool) -> None:
        position = len(operators)
        operators.append(v)
        executed.append(happens)
        first.append(happens and not seen[v])
        seen[v] |= happens
        for t in model.inputs[v]:
            touch(t, Touch(position, False), happens)
        for t in model.outputs[v]:
            touch(t, Touch(position, True), happens)

    k = 0
    for code in codes:
        if code < n:
            for v in (candidates or {}).get(k, ()):
                append(v, False)
            append(code, True)
            k += 1
        elif code < n + m:
            loaded.add(code - n)
        else:
            written.add(code - n - m)
    end = len(operators)
    executed.append(True)
    for t in range(m):
        if model.ends_in_ram[t]:
            touch(t, Touch(end, False), True)
    executed.pop()
    return Executions(model, operators, executed, first, touches, written)


def candidates_in(sequence: Executions, start: int, stop: int, depth: int, paging: bool) -> dict[int, list[int]]:
    """The operators that may be executed again, by the execution before which, from `start` to before `stop`."""
    model = sequence.model
    starts = [[touch.position for touch in touches] for touches in sequence.touches]

    def there(t: int, position: int) -> bool:
        at = bisect.bisect_left(starts[t], position) - 1
        return at >= 0 and sequence.touches[t][at].stays

    def dear(t: int) -> bool:
        """Whether `t` is cheaper to write and read than to make again."""
        if not paging or not (model.pageable[t] or model.on_store[t]) or model.store_limited:
            return False
        written = model.on_store[t] or t in sequence.written
        return model.op_cost[model.producer[t]] >= model.in_cost[t] + (0 if written else model.out_cost[t])

    def reached(v: int, position: int) -> bool:
        return all(starts[t] and starts[t][0] < position for t in model.outputs[v])

    candidates: dict[int, list[int]] = {}
    for k in range(start, min(stop, len(sequence.operators))):
        again: set[int] = set()
        layer = list(model.inputs[sequence.operators[k]])
        for level in range(depth):
            deeper: list[int] = []
            for t in layer:
                v = model.producer[t]
                if v < 0 or v in again or not model.recomputable[v] or not reached(v, k):
                    continue
                at = bisect.bisect_left(starts[t], k) - 1
                if dear(t):
                    continue
                if level == 0 and starts[t][at] >= k - 2:
                    continue  # it has just been touched
                again.add(v)
                deeper += [u for u in model.inputs[v] if not there(u, k)]
            layer = deeper
        if again:
            candidates[k] = sorted(again)
    return candidates


@dataclass
class WindowModel:
    """The MIP for one window of a schedule; decisions in `decided` stay as they are."""

    model: Model
    codes: Sequence[int]
    capacity: int
    paging: bool
    start: int  # of the window, in executions
    stop: int
    depth: int = 2
    dense: bool = True  # RAM rows name all columns that are kept: HiGHS's cuts need that, LPs take long for it
    decided: frozenset[Decision] = frozenset()
    mip: Mip = field(init=False)
    sequence: Executions = field(init=False)
    initial: dict[int, float] = field(init=False)
    execute: list[int] = field(init=False)
    keep: list[list[int]] = field(init=False)
    load: list[list[int]] = field(init=False)
    store: list[int] = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        plain = parse(model, self.codes)
        candidates = candidates_in(plain, self.start, self.stop, self.depth, self.paging)
        self.sequence = parse(model, self.codes, candidates)
        self.begin, self.end = self.start, self.stop + sum(len(again) for again in candidates.values())
        self.mip = Mip()
        self.unit = max(1.0, float(model.base_cost)) / COST_SCALE
        self.initial = {}
        self._columns()
        self._rows()
        self._ram()
        self._limits()

    # --- columns ---

    def _pageable(self, t: int) -> bool:
        return self.paging and (self.model.pageable[t] or self.model.on_store[t])

    def _column(self, value: bool, cost: float = 0.0, *, integer: bool = True) -> int:
        column = self.mip.column(cost / self.unit, integer=integer)
        if integer:
            self.initial[column] = float(value)
        self.values.append(float(value))
        return column

    def _columns(self) -> None:
        model, sequence = self.model, self.sequence
        self.values: list[float] = []
        begin, end = self.begin, self.end
        free_at: set[int] = set()  # positions at which a free gap ends
        free: list[list[bool]] = []
        for t, touches in enumerate(sequence.touches):
            gaps = []
            for j, touch in enumerate(touches):
                until = touches[j + 1].position if j + 1 < len(touches) else touch.position
                is_free = j + 1 < len(touches) and touch.position < end and until >= begin
                if until >= end and touch.stays and not self._pageable(t):
                    is_free = False  # behind the window no operator is made again that is not yet
                gaps.append(is_free)
                if is_free:
                    free_at.add(until)
            free.append(gaps)
        self.execute = []
        for k, v in enumerate(sequence.operators):
            if sequence.first[k]:
                self.execute.append(ONE)
            elif (-1, k) in self.decided:
                self.execute.append(ONE if sequence.executed[k] else ZERO)
            elif begin <= k < end or k in free_at or not sequence.executed[k]:
                self.execute.append(self._column(sequence.executed[k], model.op_cost[v]))
            else:
                self.execute.append(ONE)
        self.keep, self.load, self.store = [], [], []
        for t, touches in enumerate(sequence.touches):
            keep, load, any_load = [], [], False
            pageable = self._pageable(t)
            for j, touch in enumerate(touches):
                if j + 1 == len(touches):
                    keep.append(ZERO)
                elif free[t][j] and (t, j) not in self.decided:
                    keep.append(self._column(touch.stays))
                else:
                    keep.append(ONE if touch.stays else ZERO)
                is_free = free[t][j - 1] if j else begin <= touch.position < end
                if touch.makes or not pageable:
                    load.append(ZERO)
                elif is_free:
                    load.append(self._column(touch.paged, model.in_cost[t], integer=False))
                    any_load = True
                else:
                    load.append(ONE if touch.paged else ZERO)
            self.keep.append(keep)
            self.load.append(load)
            if model.on_store[t] or not pageable:
                self.store.append(ONE if model.on_store[t] or t in sequence.written else ZERO)
            elif model.ends_on_store[t]:
                self.store.append(ONE)
            elif any_load:
                needed = any(column == ONE for column in load)
                self.store.append(
                    ONE if needed else self._column(t in sequence.written, model.out_cost[t], integer=False)
                )
            else:
                self.store.append(ONE if t in sequence.written else ZERO)

    # --- rows ---

    def _row(self, terms: Terms, upper: float, unit: float | None = None) -> None:
        """Add the row: sum of `terms` <= `upper`. `unit`: of a row of bytes."""
        kept: dict[int, float] = {}
        for column, value in terms:
            if column == ONE:
                upper -= value
            elif column != ZERO:
                kept[column] = kept.get(column, 0.0) + value
        if sum(max(0.0, x) for x in kept.values()) <= upper + 1e-9:
            return
        if not kept:
            raise AssertionError("the schedule so far breaks a row")
        if unit is None:
            self.mip.row(list(kept), list(kept.values()), upper=upper)
        else:
            self.mip.within(list(kept), list(kept.values()), upper, unit)

    def _rows(self) -> None:
        sequence = self.sequence
        length = len(sequence.operators)
        for t, touches in enumerate(sequence.touches):
            keep, load = self.keep[t], self.load[t]
            for j, touch in enumerate(touches):
                before = keep[j - 1] if j else ZERO
                happens = ONE if touch.position < 0 or touch.position == length else self.execute[touch.position]
                if touch.makes:
                    self._row([(keep[j], 1.0), (before, -1.0), (happens, -1.0)], 0.0)
                    continue
                there = [(before, -1.0), (load[j], -1.0)]
                self._row([(happens, 1.0), *there], 0.0)
                self._row([(keep[j], 1.0), *there], 0.0)
                if load[j] >= 0:
                    self._row([(before, 1.0), (load[j], 1.0)], 1.0)
                    self._row([(load[j], 1.0), (happens, -1.0)], 0.0)
                    self._row([(load[j], 1.0), (self.store[t], -1.0)], 0.0)

    def _ram(self) -> None:
        model, sequence, sizes = self.model, self.sequence, self.model.size
        length = len(sequence.operators)
        base = [0] * (length + 1)  # differences first, then the bytes that are there anyway
        local: list[Terms] = [[] for _ in range(length)]
        starts: list[list[tuple[int, int]]] = [[] for _ in range(length + 1)]
        stops: list[list[int]] = [[] for _ in range(length + 1)]
        at: list[dict[int, int]] = [{} for _ in range(length)]  # index of the touch
        for t, touches in enumerate(sequence.touches):
            for j, touch in enumerate(touches):
                if 0 <= touch.position < length:
                    at[touch.position][t] = j
                if j + 1 == len(touches) or self.keep[t][j] == ZERO:
                    continue
                first, last = touch.position + 1, touches[j + 1].position  # [first, last)
                if first >= last:
                    continue
                if self.keep[t][j] == ONE:
                    base[first] += sizes[t]
                    base[last] -= sizes[t]
                else:
                    starts[first].append((self.keep[t][j], sizes[t]))
                    stops[last].append(self.keep[t][j])
        for k, v in enumerate(sequence.operators):
            terms, x = local[k], self.execute[k]
            terms.append((x, float(model.workspace[v])))
            for t in model.inputs[v]:
                j = at[k][t]
                terms += [(self.keep[t][j - 1] if j else ZERO, float(sizes[t])), (self.load[t][j], float(sizes[t]))]
            for t in model.outputs[v]:
                j = at[k][t]
                behind = self.keep[t][j]
                if x == ONE or behind == ZERO:
                    terms.append((x, float(sizes[t])))
                elif behind == ONE:
                    terms.append((ONE, float(sizes[t])))
                else:
                    there = self._column(sequence.executed[k] or sequence.touches[t][j].stays, integer=False)
                    self._row([(x, 1.0), (there, -1.0)], 0.0)
                    self._row([(behind, 1.0), (there, -1.0)], 0.0)
                    terms.append((there, float(sizes[t])))
            self._in_place(k, v, at[k], terms)
        occupancy = _Occupancy(self)
        used, highest = 0, -1  # of positions in a row with the same free columns, the highest counts
        for k in range(length):
            used += base[k]
            fixed, terms = used, []
            for column, value in local[k]:
                if column == ONE:
                    fixed += int(value)
                elif column != ZERO and value:
                    terms.append((column, value))
            if (starts[k] or stops[k] or terms) and highest >= 0:
                occupancy.row([], highest)
                highest = -1
            occupancy.change(starts[k], stops[k])
            if terms:
                occupancy.row(terms, fixed)
            else:
                highest = max(highest, fixed)
        if highest >= 0:
            occupancy.row([], highest)

    def _in_place(self, k: int, v: int, at: dict[int, int], terms: Terms) -> None:
        model, x = self.model, self.execute[k]
        taken = {t for i, o, required in model.pairs[v] if required for t in (i, o)}
        shared: dict[tuple[str, int], list[int]] = {}
        for i, o, required in model.pairs[v]:
            behind = self.keep[i][at[i]]
            if required:
                self._row([(behind, 1.0), (x, 1.0)], 1.0)
                terms.append((x, -float(model.size[o])))
                continue
            if i in taken or o in taken or behind == ONE or x == ZERO:
                continue
            credit = self._column(False, integer=False)
            self._row([(credit, 1.0), (x, -1.0)], 0.0)
            self._row([(credit, 1.0), (behind, 1.0)], 1.0)
            shared.setdefault(("i", i), []).append(credit)
            shared.setdefault(("o", o), []).append(credit)
            terms.append((credit, -float(model.size[o])))
        for columns in shared.values():
            if len(columns) > 1:
                self._row([(c, 1.0) for c in columns], 1.0)

    def _limits(self) -> None:
        model = self.model
        if model.store_limited:
            terms = [(c, float(model.footprint[t])) for t, c in enumerate(self.store) if not model.on_store[t]]
            self._row(terms, float(model.store_free), float(max(1, model.store_free)))
        limit = model.problem.deadline_ns
        if limit is not None:  # transfers that overlap compute do not count: the race checks the delay
            terms = [(x, float(model.op_ns[v])) for x, v in zip(self.execute, self.sequence.operators, strict=True)]
            for t, columns in enumerate(self.load):
                terms += [(c, float(model.in_ns[t])) for c in columns]
                if not model.on_store[t]:
                    terms.append((self.store[t], float(model.out_ns[t])))
            self._row(terms, float(limit), float(max(1, limit)))

    # --- solving ---

    def codes_of(self, values: npt.NDArray[np.float64]) -> list[int]:
        model, sequence = self.model, self.sequence
        n, m, length = model.n_ops, model.n_tensors, len(sequence.operators)

        def chosen(column: int) -> bool:
            return column == ONE or (column != ZERO and values[column] > 0.5)

        loads: list[list[int]] = [[] for _ in range(length + 1)]
        for t, touches in enumerate(sequence.touches):
            for j, touch in enumerate(touches):
                if chosen(self.load[t][j]):
                    loads[touch.position].append(t)
        out = {t for t in range(m) if not model.on_store[t] and chosen(self.store[t])}
        codes = [n + m + t for t in sorted(out) if model.in_ram[t]]
        done: set[int] = set()
        for k, v in enumerate(sequence.operators):
            if not chosen(self.execute[k]):
                continue
            codes += [n + t for t in loads[k]]
            codes.append(v)
            if v not in done:
                done.add(v)
                codes += [n + m + t for t in model.outputs[v] if t in out]
        return codes + [n + t for t in loads[length]]

    def agreed(self, plan: npt.NDArray[np.float64], *, wide: bool) -> frozenset[Decision]:
        """The decisions about which the LP's `plan` and the schedule so far agree.

        `wide`: without any decision about a tensor on which they disagree anywhere, nor about its making.
        """
        decisions: set[Decision] = set()

        def agree(column: int) -> bool:
            return column < 0 or abs(plan[column] - self.values[column]) <= NEIGHBOURHOODS.agreed

        makers: set[int] = set()
        for t, keep in enumerate(self.keep):
            made_at = [k.position for k in self.sequence.touches[t] if k.makes and k.position >= 0]
            if wide and not all(agree(column) for column in (*keep, *(self.execute[k] for k in made_at))):
                makers.update(made_at)
                continue
            decisions.update((t, j) for j, column in enumerate(keep) if agree(column))
        decisions.update((-1, k) for k, column in enumerate(self.execute) if agree(column) and k not in makers)
        return frozenset(decisions)

    def key(self) -> int:
        """A key that is the same for the same MIP."""
        mip = self.mip
        return hash((*mip.cost, *mip.row_upper, *mip.index, *mip.value, *self.values))

    def cost_now(self) -> float:
        """The cost of the free columns in the schedule so far, in the MIP's units."""
        return sum(c * x for c, x in zip(self.mip.cost, self.values, strict=True))


class _Occupancy:
    """The bytes that free columns keep in RAM at a position.

    Few columns stand in the rows themselves. Of many, one column is the sum: it differs from the one before by the
    tensors that came and went since.
    """

    def __init__(self, window: WindowModel) -> None:
        self.window, self.scale = window, float(max(1, window.capacity))
        self.active: dict[int, int] = {}
        self.total = 0
        self.since: dict[int, float] = {}
        self.column = ZERO

    def change(self, starts: list[tuple[int, int]], stops: list[int]) -> None:
        for column in stops:
            size = self.active.pop(column)
            self.total -= size
            self.since[column] = self.since.get(column, 0.0) - size
        for column, size in starts:
            self.active[column] = size
            self.total += size
            self.since[column] = float(size)

    def row(self, terms: Terms, fixed: int) -> None:
        """Add the row: these bytes and `terms` fit beside `fixed` bytes."""
        window = self.window
        room = float(window.capacity - fixed)
        if self.total + sum(max(0.0, value) for _, value in terms) <= room:
            return
        if window.dense or len(self.active) <= NEIGHBOURHOODS.few:
            window._row([*((c, float(s)) for c, s in self.active.items()), *terms], room, self.scale)
            return
        changed = [(c, x / self.scale) for c, x in self.since.items() if x]
        if changed:
            column = window._column(False, integer=False)
            before = [] if self.column == ZERO else [(self.column, 1.0)]
            entries = [(column, -1.0), *before, *changed]
            window.mip.row([c for c, _ in entries], [x for _, x in entries], lower=0.0, upper=0.0)
            self.column, self.since = column, {}
        window._row([(self.column, self.scale), *terms], room, self.scale)


@dataclass
class Windows:
    """Solves such MIPs about the incumbent of a race, and offers it the schedules. Goes on where it stopped."""

    race: Race
    level: int = 0
    at: int = 0
    improved: bool = False  # a cheaper schedule since the sweep began
    last: list[int] | None = None  # the sequence that the last run ended with
    seen: set[int] = field(default_factory=set)  # windows that were solved

    def run(self, work_s: float, target: float) -> float:
        """Search for `work_s` seconds of a usual machine; returns the work that was done.

        It ends early where the incumbent costs at most `target`, the time is up, or nothing is found any more.
        """
        race, done_s = self.race, 0.0
        if race.incumbent is not None and race.incumbent.codes is not self.last:
            self.level, self.at, self.improved = 0, 0, False
        while done_s < work_s and self.level < len(NEIGHBOURHOODS.levels) and race.incumbent is not None:
            if race.out_of_time or race.incumbent.cost <= target:
                break
            length = sum(code < race.model.n_ops for code in race.incumbent.codes)
            size, depth = NEIGHBOURHOODS.levels[self.level]
            if size <= 0:
                done_s += self._one(0, length, depth, size)
                self.at = length
            elif self.at < max(1, length - size // 3):
                done_s += self._one(self.at, min(self.at + size, length), depth, size)
                self.at += size // 2
                continue
            # After a cheaper schedule, the windows that take the least time come again.
            self.level = 0 if self.improved and self.level else self.level + 1
            self.at, self.improved = 0, False
        self.last = None if race.incumbent is None else race.incumbent.codes
        return done_s

    def _one(self, start: int, stop: int, depth: int, size: int) -> float:
        race = self.race
        assert race.incumbent is not None
        model, codes = race.model, race.incumbent.codes
        paging = any(code >= model.n_ops for code in codes)
        capacity = race.model.capacity_for(paging)
        window = WindowModel(model, codes, capacity, paging, start, stop, depth, dense=size > 0)
        now = window.cost_now()
        work_s = window.mip.entries * NEIGHBOURHOODS.entry_s
        key = hash((size, window.key()))
        if now <= 0.0 or key in self.seen:
            return work_s / 2
        self.seen.add(key)
        if size <= 0:
            mip = window.mip
            if len(window.initial) > NEIGHBOURHOODS.most_in_lp:
                return work_s
            plan = mip.solve(time_limit_s=race.left_s, relax=True, seed=race.seed)
            work_s += simplex_s(mip.iterations, mip.entries, WORK.lp_iteration_s)
            if plan.values is None or plan.objective > now - NEIGHBOURHOODS.gap:
                return work_s
            decided = window.agreed(plan.values, wide=size == WIDE)
            window = WindowModel(model, codes, capacity, paging, start, stop, depth, decided=decided)
            now = window.cost_now()
            if len(window.initial) > NEIGHBOURHOODS.most_decisions:
                return work_s
        mip = window.mip
        answer = mip.solve(
            time_limit_s=race.left_s,
            gap=NEIGHBOURHOODS.gap,
            max_nodes=NEIGHBOURHOODS.nodes,
            max_rounds=NEIGHBOURHOODS.rounds,
            start=window.initial,
            seed=race.seed,
        )
        if answer.values is not None and answer.objective < now - NEIGHBOURHOODS.gap:
            cost = race.incumbent.cost
            race.offer(improve(model, window.codes_of(answer.values), capacity), "windows")
            self.improved |= race.incumbent.cost < cost
        return work_s + mip.entries * NEIGHBOURHOODS.entry_s + simplex_s(mip.iterations, mip.entries)
