"""The bank of each tensor, where a problem names several memories.

The relaxation is a problem with one RAM of all budgets. An operator costs more in it: the least that its own operands
cause in the banks. Its bound holds for any banks. Its schedule, and schedules for less RAM, are given banks at the
least cost (`poetc.solvers.banks.placing`), with copies between banks. The cheapest one that packs is the answer: more
recomputation in the cheap banks, or more use of the dear ones.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import replace

from poetc import solvers
from poetc.devices.units import format_bytes, format_ns, format_pj
from poetc.errors import InfeasibleError, LimitError, format_count
from poetc.events import silent
from poetc.planning.arena import ram_bytes
from poetc.planning.kernels import KERNELS
from poetc.planning.planner import Planner, Reduction
from poetc.planning.settings import BANK
from poetc.planning.solution import Solution, cost_of_computing_once, everything, status_of
from poetc.scheduling import (
    Compute,
    Move,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Schedule,
    ScheduleError,
    Variant,
    pack,
    trace_of,
    verify,
    without_moves,
)
from poetc.scheduling.schedule import Proof, Status
from poetc.scheduling.scope import ANY
from poetc.solvers.banks import Crossing, Order, Placed, Repeat, place_in_banks, placement_bound, relaxed, unplaceable

ONCE = "every operator once"
WAITING = "tensors that wait for a reader compete with those that are read"
BankChoice = tuple[int, ...]  # the bank in which each tensor arrives


class Banks(Reduction[BankChoice]):
    """Where each tensor lies. Every option gives the same bits. Banks are chosen for a schedule, not before it."""

    name = "banks"
    scoped = True
    noun = "banks of RAM"

    def is_open(self, problem: Problem) -> bool:
        return bool(problem.banks)

    def relax(self, problem: Problem) -> Problem:
        return relaxed(problem)

    def usual(self, problem: Problem) -> Problem:
        """RAM does not depend on the banks, but for tensors that straddle none."""
        return relaxed(problem)

    def fix(self, problem: Problem, choice: BankChoice) -> Problem:
        del choice
        return relaxed(problem)

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        problem = solution.problem
        if not problem.banks:
            return ""
        trace = verify(problem, solution.schedule)
        parts = [
            f"{bank.name} {format_bytes(peak)} of {format_bytes(bank.budget_bytes)}"
            for bank, peak in zip(problem.banks, trace.bank_peaks, strict=True)
        ]
        copies = sum(isinstance(s, Move) and s.bank is not None for s in solution.schedule.actions)
        copied = f"; {format_count(copies, 'copy', 'copies')} between banks" if copies else ""
        return (
            f"banks of RAM: {', '.join(parts)}{copied}; their reads and writes cost {format_pj(trace.bank_pj)}"
            f" and {format_ns(trace.bank_ns)} more than in the cheapest memory"
        )

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if not problem.banks:
            return planner.inner.solve(problem)
        return _InBanks(problem, planner).solve()


class _InBanks:
    def __init__(self, problem: Problem, planner: Planner) -> None:
        self.problem, self.planner, self.relaxed = problem, planner, relaxed(problem)
        self.limit_s = planner.options.time_limit_s
        self.best: Solution | None = None
        self.spent_s = 0.0  # work on placements, in seconds of a usual machine

    def solve(self) -> Solution:
        problem = self.problem
        too_large = unplaceable(problem)
        if too_large is not None:
            name, size_bytes = too_large
            largest = max(problem.banks, key=lambda b: b.budget_bytes)
            is_state = any(t.name == name and t.final for t in problem.tensors)  # of one size, whatever the batch
            raise InfeasibleError(
                f"{name} has {size_bytes:,} bytes, which fit in no bank: the largest budget is that of"
                f" {largest.name}, {largest.budget_bytes:,} bytes; give a bank more"
                + ("" if is_state else ", or train with a smaller batch")
            )
        first = self._for_ram(problem.budget_bytes, BANK.first_share)
        assert first is not None
        self._take(first)
        for budget_bytes in self._budgets(first):
            if self.planner.left_s <= 0.02 * self.limit_s:
                break
            solution = self._for_ram(budget_bytes, BANK.less_share, required=False)
            if solution is not None:
                self._take(solution)
        self._repeat(first)
        budget_bytes = first.problem.base_bytes + first.plan.arena_bytes
        for _ in range(BANK.tightenings):
            if self.best is not None or self.planner.left_s < -BANK.late * self.limit_s:
                break
            budget_bytes = int(budget_bytes * BANK.tighter)
            solution = self._for_ram(budget_bytes, BANK.tight_share, required=False)
            if solution is not None:
                self._take(solution)
        if self.best is None:
            sizes = ", ".join(f"{b.name}={b.budget_bytes}" for b in problem.banks)
            raise LimitError(
                f"a schedule fits the {problem.budget_bytes:,} bytes of all banks, but its tensors were not found a"
                f" place in {sizes}; give one bank more{'' if problem.deadline_ns is None else ', or a later deadline'}"
            )
        return self._proven(self.best, first.proof)

    def _budgets(self, first: Solution) -> list[int]:
        """Less RAM than the first schedule takes, down to that of the cheapest banks."""
        problem = self.problem
        price = [
            b.read_fj_per_byte + b.write_fj_per_byte + b.read_ps_per_byte + b.write_ps_per_byte for b in problem.banks
        ]
        least = sum(b.budget_bytes for b, p in zip(problem.banks, price, strict=True) if p == min(price))
        if min(price) == max(price):
            return []
        most = ram_bytes(first.problem, first.plan)
        sizes = (least + int(share * (most - least)) for share in BANK.between)
        return [size for size in dict.fromkeys(sizes) if problem.base_bytes < size < most]

    @functools.cached_property
    def crossing(self) -> Crossing:
        """The bound on all placements."""
        work_s = BANK.bound_share * self.planner.options.work_limit_s
        return placement_bound(self.problem, time_limit_s=self._clock_s(BANK.bound_share), work_s=work_s)

    def _clock_s(self, share: float) -> float:
        """How long a stage with that share of the work may last on the clock."""
        patient_s, left_s = BANK.patience * share * self.limit_s, max(self.planner.left_s, share * self.limit_s)
        return self.planner.within_s(min(patient_s, left_s))

    def _for_ram(self, budget_bytes: int, share: float, *, required: bool = True) -> Solution | None:
        """A schedule of the relaxation for so much RAM in one piece; None where there is none, if not `required`."""
        inner = self.planner.inner
        part = inner.part(self._clock_s(share), work_limit_s=share * inner.options.work_limit_s)
        part = replace(part, relaxed=self.planner.relaxed | {Banks.name})
        if not required:
            # Its bounds hold for less RAM alone, and may be above the answer: the user does not see them.
            part = replace(part.knowing(None), progress=silent)
            self.planner.progress(f"solving for {budget_bytes:,} bytes in all banks")
        try:
            return part.solve(replace(self.relaxed, budget_bytes=budget_bytes))
        except (InfeasibleError, LimitError):
            if required:
                raise
            return None

    def _repeat(self, first: Solution) -> None:
        """Schedules with repeated operators: one more or one less, as long as that saves something."""
        if self.problem.paging is not Paging.NONE or len(self.problem.banks) < 2:
            return
        base = first if self.best is None else self.best
        actions = base.schedule.actions
        executed = Counter(s.operator for s in actions if isinstance(s, Compute))
        order = Order(self.problem, list(executed))
        sizes = {
            k: sum(self.problem.tensors[t].size_bytes for t in o.outputs) for k, o in enumerate(self.problem.operators)
        }
        aways = [(sizes[k] * (then - first), k, then) for k in executed for first, then in order.away(k)]
        choices = [(k, then) for _, k, then in sorted(aways, key=lambda a: (-a[0], a[1:]))]
        least: int | None = None
        repeats = frozenset[Repeat]()

        def is_better(trial: frozenset[Repeat]) -> bool:
            nonlocal least, repeats
            schedule = replace(first.schedule, actions=order.repeating(trial))
            cost = self._take(replace(first, schedule=schedule))
            if cost is None or (least is not None and cost >= least):
                return False
            least, repeats = cost, trial
            return True

        is_better(repeats)
        is_better(order.repeats_in(actions))
        is_better(order.repeats_after(self.crossing.repeats))
        improves, most_s = True, self.spent_s + BANK.repeat_share * self.planner.options.work_limit_s
        while improves:
            improves = False
            for choice in choices:
                if self.spent_s >= most_s or self.planner.left_s <= 0:
                    return
                improves |= is_better(repeats ^ {choice})

    def _take(self, plain: Solution) -> int | None:
        """Keep `plain` with banks, if it packs and is the cheapest so far. Its cost in banks, packed or not."""
        problem, schedule = self.planner.inner.fixed(self.problem, plain), plain.schedule
        if any(isinstance(s, Move) for s in schedule.actions):
            schedule = without_moves(plain.problem, schedule)
        pages = problem.page_buffer_bytes if any(isinstance(s, PageIn | PageOut) for s in schedule.actions) else 0
        # In one bank nothing is placed. The kernels of the schedule stay, so that its proof holds.
        kernels: list[tuple[OperatorSpec | Variant, ...]] = []
        if len(problem.banks) > 1:
            kernels = [(o, *o.low_workspace) for o in self.problem.operators]
        first: int | None = None
        for copies in (True, False):
            rooms = [
                b.budget_bytes - (problem.base_bytes + pages if k == 0 else 0) for k, b in enumerate(problem.banks)
            ]
            for _ in range(BANK.attempts):
                placed = place_in_banks(
                    problem,
                    schedule,
                    rooms,
                    time_limit_s=self._clock_s(BANK.place_share),
                    work_s=BANK.place_share * self.planner.options.work_limit_s,
                    copies=copies,
                    kernels=kernels,
                )
                if placed is None:
                    break
                self.spent_s += placed.work_s
                if kernels and KERNELS.is_open(self.problem):
                    plain = plain.with_choice(KERNELS.name, placed.kernels)
                    problem = self.planner.inner.fixed(self.problem, plain)
                packed = self._in_banks(problem, schedule, placed, plain.proof)
                if packed is None:
                    break
                cost = packed.proof.objective
                first = cost if first is None else first
                if self.best is not None and cost >= self.best.cost:
                    return first
                plan = pack(problem, packed, stop_at=max(self.planner.stop_at, time.monotonic() + 1.0))
                excess = [
                    use.arena_bytes + (problem.base_bytes if k == 0 else 0) - bank.budget_bytes
                    for k, (use, bank) in enumerate(zip(plan.banks, problem.banks, strict=True))
                ]
                if max(excess) <= 0:
                    placed_here = Solution(problem=problem, schedule=packed, plan=plan, choices=plain.choices)
                    self.best = placed_here.with_choice(Banks.name, placed.banks)
                    return first
                rooms = [room - max(0, over) for room, over in zip(rooms, excess, strict=True)]
                if min(rooms) < 0:
                    break
        return first

    def _in_banks(self, problem: Problem, schedule: Schedule, placed: Placed, proof: Proof) -> Schedule | None:
        """The schedule in its banks, with its own cost; None where it is too late or does not fit."""
        placed_schedule = replace(
            schedule,
            solver=self.planner.solver,
            actions=placed.actions,
            banks=placed.banks,
            workspace_banks=placed.workspace_banks,
            proof=replace(proof, objective=0, bound=0),
        )
        try:
            trace = trace_of(problem, placed_schedule)
        except ScheduleError:
            return None
        if problem.deadline_ns is not None and trace.time_ns > problem.deadline_ns:
            return None
        cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
        own = replace(proof, objective=cost, status=Status.LIMIT)  # its bound is that of the relaxation for less RAM
        return replace(placed_schedule, proof=own)

    def _proven(self, best: Solution, proof: Proof) -> Solution:
        """`best` with the bound of the relaxation for all RAM."""
        bound, scope, method = proof.bound, proof.scope.with_choice(Banks.name, ANY), proof.method
        if not scope.choices_cover(best.scope):  # that was about another order, or other kernels
            bound, scope, method = cost_of_computing_once(self.relaxed), everything(), ONCE
        if self.crossing.least > bound:
            bound, scope, method = self.crossing.least, everything(), WAITING
        bound = solvers.bound_beside(bound, best.cost, method)
        status = status_of(best.cost, bound, self.planner.options.gap)
        origin = best.proof.method.partition("; bound: ")[0]
        method = f"{origin}, placed in banks; bound: {method.rpartition('bound: ')[2]}, cheapest banks first"
        stated = Proof(status=status, objective=best.cost, bound=bound, scope=scope, method=method)
        return best.with_proof(stated)
