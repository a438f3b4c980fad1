"""A bound on the cost of banks: tensors that wait for a later reader compete with those that are read now.

When an operator is executed for the first time, its ancestors have been executed and its descendants have not. That is
an instant. A tensor that is read by a descendant later is then in a cheap bank, or in a dear one, or nowhere. Between
an instant and an access it may be copied, paged, or made again, each at a price. An operator that is executed again
needs its inputs, too: they are there at the instant, or are made again as well. State stays in one bank. The cheap
banks hold all their tensors and workspaces at each instant. A MIP chooses all this at the least cost.

It holds for all orders, any recomputation and any paging. It knows two classes of banks,
cheap and dear. Each way to divide the banks by price gives a bound, and the greatest counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from poetc.scheduling import BankSpec, Objective, OperatorSpec, Paging, Problem, Variant, state_chains
from poetc.solvers.banks.placing import objective_of, rounds_within
from poetc.solvers.highs import COST_SCALE, Mip

LARGEST = 600_000  # coefficients of a MIP that is solved
MOST = 8_000  # operators times instants: with more operators some have no instant of their own
WHOLE = 0.02  # of the room: smaller tensors may be divided
SAFE = 1e-3  # below the answer of HiGHS, in its units: a millionth of every operator once
UNIT = 1024  # bytes, in its rows

Terms = list[tuple[int, float]]
At = tuple[int, int | None]  # columns of a tensor at an instant: in a dear bank, and nowhere; None: it is there


@dataclass(frozen=True, slots=True)
class Crossing:
    """`least`: no schedule costs less in any banks, in the unit of the objective.

    `repeats`: operators that are executed again where that is reached, each with those at which an output is nowhere.
    """

    least: int = 0
    repeats: tuple[tuple[int, tuple[int, ...]], ...] = ()


def placement_bound(problem: Problem, *, time_limit_s: float, work_s: float | None = None) -> Crossing:
    """The least cost of a schedule in any banks.

    It is 0 where nothing is found in time, or nothing is known: for times where transfers overlap compute. `work_s`:
    for each MIP, in seconds of a usual machine; the time limit unless given. The clock ends it only where that is much
    slower.
    """
    overlaps = problem.paging is Paging.DMA and problem.objective is Objective.TIME
    if not problem.banks or overlaps:
        return Crossing()
    order = sorted(range(len(problem.banks)), key=lambda b: (_price(problem, problem.banks[b]), b))
    best, work_s = Crossing(), time_limit_s if work_s is None else work_s
    for count in range(1, len(order)):
        below, above = (_price(problem, problem.banks[order[count - 1 + k]]) for k in (0, 1))
        if below < above:
            own = _bound(problem, order[:count], order[count:], time_limit_s, work_s)
            best = max(best, own, key=lambda c: c.least)
    return best


def _bound(problem: Problem, cheap: list[int], dear: list[int], time_limit_s: float, work_s: float) -> Crossing:
    started = time.monotonic()
    model = _Model(_Classes(problem, cheap, dear), _Graph(problem))
    mip = model.mip
    if mip.entries > LARGEST:
        return Crossing()
    bound, rounds = 0.0, rounds_within(work_s, mip.entries)
    repeats: tuple[tuple[int, tuple[int, ...]], ...] = ()
    for relax in (True, False):  # the LP is fast, and holds where the MIP is not solved in time
        left_s = time_limit_s - (time.monotonic() - started)
        if relax or (rounds and left_s > 0.0):
            answer = mip.solve(time_limit_s=max(0.1, left_s), relax=relax, max_nodes=rounds, max_rounds=rounds)
            bound = max(bound, 0.0 if answer.infeasible or math.isinf(answer.bound) else answer.bound)
            repeats = repeats if answer.values is None else tuple(model.repeats_of((answer.values > 0.5).tolist()))
    return Crossing(max(0, math.ceil((bound - SAFE) / model.scale)), repeats)


def _read(problem: Problem, bank: BankSpec) -> float:
    return objective_of(problem, bank.read_ps_per_byte, bank.read_fj_per_byte)


def _write(problem: Problem, bank: BankSpec) -> float:
    return objective_of(problem, bank.write_ps_per_byte, bank.write_fj_per_byte)


def _price(problem: Problem, bank: BankSpec) -> float:
    return _read(problem, bank) + _write(problem, bank)


@dataclass(slots=True)
class _Classes:
    """Banks in two classes, with the least prices of a byte in each."""

    problem: Problem
    cheap: list[int]
    dear: list[int]

    @property
    def room(self) -> int:
        """The bytes of the cheap banks."""
        banks, base = self.problem.banks, self.problem.base_bytes
        return sum(max(0, banks[b].budget_bytes - (base if b == 0 else 0)) for b in self.cheap)

    def prices(self, *, written: bool) -> tuple[float, float]:
        """Of a byte that is read, or written, in a cheap bank and in a dear one."""
        price = _write if written else _read
        return self._least(price, self.cheap), self._least(price, self.dear)

    def _least(self, price: Callable[[Problem, BankSpec], float], banks: list[int]) -> float:
        return min(price(self.problem, self.problem.banks[b]) for b in banks)

    def copy(self, t: int, *, arrives: bool) -> float | None:
        """The least cost of a copy to a cheap bank, or from one to a dear one; None where the tensor may not move."""
        tensor = self.problem.tensors[t]
        if tensor.move_ns is None:
            return None
        between = self.prices(written=False)[arrives] + self.prices(written=True)[not arrives]
        return between * tensor.size_bytes + self.problem.objective.cost(tensor.move_pj, tensor.move_ns)


class _Graph:
    """Who makes a tensor, who reads it, and which operators come before which in any order."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        operators = problem.operators
        self.maker = {t: k for k, o in enumerate(operators) for t in o.outputs}
        self.before = [0] * len(operators)  # ancestors, as bits
        order = _in_order(problem, self.maker)
        self.place = {k: n for n, k in enumerate(order)}
        for k in order:
            for t in operators[k].inputs:
                if t in self.maker:
                    self.before[k] |= self.before[self.maker[t]] | 1 << self.maker[t]
        self.readers: dict[int, list[int]] = {}
        self.takers: dict[int, list[int]] = {}  # operators that always take over its bytes
        for k, o in enumerate(operators):
            for t in sorted(set(o.inputs)):
                self.readers.setdefault(t, []).append(k)
            for p in o.in_place:
                if p.required:
                    self.takers.setdefault(p.input, []).append(k)
        # State may be on the store instead, where there is one: the planner chooses.
        self.stays = problem.paging is Paging.NONE
        self.state = {t: chain[0] for chain in state_chains(problem) for t in chain} if self.stays else {}

    def precedes(self, k: int, j: int) -> bool:
        return bool(self.before[j] >> k & 1)

    def is_read_after(self, t: int, k: int) -> bool:
        return any(self.precedes(k, j) for j in self.readers.get(t, ()))

    def accesses(self, t: int) -> list[int]:
        """The operator that makes it and those that read it."""
        users = {self.maker[t]} if t in self.maker else set[int]()
        return sorted(users | set(self.readers.get(t, ())), key=self.place.__getitem__)

    def last_before(self, t: int, k: int) -> list[int]:
        """Accesses to a tensor that come before `k`, with no other one between."""
        last: list[int] = []
        for j in reversed(self.accesses(t)):
            if self.precedes(j, k) and not any(self.precedes(j, i) for i in last):
                last.append(j)
        return last

    def first_after(self, t: int, k: int) -> list[int]:
        first: list[int] = []
        for j in self.accesses(t):
            if self.precedes(k, j) and not any(self.precedes(i, j) for i in first):
                first.append(j)
        return first

    def is_repeatable(self, k: int, j: int) -> bool:
        """Whether operator `j` may be executed again after `k` began: its inputs were not overwritten for good."""
        operators = self.problem.operators
        if not operators[j].recomputable:
            return False
        for t in operators[j].inputs if self.stays else ():
            returns = t in self.maker and operators[self.maker[t]].recomputable
            if not returns and any(i == k or self.precedes(i, k) for i in self.takers.get(t, ())):
                return False
        return True

    def instants(self) -> list[int]:
        """Operators at whose first executions the cheap banks are looked at: those with the largest operands."""
        operators, tensors = self.problem.operators, self.problem.tensors
        held = [sum(tensors[t].size_bytes for t in {*o.inputs, *o.outputs}) for o in operators]
        count = len(operators)
        step = max(1, -(-count * count // MOST))
        return [max(range(n, min(n + step, count)), key=held.__getitem__) for n in range(0, count, step)]

    def waiting(self, k: int) -> Iterator[int]:
        """Tensors that were there before `k` and are needed after it. State and operands are left out."""
        own = {*self.problem.operators[k].inputs, *self.problem.operators[k].outputs}
        for t, tensor in enumerate(self.problem.tensors):
            if t in self.state or t in own:
                continue
            initial = tensor.initial == "ram" and self.stays
            there = initial if t not in self.maker else self.precedes(self.maker[t], k)
            if there and (tensor.final == "ram" or self.is_read_after(t, k)):
                yield t


@dataclass(slots=True)
class _Model:
    """The MIP. A column of an access says whether its tensor is in a dear bank in the first execution."""

    classes: _Classes
    graph: _Graph
    problem: Problem = field(init=False)
    mip: Mip = field(init=False)
    scale: float = field(init=False)
    room: int = field(init=False)
    instants: list[int] = field(init=False)
    looked_at: set[int] = field(init=False)
    state: dict[int, int] = field(default_factory=dict)  # by the first version
    access: dict[tuple[int, int], int] = field(default_factory=dict)  # by operator and tensor
    kernels: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # cheap bytes of workspace, column
    at: dict[tuple[int, int], At] = field(default_factory=dict)  # by instant and tensor that waits
    repeats: dict[int, int] = field(default_factory=dict)  # by operator: how often it is executed again
    repeats_after: dict[tuple[int, int], int] = field(default_factory=dict)  # by instant and operator: whether
    repeated_dear: dict[tuple[int, int], int] = field(default_factory=dict)  # accesses of these executions
    copies: dict[tuple[int, bool], int | None] = field(default_factory=dict)  # by tensor: it arrives, or leaves
    pages: dict[int, int] = field(default_factory=dict)
    saved: dict[int, Terms] = field(default_factory=dict)  # by instant: bytes of outputs in place
    open: list[tuple[int, int]] = field(default_factory=list)  # keys of `repeats_after`, without rows so far

    def __post_init__(self) -> None:
        problem = self.problem = self.classes.problem
        once = problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)
        self.scale = COST_SCALE / max(1, once)
        self.mip, self.room, self.instants = Mip(offset=once * self.scale), self.classes.room, self.graph.instants()
        self.looked_at = set(self.instants)
        self._first_executions()
        self._kernels()
        for k in self.instants:
            for t in self.graph.waiting(k):
                nowhere = self._at(k, t, needed=True)[1]
                if nowhere is not None:
                    self._row([(nowhere, 1.0)], self._ways_back(k, t))
        self._inputs_of_repeats()
        for k in self.instants:
            self._in_place(k)
        for r, t, k in self._late_repeats():
            self._room_of_repeat(r, t, k)
        self._links()
        for k in self.instants:
            self._room(k)

    def _column(self, cost: float = 0.0, *, most: float = 1.0, size_bytes: int = 0) -> int:
        """A column; an integer one for the place of a tensor that is large."""
        return self.mip.column(cost * self.scale, upper=most, integer=size_bytes >= max(1.0, WHOLE * self.room))

    def _row(self, terms: Terms, ways: Iterable[int], upper: float = 0.0) -> None:
        """The terms are at most the upper limit and all of the ways together."""
        terms = [*terms, *((way, -1.0) for way in ways)]
        self.mip.row([c for c, _ in terms], [v for _, v in terms], upper=upper)

    def _size(self, t: int) -> int:
        return self.problem.tensors[t].size_bytes

    def _first_executions(self) -> None:
        """The price in cheap banks is in the offset. Columns have the surcharge of a dear one."""
        for t in sorted(set(self.graph.state.values())):
            self.state[t] = self._column(size_bytes=self._size(t))
        for k, operator in enumerate(self.problem.operators):
            for written, tensors in ((False, set(operator.inputs)), (True, set(operator.outputs))):
                cheap, dear = self.classes.prices(written=written)
                for t in sorted(tensors):
                    size = self._size(t)
                    self.mip.offset += cheap * size * self.scale
                    more = (dear - cheap) * size
                    if t in self.graph.state:
                        self.mip.cost[self.state[self.graph.state[t]]] += more * self.scale
                    else:
                        self.access[k, t] = self._column(more, size_bytes=size)

    def _kernels(self) -> None:
        """One of the kernels, with its workspace in a cheap bank or in a dear one."""
        cost = self.problem.objective.cost
        cheap, dear = (
            sum(prices) for prices in zip(*(self.classes.prices(written=w) for w in (False, True)), strict=True)
        )
        for k, operator in enumerate(self.problem.operators):
            kernels: tuple[OperatorSpec | Variant, ...] = (operator, *operator.low_workspace)
            largest = max(v.workspace_bytes for v in kernels)
            if not largest:
                continue
            columns = self.kernels[k] = []
            for v in kernels:
                more = cost(v.energy_pj, v.time_ns) - cost(operator.energy_pj, operator.time_ns)
                for price, held in ((cheap, v.workspace_bytes), (dear, 0)):
                    columns.append((held, self._column(more + price * v.workspace_bytes, size_bytes=largest)))
            self.mip.row([c for _, c in columns], [1.0] * len(columns), 1.0, 1.0)

    def _at(self, k: int, t: int, *, needed: bool = False) -> At:
        """Where a tensor is at an instant. `needed`: it is there if nothing brings it back later."""
        if (k, t) in self.access:
            return self.access[k, t], None
        if (k, t) not in self.at:
            dear, nowhere = self._column(size_bytes=self._size(t)), None
            if not needed or self._ways_back(k, t):
                nowhere = self._column(size_bytes=self._size(t))
                self._row([(dear, 1.0), (nowhere, 1.0)], (), upper=1.0)
            self.at[k, t] = dear, nowhere
        return self.at[k, t]

    def _ways_back(self, k: int, t: int) -> list[int]:
        """Columns that make or read a tensor anew after `k` began."""
        ways = [self._page(t)]
        if t in self.graph.maker:
            ways.append(self._repeat_after(k, self.graph.maker[t]))
        return [way for way in ways if way is not None]

    def _page(self, t: int) -> int | None:
        tensor = self.problem.tensors[t]
        if self.graph.stays or t not in self.graph.maker or not tensor.pageable:
            return None
        if t not in self.pages:
            cost = self.problem.objective.cost(
                tensor.page_out_pj + tensor.page_in_pj, tensor.page_out_ns + tensor.page_in_ns
            )
            self.pages[t] = self._column(cost, most=math.inf)
        return self.pages[t]

    def _copy(self, t: int, *, arrives: bool) -> int | None:
        if (t, arrives) not in self.copies:
            cost = self.classes.copy(t, arrives=arrives)
            self.copies[t, arrives] = None if cost is None else self._column(cost, most=math.inf)
        return self.copies[t, arrives]

    def _repeat_after(self, k: int, j: int) -> int | None:
        """Whether operator `j`, which comes before `k` or is it, is executed again after `k` began."""
        if not self.graph.is_repeatable(k, j):
            return None
        repeated = self._repeat(j)
        if k not in self.looked_at:
            return repeated  # nothing is known of that instant
        if (k, j) not in self.repeats_after:
            self.repeats_after[k, j] = column = self._column()
            self._row([(column, 1.0)], (repeated,))
            self.open.append((k, j))
        return self.repeats_after[k, j]

    def _repeat(self, j: int) -> int:
        """How often an operator is executed again. Its operands may be in cheap banks only as far as these suffice."""
        if j not in self.repeats:
            operator = self.problem.operators[j]
            kernels: tuple[OperatorSpec | Variant, ...] = (operator, *operator.low_workspace)
            cost = float(min(self.problem.objective.cost(v.energy_pj, v.time_ns) for v in kernels))
            for written, tensors in ((False, set(operator.inputs)), (True, set(operator.outputs))):
                cost += self.classes.prices(written=written)[0] * sum(map(self._size, tensors))
            repeated = self.repeats[j] = self._column(cost, most=math.inf)
            touched = sorted(_touched(operator))
            lacking = sum(map(self._size, touched)) - self.room
            if lacking > 0:
                terms = [(self._repeat_dear(j, t), -self._size(t) / UNIT) for t in touched]
                self._row([*terms, (repeated, lacking / UNIT)], ())
        return self.repeats[j]

    def _repeat_dear(self, j: int, t: int) -> int:
        """How often operator `j` is executed again with tensor `t` in a dear bank."""
        if (j, t) not in self.repeated_dear:
            repeated = self._repeat(j)
            if (j, t) not in self.repeated_dear:
                cheap, dear = self.classes.prices(written=t not in self.problem.operators[j].inputs)
                self.repeated_dear[j, t] = column = self._column((dear - cheap) * self._size(t), most=math.inf)
                self._row([(column, 1.0)], (repeated,))
        return self.repeated_dear[j, t]

    def _inputs_of_repeats(self) -> None:
        """An execution after an instant has its inputs: they are there at the instant, or come later as well."""
        while self.open:
            k, j = self.open.pop()
            for t in sorted(set(self.problem.operators[j].inputs)):
                if t in self.graph.state or (t not in self.graph.maker and not self.graph.stays):
                    continue
                ways, repeated = self._ways_back(k, t), (self.repeats_after[k, j], 1.0)
                dear, nowhere = self._at(k, t)
                if nowhere is not None:
                    self._row([repeated, (nowhere, 1.0)], ways, upper=1.0)
                arrives = self._copy(t, arrives=True)
                ways = [*ways, self._repeat_dear(j, t), *([] if arrives is None else [arrives])]
                self._row([repeated, (dear, 1.0)], ways, upper=1.0)

    def _in_place(self, k: int) -> None:
        """An output in place of an input saves its bytes. A later reader of that input has to get it anew."""
        columns: dict[tuple[bool, int], list[int]] = {}
        saved = self.saved.setdefault(k, [])
        for pair in self.problem.operators[k].in_place:
            i, o = pair.input, pair.output
            if o in self.graph.state and self.graph.state.get(i) == self.graph.state[o]:
                continue  # one tensor in the row of the room
            column = self._column(size_bytes=self._size(o))
            saved.append((column, float(self._size(o))))
            for t in (i, o):
                place = self.state[self.graph.state[t]] if t in self.graph.state else self.access[k, t]
                self._row([(column, 1.0), (place, 1.0)], (), upper=1.0)
                columns.setdefault((t == i, t), []).append(column)
            if self.graph.is_read_after(i, k) and (i in self.graph.maker or self.graph.stays):
                self._row([(column, 1.0)], self._ways_back(k, i))
        for group in columns.values():
            if len(group) > 1:
                self.mip.row(group, [1.0] * len(group), upper=1.0)

    def _late_repeats(self) -> Iterator[tuple[int, int, int]]:
        """A reader, a large tensor that it reads, and the maker of another of its operands: an instant before it."""
        if not self.graph.stays:
            return
        for r, operator in enumerate(self.problem.operators):
            for t in sorted(set(operator.inputs)):
                if t in self.graph.state or t not in self.graph.maker or self._size(t) < WHOLE * self.room:
                    continue
                makers = {self.graph.maker[i] for i in operator.inputs if i in self.graph.maker} - {self.graph.maker[t]}
                for k in sorted(makers & self.looked_at):
                    if self.at.get((k, t), (0, None))[1] is not None:
                        yield r, t, k

    def _room_of_repeat(self, r: int, t: int, k: int) -> None:
        """Where `t` is nowhere at `k`, its maker is executed again after `k` and before `r`, which reads it.

        The cheap banks then have its operands, and tensors that were there after `k` and are read by `r` or later.
        """
        graph, maker = self.graph, self.graph.maker[t]
        operator, repeated = self.problem.operators[maker], self.at[k, t][1]
        assert repeated is not None
        own = {*self.problem.operators[k].inputs, *self.problem.operators[k].outputs}

        def is_late(w: int) -> bool:
            later = any(j == r or graph.precedes(r, j) for j in graph.readers.get(w, ()))
            return later or self.problem.tensors[w].final == "ram"

        there = {*own, *graph.waiting(k)} - set(graph.state)
        late = sorted(w for w in there if self._size(w) >= WHOLE * self.room and is_late(w))
        operands = {*operator.inputs, *operator.outputs} - set(graph.state)
        # An output may be in place of an input, which has to come back if it is read later.
        inputs: dict[int, set[int]] = {}
        for pair in operator.in_place:
            inputs.setdefault(pair.output, set()).add(pair.input)
        free = {o for o, taken in inputs.items() if not taken <= set(late)}
        total = sum(map(self._size, {*self.state, *operands, *late} - free))
        if total <= self.room:
            return
        terms: Terms = [(column, float(self._size(w))) for w, column in self.state.items()]
        terms += [
            (self._repeat_dear(maker, w), float(self._size(w)))
            for w in sorted(operands - free)
            if w not in late or w in operator.outputs
        ]
        for w in late:
            if w in operator.outputs:
                continue
            dear, nowhere = self._late(k, r, w)
            terms.append((dear, float(self._size(w))))
            if w in operator.inputs:
                self._row([(dear, 1.0), (repeated, 1.0)], (self._repeat_dear(maker, w),), upper=1.0)
                if nowhere is not None:
                    self._row([(nowhere, 1.0), (repeated, 1.0)], (), upper=1.0)
            elif nowhere is not None:
                terms.append((nowhere, float(self._size(w))))
        for o in sorted(set(inputs) - free):
            ways = {way for i in inputs[o] for way in self._ways_back(k, i)}
            if ways:
                column = self._column(size_bytes=self._size(o))
                self._row([(column, 1.0)], sorted(ways))
                terms.append((column, float(self._size(o))))
        terms = [(c, v / UNIT) for c, v in terms] + [(repeated, (self.room - total) / UNIT)]
        self.mip.row([c for c, _ in terms], [v for _, v in terms], lower=0.0)

    def _late(self, k: int, r: int, w: int) -> At:
        """Where a tensor is at an instant between `k` and `r`."""
        dear, nowhere = self._column(size_bytes=self._size(w)), None
        ways = self._ways_back(k, w)
        if ways:
            nowhere = self._column(size_bytes=self._size(w))
            self._row([(dear, 1.0), (nowhere, 1.0)], (), upper=1.0)
            self._row([(nowhere, 1.0)], ways)
        self._between(k, self._at(k, w), (dear, nowhere), w)
        for j in self.graph.accesses(w):
            if j == r or self.graph.precedes(r, j):
                self._between(k, (dear, nowhere), self._at(j, w), w)
        return dear, nowhere

    def _links(self) -> None:
        """Between an instant and the accesses next to it, and from one access to the next, copies have their price."""
        graph = self.graph
        for t in range(len(self.problem.tensors)):
            if t not in graph.state and (t in graph.maker or graph.stays):
                for j in graph.accesses(t):
                    for i in graph.last_before(t, j):
                        self._link(i, j, t)
        linked: set[tuple[int, int]] = set()
        while True:
            self._inputs_of_repeats()
            new = [key for key in self.at if key not in linked]
            if not new:
                return
            for k, t in new:
                linked.add((k, t))
                for j in graph.last_before(t, k):
                    self._link(j, k, t)
                for j in graph.first_after(t, k):
                    self._link(k, j, t)

    def _link(self, k: int, j: int, t: int) -> None:
        """Of a tensor at `k` and then at `j`."""
        self._between(k, self._at(k, t), self._at(j, t), t)

    def _between(self, k: int, at_k: At, at_j: At, t: int) -> None:
        """A tensor that is elsewhere than it was, some time after `k` began, was copied, paged or made again."""
        (dear_k, nowhere_k), (dear_j, nowhere_j) = at_k, at_j
        maker = self.graph.maker.get(t)
        again, page = None if maker is None else self._repeat_after(k, maker), self._page(t)
        dear_again = None if maker is None or again is None else self._repeat_dear(maker, t)
        leaves, arrives = self._copy(t, arrives=False), self._copy(t, arrives=True)
        self._row([(dear_j, 1.0), (dear_k, -1.0)], _known(leaves, dear_again, page))
        less_j = [(nowhere_j, -1.0)] if nowhere_j is not None else []
        more_k = [(nowhere_k, 1.0)] if nowhere_k is not None else []
        self._row([(dear_j, -1.0), (dear_k, 1.0), *less_j, *more_k], _known(arrives, again, page))
        if more_k:
            self._row([*more_k, *less_j], _known(again, page))

    def repeats_of(self, chosen: list[bool]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Operators that are executed again, with the instants at which one of their outputs waits nowhere."""
        nowhere: dict[int, list[int]] = {}
        for k in self.instants:
            for t in self.graph.waiting(k):
                column = self.at.get((k, t), (0, None))[1]
                if column is not None and chosen[column] and t in self.graph.maker:
                    nowhere.setdefault(self.graph.maker[t], []).append(k)
        yield from ((j, tuple(nowhere[j])) for j, c in self.repeats.items() if chosen[c] and j in nowhere)

    def _room(self, k: int) -> None:
        """The cheap banks hold operands, the workspace, tensors that wait, and state."""
        places: list[tuple[At, int]] = [((column, None), self._size(t)) for t, column in self.state.items()]
        operator = self.problem.operators[k]
        for t in sorted({*operator.inputs, *operator.outputs} - set(self.graph.state)):
            places.append(((self.access[k, t], None), self._size(t)))
        for t in range(len(self.problem.tensors)):
            if (k, t) in self.at:
                places.append((self.at[k, t], self._size(t)))
        total = sum(size for _, size in places)
        terms = [(c, float(size)) for at, size in places for c in at if c is not None]
        terms += self.saved[k]
        workspace = max((held for held, _ in self.kernels.get(k, ())), default=0)
        terms += [(column, float(workspace - held)) for held, column in self.kernels.get(k, ()) if held < workspace]
        lacking = total + workspace - self.room
        if lacking > 0:
            self.mip.row([c for c, _ in terms], [v / UNIT for _, v in terms], lower=lacking / UNIT)


def _known(*columns: int | None) -> list[int]:
    return [column for column in columns if column is not None]


def _touched(operator: OperatorSpec) -> set[int]:
    """Operands with bytes of their own: an output that may be made in place has those of an input."""
    return {*operator.inputs, *operator.outputs} - {p.output for p in operator.in_place}


def _in_order(problem: Problem, maker: dict[int, int]) -> list[int]:
    """Operators, each after those whose outputs it reads."""
    done: list[int] = []
    seen: set[int] = set()
    for first in range(len(problem.operators)):
        stack = [(first, False)]
        while stack:
            k, is_over = stack.pop()
            if is_over:
                done.append(k)
            elif k not in seen:
                seen.add(k)
                stack.append((k, True))
                stack += [(maker[t], False) for t in problem.operators[k].inputs if t in maker]
    return done
