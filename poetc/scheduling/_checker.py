"""The checker: replays a schedule action by action and refuses it at the first action that breaks a rule.

It shares no code with any solver nor with `complete`. "State has versions" needs no rule here. A parameter and its
updated version are two tensors, and the update consumes the first (a required in-place pair). So a reader that comes
too late finds it gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from poetc.errors import CheckFailed
from poetc.scheduling._banks import Access, access_cost, operator_access
from poetc.scheduling._queues import Queues, Span
from poetc.scheduling._state import state_chains
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import Action, Compute, Free, Move, PageIn, PageOut, Schedule


class ScheduleError(CheckFailed):
    """A schedule that its problem does not allow. `action` is None where the schedule as a whole is wrong."""

    def __init__(self, action: int | None, reason: str, names: tuple[str, ...] = ()) -> None:
        self.action, self.reason, self.names = action, reason, names
        super().__init__(
            f"schedule refused: {reason}" if action is None else f"schedule refused at action {action}: {reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The replay of a verified schedule. RAM is counted as the Problem counts it, base and page buffer included."""

    ram_bytes: tuple[int, ...]  # in use during each action; at a Free, the freed tensor still counts
    peak_bytes: int
    peak_action: int  # the first action that reaches the peak
    energy_pj: int
    time_ns: int
    stall_ns: int  # of it, the waits of the busiest processor, where transfers overlap compute
    executions: tuple[int, ...]  # of each operator
    recomputes: int  # executions beyond the first, all operators together
    page_ins: int
    page_outs: int
    moves: int  # of tensors within RAM
    moved_bytes: int
    move_pj: int  # the moves' share of the energy, and of the time
    move_ns: int
    store_bytes: int  # footprints on the store at the end, which is the most that it ever holds
    written_bytes: int  # footprints of all page-outs
    residencies: tuple[tuple[int, int, int], ...]  # (tensor, first action, end): in RAM during [first action, end)
    busy_ns: tuple[int, ...]  # of each processor
    hand_overs: int  # actions that read tensors of another processor
    hand_over_ns: int  # by which they took longer
    idle_pj: int  # of the processors while they wait; 0 where the problem names none
    bank_peaks: tuple[int, ...] = ()  # by bank, the most bytes in use, base and page buffer included
    bank_ns: int = 0  # the time that banks add, and the energy
    bank_pj: int = 0
    bank_ram_bytes: tuple[tuple[int, ...], ...] = ()  # of each action, by bank
    spans: tuple[Span, ...] = ()  # of the actions that take a processor or the store

    def resident_at(self, action: int) -> tuple[int, ...]:
        """The tensors in RAM during an action, sorted; those that the action reads and makes included."""
        return tuple(sorted({t for t, start, end in self.residencies if start <= action < end}))


def verify(problem: Problem, schedule: Schedule) -> Trace:
    """Replay `schedule`; ScheduleError if anything is not as `problem` demands or as the schedule's proof claims."""
    trace = trace_of(problem, schedule)
    cost, unit = problem.objective.cost(trace.energy_pj, trace.time_ns), problem.objective.unit
    if schedule.proof.objective != cost:
        raise ScheduleError(
            None, f"the proof claims an objective of {schedule.proof.objective} {unit}, the actions cost {cost}"
        )
    if schedule.proof.bound > cost:
        raise ScheduleError(
            None, f"the proof claims a bound of {schedule.proof.bound} {unit}, but the actions cost only {cost}"
        )
    if problem.deadline_ns is not None and trace.time_ns > problem.deadline_ns:
        raise ScheduleError(None, f"takes {trace.time_ns} ns, the deadline is {problem.deadline_ns}")
    return trace


def trace_of(problem: Problem, schedule: Schedule) -> Trace:
    """`verify` without a look at the deadline and the claims of the proof."""
    _check_banks(problem, schedule)
    replay = _Replay(problem, any(isinstance(s, PageIn | PageOut) for s in schedule.actions), schedule)
    for action in schedule.actions:
        replay.execute(action)
    replay.finish()
    return replay.trace()


def verify_parts(parts: Sequence[tuple[Problem, Sequence[Action]]]) -> Trace:
    """Replay the parts of a run one after the other, each under a problem of its own; ScheduleError as `verify` does.

    The problems are one training step: they differ in budgets and in the kernels of operators. A run that goes over
    from one plan to another in mid-step has such parts. Deadlines and claims of cost are not looked at.
    """
    problem = parts[0][0]
    pages = any(isinstance(s, PageIn | PageOut) for _, actions in parts for s in actions)
    replay = _Replay(problem, pages)
    for of_part, actions in parts:
        replay.problem = replay.queues.problem = of_part
        for action in actions:
            replay.execute(action)
    replay.finish()
    return replay.trace()


def _check_banks(problem: Problem, schedule: Schedule) -> None:
    """ScheduleError unless `schedule` names a bank for each tensor and each workspace, where the problem has banks."""
    for kind, banks, count in (
        ("banks", schedule.banks, len(problem.tensors)),
        ("workspace_banks", schedule.workspace_banks, len(problem.operators)),
    ):
        if len(banks) != (count if problem.banks else 0):
            raise ScheduleError(None, f"{kind} has {len(banks)} entries, it must have {count if problem.banks else 0}")
        wrong = next((b for b in banks if not 0 <= b < len(problem.banks)), None)
        if wrong is not None:
            raise ScheduleError(None, f"{kind} names bank {wrong}, there are {len(problem.banks)}")


class _Replay:
    def __init__(self, problem: Problem, pages: bool, banked: Schedule | None = None) -> None:
        self.problem, self.tensors = problem, problem.tensors
        self.fixed_bytes = problem.base_bytes + (problem.page_buffer_bytes if pages else 0)
        # In POET's MILP a transfer costs energy but no time.
        self.resident = {i: t.size_bytes for i, t in enumerate(self.tensors) if t.initial == "ram"}  # bytes it occupies
        self.resident_bytes = sum(self.resident.values())
        self.since = dict.fromkeys(self.resident, 0)
        self.state = _state(problem)
        self.unmoved = self.state & set(self.resident)  # a failed run could not bring it back from elsewhere
        self.store = {i for i, t in enumerate(self.tensors) if t.initial == "store"}
        self.store_bytes = sum(self.tensors[t].footprint_bytes for t in self.store)
        self.executions = [0] * len(problem.operators)
        self.ram: list[int] = []
        self.residencies: list[tuple[int, int, int]] = []
        self.queues = Queues(problem)
        self.energy_pj = self.page_ins = self.page_outs = self.written_bytes = 0
        self.moves = self.moved_bytes = self.move_pj = self.move_ns = 0
        self.bank_ns = self.bank_pj = 0
        self.banks, self.workspace_banks = (banked.banks, banked.workspace_banks) if banked else ((), ())
        self.bank = {t: self.banks[t] for t in self.resident} if self.banks else {}  # of the tensors in RAM
        self.bank_peaks = [0] * len(problem.banks)
        self.bank_bytes = [0] * len(problem.banks)
        self.bank_ram: list[tuple[int, ...]] = []
        for t, b in self.bank.items():
            self.bank_bytes[b] += self.resident[t]
        self.first_bank = dict(self.bank)

    def execute(self, action: Action) -> None:
        match action:
            case Compute():
                self.compute(action)
            case Free(tensor):
                self.need_resident(tensor, "frees")
                self.count_banks({})
                self.count_ram(self.queues.free(tensor, len(self.ram)))
                self.leave(tensor, len(self.ram))
            case PageOut(tensor):
                self.page_out(tensor)
            case PageIn(tensor):
                self.page_in(tensor)
            case Move(tensor, bank):
                self.move(tensor, bank)

    def compute(self, action: Compute) -> None:
        index, in_place = action.operator, action.in_place
        if not 0 <= index < len(self.problem.operators):
            self.refuse(f"computes operator {index}, there are {len(self.problem.operators)}")
        op = self.problem.operators[index]
        if not 0 <= action.processor < max(1, len(self.problem.processors)):
            self.refuse(f"{op.name!r} on processor {action.processor}, which does not exist", op.name)
        cost = op.cost_on(action.processor)
        if cost is None:
            name = self.problem.processors[action.processor].name
            self.refuse(f"{op.name!r} on processor {name!r}, which cannot run it", op.name)
        for t in op.inputs:
            self.need_resident(t, f"{op.name!r} reads", op.name)
        for t in op.outputs:
            if t in self.resident:
                self.refuse(
                    f"{op.name!r} makes {self.tensors[t].name!r}, which is in RAM already",
                    op.name,
                    self.tensors[t].name,
                )
        for t in op.reads_store:
            if t not in self.store:
                name = self.tensors[t].name if 0 <= t < len(self.tensors) else str(t)
                self.refuse(f"{op.name!r} reads {name!r} from the store, which is not there", op.name, name)
        if self.executions[index] and not op.recomputable:
            self.refuse(f"{op.name!r} must be executed once only", op.name)
        self.check_in_place(index, in_place)
        taken_over = {o: i for i, o in in_place}
        size = {t: self.resident[taken_over[t]] if t in taken_over else self.tensors[t].size_bytes for t in op.outputs}
        new_bytes = sum(size[t] for t in op.outputs if t not in taken_over)
        extra_ns = 0
        if self.banks:
            new = {t: self.bank[taken_over[t]] if t in taken_over else self.banks[t] for t in op.outputs}
            workspace_bank = self.workspace_banks[index]
            extra_ns = self.spend(operator_access(self.problem, index, self.bank | new, workspace_bank))
            more = {workspace_bank: op.workspace_bytes}
            for t in op.outputs:
                if t not in taken_over:
                    more[new[t]] = more.get(new[t], 0) + size[t]
            self.count_banks(more, op.name)
            self.bank |= new
        self.count_ram(new_bytes + self.queues.compute(action, len(self.ram), cost[0] + extra_ns), op.name)
        kept = {o for o, i in taken_over.items() if i in self.unmoved} & self.state
        for t in taken_over.values():
            self.leave(t, len(self.ram))
        self.unmoved |= kept
        for t in op.outputs:
            self.enter(t, size[t])
        for t in op.writes_store:
            self.write_to_store(t, op.rewritten_bytes if t == op.writes_store[0] else 0)
        self.executions[index] += 1
        self.energy_pj += cost[1]

    def check_in_place(self, index: int, in_place: tuple[tuple[int, int], ...]) -> None:
        op = self.problem.operators[index]
        allowed = {(p.input, p.output): p.required for p in op.in_place}
        for i, o in in_place:
            if (i, o) not in allowed:
                self.refuse(f"{op.name!r} may not work in place on tensors {i} -> {o}", op.name)
            if self.tensors[o].size_bytes > self.resident[i]:
                names = self.tensors[i].name, self.tensors[o].name
                self.refuse(
                    f"{op.name!r} in place: {names[1]!r} does not fit in the bytes of {names[0]!r}", op.name, *names
                )
        if len({i for i, _ in in_place}) < len(in_place) or len({o for _, o in in_place}) < len(in_place):
            self.refuse(f"{op.name!r} uses one tensor in two in-place pairs", op.name)
        for (i, o), required in allowed.items():
            if required and (i, o) not in in_place:
                names = self.tensors[i].name, self.tensors[o].name
                self.refuse(f"{op.name!r} must make {names[1]!r} in place of {names[0]!r}", op.name, *names)

    def page_out(self, t: int) -> None:
        self.need_resident(t, "pages out")
        tensor = self.tensors[t]
        if self.problem.paging is Paging.NONE or not tensor.pageable:
            self.refuse(f"pages out {tensor.name!r}, which is not pageable here", tensor.name)
        self.write_to_store(t)
        extra_ns = 0
        if self.banks:
            extra_ns = self.spend([(self.problem.banks[self.bank[t]], tensor.size_bytes, 0)])
            self.count_banks({})
        self.queues.transfer(t, tensor.page_out_ns + extra_ns, len(self.ram), out=True)
        self.count_ram(self.queues.in_flight_bytes, tensor.name)
        self.page_outs += 1
        self.energy_pj += tensor.page_out_pj

    def write_to_store(self, t: int, more_bytes: int = 0) -> None:
        """Count a tensor that is written there whole, by a page-out or by a streamed operator."""
        tensor = self.tensors[t]
        if t not in self.store:
            self.store.add(t)
            self.store_bytes += tensor.footprint_bytes
        capacity = self.problem.store_capacity_bytes
        if capacity is not None and self.store_bytes > capacity:
            self.refuse(f"the store would hold {self.store_bytes} bytes, its capacity is {capacity}", tensor.name)
        self.written_bytes += tensor.footprint_bytes + more_bytes
        limit = self.problem.write_limit_bytes
        if limit is not None and self.written_bytes > limit:
            self.refuse(f"{self.written_bytes} bytes would be written to the store, the limit is {limit}", tensor.name)

    def page_in(self, t: int) -> None:
        if t not in self.store:
            name = self.tensors[t].name if 0 <= t < len(self.tensors) else str(t)
            self.refuse(f"pages in {name!r}, which is not on the store", name)
        tensor = self.tensors[t]
        if t in self.resident:
            self.refuse(f"pages in {tensor.name!r}, which is in RAM already", tensor.name)
        extra_ns = 0
        if self.banks:
            self.bank[t] = self.banks[t]
            extra_ns = self.spend([(self.problem.banks[self.bank[t]], 0, tensor.size_bytes)])
            self.count_banks({self.bank[t]: tensor.size_bytes}, tensor.name)
        self.queues.transfer(t, tensor.page_in_ns + extra_ns, len(self.ram), out=False)
        self.count_ram(self.queues.in_flight_bytes + tensor.size_bytes, tensor.name)
        self.enter(t, tensor.size_bytes)
        self.page_ins += 1
        self.energy_pj += tensor.page_in_pj

    def move(self, t: int, bank: int | None) -> None:
        self.need_resident(t, "moves")
        tensor = self.tensors[t]
        if tensor.move_ns is None:
            self.refuse(f"moves {tensor.name!r}, which may not be moved", tensor.name)
        if t in self.unmoved:
            self.refuse(f"moves {tensor.name!r}, which is state in its fixed place", tensor.name)
        if not self.ram:
            self.refuse(f"moves {tensor.name!r} before anything is done", tensor.name)
        if bank is not None and not 0 <= bank < len(self.problem.banks):
            self.refuse(f"moves {tensor.name!r} to bank {bank}, which does not exist", tensor.name)
        extra_ns = copied_bytes = 0
        if self.banks:
            old, new = self.bank[t], self.bank[t] if bank is None else bank
            size = tensor.size_bytes
            extra_ns = self.spend([(self.problem.banks[old], size, 0), (self.problem.banks[new], 0, size)])
            if bank == old:
                name = self.problem.banks[old].name
                self.refuse(f"moves {tensor.name!r} to bank {name!r}, where it is already", tensor.name)
            copied_bytes = size if new != old else 0  # both copies are there during the action
            self.count_banks({new: copied_bytes}, tensor.name)
            self.bank_bytes[old] -= self.resident[t]
            self.bank_bytes[new] += self.resident[t]
            self.bank[t] = new
        moved = self.queues.move(t, tensor.move_ns + extra_ns, len(self.ram))
        self.count_ram(moved + copied_bytes, tensor.name)
        self.moves += 1
        self.moved_bytes += tensor.size_bytes
        self.move_pj += tensor.move_pj
        self.move_ns += tensor.move_ns
        self.energy_pj += tensor.move_pj

    def finish(self) -> None:
        for count, op in zip(self.executions, self.problem.operators, strict=True):
            if count == 0:
                raise ScheduleError(None, f"never executes {op.name!r}", (op.name,))
        for t, tensor in enumerate(self.tensors):
            if (tensor.final == "ram" and t not in self.resident) or (tensor.final == "store" and t not in self.store):
                where = "in RAM" if tensor.final == "ram" else "on the store"
                raise ScheduleError(None, f"ends without {tensor.name!r} {where}", (tensor.name,))
        for chain in state_chains(self.problem) if self.banks else ():
            if self.bank[chain[-1]] != self.first_bank[chain[0]]:
                name = self.tensors[chain[0]].name
                raise ScheduleError(None, f"state {name!r} ends in another bank than it began in", (name,))
        for t in sorted(self.resident):
            self.leave(t, len(self.ram))

    def need_resident(self, t: int, does: str, *names: str) -> None:
        name = self.tensors[t].name if 0 <= t < len(self.tensors) else str(t)
        if t not in self.resident:
            self.refuse(f"{does} {name!r}, which is not in RAM", *names, name)

    def count_ram(self, more_bytes: int, *names: str) -> None:
        self.ram.append(self.fixed_bytes + self.resident_bytes + more_bytes)
        used, budget = self.ram[-1], self.problem.budget_bytes
        if used > budget:
            largest = sorted(self.resident, key=lambda t: (-self.resident[t], t))[:5]
            names_there = ", ".join(f"{self.tensors[t].name} ({self.resident[t]})" for t in largest)
            action = len(self.ram) - 1
            reason = (
                f"needs {used} bytes of RAM, the budget is {budget}; the largest tensors there: {names_there or 'none'}"
            )
            raise ScheduleError(action, reason, (*names, *(self.tensors[t].name for t in largest)))

    def spend(self, accesses: list[Access]) -> int:
        """Count the energy of accesses to banks, and return their time in ns."""
        time_ns, energy_pj = access_cost(accesses)
        self.bank_ns += time_ns
        self.bank_pj += energy_pj
        self.energy_pj += energy_pj
        return time_ns

    def count_banks(self, more_bytes: dict[int, int], *names: str) -> None:
        """Update the peak of each bank; refuse the action if one needs more than its budget.

        `more_bytes`: the need of the action in each bank, beyond the tensors that are resident.
        """
        in_use = []
        for b, bank in enumerate(self.problem.banks):
            used = (self.fixed_bytes if b == 0 else 0) + self.bank_bytes[b] + more_bytes.get(b, 0)
            self.bank_peaks[b] = max(self.bank_peaks[b], used)
            in_use.append(used)
            if used > bank.budget_bytes:
                there = [t for t in self.resident if self.bank[t] == b]
                largest = sorted(there, key=lambda t: (-self.resident[t], t))[:5]
                names_there = ", ".join(f"{self.tensors[t].name} ({self.resident[t]})" for t in largest) or "none"
                reason = (
                    f"bank {bank.name!r} needs {used} bytes, its budget is {bank.budget_bytes}; the largest there: "
                )
                self.refuse(reason + names_there, *names)
        self.bank_ram.append(tuple(in_use))

    def enter(self, t: int, size_bytes: int) -> None:
        self.resident[t] = size_bytes
        self.resident_bytes += size_bytes
        if self.banks:
            self.bank_bytes[self.bank[t]] += size_bytes
        self.since[t] = len(self.ram) - 1

    def leave(self, t: int, end: int) -> None:
        if self.banks:
            self.bank_bytes[self.bank[t]] -= self.resident[t]
        self.resident_bytes -= self.resident.pop(t)
        self.unmoved.discard(t)
        self.residencies.append((t, self.since.pop(t), end))

    def refuse(self, reason: str, *names: str) -> NoReturn:
        raise ScheduleError(len(self.ram), reason, names)

    def trace(self) -> Trace:
        peak, time_ns = max(self.ram), self.queues.end_ns
        return Trace(
            ram_bytes=tuple(self.ram),
            peak_bytes=peak,
            peak_action=self.ram.index(peak),
            energy_pj=self.energy_pj + self.queues.hand_over_pj + self.queues.idle_pj,
            time_ns=time_ns,
            stall_ns=time_ns - max(self.queues.busy_ns) if self.problem.paging is Paging.DMA else 0,
            executions=tuple(self.executions),
            recomputes=sum(self.executions) - len(self.executions),
            page_ins=self.page_ins,
            page_outs=self.page_outs,
            moves=self.moves,
            moved_bytes=self.moved_bytes,
            move_pj=self.move_pj,
            move_ns=self.move_ns,
            store_bytes=self.store_bytes,
            written_bytes=self.written_bytes,
            residencies=tuple(sorted(self.residencies, key=lambda r: (r[1], r[0], r[2]))),
            busy_ns=tuple(self.queues.busy_ns),
            hand_overs=self.queues.hand_overs,
            hand_over_ns=self.queues.hand_over_ns,
            idle_pj=self.queues.idle_pj,
            bank_peaks=tuple(self.bank_peaks),
            bank_ns=self.bank_ns,
            bank_pj=self.bank_pj,
            bank_ram_bytes=tuple(self.bank_ram) if self.banks else (),
            spans=tuple(self.queues.spans),
        )


def _state(problem: Problem) -> set[int]:
    """Tensors in RAM when the step begins that are there, or their last versions, when it ends; all versions."""
    follows = {p.input: p.output for o in problem.operators for p in o.in_place if p.required}
    state: set[int] = set()
    for t, tensor in enumerate(problem.tensors):
        versions = [t]
        while versions[-1] in follows:
            versions.append(follows[versions[-1]])
        if tensor.initial == "ram" and problem.tensors[versions[-1]].final == "ram":
            state.update(versions)
    return state
