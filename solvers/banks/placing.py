"""The banks of a schedule's tensors, at the least cost that the budgets of the banks allow.

A tensor has a stay in RAM from the action that makes it or reads it back to its last one. It lies in one bank at each
access. Where nothing reads it for a while it may be copied to another bank, and back. State has one bank for all its
versions, and a workspace for all executions of its operator. An output may be in place of another input than in the
schedule, which leaves the other tensors where they are. A MIP chooses all this, subject to the bytes of each bank at
each action. Where it finds nothing in time, a greedy rule does: tensors that save the most for their bytes come first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from poetc.scheduling import (
    Action,
    Compute,
    Free,
    Move,
    OperatorSpec,
    PageIn,
    PageOut,
    Problem,
    Schedule,
    Variant,
    state_chains,
    verify_parts,
)
from poetc.solvers.highs import COST_SCALE, Mip

MAX_NODES, GAP = 200, 1e-4
UNIT = 1024  # bytes, in rows of the MIP
MOST_ENTRIES = 2_000_000  # of a MIP that is tried
# Work in seconds of a usual machine. A round of HiGHS at the root and building a MIP count times the coefficients. An
# iteration counts times their square root.
ROUND_S, BUILD_S, ITERATION_S = 3e-6, 5e-6, 2.5e-6
LEAST_MOVED = 0.001  # of the smallest bank: smaller tensors are not copied to another one
LEAST_ABSENCE = 2  # actions from one access to the next, of a tensor that is copied to another bank meanwhile

Columns = list[int]  # one a bank: 1 in the one that is chosen
Kernels = Sequence[OperatorSpec | Variant]
Pair = tuple[int, int]  # an input, and the output in place of it


@dataclass(frozen=True, slots=True)
class Placed:
    """The bank of each tensor and workspace of a schedule, and its `actions` with copies between banks.

    `work_s`: the work on the MIP, in seconds of a usual machine.
    """

    banks: tuple[int, ...]
    workspace_banks: tuple[int, ...]
    kernels: tuple[int, ...]  # the number of each operator's
    actions: tuple[Action, ...]
    work_s: float


@dataclass(slots=True)
class _Stay:
    """A tensor in RAM. Steps are actions without frees."""

    tensor: int
    size_bytes: int
    start: int
    end: int = -1  # the last step at which it is there
    is_taken: bool = False  # another tensor has its bytes after that
    accesses: list[int] = field(default_factory=list)  # steps


def unplaceable(problem: Problem) -> tuple[str, int] | None:
    """A tensor or a workspace that no bank has room for, by name, and its bytes."""
    rooms = [b.budget_bytes - (problem.base_bytes if k == 0 else 0) for k, b in enumerate(problem.banks)]
    sizes = [(t.name, t.size_bytes) for t in problem.tensors if t.initial == "ram"]
    sizes += [(problem.tensors[t].name, problem.tensors[t].size_bytes) for o in problem.operators for t in o.outputs]
    for o in problem.operators:
        least = min((o.workspace_bytes, *(v.workspace_bytes for v in o.low_workspace)))
        sizes.append((f"the workspace of {o.name}", least))
    name, size_bytes = max(sizes, key=lambda pair: pair[1])
    return (name, size_bytes) if size_bytes > max(rooms) else None


def objective_of(problem: Problem, time_ps: int, energy_fj: int) -> float:
    """The objective of reads and writes, in the problem's unit."""
    return problem.objective.cost(1000, 0) * energy_fj / 1e6 + problem.objective.cost(0, 1000) * time_ps / 1e6


def rounds_within(work_s: float, entries: int) -> int:
    """The rounds of a MIP with so many coefficients that are worth so much work, in seconds of a usual machine."""
    return int(work_s / (ROUND_S * max(1, entries)))


def place_in_banks(
    problem: Problem,
    schedule: Schedule,
    budgets: Sequence[int],
    *,
    time_limit_s: float,
    work_s: float | None = None,
    copies: bool = True,
    kernels: Sequence[Kernels] = (),
) -> Placed | None:
    """Banks for `schedule`, a schedule of `problem` without its banks, that has no moves. None if nothing is found.

    `budgets`: of the banks, base and page buffer left out, in bytes. The deadline of the problem counts where transfers
    do not overlap compute. `work_s`: for the MIP, in seconds of a usual machine; the time limit unless given. The clock
    ends it only on a machine that is much slower. `kernels`: of each operator, with the one of the problem among them;
    none: that one alone.
    """
    slack_ps = None
    if problem.deadline_ns is not None:
        # The time alone is asked for: the schedule may need more RAM than all banks have.
        roomy = replace(problem, banks=(), budget_bytes=2**50)
        alone = verify_parts([(roomy, schedule.actions)])
        slack_ps = 1000 * (problem.deadline_ns - alone.time_ns - len(schedule.actions))  # an action rounds up
    placement = _Placement(problem, schedule, budgets, kernels, copies=copies, slack_ps=slack_ps)
    return placement.solve(time_limit_s, time_limit_s if work_s is None else work_s)


class _Placement:
    def __init__(
        self,
        problem: Problem,
        schedule: Schedule,
        budgets: Sequence[int],
        kernels: Sequence[Kernels],
        *,
        copies: bool,
        slack_ps: int | None,
    ) -> None:
        self.problem, self.budgets, self.copies, self.slack_ps = problem, budgets, copies, slack_ps
        self.kernels = list(kernels) or [(o,) for o in problem.operators]
        self.state = {t: chain[0] for chain in state_chains(problem) for t in chain}
        self.steps = [s for s in schedule.actions if not isinstance(s, Free)]
        self.stays = list[_Stay]()
        self.reads: list[dict[int, int]] = [{} for _ in self.steps]  # by step and tensor, its stay
        self.writes: list[dict[int, int]] = [{} for _ in self.steps]
        self.frees: list[list[int]] = [[] for _ in range(len(self.steps) + 1)]  # stays, by the next step
        self._read(schedule.actions)
        self.freed = {s for stays in self.frees for s in stays}
        self.banks = range(len(problem.banks))
        self.full = self._full_steps()
        self.mip, self.times = Mip(), dict[int, float]()
        self.held: dict[tuple[int, int], dict[int, float]] = {}  # by bank and step, bytes by column
        self.first: dict[int, Columns] = {}  # by tensor, or by the first version of state: where it arrives
        self.workspaces: dict[int, list[Columns]] = {}  # by operator, one a kernel
        self.places: list[list[Columns]] = []  # by stay and access
        self.absent: list[tuple[int, Columns]] = []  # stays with columns between two accesses
        self.copied: list[tuple[int, int, bool, int, int]] = []  # column, next step, whether it returns, tensor, bank
        self.shared: dict[tuple[int, Pair], Columns] = {}  # by step: the bank where an output is in place

    def _read(self, actions: Iterable[Action]) -> None:
        """The stays of a schedule."""
        tensors, at, step = self.problem.tensors, dict[int, int](), 0

        def enter(t: int, size_bytes: int) -> None:
            at[t] = len(self.stays)
            self.stays.append(_Stay(t, size_bytes, step))

        def write(t: int, size_bytes: int) -> None:
            enter(t, size_bytes)
            self.writes[step][t] = at[t]
            self.stays[at[t]].accesses.append(step)

        def read(t: int) -> None:
            self.reads[step][t] = at[t]
            self.stays[at[t]].accesses.append(step)

        for t, tensor in enumerate(tensors):
            if tensor.initial == "ram":
                enter(t, tensor.size_bytes)
        for action in actions:
            match action:
                case Free(t):
                    self.frees[step].append(at[t])
                    self.stays[at[t]].end = max(step - 1, self.stays[at[t]].start)
                    del at[t]
                    continue
                case Compute(k, in_place):
                    for t in sorted(set(self.problem.operators[k].inputs)):
                        read(t)
                    sizes = {}
                    for i, o in in_place:
                        taken = self.stays[at.pop(i)]
                        taken.end, taken.is_taken, sizes[o] = step, True, taken.size_bytes
                    for t in self.problem.operators[k].outputs:
                        write(t, sizes.get(t, tensors[t].size_bytes))
                case PageOut(t):
                    read(t)
                case PageIn(t):
                    write(t, tensors[t].size_bytes)
                case _:
                    pass
            step += 1
        for s in at.values():
            self.stays[s].end = len(self.steps) - 1

    def _full_steps(self) -> list[set[int]]:
        """By bank, the steps at which its budget is less than all that is in RAM."""
        held = np.zeros(len(self.steps), np.int64)
        for stay in self.stays:
            held[stay.start : stay.end + 1] += stay.size_bytes
            held[max(0, stay.start - 1)] += stay.size_bytes  # a copy
        for step, action in enumerate(self.steps):
            if isinstance(action, Compute):
                held[step] += max(v.workspace_bytes for v in self.kernels[action.operator])
        return [set(np.flatnonzero(2 * held > budget).tolist()) for budget in self.budgets]

    def solve(self, time_limit_s: float, work_s: float) -> Placed | None:
        for s in range(len(self.stays)):
            self.places.append(self._places(s))
        for step, action in enumerate(self.steps):
            if isinstance(action, Compute):
                self._workspace(step, action.operator)
                self._in_place(step, action)
        mip = self.mip
        scale = COST_SCALE / max(1.0, sum(map(abs, mip.cost)))
        mip.cost = [c * scale for c in mip.cost]
        for (bank, _), held in self.held.items():
            mip.row(list(held), [v / UNIT for v in held.values()], upper=self.budgets[bank] / UNIT)
        if self.slack_ps is not None:
            mip.row(list(self.times), [v / 1e6 for v in self.times.values()], upper=self.slack_ps / 1e6)
        values = self._greedy()
        if mip.entries <= MOST_ENTRIES:
            answer = mip.solve(
                time_limit_s=max(0.1, time_limit_s),
                max_nodes=MAX_NODES,
                max_rounds=rounds_within(work_s, mip.entries),
                gap=GAP,
                start=values,
            )
            if answer.values is not None:
                values = dict(enumerate(answer.values.tolist()))
        return None if values is None else self._placed(values)

    def _choice(self) -> Columns:
        columns = [self.mip.column() for _ in self.banks]
        self.mip.row(columns, [1.0] * len(columns), 1.0, 1.0)
        return columns

    def _add_price(self, column: int, time_ps: int, energy_fj: int) -> None:
        self.mip.cost[column] += objective_of(self.problem, time_ps, energy_fj)
        self.times[column] = self.times.get(column, 0.0) + time_ps

    def _add_access(self, columns: Columns, read: int, written: int) -> None:
        for column, bank in zip(columns, self.problem.banks, strict=True):
            time_ps = bank.read_ps_per_byte * read + bank.write_ps_per_byte * written
            self._add_price(column, time_ps, bank.read_fj_per_byte * read + bank.write_fj_per_byte * written)

    def _hold(self, columns: Columns, size_bytes: int, first: int, end: int) -> None:
        """The bytes from step `first` to step `end`, with it."""
        for b, column in enumerate(columns):
            for step in range(first, end + 1):
                if step in self.full[b]:
                    held = self.held.setdefault((b, step), {})
                    held[column] = held.get(column, 0.0) + size_bytes

    def _places(self, s: int) -> list[Columns]:
        """A choice of a bank for each access of a stay, and for long times between them."""
        stay = self.stays[s]
        tensor = self.problem.tensors[stay.tensor]
        key = self.state.get(stay.tensor, stay.tensor)
        if key not in self.first:
            self.first[key] = self._choice()
        is_fixed = stay.tensor in self.state or tensor.initial == "ram" or tensor.move_ns is None
        is_large = tensor.size_bytes >= LEAST_MOVED * min(self.budgets)
        may_move = self.copies and is_large and not is_fixed and tensor.size_bytes == stay.size_bytes
        now, last, places = self.first[key], stay.start - 1, list[Columns]()
        for step in stay.accesses:
            if places and may_move and step - last > LEAST_ABSENCE:
                absent, then = self._choice(), self._choice()
                self.absent.append((s, absent))
                self._hold(absent, stay.size_bytes, last + 1, step - 1)
                self._copies(stay.tensor, now, absent, last, returns=False)
                self._copies(stay.tensor, absent, then, step - 1, returns=True)
                now = then
            else:
                self._hold(now, stay.size_bytes, last + 1, step - 1)
            self._hold(now, stay.size_bytes, step, step)
            written = self.writes[step].get(stay.tensor) == s
            self._add_access(now, 0 if written else tensor.size_bytes, tensor.size_bytes if written else 0)
            places.append(now)
            last = step
        self._hold(now, stay.size_bytes, last + 1, stay.end)
        return places

    def _copies(self, t: int, source: Columns, target: Columns, step: int, *, returns: bool) -> None:
        """From one bank to another behind a step. Both places are taken then.

        One that `returns` comes last, behind the frees there. So both count with the next step, its target by itself.
        """
        tensor, ways = self.problem.tensors[t], dict[Pair, int]()
        for a, b in itertools.product(self.banks, self.banks):
            ways[a, b] = column = self.mip.column(integer=False)
            if a != b:
                old, new, size = self.problem.banks[a], self.problem.banks[b], tensor.size_bytes
                time_ps = (old.read_ps_per_byte + new.write_ps_per_byte) * size + 1000 * (tensor.move_ns or 0)
                energy_fj = (old.read_fj_per_byte + new.write_fj_per_byte) * size + 1000 * tensor.move_pj
                self._add_price(column, time_ps, energy_fj)
                self.copied.append((column, step + 1, returns, t, b))
                bank, beside = (a, step + 1) if returns else (b, step)
                if beside in self.full[bank]:
                    self.held.setdefault((bank, beside), {})[column] = size
        for bank in self.banks:
            leaving, arriving = [ways[bank, b] for b in self.banks], [ways[a, bank] for a in self.banks]
            for columns, end in ((leaving, source), (arriving, target)):
                self.mip.row([*columns, end[bank]], [*[1.0] * len(columns), -1.0], 0.0, 0.0)

    def _workspace(self, step: int, k: int) -> None:
        """One of the kernels of operator `k`, with its workspace in a bank."""
        operator, kernels = self.problem.operators[k], self.kernels[k]
        if not any(v.workspace_bytes for v in kernels):
            return
        if k not in self.workspaces:
            self.workspaces[k] = [[self.mip.column() for _ in self.banks] for _ in kernels]
            columns = list(itertools.chain(*self.workspaces[k]))
            self.mip.row(columns, [1.0] * len(columns), 1.0, 1.0)
        for v, columns in zip(kernels, self.workspaces[k], strict=True):
            self._add_access(columns, v.workspace_bytes, v.workspace_bytes)
            for column in columns:
                more_ns, more_pj = v.time_ns - operator.time_ns, v.energy_pj - operator.energy_pj
                self._add_price(column, 1000 * more_ns, 1000 * more_pj)
            if v.workspace_bytes:
                self._hold(columns, v.workspace_bytes, step, step)

    def _in_place(self, step: int, action: Compute) -> None:
        """Outputs in place of inputs: they have one bank, and share their bytes."""
        tensors, users = self.problem.tensors, dict[int, list[int]]()
        fixed = [pair for pair in action.in_place if self._is_fixed(step, pair)]
        for i, o in fixed:
            source = self._place(self.reads[step][i], step)
            self._hold(source, -self.stays[self.reads[step][i]].size_bytes, step, step)
            target = self._place(self.writes[step][o], step)
            for a, b in zip(source, target, strict=True) if source is not target else ():
                self.mip.row([a, b], [1.0, -1.0], 0.0, 0.0)
        busy = {t for pair in fixed for t in pair}
        for pair in self.problem.operators[action.operator].in_place:
            i, o = pair.input, pair.output
            stay = self.stays[self.reads[step][i]]
            ends = stay.is_taken or self.reads[step][i] in self.freed
            if pair.required or {i, o} & busy or not ends or stay.accesses[-1] != step:
                continue
            if {i, o} & set(self.state) or stay.size_bytes != tensors[o].size_bytes:
                continue
            columns = self.shared[step, (i, o)] = [self.mip.column() for _ in self.banks]
            for t, stays in ((i, self.reads), (o, self.writes)):
                users.setdefault(t, []).extend(columns)
                for column, place in zip(columns, self._place(stays[step][t], step), strict=True):
                    self.mip.row([column, place], [1.0, -1.0], upper=0.0)
            self._hold(columns, -stay.size_bytes, step, step)
        for group in users.values():
            self.mip.row(group, [1.0] * len(group), upper=1.0)

    def _is_fixed(self, step: int, pair: Pair) -> bool:
        """Whether a pair of the schedule stays: it has to, or the output has more bytes than it needs."""
        i, o = pair
        resized = self.stays[self.reads[step][i]].size_bytes != self.problem.tensors[o].size_bytes
        return (
            resized
            or bool({i, o} & set(self.state))
            or any(
                p.required and (p.input, p.output) == pair
                for p in self.problem.operators[self.steps[step].operator].in_place  # type: ignore[union-attr]
            )
        )

    def _kernel(self, k: int) -> int:
        """The number of the kernel that the problem has."""
        own = self.problem.operators[k]
        numbers = (own.workspace_bytes, own.time_ns, own.energy_pj)
        kernels = self.kernels[k]
        return next(
            (n for n, v in enumerate(kernels) if (v.workspace_bytes, v.time_ns, v.energy_pj) == numbers),
            len(kernels) - 1,
        )

    def _place(self, s: int, step: int) -> Columns:
        return self.places[s][self.stays[s].accesses.index(step)]

    def _greedy(self) -> dict[int, float] | None:
        """One bank for all stays that share bytes or a column, first for those with the most to lose per byte and step.

        Or for large ones. None where that leaves no room.
        """
        leader = list(range(len(self.stays)))

        def find(s: int) -> int:
            while leader[s] != s:
                leader[s] = s = leader[leader[s]]
            return s

        by_key: dict[int, int] = {}
        for s, stay in enumerate(self.stays):
            leader[find(s)] = find(by_key.setdefault(self.state.get(stay.tensor, stay.tensor), s))
        pairs = [(step, p) for step, a in enumerate(self.steps) if isinstance(a, Compute) for p in a.in_place]
        for step, (i, o) in pairs:
            leader[find(self.reads[step][i])] = find(self.writes[step][o])
        held: dict[int, dict[int, int]] = {}  # by group and step
        columns: dict[int, list[Columns]] = {}
        for s, stay in enumerate(self.stays):
            own = held.setdefault(find(s), {})
            for step in range(stay.start, stay.end + 1):
                own[step] = own.get(step, 0) + stay.size_bytes
            columns.setdefault(find(s), []).extend(
                [self.first[self.state.get(stay.tensor, stay.tensor)], *self.places[s]]
            )
        for s, absent in self.absent:
            columns[find(s)].append(absent)
        for step, (i, o) in pairs:
            s = self.reads[step][i]
            held[find(s)][step] -= self.stays[s].size_bytes
            if (step, (i, o)) in self.shared:
                columns[find(s)].append(self.shared[step, (i, o)])
        for k, of_kernels in self.workspaces.items():
            group, size = len(self.stays) + k, self.problem.operators[k].workspace_bytes
            held[group] = {n: size for n, a in enumerate(self.steps) if isinstance(a, Compute) and a.operator == k}
            columns[group] = [of_kernels[self._kernel(k)]]
        cost = {
            g: [sum(self.mip.cost[c[b]] for c in {tuple(c) for c in cs}) for b in self.banks]
            for g, cs in columns.items()
        }

        def loss(g: int) -> float:
            return (max(cost[g]) - min(cost[g])) / max(1, sum(held[g].values()))

        for order in (
            sorted(held, key=lambda g: (-loss(g), g)),
            sorted(held, key=lambda g: (-max(held[g].values()), g)),
        ):
            chosen = self._in_order(order, held, cost)
            if chosen is not None:
                values = {c: 0.0 for of_bank in columns.values() for cs in of_bank for c in cs}
                others = itertools.chain(self.shared.values(), *self.workspaces.values())
                values |= {c: 0.0 for cs in others for c in cs}
                values |= {cs[chosen[g]]: 1.0 for g, of_group in columns.items() for cs in of_group}
                time_ps = sum(self.times.get(c, 0.0) for c, value in values.items() if value)
                if self.slack_ps is None or time_ps <= self.slack_ps:
                    return values
        return None

    def _in_order(
        self, order: Iterable[int], held: dict[int, dict[int, int]], cost: dict[int, list[float]]
    ) -> dict[int, int] | None:
        """By group, the cheapest bank with room for it."""
        usage = np.zeros((len(self.budgets), len(self.steps)), np.int64)
        chosen = {}
        for g in order:
            steps, sizes = np.array(list(held[g])), np.array(list(held[g].values()))
            for b in sorted(self.banks, key=lambda b, g=g: (cost[g][b], b)):  # type: ignore[misc]
                if not len(steps) or int((usage[b, steps] + sizes).max()) <= self.budgets[b]:
                    chosen[g] = b
                    if len(steps):
                        usage[b, steps] += sizes
                    break
            else:
                return None
        return chosen

    def _placed(self, values: dict[int, float]) -> Placed:
        def bank_of(columns: Columns) -> int:
            return max(self.banks, key=lambda b: (values[columns[b]], -b))

        keys = [self.state.get(t, t) for t in range(len(self.problem.tensors))]
        banks = tuple(bank_of(self.first[key]) if key in self.first else 0 for key in keys)
        kernels, workspace_banks = [self._kernel(k) for k in range(len(self.kernels))], [0] * len(self.kernels)
        for k, of_kernels in self.workspaces.items():
            kernels[k] = max(range(len(of_kernels)), key=lambda n, own=of_kernels: (max(values[c] for c in own[n]), -n))  # type: ignore[misc]
            workspace_banks[k] = bank_of(of_kernels[kernels[k]])
        copies: dict[int, list[Action]] = {}
        for column, step, _, t, bank in sorted(self.copied, key=lambda c: c[2]):
            if values.get(column, 0.0) > 0.5:
                copies.setdefault(step, []).append(Move(t, bank))
        actions, taken = list[Action](), set[int]()
        for step, action in enumerate(self.steps):
            late = [s for s in self.frees[step] if s not in taken]
            actions += [*(Free(self.stays[s].tensor) for s in late), *copies.get(step, ())]
            if not isinstance(action, Compute):
                actions.append(action)
                continue
            pairs = [pair for pair in action.in_place if self._is_fixed(step, pair)]
            wanted = [
                p for (n, p), columns in self.shared.items() if n == step and max(values[c] for c in columns) > 0.5
            ]
            same = [p for p in action.in_place if (step, p) in self.shared and self._are_together(step, p, bank_of)]
            for i, o in (*wanted, *same):
                if not any(i == a or o == b for a, b in pairs):
                    pairs.append((i, o))
            actions.append(replace(action, in_place=tuple(pairs)))
            now = {self.reads[step][i] for i, _ in pairs}
            taken |= now
            left = (self.reads[step][i] for i, _ in action.in_place)
            actions += [Free(self.stays[s].tensor) for s in left if s not in now]
        actions += [Free(self.stays[s].tensor) for s in self.frees[-1] if s not in taken]
        entries = self.mip.entries
        work_s = BUILD_S * entries + ITERATION_S * self.mip.iterations * math.sqrt(entries)
        return Placed(banks, tuple(workspace_banks), tuple(kernels), tuple(actions), work_s)

    def _are_together(self, step: int, pair: Pair, bank_of: Callable[[Columns], int]) -> bool:
        i, o = pair
        return bank_of(self._place(self.reads[step][i], step)) == bank_of(self._place(self.writes[step][o], step))
