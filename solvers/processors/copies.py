"""A lower bound for two processors between which a hand-over takes long, and the plan that reaches it.

Each processor then makes most tensors for itself, but a tensor is in RAM only once. The second
processor executes an operator of both when its readers on the first one are done, or the first one repeats it. A MIP
has the first execution of every operator on each processor, with its begin and its end:

- It comes after those of its operands, and after a hand-over where it reads a tensor of the other processor.
- A processor that receives nothing has made all ancestors before, and executes descendants after.
- An operator that takes over the bytes of state waits for all readers of that state.

It relaxes the schedules of any order and recomputation without paging. Executions of one processor may overlap in it,
as long as their sum, with ancestors before and descendants after, has the time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from poetc.scheduling import OperatorSpec, Paging, Problem, Variant
from poetc.solvers.highs import COST_SCALE, TOLERANCE, Answer, Mip
from poetc.solvers.processors.placing import makers_of

MOST_OPERATORS, LARGEST = 100, 40_000  # operators, and coefficients of a MIP that is solved
LONG = 0.05  # of the work of the main processor alone: a shorter hand-over is no reason to make a tensor twice
LIMIT_S = 30.0  # for a machine so slow that the limits of work do not end a solve
MAX_NODES, ROUND_ENTRIES = 500, 4_000_000  # of its tree, and rounds of HiGHS at the root times the coefficients
MOST_REPEATS = 3  # times as many executions as operators, in a plan
Execution = tuple[int, int]  # an operator and its processor
Terms = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Copies:
    """`bound`: of schedules that take no longer than `longest_ns`, in the unit of the objective.

    `plan`: executions in the order of their begins, with those that are repeated; () where none is known.
    """

    bound: float
    longest_ns: int
    plan: tuple[Execution, ...]


def one_copy_each(problem: Problem, path_ns: int) -> Copies | None:
    """The bound and the plan; None where this is no such problem. `path_ns`: no schedule takes less time."""
    if len(problem.processors) != 2 or problem.paging is not Paging.NONE or len(problem.operators) > MOST_OPERATORS:
        return None
    hand_over_ns = max(p.hand_over_ns for p in problem.processors)
    if hand_over_ns < LONG * problem.compute_once_ns or any(p.active_uw < p.idle_uw for p in problem.processors):
        return None
    return _solved(replace(problem, budget_bytes=0, deadline_ns=None, write_limit_bytes=None), path_ns)


@functools.lru_cache(maxsize=16)
def _solved(problem: Problem, path_ns: int) -> Copies | None:
    model = _Model(problem, path_ns)
    mip = model.mip
    if mip.entries > LARGEST or model.longest_ns <= path_ns:
        return None
    rounds = ROUND_ENTRIES // max(1, mip.entries)
    answer = mip.solve(time_limit_s=LIMIT_S, max_nodes=MAX_NODES, max_rounds=rounds)
    if answer.infeasible or math.isinf(answer.bound):
        return None  # the main processor alone takes the longest time: there is a solution
    # A row is met within the tolerance. The longest chain has two of each operator.
    bound = (answer.bound - 2 * TOLERANCE * COST_SCALE * len(problem.operators)) / model.scale
    bound -= problem.objective.cost(2, 0)  # energies of waiting are rounded down, once for the step
    return Copies(bound, model.longest_ns, tuple(model.plan(answer)))


def costs_on(operator: OperatorSpec, p: int) -> list[tuple[int, int]]:
    """Time and energy of each kernel that runs on a processor."""
    kernels: tuple[OperatorSpec | Variant, ...] = (operator, *operator.low_workspace)
    own = [(k.time_ns, k.energy_pj) for k in kernels] if p == 0 else []
    return own + [(e.time_ns, e.energy_pj) for k in kernels for e in k.elsewhere if e.processor == p]


@dataclass(slots=True)
class _Model:
    """Times are in units of all operators once on the main processor."""

    problem: Problem
    path_ns: int
    mip: Mip = field(default_factory=Mip)
    scale: float = field(init=False)
    longest_ns: int = field(init=False)
    unit_ns: int = field(init=False)
    longest: float = field(init=False)  # as a number that switches a row off
    makespan: int = field(init=False)
    loads: list[Terms] = field(init=False)
    makers: list[int] = field(init=False)
    takers: dict[int, int] = field(init=False)  # by tensor of state that is there before: who takes over its bytes
    runs: list[dict[int, int]] = field(default_factory=list)  # by operator and processor: whether
    again: dict[Execution, int] = field(default_factory=dict)  # how often beside the first execution
    begins: dict[Execution, int] = field(default_factory=dict)
    ends: dict[Execution, int] = field(default_factory=dict)
    takes: dict[Execution, float] = field(default_factory=dict)
    received: dict[Execution, int] = field(default_factory=dict)  # whether the first execution waits for a hand-over
    receives: list[int] = field(init=False)  # by processor: whether any does
    own: dict[tuple[int, int, int], int] = field(default_factory=dict)  # maker, reader, processor: no hand-over
    orders: dict[int, int] = field(default_factory=dict)  # by operator: whether processor 1 executes it first
    repeats: dict[tuple[int, int, int], int] = field(default_factory=dict)  # likewise: it reads a repeated execution

    def __post_init__(self) -> None:
        problem = self.problem
        cost, idle_uw = problem.objective.cost, sum(p.idle_uw for p in problem.processors)
        self.makers = makers_of(problem)
        pairs = ((p.input, k) for k, o in enumerate(problem.operators) for p in o.in_place if p.required)
        self.takers = {t: k for t, k in pairs if self.makers[t] < 0 and not problem.operators[k].recomputable}
        self.scale = COST_SCALE / max(1.0, float(cost(problem.compute_once_pj, problem.compute_once_ns)))
        self.longest_ns = self.unit_ns = max(1, problem.compute_once_ns)
        self.longest = self.longest_ns / self.unit_ns
        # Of a picojoule and of a nanosecond; cost() takes whole ones.
        per_ns = self.unit_ns * (self._energy(idle_uw) + cost(0, 1000) / 1000)
        least = min(self.path_ns / self.unit_ns, self.longest)
        self.makespan = self.mip.column(self.scale * per_ns, least, self.longest, integer=False)
        self.loads = [[(self.makespan, 1.0)] for _ in problem.processors]
        self.receives = [self.mip.column() for _ in problem.processors]
        for k, operator in enumerate(problem.operators):
            self._executions(k, operator)
        for k in range(len(problem.operators)):
            self._operands(k)
        self._sequences()
        self._overwritten()
        for k, operator in enumerate(problem.operators):
            if operator.recomputable and len(self.runs[k]) == 2:
                self._one_copy(k)
        for p, receives in enumerate(self.receives):
            self._row([(receives, -1.0), *((c, 1.0) for (_, q), c in self.received.items() if q == p)])
        for terms in self.loads:
            self._row(terms)

    def _energy(self, femtojoules: float) -> float:
        return self.problem.objective.cost(1000, 0) * femtojoules / 1e6

    def _row(self, terms: Terms, least: float = 0.0) -> None:
        self.mip.row([c for c, _ in terms], [v for _, v in terms], least)

    def _load(self, p: int, above_fj: float, ns: int, *, most: float = 1.0) -> int:
        """A column that costs so much above idling, and loads processor `p`."""
        column = self.mip.column(self.scale * self._energy(above_fj), upper=most, integer=most == 1.0)
        self.loads[p].append((column, -ns / self.unit_ns))
        return column

    def _executions(self, k: int, operator: OperatorSpec) -> None:
        own: dict[int, int] = {}
        for p, processor in enumerate(self.problem.processors):
            costs = costs_on(operator, p)
            if costs:
                above_fj = max(0, min(1000 * pj - processor.idle_uw * ns for ns, pj in costs))
                ns = min(ns for ns, _ in costs)
                own[p], self.takes[k, p] = self._load(p, above_fj, ns), ns / self.unit_ns
                if operator.recomputable:
                    self.again[k, p] = self._load(p, above_fj, ns, most=math.inf)
                self.begins[k, p] = self.mip.column(upper=self.longest, integer=False)
                self.ends[k, p] = self.mip.column(upper=self.longest, integer=False)
        self.runs.append(own)
        self._row([(c, 1.0) for c in own.values()], 1.0)
        if not operator.recomputable:
            self._row([(c, -1.0) for c in own.values()], -1.0)

    def _operands(self, r: int) -> None:
        """The first execution of `r` on each processor comes after those whose tensors it reads."""
        problem, operator = self.problem, self.problem.operators[r]
        flushed = max(p.flush_ps_per_byte for p in problem.processors)
        hand_over_ns = max(p.hand_over_ns for p in problem.processors)
        before: dict[int, int] = {}
        for t in set(operator.inputs):
            if self.makers[t] >= 0:
                before[self.makers[t]] = before.get(self.makers[t], 0) + problem.tensors[t].size_bytes
        for p, runs in self.runs[r].items():
            processor, first = problem.processors[p], self.begins[r, p]
            lasts: Terms = [(self.ends[r, p], 1.0), (first, -1.0), (runs, -self.takes[r, p])]
            if before:
                above_uw = processor.active_uw - processor.idle_uw
                received = self.received[r, p] = self._load(p, above_uw * hand_over_ns, hand_over_ns)
                lasts.append((received, -hand_over_ns / self.unit_ns))
                self._row([(self.receives[p], 1.0), (received, -1.0)])
            self._row(lasts)
            self._row([(self.makespan, 1.0), (self.ends[r, p], -1.0)])
            for k, size in sorted(before.items()):
                crosses: Terms = [(runs, -1.0)]  # at least -1, and 0 where it reads a tensor of its own processor
                if p in self.runs[k]:
                    own = self.own[k, r, p] = self.mip.column()
                    crosses.append((own, 1.0))
                    self._row([(self.runs[k][p], 1.0), (own, -1.0)])
                    self._row([(runs, 1.0), (own, -1.0)])
                    self._row([(first, 1.0), (self.ends[k, p], -1.0), (own, -self.longest)], -self.longest)
                self._row([(received, 1.0), *crosses])
                ns = size * flushed // 1000
                if ns:
                    self._row([(self._load(p, above_uw * ns, ns), 1.0), *crosses])
                self._row([(c, 1.0) for q, c in self.runs[k].items() if q != p] + crosses)
                if 1 - p in self.runs[k]:
                    late = [(c, v * self.longest) for c, v in crosses]
                    self._row([(first, 1.0), (self.ends[k, 1 - p], -1.0), *late], -self.longest)

    def _sequences(self) -> None:
        """Work before and after a first execution, on a processor that receives nothing. It makes all ancestors."""
        operators = self.problem.operators
        before: list[set[int]] = []
        after: list[set[int]] = [{k} for k in range(len(operators))]
        for k, operator in enumerate(operators):
            makers = {self.makers[t] for t in operator.inputs if self.makers[t] >= 0}
            before.append(makers.union(*(before[j] for j in makers)))
            for j in before[k]:
                after[j].add(k)
        taker = self.takers
        for k, operator in enumerate(operators):
            later = after[k].union(*(after[taker[t]] for t in operator.inputs if t in taker))
            for p, runs in self.runs[k].items():
                off = (self.receives[p], self.longest)
                work = sum(self.takes.get((j, p), 0.0) for j in before[k])
                self._row([(self.begins[k, p], 1.0), (runs, -work), (self.receives[p], max(work, self.longest))])
                terms: Terms = [(self.makespan, 1.0), (self.begins[k, p], -1.0), off]
                for j in sorted(later):
                    counts = [c for c in (self.runs[j].get(p), self.again.get((j, p))) if c is not None]
                    terms += [(c, -self.takes[j, p]) for c in counts]
                self._row(terms)

    def _overwritten(self) -> None:
        """An operator that takes over state begins after all readers of it have ended."""
        for t, k in self.takers.items():
            for r, operator in enumerate(self.problem.operators):
                for q, reads in self.runs[r].items() if r != k and t in operator.inputs else ():
                    for p, takes in self.runs[k].items():
                        off = [(reads, -self.longest), (takes, -self.longest)]
                        self._row([(self.begins[k, p], 1.0), (self.ends[r, q], -1.0), *off], -2 * self.longest)

    def _one_copy(self, k: int) -> None:
        """Of the first executions of `k` on both processors one comes first, with its readers; or it is repeated."""
        operators, longest = self.problem.operators, self.longest
        outputs, order = set(operators[k].outputs), self.mip.column()
        self.orders[k] = order
        readers, taker = [r for r, o in enumerate(operators) if outputs & set(o.inputs)], self.takers
        for p in (0, 1):
            later = self.begins[k, 1 - p]
            # These two are 0 where the execution on `p` comes first, and `longest` or more below otherwise.
            is_first: Terms = [(order, -longest if p else longest), (self.runs[k][1 - p], -longest)]
            least = -longest * (2 if p else 1)
            terms = [(later, 1.0), (self.ends[k, p], -1.0), (self.runs[k][p], -longest), *is_first]
            self._row(terms, least - longest)
            for r in readers:
                if (k, r, p) not in self.own or outputs & set(operators[r].inputs) <= self._overwritable(r):
                    continue  # one that overwrites a tensor may be the last action of its processor
                repeats, own = self.mip.column(), self.own[k, r, p]
                self.repeats[k, r, p] = repeats
                off = [(own, -longest), (repeats, longest), *is_first]
                self._row([(later, 1.0), (self.ends[r, p], -1.0), *off], least - longest)
                self._row([(self.again[k, p], 1.0), (repeats, -1.0)])
                # Then it comes after the repeated execution, which reads state before that is overwritten.
                wait = longest + self.takes[k, p]
                self._row([(self.begins[r, p], 1.0), (self.ends[k, 1 - p], -1.0), (repeats, -wait)], -longest)
                for u in sorted({taker[t] for t in operators[k].inputs if t in taker}):
                    for q, takes in self.runs[u].items():
                        begins, off = self.begins[u, q], [(repeats, -wait), (takes, -longest)]
                        self._row([(begins, 1.0), (self.ends[k, 1 - p], -1.0), *off], -2 * longest)

    def _overwritable(self, r: int) -> set[int]:
        return {p.input for p in self.problem.operators[r].in_place}

    def plan(self, answer: Answer) -> Iterator[Execution]:
        """Executions by their begins. An operator is repeated where its tensors are those of the other processor."""
        if answer.values is None:
            return
        holder: dict[int, int] = {}
        plan: list[Execution] = []

        def execute(k: int, p: int) -> None:
            if len(plan) > MOST_REPEATS * len(self.runs):
                return
            for j in self._makers_of(k):
                is_own = (j, k, p) in self.own and chosen[self.own[j, k, p]]
                if is_own and holder.get(j) != p and self.problem.operators[j].recomputable:
                    execute(j, p)
            holder[k] = p
            plan.append((k, p))

        chosen = (answer.values > 0.5).tolist()
        for k, p in self._listed(chosen):
            execute(k, p)
        if len(plan) <= MOST_REPEATS * len(self.runs) and self._is_in_time(plan):
            yield from plan

    def _is_in_time(self, plan: list[Execution]) -> bool:
        """Whether no execution reads state that another one has overwritten before."""
        gone: set[int] = set()
        for k, _ in plan:
            if gone & set(self.problem.operators[k].inputs):
                return False
            gone |= {t for t in self.problem.operators[k].inputs if self.takers.get(t) == k}
        return True

    def _makers_of(self, k: int) -> list[int]:
        return sorted({self.makers[t] for t in self.problem.operators[k].inputs if self.makers[t] >= 0})

    def _listed(self, chosen: list[bool]) -> list[Execution]:
        """First executions, one at a time on each processor: of those that are ready, the one with the longest tail."""
        hand_over = max(p.hand_over_ns for p in self.problem.processors) / self.unit_ns
        takes = {(k, p): self.takes[k, p] for k, runs in enumerate(self.runs) for p, c in runs.items() if chosen[c]}
        for e in takes:
            if e in self.received and chosen[self.received[e]]:
                takes[e] += hand_over
        after: dict[Execution, set[Execution]] = {e: set() for e in takes}
        for first, later in self._edges(chosen):
            if first in takes and later in takes and first != later:
                after[first].add(later)
        waits = dict.fromkeys(takes, 0)
        for later in itertools.chain(*after.values()):
            waits[later] += 1
        order = [e for e, count in waits.items() if not count]
        for e in order:
            for later in sorted(after[e]):
                waits[later] -= 1
                if not waits[later]:
                    order.append(later)
        if len(order) < len(takes):
            return []
        tail: dict[Execution, float] = {}
        for e in reversed(order):
            tail[e] = takes[e] + max((tail[later] for later in after[e]), default=0.0)
        before: dict[Execution, list[Execution]] = {e: [] for e in takes}
        for e, own in after.items():
            for later in own:
                before[later].append(e)
        free, ends, result = [0.0, 0.0], dict[Execution, float](), list[Execution]()
        while len(result) < len(takes):
            ready = [e for e in order if e not in ends and all(b in ends for b in before[e])]
            begin, _, e = min((max([free[e[1]], *(ends[b] for b in before[e])]), -tail[e], e) for e in ready)
            free[e[1]] = ends[e] = begin + takes[e]
            result.append(e)
        return result

    def _edges(self, chosen: list[bool]) -> Iterator[tuple[Execution, Execution]]:
        """Pairs of first executions that come in this order, as far as both are chosen."""
        operators = self.problem.operators
        for k, runs in enumerate(self.runs):
            for p in runs:
                for j in self._makers_of(k):
                    is_own = (j, k, p) in self.own and chosen[self.own[j, k, p]]
                    yield (j, p if is_own else 1 - p), (k, p)
        for t, k in self.takers.items():
            for r, operator in enumerate(operators):
                if t in operator.inputs and r != k:
                    yield from (((r, q), (k, p)) for q in (0, 1) for p in (0, 1))
        for k, column in self.orders.items():
            p = int(chosen[column])
            if all(chosen[c] for c in self.runs[k].values()):
                yield (k, p), (k, 1 - p)
                for (j, r, q), own in self.own.items():
                    if (j, q) == (k, p) and chosen[own]:
                        is_repeated = (k, r, p) in self.repeats and chosen[self.repeats[k, r, p]]
                        yield ((k, 1 - p), (r, p)) if is_repeated else ((r, p), (k, 1 - p))
                        taken = [self.takers[t] for t in operators[k].inputs if is_repeated and t in self.takers]
                        yield from (((r, p), (u, q)) for u in taken for q in (0, 1))
