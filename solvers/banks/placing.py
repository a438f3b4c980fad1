"""The banks of a schedule's tensors, at the least cost that the budgets of the banks allow.

Tensors that share bytes, because one is made in place of the other or is the same state later, are one group. A group
has one of several options: a bank for all its life, or a bank that it leaves while nothing reads it. A MIP chooses an
option for each group, subject to the bytes of each bank at each action. Where it finds nothing in time, a greedy rule
does: groups that save the most for their bytes come first.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from poetc.scheduling import (
    Action,
    Compute,
    Lifetime,
    Move,
    PageIn,
    PageOut,
    Problem,
    Schedule,
    lifetimes_of,
    state_chains,
    verify_parts,
)
from poetc.solvers.highs import COST_SCALE, Mip

MAX_NODES, GAP = 200, 1e-4
UNIT = 1024  # bytes, in rows of the MIP
MOST_ENTRIES = 2_000_000  # of a MIP that is tried
LEAST_ABSENCE = 2  # actions without an access, of a tensor that is copied to another bank meanwhile


@dataclass(frozen=True, slots=True)
class Placed:
    """The bank of each tensor and workspace of a schedule, and its `actions` with copies between banks.

    `bound`: no assignment of banks to groups of tensors costs less, with the copies that were considered.
    """

    banks: tuple[int, ...]
    workspace_banks: tuple[int, ...]
    actions: tuple[Action, ...]
    bound: float


@dataclass(slots=True)
class _Access:
    """Bytes that an action reads of a group, and writes to it."""

    action: int
    read: int
    written: int


@dataclass(slots=True)
class _Group:
    size_bytes: int = 0
    tensors: set[int] = field(default_factory=set)
    operator: int | None = None  # whose workspace it is
    lives: list[Lifetime] = field(default_factory=list)
    accesses: list[_Access] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Option:
    """Stretches of actions with a bank each; `copies`: (action before which it is copied, tensor, bank)."""

    cost: float
    time_ps: int
    stays: tuple[tuple[int, int, int], ...]  # (first action, end, bank)
    bank: int  # in which the group arrives
    copies: tuple[tuple[int, int, int], ...] = ()


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


def place_in_banks(
    problem: Problem, schedule: Schedule, budgets: Sequence[int], *, time_limit_s: float, copies: bool = True
) -> Placed | None:
    """Banks for `schedule`, a schedule of `problem` without its banks, that has no moves. None if nothing is found.

    `budgets`: of the banks, base and page buffer left out, in bytes. The deadline of the problem counts where transfers
    do not overlap compute.
    """
    groups = _groups(problem, schedule)
    options = [_options(problem, g, copies) for g in groups]
    slack_ps = None
    if problem.deadline_ns is not None:
        alone = verify_parts([(replace(problem, banks=()), schedule.actions)])
        slack_ps = 1000 * (problem.deadline_ns - alone.time_ns - len(schedule.actions))  # an action rounds up
        if slack_ps < 0:
            return None
    chosen, bound = _Task(groups, options, budgets, len(schedule.actions), slack_ps).solve(time_limit_s)
    if chosen is None:
        return None
    return _placed(problem, schedule, groups, [options[g][n] for g, n in enumerate(chosen)], bound)


def _groups(problem: Problem, schedule: Schedule) -> list[_Group]:
    lives = lifetimes_of(replace(problem, banks=()), schedule)
    leader = list(range(len(problem.tensors)))

    def find(t: int) -> int:
        while leader[t] != t:
            leader[t] = t = leader[leader[t]]
        return t

    for life in lives:
        for t, _ in life.tensors[1:]:
            leader[find(t)] = find(life.tensors[0][0])
    for chain in state_chains(problem):
        for t in chain[1:]:
            leader[find(t)] = find(chain[0])
    by_tensor: dict[int, _Group] = {}
    by_operator: dict[int, _Group] = {}
    for t in range(len(problem.tensors)):
        by_tensor.setdefault(find(t), _Group()).tensors.add(t)
    for life in lives:
        group = (
            by_operator.setdefault(life.operator, _Group(operator=life.operator))
            if life.operator is not None
            else (by_tensor[find(life.tensors[0][0])])
        )
        group.lives.append(life)
        group.size_bytes = max(group.size_bytes, life.size_bytes)

    def access(t: int, action: int, read: int, written: int) -> None:
        by_tensor[find(t)].accesses.append(_Access(action, read, written))

    sizes = [t.size_bytes for t in problem.tensors]
    for index, action in enumerate(schedule.actions):
        match action:
            case Compute(k):
                operator = problem.operators[k]
                for t in sorted(set(operator.inputs)):
                    access(t, index, sizes[t], 0)
                for t in operator.outputs:
                    access(t, index, 0, sizes[t])
                if operator.workspace_bytes:
                    size = operator.workspace_bytes
                    by_operator[k].accesses.append(_Access(index, size, size))
            case PageOut(t):
                access(t, index, sizes[t], 0)
            case PageIn(t):
                access(t, index, 0, sizes[t])
            case _:
                pass
    return [g for g in (*by_tensor.values(), *by_operator.values()) if g.lives]


def _options(problem: Problem, group: _Group, copies: bool) -> list[_Option]:
    options = [
        _option(problem, group, ((life.start, life.end, b) for life in group.lives), b)
        for b in range(len(problem.banks))
    ]
    if not copies or group.operator is not None or len(group.lives) > 1:
        return options
    (life,) = group.lives
    actions = sorted({a.action for a in group.accesses})
    if len(actions) < 2:
        return options
    before, after = max(itertools.pairwise(actions), key=lambda pair: pair[1] - pair[0])
    tensor = max((s, t) for t, s in life.tensors if s <= before)[1]
    spec = problem.tensors[tensor]
    fixed = any(problem.tensors[t].initial == "ram" for t in group.tensors)
    if after - before <= LEAST_ABSENCE or spec.move_ns is None or fixed or spec.size_bytes != group.size_bytes:
        return options
    for a in range(len(problem.banks)):
        for b in range(len(problem.banks)):
            if a == b:
                continue
            # During a copy both places are taken: in the actions before it is read again, and after it was read.
            away = ((life.start, before + 1, a), (before + 1, life.end, b))
            options.append(_option(problem, group, away, a, ((before + 1, tensor, b),)))
            back = ((life.start, before + 1, a), (before + 1, after, b), (after, life.end, a))
            options.append(_option(problem, group, back, a, ((before + 1, tensor, b), (after, tensor, a))))
    return options


def _option(
    problem: Problem,
    group: _Group,
    stays: Iterable[tuple[int, int, int]],
    bank: int,
    copies: tuple[tuple[int, int, int], ...] = (),
) -> _Option:
    stays = tuple(stays)
    time_ps = energy_fj = 0
    for a in group.accesses:
        b = problem.banks[next((b for first, end, b in stays if first <= a.action < end), bank)]
        time_ps += b.read_ps_per_byte * a.read + b.write_ps_per_byte * a.written
        energy_fj += b.read_fj_per_byte * a.read + b.write_fj_per_byte * a.written
    at = bank
    for _, tensor, to in copies:
        spec, size = problem.tensors[tensor], group.size_bytes
        source, target = problem.banks[at], problem.banks[to]
        time_ps += (source.read_ps_per_byte + target.write_ps_per_byte) * size + 1000 * (spec.move_ns or 0)
        energy_fj += (source.read_fj_per_byte + target.write_fj_per_byte) * size + 1000 * spec.move_pj
        at = to
    if copies:  # while it is copied it is in both banks
        stays = tuple(
            (max(0, first - 1) if k else first, min(end + 1, group.lives[0].end), b)
            for k, (first, end, b) in enumerate(stays)
        )
    return _Option(objective_of(problem, time_ps, energy_fj), time_ps, _merged(stays), bank, copies)


def objective_of(problem: Problem, time_ps: int, energy_fj: int) -> float:
    """The objective of reads and writes, in the problem's unit."""
    return problem.objective.cost(1000, 0) * energy_fj / 1e6 + problem.objective.cost(0, 1000) * time_ps / 1e6


def _merged(stays: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """The stays, with those of one bank that meet made one."""
    result: list[tuple[int, int, int]] = []
    for first, end, bank in sorted(stays, key=lambda s: (s[2], s[0])):
        if result and result[-1][2] == bank and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]), bank)
        else:
            result.append((first, end, bank))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class _Task:
    """The choice of an option for each group. `slack_ps`: time that banks may add, None: any."""

    groups: list[_Group]
    options: list[list[_Option]]
    budgets: Sequence[int]
    actions: int
    slack_ps: int | None

    def solve(self, time_limit_s: float) -> tuple[list[int] | None, float]:
        """The numbers of the options, None if nothing is found; and a bound on their costs."""
        rows = self._rows()
        if not rows and self.slack_ps is None:
            best = [min(range(len(o)), key=lambda n: (o[n].cost, n)) for o in self.options]
            return best, sum(o[n].cost for o, n in zip(self.options, best, strict=True))
        least = sum(min(o.cost for o in of_group) for of_group in self.options)
        greedy = self._greedy()
        scale = COST_SCALE / max(1.0, sum(max(o.cost for o in of_group) for of_group in self.options))
        mip = Mip()
        columns = [[mip.column(o.cost * scale) for o in of_group] for of_group in self.options]
        for of_group in columns:
            mip.row(of_group, [1.0] * len(of_group), 1.0, 1.0)
        self._add_rows(mip, columns, rows)
        if mip.entries > MOST_ENTRIES:
            return greedy, least
        start = None
        if greedy is not None:
            start = {c: float(n == greedy[g]) for g, of_group in enumerate(columns) for n, c in enumerate(of_group)}
        answer = mip.solve(time_limit_s=max(0.1, time_limit_s), max_nodes=MAX_NODES, gap=GAP, start=start)
        bound = max(least, answer.bound / scale)
        if answer.values is not None:
            values = answer.values
            choice = [max(range(len(cs)), key=lambda n, cs=cs: (values[cs[n]], -n)) for cs in columns]  # type: ignore[misc]
            if self._fits(choice):
                return choice, bound
        return greedy, bound

    def _rows(self) -> list[tuple[int, int]]:
        """The (bank, action) whose bytes a choice could exceed, of the actions at which some stay ends.

        All that is in a bank at once is there at such an action.
        """
        ends = {end - 1 for of_group in self.options for o in of_group for _, end, _ in o.stays}
        most = np.zeros((len(self.budgets), self.actions), np.int64)
        for group, of_group in zip(self.groups, self.options, strict=True):
            for bank in range(len(self.budgets)):
                there = np.zeros(self.actions, bool)
                for first, end, at in (stay for o in of_group for stay in o.stays):
                    there[first:end] |= at == bank
                most[bank, there] += group.size_bytes
        return [(b, s) for b, budget in enumerate(self.budgets) for s in sorted(ends) if most[b, s] > budget]

    def _add_rows(self, mip: Mip, columns: list[list[int]], rows: list[tuple[int, int]]) -> None:
        by_bank: dict[int, list[int]] = {}
        for bank, action in rows:
            by_bank.setdefault(bank, []).append(action)
        entries: dict[tuple[int, int], tuple[list[int], list[float]]] = {row: ([], []) for row in rows}
        for group, of_group, own in zip(self.groups, self.options, columns, strict=True):
            for option, column in zip(of_group, own, strict=True):
                for first, end, bank in option.stays:
                    actions = by_bank.get(bank, [])
                    for action in actions[bisect_left(actions, first) : bisect_left(actions, end)]:
                        index, value = entries[bank, action]
                        index.append(column)
                        value.append(group.size_bytes / UNIT)
        for (bank, _), (index, value) in entries.items():
            mip.row(index, value, upper=self.budgets[bank] / UNIT)
        if self.slack_ps is not None:
            times = [o.time_ps / 1e6 for of_group in self.options for o in of_group]
            mip.row([c for own in columns for c in own], times, upper=self.slack_ps / 1e6)

    def _greedy(self) -> list[int] | None:
        """The first option that fits, first for groups with the most to lose per byte and action; or for large ones.

        None where that leaves no room for a group, or takes too much time.
        """

        def loss(g: int) -> float:
            costs = [o.cost for o in self.options[g] if not o.copies]
            area = self.groups[g].size_bytes * sum(life.end - life.start for life in self.groups[g].lives)
            return (max(costs) - min(costs)) / max(1, area)

        by_loss = sorted(range(len(self.groups)), key=lambda g: (-loss(g), g))
        by_size = sorted(range(len(self.groups)), key=lambda g: (-self.groups[g].size_bytes, g))
        for order in (by_loss, by_size):
            chosen = self._in_order(order)
            if chosen is not None:
                time_ps = sum(o[n].time_ps for o, n in zip(self.options, chosen, strict=True))
                if self.slack_ps is None or time_ps <= self.slack_ps:
                    return chosen
        return None

    def _in_order(self, order: Iterable[int]) -> list[int] | None:
        usage = np.zeros((len(self.budgets), self.actions), np.int64)
        chosen = [-1] * len(self.groups)
        for g in order:
            size, options = self.groups[g].size_bytes, self.options[g]
            for n in sorted(range(len(options)), key=lambda n, o=options: (o[n].cost, n)):  # type: ignore[misc]
                if all(usage[b, f:e].max(initial=0) + size <= self.budgets[b] for f, e, b in options[n].stays):
                    chosen[g] = n
                    for first, end, bank in options[n].stays:
                        usage[bank, first:end] += size
                    break
            else:
                return None
        return chosen

    def _fits(self, chosen: list[int]) -> bool:
        """Whether the bytes of each bank are within its budget at each action: HiGHS allows small excesses."""
        usage = np.zeros((len(self.budgets), self.actions), np.int64)
        for group, options, n in zip(self.groups, self.options, chosen, strict=True):
            for first, end, bank in options[n].stays:
                usage[bank, first:end] += group.size_bytes
        return bool((usage <= np.array(self.budgets, np.int64)[:, None]).all())


def _placed(
    problem: Problem, schedule: Schedule, groups: list[_Group], chosen: Sequence[_Option], bound: float
) -> Placed:
    banks, workspace_banks = [0] * len(problem.tensors), [0] * len(problem.operators)
    copies: dict[int, list[Action]] = {}
    for group, option in zip(groups, chosen, strict=True):
        for t in group.tensors:
            banks[t] = option.bank
        if group.operator is not None:
            workspace_banks[group.operator] = option.bank
        for action, tensor, bank in option.copies:
            copies.setdefault(action, []).append(Move(tensor, bank))
    actions = tuple(s for index, action in enumerate(schedule.actions) for s in (*copies.get(index, ()), action))
    return Placed(tuple(banks), tuple(workspace_banks), actions, bound)
