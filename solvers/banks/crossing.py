"""A bound on the cost of banks: tensors that wait for a later reader compete with those that are read now.

When an operator is executed for the first time, its ancestors have been executed and its descendants have not. A tensor
that is there, and is read by a descendant later, is in a cheap bank, or in a dear one, or nowhere. If it is in no cheap
bank, its reader finds it in a dear one, or it is copied, paged in or made again before. A tensor that is read in a dear
bank was made there, made again, or brought there. Each of these has its price. The cheap banks hold all their tensors
at this instant. An LP chooses fractions of all this at the least cost.

It holds for all orders, any recomputation and any paging. It knows two classes of banks,
cheap and dear. Each way to divide the banks by price gives a bound, and the greatest counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from poetc.scheduling import BankSpec, Objective, OperatorSpec, Paging, Problem
from poetc.solvers.banks.placing import objective_of
from poetc.solvers.highs import COST_SCALE, TOLERANCE, Mip

MOST_ENTRIES = 400_000  # of an LP that is solved
UNIT = 1024  # bytes, in its rows


def placement_bound(problem: Problem, *, time_limit_s: float) -> int:
    """The least cost of a schedule in any banks, in the unit of the objective.

    0 where nothing is found in time, or nothing is known: for times where transfers overlap compute.
    """
    overlaps = problem.paging is Paging.DMA and problem.objective is Objective.TIME
    if not problem.banks or overlaps:
        return 0
    order = sorted(range(len(problem.banks)), key=lambda b: (_price(problem, problem.banks[b]), b))
    bound = 0
    for count in range(1, len(order)):
        below, above = (_price(problem, problem.banks[order[count - 1 + k]]) for k in (0, 1))
        if below < above:
            bound = max(bound, _Classes(problem, order[:count], order[count:]).bound(time_limit_s))
    return bound


def _read(problem: Problem, bank: BankSpec) -> float:
    return objective_of(problem, bank.read_ps_per_byte, bank.read_fj_per_byte)


def _write(problem: Problem, bank: BankSpec) -> float:
    return objective_of(problem, bank.write_ps_per_byte, bank.write_fj_per_byte)


def _price(problem: Problem, bank: BankSpec) -> float:
    return _read(problem, bank) + _write(problem, bank)


@dataclass(slots=True)
class _Classes:
    """Banks in two classes. A variable says how much of an access is in the dear class."""

    problem: Problem
    cheap: list[int]
    dear: list[int]

    def bound(self, time_limit_s: float) -> int:
        problem = self.problem
        once = problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)
        scale = COST_SCALE / max(1, once)
        mip = Mip(offset=once * scale)
        accesses = self._accesses(mip, scale)
        remade: dict[int, int] = {}  # by operator: it is executed again
        arrives: dict[int, int] = {}  # by tensor: it is copied, or paged in, to a cheap bank
        leaves: dict[int, int] = {}  # the same to a dear one
        absent: dict[tuple[int, tuple[int, ...]], int] = {}  # by tensor and readers to come: in no cheap bank
        made_by = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
        room = sum(max(0, problem.banks[b].budget_bytes - (problem.base_bytes if b == 0 else 0)) for b in self.cheap)

        def way(columns: dict[int, int], key: int, cost: float | None) -> int | None:
            if cost is None:
                return None
            if key not in columns:
                columns[key] = mip.column(cost * scale, integer=False)
            return columns[key]

        for (k, t), column in accesses.items():
            maker = made_by.get(t)
            if maker is None or maker == k:
                continue
            # A reader finds it in a dear bank: it was made there, or came there.
            ways = [
                accesses[maker, t],
                way(leaves, t, self._arrival(t, self.cheap, self.dear)),
                way(remade, maker, self._again(problem.operators[maker])),
            ]
            index = [column, *(c for c in ways if c is not None)]
            mip.row(index, [1.0] + [-1.0] * (len(index) - 1), upper=0.0)
        for k, waiting in _instants(problem):
            own = _touched(problem.operators[k])
            sizes = [(accesses[k, t], problem.tensors[t].size_bytes) for t in sorted(own)]
            total = sum(size for _, size in sizes)
            for t, readers in waiting:
                if t in own:
                    continue
                if (t, readers) not in absent:
                    absent[t, readers] = column = mip.column(0.0, integer=False)
                    maker = made_by.get(t)
                    again = None if maker is None else self._again(problem.operators[maker])
                    ways = [
                        way(arrives, t, self._arrival(t, self.dear, self.cheap)),
                        None if maker is None else way(remade, maker, again),
                    ]
                    others = [c for c in ways if c is not None]
                    for reader in readers:
                        index = [column, accesses[reader, t], *others]
                        mip.row(index, [1.0] + [-1.0] * (len(index) - 1), upper=0.0)
                sizes.append((absent[t, readers], problem.tensors[t].size_bytes))
                total += problem.tensors[t].size_bytes
            if total > room:  # the bytes that are elsewhere
                mip.row([c for c, _ in sizes], [size / UNIT for _, size in sizes], lower=(total - room) / UNIT)
            if mip.entries > MOST_ENTRIES:
                return 0
        answer = mip.solve(time_limit_s=max(0.1, time_limit_s), relax=True)
        return max(0, math.ceil((answer.bound - TOLERANCE) / scale)) if answer.optimal else 0

    def _accesses(self, mip: Mip, scale: float) -> dict[tuple[int, int], int]:
        """By operator and tensor, the column of its access in the first execution; the cheap price is in the offset."""
        columns: dict[tuple[int, int], int] = {}
        for k, operator in enumerate(self.problem.operators):
            for price, tensors in ((_read, set(operator.inputs)), (_write, set(operator.outputs))):
                cheap, dear = self._least(price, self.cheap), self._least(price, self.dear)
                for t in sorted(tensors):
                    size = self.problem.tensors[t].size_bytes
                    mip.offset += cheap * size * scale
                    columns[k, t] = mip.column((dear - cheap) * size * scale, integer=False)
        return columns

    def _least(self, price: Callable[[Problem, BankSpec], float], banks: list[int]) -> float:
        return min(price(self.problem, self.problem.banks[b]) for b in banks)

    def _arrival(self, t: int, source: list[int], target: list[int]) -> float | None:
        """The least that it costs to bring a tensor from one class to the other; None where that cannot be."""
        problem, tensor, costs = self.problem, self.problem.tensors[t], list[float]()
        cost = problem.objective.cost
        if tensor.move_ns is not None:
            between = self._least(_read, source) + self._least(_write, target)
            costs.append(between * tensor.size_bytes + cost(tensor.move_pj, tensor.move_ns))
        if problem.paging is not Paging.NONE and tensor.pageable:
            costs.append(cost(tensor.page_out_pj + tensor.page_in_pj, tensor.page_out_ns + tensor.page_in_ns))
        return min(costs) if costs else None

    def _again(self, operator: OperatorSpec) -> float | None:
        if not operator.recomputable:
            return None
        return float(self.problem.objective.cost(operator.energy_pj, operator.time_ns))


def _touched(operator: OperatorSpec) -> set[int]:
    """Operands with bytes of their own: an output that may be made in place has those of an input."""
    return {*operator.inputs, *operator.outputs} - {p.output for p in operator.in_place}


def _instants(problem: Problem) -> Iterator[tuple[int, list[tuple[int, tuple[int, ...]]]]]:
    """By operator, at its first execution: tensors that were there before it, with readers that come after it."""
    operators = problem.operators
    made_by = {t: k for k, o in enumerate(operators) for t in o.outputs}
    before = [0] * len(operators)  # ancestors, as bits
    for k in _in_order(problem, made_by):
        for t in operators[k].inputs:
            if t in made_by:
                before[k] |= before[made_by[t]] | 1 << made_by[t]
    readers: dict[int, list[int]] = {}
    for k, o in enumerate(operators):
        for t in sorted(set(o.inputs)):
            readers.setdefault(t, []).append(k)
    for k in range(len(operators)):
        waiting = []
        for t, all_readers in sorted(readers.items()):
            # State may be on the store instead, where there is one: the planner chooses.
            is_initial = problem.tensors[t].initial == "ram" and problem.paging is Paging.NONE
            there = is_initial if t not in made_by else before[k] >> made_by[t] & 1
            later = tuple(j for j in all_readers if before[j] >> k & 1)
            if there and later:
                waiting.append((t, later))
        yield k, waiting


def _in_order(problem: Problem, made_by: dict[int, int]) -> list[int]:
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
                stack += [(made_by[t], False) for t in problem.operators[k].inputs if t in made_by]
    return done
