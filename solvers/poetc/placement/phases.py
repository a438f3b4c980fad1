"""A bound for actions whose transfers overlap work, or whose work is divided: before, during and after one operator.

Let a be an operator. Its ancestors are executed for the first time before it begins, its descendants after it ends. A
step takes T = T1 + d + T2: until a begins, its duration, and from its end on. Everything below holds for any order.

Lanes are the processors and the bus. Weights of lanes add up to 1; a part of the step takes at least the weighted mean
of the lanes' loads in it. T1 has the load of the ancestors, and a page-in of each tensor on the store that an ancestor
or a reads. T2 has the load of the descendants, and of all executions and transfers that begin after a ends. Neither
counts those that overlap a. Each part also takes at least its longest chain of operators. The energy is then

    prices of all executions and transfers, above those of idling + idle power * (T1 + d + T2).

The relaxation is the LP of `OpenPlacement` with two cuts, the begin and the end of a, and with T1 and T2 as columns.
S[0,t] and S[1,t] say that t takes bytes right after a begins and right before it ends. An operator or a transfer that
began before that made it, and somebody still needs its contents. Such tensors, the operands of a and its workspace are
in RAM at once, wherever the list frees them. For no action behind a free begins before the last reader is done. So all
of them count at the last action in the list that has begun. R and I count actions that begin in the two stages after a
has begun. Executions and transfers repeated before that are left out, which relaxes.

Take a tensor that is not in RAM when a begins, and that somebody reads later. Unless it is made again, it was written
to the store before: T1 has that page-out. `around` has the rows that follow. Beside a run repetitions and transfers
that begin meanwhile, and page-outs of tensors that are there. T1 + T2 has all loads less those, of which there are no
more than all other lanes take while a lasts.

Operators that are neither ancestors nor descendants may run at any time. They keep their prices, but neither time nor
tensors.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from poetc.scheduling import Objective, OperatorSpec, Paging, Problem, TensorSpec, Variant, movable_state
from poetc.solvers.highs import ROOM, Answer, Series
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.ladder import fullest_operators
from poetc.solvers.poetc.bounds.ram import operand_bytes
from poetc.solvers.poetc.placement.around import AroundOne
from poetc.solvers.poetc.placement.relaxation import open_model
from poetc.solvers.processors import GRAIN, weights_of

OPERATORS = 2  # around which a bound is computed: the fullest ones
LONGER = 2.0  # than an attempt that the clock ended: another one with less time would prove little more
ROUNDED_PJ = 2  # `OpenPlacement` rounds its bound up, and a schedule's idle energy is rounded down


@dataclass(frozen=True, slots=True)
class Lanes:
    """A weighted mean of lanes: parts of GRAIN by operator and ns, and those of page-ins and page-outs."""

    operators_ns: tuple[int, ...]  # in parts of GRAIN
    page_in: int
    page_out: int
    processors: tuple[int, ...] = ()  # their weights; none: the one processor, or the bus


@dataclass(slots=True)
class _Known:
    bound: int = 0
    within_s: float = 0.0  # the time it was allowed; infinite where it needed less
    enough: float = 0.0  # the bound at which it could end


@functools.lru_cache(maxsize=16)
def _known(problem: Problem) -> _Known:
    """Where `phased_bound` keeps its answer for a problem."""
    del problem
    return _Known()


def phased_bound(problem: Problem, *, time_limit_s: float, enough: float = math.inf) -> int:
    """No schedule costs less, with any order, kernels and placement of state; 0 where nothing is known.

    The answers for the latest problems are kept. One that the clock ended is computed anew with much more time alone.
    `enough`: from there on a higher bound is of no use.
    """
    kept = _known(problem)
    is_short = kept.enough <= kept.bound < enough  # it ended early
    if time_limit_s > 0 and (is_short or time_limit_s >= LONGER * kept.within_s):
        stop_at = time.monotonic() + time_limit_s
        kept.bound, kept.enough = max(kept.bound, _computed(problem, stop_at, enough)), enough
        kept.within_s = time_limit_s if time.monotonic() >= stop_at else math.inf
    return kept.bound


def _computed(problem: Problem, stop_at: float, enough: float) -> int:
    if problem.objective is not Objective.ENERGY or problem.banks:
        return 0
    if not problem.processors and problem.paging is not Paging.DMA:
        problem = replace(problem, idle_uw=0)  # which such a step does not draw
    priced = _above_idle(problem)
    if priced is None:
        return 0
    lanes, least = tuple(_lanes(problem)), 0
    for at in fullest_operators(open_model(priced), OPERATORS):
        least = max(least, _bound_around(problem, priced, at, lanes, stop_at))
        if least >= enough or time.monotonic() >= stop_at:
            break
    return least


def _bound_around(problem: Problem, priced: Problem, at: int, lanes: Sequence[Lanes], stop_at: float) -> int:
    """The bound from the parts around operator `at`, with any of its kernels; 0 where nothing is known."""
    kernels = _kernels(problem.operators[at])
    own_pj = [_own_pj(problem, kernel) for kernel in kernels]

    # With less workspace nothing around the operator costs more: kernels without a chance are left out.
    around: _Around | None = None
    while around is None or around.relaxed.proven_infeasible:
        if not kernels:
            return 0
        around = _Around(problem, priced, at, kernels[0], lanes)
        if around.relaxed.proven_infeasible:
            kernels, own_pj = kernels[1:], own_pj[1:]  # it does not fit
    rest = around.least(kernels, stop_at)
    if rest is None:
        return 0
    least = rest + own_pj[-1]
    for kernel, pj in zip(kernels[:-1], own_pj[:-1], strict=True):
        if rest + pj < least:
            least = min(least, (around.least([kernel], stop_at) or rest) + pj)
    return least


def _own_pj(problem: Problem, kernel: OperatorSpec | Variant) -> int:
    """The least energy of an operator with that kernel, and of all processors that wait meanwhile."""
    return min(above + _idle_uw(problem) * ns for ns, above in _options(problem, kernel)) // 1000


def _kernels(operator: OperatorSpec) -> tuple[OperatorSpec | Variant, ...]:
    return operator, *operator.low_workspace


def _idle_uw(problem: Problem) -> int:
    """Of all processors together, while they wait."""
    return sum(p.idle_uw for p in problem.processors) if problem.processors else problem.idle_uw


def _options(problem: Problem, kernel: OperatorSpec | Variant) -> list[tuple[int, int]]:
    """Time and energy above idling, fJ, by processor."""
    own = [p.idle_uw for p in problem.processors] or [problem.idle_uw]
    costs = [(0, kernel.time_ns, kernel.energy_pj), *((e.processor, e.time_ns, e.energy_pj) for e in kernel.elsewhere)]
    return [(ns, 1000 * pj - own[p] * ns) for p, ns, pj in costs]


def _durations(kernel: OperatorSpec | Variant) -> list[tuple[int, int]]:
    """Processor and time."""
    return [(0, kernel.time_ns), *((e.processor, e.time_ns) for e in kernel.elsewhere)]


def _above_idle(problem: Problem) -> Problem | None:
    """Plain, with the least energy above idling of any kernel and processor, and without time; None if one is below."""
    own_uw = problem.processors[0].idle_uw if problem.processors else 0  # of whoever waits for a transfer
    takes_time = problem.paging is Paging.SYNC

    def operator(op: OperatorSpec) -> OperatorSpec:
        least = min(above for kernel in _kernels(op) for _, above in _options(problem, kernel))
        return replace(op, energy_pj=least // 1000, time_ns=0, elsewhere=(), low_workspace=())

    def page(energy_pj: int, time_ns: int) -> int:
        return energy_pj - (-(-own_uw * time_ns // 1000) if takes_time else 0)

    def tensor(t: TensorSpec) -> TensorSpec:
        out, back = page(t.page_out_pj, t.page_out_ns), page(t.page_in_pj, t.page_in_ns)
        return replace(t, page_out_pj=out, page_in_pj=back, page_out_ns=0, page_in_ns=0)

    busy_uw = max((p.idle_uw for p in problem.processors), default=problem.idle_uw)
    if any(t.move_pj * 1000 < busy_uw * (t.move_ns or 0) for t in problem.tensors):
        return None
    operators, tensors = tuple(map(operator, problem.operators)), tuple(map(tensor, problem.tensors))
    if min((o.energy_pj for o in operators), default=0) < 0:
        return None
    if any(min(t.page_out_pj, t.page_in_pj) < 0 for t in tensors):
        return None
    paging = problem.paging if problem.paging is Paging.NONE else Paging.SYNC
    return replace(
        problem,
        operators=operators,
        tensors=tensors,
        processors=(),
        idle_uw=0,
        paging=paging,
        deadline_ns=None,
    )


def _lanes(problem: Problem) -> Iterator[Lanes]:
    operators, count = problem.operators, len(problem.processors)
    if not problem.processors:  # the processor, and the bus, which streamed operators have alone
        yield Lanes(tuple(GRAIN * _fastest_ns(o) for o in operators), 0, 0)
        bus = tuple(GRAIN * _fastest_ns(o) if o.is_streamed else 0 for o in operators)
        if problem.dma_full_duplex:
            yield Lanes(bus, GRAIN, 0)
            yield Lanes(bus, 0, GRAIN)
        else:
            yield Lanes(bus, GRAIN, GRAIN)
        return
    alone = [GRAIN, *[0] * (count - 1)]
    all_weights = [alone, [GRAIN // count] * count]
    all_weights.append(weights_of(problem, by_time=False))
    for weights in dict.fromkeys(map(tuple, all_weights)):
        pages = weights[0] if problem.paging is Paging.SYNC else 0
        yield Lanes(tuple(_weighted(o, weights) for o in operators), pages, pages, tuple(weights))


def _weighted(operator: OperatorSpec, weights: Sequence[int]) -> int:
    """The least of any kernel and processor."""
    kernels = _kernels(operator)
    own = min(weights[0] * k.time_ns for k in kernels)
    return min([own, *(weights[e.processor] * e.time_ns for k in kernels for e in k.elsewhere)])


def _fastest_ns(operator: OperatorSpec) -> int:
    kernels = _kernels(operator)
    return min(min([k.time_ns, *(e.time_ns for e in k.elsewhere)]) for k in kernels)


def _related(problem: Problem, at: int) -> tuple[list[int], list[int]]:
    """The ancestors and the descendants of an operator, in the order of the problem."""
    makers = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
    before, after = {at}, {at}
    for k in range(at, -1, -1):
        if k in before:
            before |= {makers[t] for t in problem.operators[k].inputs if t in makers}
    for k in range(at, len(problem.operators)):
        if any(makers.get(t) in after for t in problem.operators[k].inputs):
            after.add(k)
    return sorted(before - {at}), sorted(after - {at})


def _without(problem: Problem, strangers: Collection[int]) -> Problem:
    """The problem in which these operators have no operands. Nobody reads their results either.

    A tensor of state goes with all its versions.
    """
    links: dict[int, set[int]] = {}
    for o in problem.operators:
        for pair in (*(p for p in o.in_place if p.required), *o.replaces):
            links.setdefault(pair.input, set()).add(pair.output)
            links.setdefault(pair.output, set()).add(pair.input)
    waiting = [t for k in strangers for t in problem.operators[k].outputs]
    waiting += [t for k in strangers for t in problem.operators[k].writes_store]
    waiting += [p.input for k in strangers for p in problem.operators[k].in_place if p.required]
    waiting += [p.input for k in strangers for p in problem.operators[k].replaces]
    gone = set[int]()
    while waiting:
        t = waiting.pop()
        if t not in gone:
            gone.add(t)
            waiting += links.get(t, ())

    def operator(k: int, o: OperatorSpec) -> OperatorSpec:
        if k in strangers:
            return replace(o, inputs=(), outputs=(), in_place=(), reads_store=(), writes_store=(), replaces=())
        return replace(
            o,
            inputs=tuple(t for t in o.inputs if t not in gone),
            outputs=tuple(t for t in o.outputs if t not in gone),
            in_place=tuple(p for p in o.in_place if gone.isdisjoint((p.input, p.output))),
            reads_store=tuple(t for t in o.reads_store if t not in gone),
            writes_store=tuple(t for t in o.writes_store if t not in gone),
            replaces=tuple(p for p in o.replaces if gone.isdisjoint((p.input, p.output))),
        )

    def tensor(k: int, t: TensorSpec) -> TensorSpec:
        return replace(t, size_bytes=0, initial="", final="", pageable=False, store_bytes=0) if k in gone else t

    return replace(
        problem,
        operators=tuple(operator(k, o) for k, o in enumerate(problem.operators)),
        tensors=tuple(tensor(k, t) for k, t in enumerate(problem.tensors)),
    )


class _Around:
    """The least energy of a step but for that of operator `at`, for each of its kernels. `priced`: `_above_idle`."""

    def __init__(
        self,
        problem: Problem,
        priced: Problem,
        at: int,
        kernel: OperatorSpec | Variant,
        lanes: Sequence[Lanes],
    ) -> None:
        """`kernel`: no other that is asked about has more workspace."""
        self.problem, self.at, self.kernel, self.lanes = problem, at, kernel, lanes
        before, after = _related(problem, at)
        strangers = sorted(set(range(len(problem.operators))) - {at, *before, *after})
        priced = _without(priced, frozenset(strangers))
        end = replace(priced.operators[at], energy_pj=0, workspace_bytes=kernel.workspace_bytes)
        own_bytes = operand_bytes(Model(replace(priced, operators=(end,))), 0)
        begin = replace(end, outputs=(), in_place=(), writes_store=(), replaces=(), workspace_bytes=own_bytes)
        sides = [[priced.operators[k] for k in side] for side in (before, [*after, *strangers])]
        priced = replace(priced, operators=(*sides[0], begin, end, *sides[1]))
        cuts = len(before), len(before) + 1
        self.relaxed = relaxed = AroundOne(open_model(priced), cuts, movable_state(priced))
        # Transfers never run beside streamed operators, nor beside those that the first processor alone can run.
        alone = problem.operators[at].is_streamed or (bool(problem.processors) and not problem.operators[at].elsewhere)
        unit_ns = max(1, problem.compute_once_ns)
        price = _idle_uw(problem) * unit_ns / 1000 / relaxed.unit
        chains_ns = _chains_ns(problem, at)
        parts = [relaxed.mip.column(price, ns / unit_ns, math.inf, integer=False) for ns in chains_ns]
        transfers = _Transfers(problem, relaxed)
        self.scale = scale = 1.0 / (unit_ns * GRAIN)
        self.hidden = list[int]()
        for lane in lanes:
            first_ns, last_ns = (sum(lane.operators_ns[k] for k in side) for side in (before, after))
            first, last, all_ = transfers.first(lane), transfers.last(lane), transfers.all(lane)
            beside = Counter[int]() if alone else transfers.beside(lane)
            for v, column in (pair for run in relaxed.run for pair in run.items()):
                all_[column] += lane.operators_ns[before[v]]
            for v, column in relaxed.run[1].items():
                last[column] += lane.operators_ns[before[v]]
            for v, column in relaxed.run[0].items():
                beside[column] += lane.operators_ns[before[v]]
            # Loads beside the operator: no more than all other lanes take while it lasts.
            hidden = relaxed.mip.column(0.0, 0.0, _others_ns(problem, lane, at, kernel) * scale, integer=False)
            self.hidden.append(hidden)
            rows = (
                ([parts[0]], first, first_ns + transfers.reads_ns(lane)),
                ([parts[1]], last, last_ns),
                ([*parts, hidden], all_, first_ns + last_ns + transfers.reads_ns(lane)),
            )
            kept = {c: ns * scale for c, ns in beside.items() if ns}
            relaxed.mip.row([hidden, *kept], [-1.0, *kept.values()], 0.0)
            for columns, terms, least_ns in rows:
                kept = {c: -ns * scale for c, ns in terms.items() if ns}
                relaxed.mip.row([*columns, *kept], [*[1.0] * len(columns), *kept.values()], least_ns * scale)
        self.series = Series(relaxed.mip, list(relaxed.rooms), self.hidden)

    def least(self, kernels: Sequence[OperatorSpec | Variant], stop_at: float) -> int | None:
        """With any of those kernels; None where time is up, or nothing fits.

        Of all of them it takes the least workspace, and the longest time: on some processor, that may be another's.
        """
        more = self.kernel.workspace_bytes - min(k.workspace_bytes for k in kernels)
        for row, room in self.relaxed.rooms.items():
            self.series.row_upper(row, ROOM * (room + more) / max(1, room))
        for column, lane in zip(self.hidden, self.lanes, strict=True):
            hidden_ns = max(_others_ns(self.problem, lane, self.at, k) for k in kernels)
            self.series.column_upper(column, hidden_ns * self.scale)
        least = self.series.least(time_limit_s=stop_at - time.monotonic())
        if least is None or math.isinf(least):
            return None
        return max(0, math.floor(self.relaxed.bound_of(Answer(least, least, None, True, False, 0))) - ROUNDED_PJ)


def _others_ns(problem: Problem, lane: Lanes, at: int, kernel: OperatorSpec | Variant) -> int:
    """The most load of a lane beside operator `at`, in parts of GRAIN."""
    if lane.processors:
        return max((GRAIN - lane.processors[p]) * ns for p, ns in _durations(kernel))
    return 0 if lane.operators_ns[at] else GRAIN * kernel.time_ns


class _Transfers:
    """The time of transfers in the parts of a step: by column, in parts of GRAIN of ns."""

    def __init__(self, problem: Problem, relaxed: AroundOne) -> None:
        self.tensors, self.relaxed = problem.tensors, relaxed
        model, cut = relaxed.model, relaxed.cuts[0]
        # Read from the store by an ancestor, or by the operator: before it begins.
        self.reads = [t for t in model.page_ins_needed if min(model.consumers[t], default=NEVER) <= cut + 1]
        self.written = self._written_before()
        self.last_versions = {c[-1]: relaxed.in_ram[c[0]] for c in relaxed.chains if len(c) > 1}

    def _written_before(self) -> dict[int, int]:
        """By tensor, a column that is 1 if it is written to the store before the operator begins.

        That is so where it is not in RAM then, and read from the store later, but neither there from the start nor made
        again.
        """
        relaxed, mip = self.relaxed, self.relaxed.mip
        cut, updated = relaxed.cuts[0], {c[0] for c in relaxed.chains if len(c) > 1}
        written: dict[int, int] = {}
        for t in sorted(relaxed.load[0].keys() | relaxed.load[1].keys()):
            p, lives_in_ram = relaxed.model.producer[t], relaxed.in_ram.get(t)
            if p >= cut or relaxed.is_pinned(t, cut):
                continue
            if p < 0 and lives_in_ram is None and relaxed.model.on_store[t]:
                continue
            again = [run[p] for run in relaxed.run if p in run]
            there = [*again, *([relaxed.hold[0][t]] if t in relaxed.hold[0] else [])]
            written[t] = relaxed.written[t] if t in relaxed.written else mip.column(integer=False)
            columns, values = [written[t], *there], [1.0] * (1 + len(there))
            needed = relaxed.model.ends_in_ram[t] or any(v > cut for v in relaxed.model.consumers[t])
            if lives_in_ram is not None and (needed or t not in updated):
                mip.row([*columns, lives_in_ram], [*values, -1.0], 0.0)
            elif lives_in_ram is not None:
                for load in (g[t] for g in relaxed.load if t in g):
                    mip.row([*columns, load, lives_in_ram], [*values, -1.0, -1.0], -1.0)
            elif needed:
                mip.row(columns, values, 1.0)
            else:
                for load in (g[t] for g in relaxed.load if t in g):
                    mip.row([*columns, load], [*values, -1.0], 0.0)
        return written

    def reads_ns(self, lane: Lanes) -> int:
        return lane.page_in * sum(self.tensors[t].page_in_ns for t in self.reads)

    def first(self, lane: Lanes) -> Counter[int]:
        """Beyond `reads_ns`, before the operator begins."""
        weights = Counter({c: lane.page_out * self.tensors[t].page_out_ns for t, c in self.written.items()})
        in_ram = self.relaxed.in_ram
        weights.update({in_ram[t]: -lane.page_in * self.tensors[t].page_in_ns for t in self.reads if t in in_ram})
        return weights

    def last(self, lane: Lanes) -> Counter[int]:
        """Of those that begin after the operator ends."""
        relaxed = self.relaxed
        weights = Counter({c: lane.page_in * self.tensors[t].page_in_ns for t, c in relaxed.load[1].items()})
        self._add_outs(
            weights, lane, {t: c for t, c in relaxed.store.items() if relaxed.model.producer[t] > relaxed.cuts[0]}
        )
        return weights

    def all(self, lane: Lanes) -> Counter[int]:
        """Beyond `reads_ns`, in the whole step."""
        relaxed, in_ram = self.relaxed, self.relaxed.in_ram
        weights = Counter({in_ram[t]: -lane.page_in * self.tensors[t].page_in_ns for t in self.reads if t in in_ram})
        for load in relaxed.load:
            weights.update({c: lane.page_in * self.tensors[t].page_in_ns for t, c in load.items()})
        self._add_outs(weights, lane, relaxed.store)
        for chain in relaxed.chains:  # state that lives in RAM leaves it
            weights[relaxed.evicted[chain[0]]] += lane.page_out * self.tensors[chain[0]].page_out_ns
            weights[relaxed.late[chain[0]]] += lane.page_out * self.tensors[chain[-1]].page_out_ns
        return weights

    def beside(self, lane: Lanes) -> Counter[int]:
        """Of those that may run while the operator does, and are not over when it begins."""
        relaxed, cut, tensors = self.relaxed, self.relaxed.cuts[0], self.tensors
        weights = Counter({c: lane.page_in * tensors[t].page_in_ns for t, c in relaxed.load[0].items()})
        for t, column in relaxed.store.items():
            if relaxed.model.producer[t] < cut:
                weights[relaxed.beside.get(t, column)] += lane.page_out * tensors[t].page_out_ns
        for chain in relaxed.chains:
            weights[relaxed.evicted[chain[0]]] += lane.page_out * tensors[chain[0]].page_out_ns
            if relaxed.model.producer[chain[-1]] < cut:
                weights[relaxed.late[chain[0]]] += lane.page_out * tensors[chain[-1]].page_out_ns
        return weights

    def _add_outs(self, coefficients: Counter[int], lane: Lanes, store: Mapping[int, int]) -> None:
        for t, column in store.items():
            ns = lane.page_out * self.tensors[t].page_out_ns
            coefficients[column] += ns
            if t in self.last_versions:  # that column is 1 where the state lives in RAM, too
                coefficients[self.last_versions[t]] -= ns


def _chains_ns(problem: Problem, at: int) -> tuple[int, int]:
    """The longest chains of operators that end where `at` begins, and that begin where it ends."""
    makers = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
    count = len(problem.operators)
    ends, rest = [0] * count, [0] * count
    for k, o in enumerate(problem.operators):
        begin = max((ends[makers[t]] for t in o.inputs if t in makers), default=0)
        ends[k] = begin + _fastest_ns(o)
    for k in reversed(range(count)):
        for t in problem.operators[k].inputs:
            if t in makers:
                rest[makers[t]] = max(rest[makers[t]], rest[k] + _fastest_ns(problem.operators[k]))
    return ends[at] - _fastest_ns(problem.operators[at]), rest[at]
