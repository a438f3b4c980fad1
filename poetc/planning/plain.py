"""The plain case: a problem without open choices, solved for a packed arena within the budget."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from poetc import solvers
from poetc.devices import format_bytes
from poetc.errors import InfeasibleError, LimitError, PoetcError, format_count
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.settings import PLAIN, SMALLEST_RAM
from poetc.planning.smallest_ram import RamSearch, advice, details, next_step, search_share_s, within_limits
from poetc.planning.solution import cost_of_computing_once
from poetc.scheduling import Move
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, SolveOptions, Status, first_executions
from poetc.scheduling.scope import Scope
from poetc.solvers import EngineOptions, WarmStart

if TYPE_CHECKING:
    from poetc.planning.planner import Planner

ENGINE = solvers.ENGINE_NAME
LEAST_RAM = "the schedule of least RAM"
KEPT = "a schedule found on the way"


def solve_and_pack(problem: Problem, planner: Planner) -> tuple[Schedule, MemoryPlan]:
    """The cheapest schedule found whose packed arena fits the budget, within the time of `planner`.

    Where no offsets within the budget are found, tensors are moved while the step runs, which costs little. Where that
    does not help either, the problem is solved again for a budget smaller by the excess. The bound proven for the whole
    budget still holds for the result. Raises InfeasibleError where it is proven that nothing fits, LimitError where
    nothing was found. Both name the smallest RAM that is known to work. Its search comes on top of the time limit, and
    is left out where there is a cost to beat (`WarmStart.to_beat`).
    """
    return _PlainSolve(problem, planner).run()


class _PlainSolve:
    def __init__(self, problem: Problem, planner: Planner) -> None:
        self.problem, self.planner = problem, planner
        self.solver, self.options, self.progress = planner.solver, planner.options, planner.progress
        self.warm_start = planner.warm_start
        self.limit_s, self.stop_at = planner.options.time_limit_s, planner.stop_at
        self.smallest_ram = planner.smallest_ram or RamSearch(problem, search_share_s(self.limit_s))
        self.incumbent: tuple[Schedule, MemoryPlan] | None = (
            None  # the best schedule that packed while others were searched
        )
        self.keeping_s = 0.0  # the time that this took

    def run(self) -> tuple[Schedule, MemoryPlan]:
        # Nobody needs the schedule of least RAM where there is another one.
        beating = self.warm_start.to_beat is not None or self.planner.best.is_safe
        try:
            first = self._first()
        except InfeasibleError as error:
            if self.solver != ENGINE:
                raise self._of_named(error) from error
            raise error if beating else self._with_smallest(error) from error
        except LimitError as error:
            if beating or self.solver != ENGINE:
                raise
            why, scheduled_bytes = str(error), None
            if isinstance(error, solvers.NotFoundError) and error.smallest_bytes is not None:
                why, scheduled_bytes = error.why, error.smallest_bytes
            return self._other_instead(None, why, scheduled_bytes)
        packing = self._packed(first)
        if self.incumbent is not None and (
            packing is None or self.incumbent[0].proof.objective < packing[0].proof.objective
        ):
            schedule, plan = self.incumbent
            return instead(self.problem, self.solver, KEPT, schedule, first), plan
        if packing is not None:
            return packing
        if self.solver != ENGINE:
            raise LimitError(
                f"{self.solver}: its schedule does not pack into {self.problem.budget_bytes} bytes; "
                "take a larger budget or another solver"
            )
        why = f"a schedule fits the budget of {self.problem.budget_bytes} bytes, but none was found that can be packed"
        why += " into it"
        if beating:
            raise LimitError(why)
        return self._other_instead(first, why)

    def _of_named(self, error: InfeasibleError) -> PoetcError:
        """`error` of a published method: infeasible only where no schedule of any solver fits.

        The answer of a solver that the user named is that solver's alone. No other schedule takes its place.
        """
        proven = solvers.lower_bound_bytes(self.problem) > self.problem.budget_bytes
        return error if proven else LimitError(str(error), details=error.details)

    def _for_solver(self, options: SolveOptions, warm_start: WarmStart | None = None) -> SolveOptions:
        """`options` for the solver: the engine alone gets a warm start."""
        if self.solver != ENGINE:
            return options
        return EngineOptions.of(options, warm_start or self.warm_start)

    def _report(self, event: solvers.Event) -> None:
        self._keep(event)
        self.planner.report(self.problem, event)

    def _keep(self, event: solvers.Event) -> None:
        """Pack a schedule that is better by far than those that packed: with little work, then with moves."""
        planner, problem = self.planner, self.problem
        if event.schedule is None or event.objective is None or not planner.is_real or self.options.is_quick:
            return
        known = math.inf if self.incumbent is None else self.incumbent[0].proof.objective
        known = min(known, planner.best.packed_cost(problem))
        if event.objective >= PLAIN.kept_share * known or self.keeping_s >= PLAIN.pack_share * self.limit_s:
            return
        started = time.monotonic()
        packing = packed(problem, event.schedule(), started, started, effort=PLAIN.kept_effort)
        if ram_bytes(problem, packing[1]) <= problem.budget_bytes and packing[0].proof.objective < known:
            self.incumbent = packing
            planner.keep(problem, *packing)
        self.keeping_s += time.monotonic() - started

    def _first(self) -> Schedule:
        options = replace(self.options, time_limit_s=self.planner.solve_share * self.limit_s)
        self.incumbent = self.planner.keep_packed(self.problem, self.warm_start.start)
        if self.incumbent is not None:  # published methods, which come next, may take long
            kept, once = self.incumbent[0], cost_of_computing_once(self.problem)
            order = order_of(self.problem, kept)
            event = solvers.Event(stage="at once", objective=kept.proof.objective, bound=once, order=order)
            self.planner.report(self.problem, event)
        started = time.monotonic()
        first = solvers.solve(self.problem, self.solver, self._for_solver(options), self._report)
        if time.monotonic() - started >= PLAIN.late_from * options.time_limit_s:
            self.planner.best.is_late = True
        if self.warm_start.to_beat is not None and first.proof.objective >= self.warm_start.to_beat:
            raise LimitError("nothing cheaper was found")
        return first

    def _packed(self, first: Schedule) -> tuple[Schedule, MemoryPlan] | None:
        """`first`, or a schedule for less RAM instead, packed into the budget; None if nothing packs."""
        problem, proof = self.problem, first.proof
        cost, bound, named = proof.objective, proof.bound, order_of(problem, first)
        repetition = proof.scope.repetition
        event = solvers.Event(stage="packing", objective=cost, bound=bound, order=named, repetition=repetition)
        self._report(event)
        # Where nothing has been found that packs by then, solving again comes next, which needs some of the time.
        pack_until = time.monotonic() + PLAIN.pack_share * self.limit_s
        if self.planner.solve_share == PLAIN.solve_share:
            pack_until = max(pack_until, self.stop_at - 2 * PLAIN.pack_share * self.limit_s)
        effort, moves_until = effort_of(self.options), self.stop_at
        if self.incumbent is None:  # a late solver's schedule is worth a round of moves, where there is no other
            moves_until = max(moves_until, time.monotonic())
        solved, plan = packed(problem, first, pack_until, moves_until, effort)
        order = first_executions(first.actions)  # the proof is about this order
        budget_bytes, late_s = problem.budget_bytes, min(PLAIN.late_s, PLAIN.retry_share * self.limit_s)
        for attempt in range(PLAIN.attempts):
            excess = ram_bytes(problem, plan) - problem.budget_bytes
            if excess <= 0:
                moves = [problem.tensors[s.tensor].size_bytes for s in solved.actions if isinstance(s, Move)]
                if moves:
                    self.progress(
                        f"packed with {format_count(len(moves), 'move')} of {format_bytes(sum(moves))} within RAM"
                    )
                self.planner.keep(problem, solved, plan)
                return _relabelled(problem, solved, first), plan
            self.planner.best.drop(problem)
            remaining_s = (self.stop_at - time.monotonic()) / 2  # the rest is for packing and the attempts to come
            in_haste = remaining_s < PLAIN.retry_share * self.limit_s
            too_late = time.monotonic() >= self.stop_at + late_s
            if in_haste and (self.solver != ENGINE or too_late):
                return None
            budget_bytes -= excess * (2 + attempt) // 2  # other schedules pack otherwise: more and more is put aside
            self.progress(f"packing needs {format_bytes(excess)} too much: solving for {format_bytes(budget_bytes)}")
            schedule = self._again(replace(problem, budget_bytes=budget_bytes), order, first, remaining_s, in_haste)
            if schedule is None:
                return None
            solved = schedule
            pack_until = self.stop_at + late_s if in_haste else self.stop_at
            solved, plan = packed(problem, solved, pack_until, self.stop_at, effort)
        return None

    def _again(
        self, tighter: Problem, order: tuple[int, ...], first: Schedule, remaining_s: float, in_haste: bool
    ) -> Schedule | None:
        """A schedule for a tighter budget, under the order of `first`, about which its bound is."""
        reordered = solvers.reordered(tighter, order)
        options = replace(self.options, time_limit_s=max(remaining_s, 0.0), fixed_order=True)
        known = replace(self.warm_start, start=None, looser_bound=first.proof.bound)
        again = self._for_solver(options, known)

        def report(event: solvers.Event) -> None:
            schedule = event.schedule  # its actions name the operators of `reordered`
            restored = None if schedule is None else functools.partial(_restored, schedule, order)
            self._report(replace(event, schedule=restored))

        try:
            if in_haste:
                schedule = solvers.at_once(reordered, again)
            else:
                schedule = solvers.solve(reordered, self.solver, again, report)
        except (InfeasibleError, LimitError):
            return None
        return None if schedule is None else solvers.restored(schedule, order)

    def _other_instead(
        self, first: Schedule | None, why: str, scheduled_bytes: int | None = None
    ) -> tuple[Schedule, MemoryPlan]:
        """The schedule of least RAM, if it fits, or the one that the search began with, if that is cheaper and packs.

        It is not the cheapest there is, but it runs. `scheduled_bytes`: the smallest budget that the solver has a
        schedule for, which was not packed.
        """
        problem = self.problem
        self.progress("looking for the schedule of least RAM")
        smallest = self.smallest_ram.result
        others: list[tuple[str, Schedule, MemoryPlan]] = []
        if smallest.schedule is not None and smallest.plan is not None:
            others.append((LEAST_RAM, smallest.schedule, smallest.plan))
        incumbent, start = self.incumbent, self.warm_start.start
        if incumbent is None and start is not None:
            pack_until = time.monotonic() + SMALLEST_RAM.pack_share * self.smallest_ram.least_s
            incumbent = packed(problem, start, pack_until, pack_until)
        if incumbent is not None:
            others.append((KEPT, *incumbent))
        fitting = [other for other in others if ram_bytes(problem, other[2]) <= problem.budget_bytes]
        if not fitting:
            known_bytes = math.inf if smallest.ram_bytes is None else smallest.ram_bytes
            if scheduled_bytes is not None and problem.budget_bytes < scheduled_bytes < known_bytes:
                # One budget is named, the smaller: this search had less time.
                known = replace(smallest, ram_bytes=scheduled_bytes, tensors=())
                text = f"the smallest budget with a schedule is {scheduled_bytes} bytes; {next_step(problem)}"
                raise LimitError(f"{why}; {text}", details=details(problem, known))
            raise LimitError(f"{why}; {advice(problem, smallest)}", details=details(problem, smallest))
        name, schedule, plan = min(fitting, key=lambda other: other[1].proof.objective)
        return instead(problem, self.solver, name, schedule, first), plan

    def _with_smallest(self, error: InfeasibleError) -> InfeasibleError:
        """`error` with the smallest budget that works."""
        problem = self.problem
        if not isinstance(error, solvers.BudgetError):
            return error
        self.progress("looking for the smallest budget")
        smallest = self.smallest_ram.result
        if smallest.ram_bytes is None or smallest.ram_bytes <= problem.budget_bytes:
            return error
        # Below the bound nothing fits at all; above it the proof is about this order of first executions.
        order = "" if problem.budget_bytes < smallest.bound_bytes else " with operators in the model's order"
        return InfeasibleError(
            f"no schedule fits in {problem.budget_bytes} bytes{within_limits(problem)}{order}; "
            f"{advice(problem, smallest)}",
            details=details(problem, smallest),
        )


def order_of(problem: Problem, schedule: Schedule) -> tuple[str, ...]:
    """The names of the operators in the order of their first executions."""
    return tuple(problem.operators[v].name for v in first_executions(schedule.actions))


def effort_of(options: SolveOptions) -> float:
    """Of packing, as a share of the most placements."""
    return PLAIN.quick_effort if options.is_quick else 1.0


def instead(problem: Problem, solver: str, name: str, schedule: Schedule, proven: Schedule | None) -> Schedule:
    """`schedule`, named `name`, as the answer of `solver`, with the bound of `proven`."""
    bound, scope = _claim(problem, proven, schedule)
    proof = Proof(
        status=Status.LIMIT,
        objective=schedule.proof.objective,
        bound=bound,
        scope=scope,
        method=f"{name}, since no cheaper one was found that fits when packed",
    )
    return replace(schedule, solver=solver, proof=proof)


def _relabelled(problem: Problem, solved: Schedule, first: Schedule) -> Schedule:
    """`solved` for a tightened budget, as an answer to the problem that `first` answers: with its proven bound."""
    if solved is first:
        return solved
    bound, scope = _claim(problem, first, solved)
    status = solved.proof.status
    if status is Status.OPTIMAL and solved.proof.objective > bound:
        status = Status.FEASIBLE
    return replace(solved, proof=replace(solved.proof, bound=bound, status=status, scope=scope))


def _claim(problem: Problem, proven: Schedule | None, schedule: Schedule) -> tuple[int, Scope]:
    """The bound, and its scope, that `schedule` may claim where `proven` was proven."""
    own = Scope(order=first_executions(schedule.actions))
    bound, scope, method = cost_of_computing_once(problem), Scope(), "every operator once"
    if proven is not None and proven.proof.scope.choices_cover(own):
        bound, scope, method = proven.proof.bound, proven.proof.scope, proven.proof.method
    return solvers.bound_beside(bound, schedule.proof.objective, method), scope


def _restored(schedule: Callable[[], Schedule], order: tuple[int, ...]) -> Schedule:
    return solvers.restored(schedule(), order)
