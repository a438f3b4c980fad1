"""The kernel that each operator runs, where low-workspace kernels give the same results.

First every operator has its fastest kernel, but for the one beside which the most is in RAM. Kernels with less
workspace count where RAM is short or nothing is found. Then a relaxed problem is solved. In it each operator needs its
least workspace at the cost of its fastest kernel, so that its bound holds whatever runs. Its schedule leaves each
operator some room, in which the fastest kernel that fits runs. That choice, and the fastest kernels where they may do,
are solved for themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.devices import format_ns
from poetc.devices.units import format_bytes
from poetc.errors import InfeasibleError, LimitError, format_count
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.order import in_order, with_own_order
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner, Reduction
from poetc.planning.settings import KERNEL
from poetc.planning.smallest_ram import RamSearch, search_share_s
from poetc.planning.solution import NAMED, Solution, bound_holds, cost_of_computing_once, everything
from poetc.scheduling import (
    Compute,
    OperatorSpec,
    Problem,
    Schedule,
    ScheduleError,
    Variant,
    for_recent,
    remember,
    verify,
    without_moves,
)
from poetc.scheduling.schedule import Status, first_executions
from poetc.scheduling.scope import ANY, Option

Kernel = tuple[int, ...]  # the number of each operator's kernel; 0 is the fastest


class Kernels(Reduction[Kernel]):
    """Kernels that give the same results, with less workspace and in more time."""

    name = "kernels"
    scoped = True
    noun = "kernels"

    def __init__(self) -> None:
        self._fullest: dict[Problem, tuple[int, int]] = {}  # by problem, the kernel of its fullest operator

    def is_open(self, problem: Problem) -> bool:
        return any(op.low_workspace for op in problem.operators)

    def relax(self, problem: Problem) -> Problem:
        """Each operator with the least workspace at the cost of the most: no choice needs or costs less."""
        return _of(problem, _relaxed(problem))

    def frugal(self, problem: Problem) -> Problem:
        """With the least workspace, or the fastest kernels where the deadline needs them."""
        least = with_least_workspace(problem)
        too_slow = problem.deadline_ns is not None and least.compute_once_ns > problem.deadline_ns
        return fastest(problem) if too_slow else least

    def usual(self, problem: Problem) -> Problem:
        return fastest(problem)

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Kernel]:
        """The kernels of the incumbent, or without one those of least workspace; then the fastest."""
        yield least_workspace(problem) if incumbent is None else kernels_of(problem, incumbent.problem)
        yield (0,) * len(problem.operators)

    def fix(self, problem: Problem, choice: Kernel) -> Problem:
        """The plain problem in which operator k runs its kernel `choice[k]`."""
        return self._with(problem, (_with_kernel(op, n) for op, n in zip(problem.operators, choice, strict=True)))

    def chosen(self, problem: Problem, solved: Problem) -> Kernel:
        return kernels_of(problem, solved)

    def realise(self, problem: Problem, solution: Solution, stop_at: float = 0.0) -> Solution:
        """With the fastest kernels of `problem` that the schedule has room for."""
        realised = _with_faster_kernels(problem, solution, stop_at)
        return realised.with_choice(self.name, kernels_of(problem, realised.problem))

    @classmethod
    def scope_words(cls, option: Option) -> str:
        return super().scope_words(option) if option is ANY or any(option) else "the fastest kernels"

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        replaced = sorted(low_workspace_operators(asked, solution.problem), key=lambda o: o[0].workspace_bytes - o[1])
        if not replaced:
            return ""
        shown = [f"{op.name} ({format_bytes(b)} -> {format_bytes(op.workspace_bytes)})" for op, b in replaced[:NAMED]]
        more = f" and {len(replaced) - NAMED} more" if len(replaced) > NAMED else ""
        operators = format_count(len(replaced), "operator")
        return (
            f"{operators} in kernels with less workspace than the fastest, as RAM is short (the same results): "
            f"{', '.join(shown)}{more}"
        )

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        inner = planner.inner
        if not self.is_open(problem):
            return inner.solve(fastest(problem))
        own = (0,) * len(problem.operators)
        quick = fastest(problem)
        if planner.solver != ENGINE:
            return self.restore(problem, own, inner.having(self, own).solve(quick))
        search = planner.smallest_ram
        if search is None:
            search = planner.search_ram(problem, search_share_s(planner.options.time_limit_s))
        needed_bytes = inner.lower_bound_bytes(quick)
        least_bytes = planner.lower_bound_bytes(problem)
        late = problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns
        if late or problem.budget_bytes > KERNEL.tight * needed_bytes or needed_bytes == least_bytes:
            own = own if late else self._roomy_at_fullest(problem, planner)
            quick = self.fix(problem, own)
            try:
                inner = inner.knowing(search.without_schedule(quick)).having(self, own)
                return self.restore(problem, own, inner.solve(quick))
            except (InfeasibleError, LimitError):
                if late or least_bytes > problem.budget_bytes:
                    raise
            planner.progress("nothing found with the fastest kernels")
            planner = planner.part(max(planner.left_s, _floor_s(planner.options.work_limit_s)))
        return _OpenKernels(self, problem, planner, search).solve()

    def _roomy_at_fullest(self, problem: Problem, planner: Planner) -> Kernel:
        """The fastest kernels, but for the operator beside which the most is in RAM."""
        own = [0] * len(problem.operators)
        if problem.deadline_ns is None and not planner.options.is_quick:
            at, number = self._fullest.get(problem) or self._kernel_of_fullest(problem, planner)
            own[at] = number
        return tuple(own)

    def _kernel_of_fullest(self, problem: Problem, planner: Planner) -> tuple[int, int]:
        """The operator and its kernel, which a second solve takes again: with another one it would begin with nothing.

        A choice that the clock ended is made anew.
        """
        started = time.monotonic()
        seconds = max(KERNEL.fullest_s, KERNEL.fullest_share * planner.options.time_limit_s)
        seconds = min(planner.left_s, seconds)
        chosen = solvers.kernel_of_fullest(problem, time_limit_s=seconds)
        if time.monotonic() - started < seconds:
            remember(self._fullest, problem, chosen)
        return chosen

    def _with(self, problem: Problem, operators: Iterable[OperatorSpec]) -> Problem:
        return replace(problem, operators=tuple(operators)) if self.is_open(problem) else problem


KERNELS = Kernels()


def fastest(problem: Problem) -> Problem:
    """The plain problem with the fastest kernels."""
    return _of(problem, _fastest(problem))


def _of(problem: Problem, operators: tuple[OperatorSpec, ...]) -> Problem:
    return problem if operators is problem.operators else replace(problem, operators=operators)


@for_recent
def _fastest(problem: Problem) -> tuple[OperatorSpec, ...]:
    return KERNELS.fix(problem, (0,) * len(problem.operators)).operators


@for_recent
def _relaxed(problem: Problem) -> tuple[OperatorSpec, ...]:
    def least(op: OperatorSpec) -> OperatorSpec:
        last = op.low_workspace[-1]
        return replace(op, low_workspace=(), workspace_bytes=last.workspace_bytes, kernel=last.kernel)

    operators = problem.operators
    is_open = KERNELS.is_open(problem)
    return tuple(least(op) if op.low_workspace else op for op in operators) if is_open else operators


def least_workspace(problem: Problem) -> Kernel:
    """For each operator the number of its kernel with the least workspace; 0 is the fastest kernel."""
    return tuple(len(op.low_workspace) for op in problem.operators)


def with_least_workspace(problem: Problem) -> Problem:
    """The plain problem with the kernels of the least workspace."""
    return _of(problem, _least_workspace(problem))


@for_recent
def _least_workspace(problem: Problem) -> tuple[OperatorSpec, ...]:
    return KERNELS.fix(problem, least_workspace(problem)).operators


def kernels_of(problem: Problem, solved: Problem) -> Kernel:
    """The kernels that the plain problem `solved` has: `Kernels.fix` backwards.

    Raises ScheduleError for numbers that no kernel of `problem` has.
    """
    chosen = []
    for op, plain in zip(problem.operators, solved.operators, strict=True):
        number = next((n for n in range(1 + len(op.low_workspace)) if _with_kernel(op, n) == plain), None)
        if number is None:
            reason = f"{op.name!r} has a workspace of {plain.workspace_bytes} bytes, {plain.time_ns} ns and"
            raise ScheduleError(None, f"{reason} {plain.energy_pj} pJ, which no kernel of it has")
        chosen.append(number)
    return tuple(chosen)


def low_workspace_operators(asked: Problem, solved: Problem) -> list[tuple[OperatorSpec, int]]:
    """Operators of `solved` that need less workspace than in `asked`, with the bytes that they need there."""
    pairs = zip(solved.operators, asked.operators, strict=True)
    return [(op, other.workspace_bytes) for op, other in pairs if op.workspace_bytes < other.workspace_bytes]


@dataclass(slots=True)
class _OpenKernels:
    """A solve with kernels left open, within the time of `planner`."""

    reduction: Kernels
    problem: Problem
    planner: Planner
    smallest_ram: RamSearch

    def solve(self) -> Solution:
        planner, problem = self.planner, self.problem
        limit_s = planner.options.time_limit_s
        planner.progress("kernels with less workspace")
        first, error = self._solved(self.reduction.relax(problem), KERNEL.open_share * limit_s, math.inf, relaxed=True)
        if isinstance(error, InfeasibleError):
            raise error
        if first is not None:
            first = first.with_scope(self.reduction.scope(first))
        best = None if first is None else self._realised(first)
        for choice in self.reduction.propose(problem, best):
            if best is not None and first is not None and self._closed(first, best):
                break
            fixed = self.reduction.fix(problem, choice)
            if not any(choice) and planner.inner.lower_bound_bytes(fixed) > problem.budget_bytes:
                continue
            cost = math.inf if best is None else best.cost
            left_s = max(KERNEL.chosen_share * planner.left_s, _floor_s(limit_s))
            solution, failed = self._in_order(first, fixed, left_s, cost)
            error = error or _of_some_kernels(problem, failed)
            if solution is not None:
                solution = self._realised(solution)
            if solution is not None and solution.cost < cost:
                best = solution
        if best is None:
            smallest = self.smallest_ram.result
            if smallest.ram_bytes is None or smallest.ram_bytes > problem.budget_bytes:
                assert error is not None
                raise error
            best = planner.least_ram_solution(problem, self.smallest_ram)
            best = replace(best, problem=replace(best.problem, budget_bytes=problem.budget_bytes))
        return self._with_proof(first, best)

    def _solved(
        self, problem: Problem, limit_s: float, to_beat: float, fixed_order: bool = False, *, relaxed: bool = False
    ) -> tuple[Solution | None, InfeasibleError | LimitError | None]:
        options = self.planner.options
        share = limit_s / max(options.time_limit_s, 1e-9)
        part = self.planner.inner.part(
            limit_s,
            work_limit_s=share * options.work_limit_s,
            fixed_order=options.fixed_order or fixed_order,
        )
        if relaxed:
            real_cost = None if part.relaxed else self._real_cost
            part = replace(part, relaxed=part.relaxed | {Kernels.name}, real_cost=real_cost)
        part = part.with_warm_start(to_beat=None if to_beat == math.inf else int(to_beat))
        try:
            return part.knowing(self.smallest_ram.without_schedule(problem)).solve(problem), None
        except (InfeasibleError, LimitError) as error:
            return None, error

    def _in_order(
        self, first: Solution | None, problem: Problem, limit_s: float, to_beat: float
    ) -> tuple[Solution | None, InfeasibleError | LimitError | None]:
        """Under the order of `first`, about which its bound is."""
        order = None if first is None else first_executions(first.schedule.actions)
        solution, error = self._solved(in_order(problem, order), limit_s, to_beat, first is not None)
        return None if solution is None else with_own_order(order, solution), error

    def _realised(self, solution: Solution) -> Solution | None:
        """With the fastest kernels that it has room for; None if that is too late."""
        realised = self.reduction.realise(self.problem, solution, self.planner.stop_at)
        return None if self._is_late(realised) else realised

    def _is_late(self, solution: Solution) -> bool:
        deadline_ns = self.problem.deadline_ns
        if deadline_ns is None:
            return False
        return verify(replace(solution.problem, deadline_ns=None), solution.schedule).time_ns > deadline_ns

    def _real_cost(self, relaxed: Solution) -> int | None:
        """The cost of a packed schedule of the relaxed problem with the fastest kernels that it has room for.

        The placement of state is made, and perhaps another order.
        """
        operators = {op.name: op for op in self.problem.operators}
        problem = replace(relaxed.problem, operators=tuple(operators[op.name] for op in relaxed.problem.operators))
        realised = _with_faster_kernels(problem, relaxed, 0.0)
        fits = ram_bytes(problem, realised.plan) <= problem.budget_bytes
        return realised.cost if fits and not self._is_late(realised) else None

    def _closed(self, first: Solution, best: Solution) -> bool:
        tolerance = max(solvers.ROUNDING, self.planner.options.gap) * best.cost
        return bound_holds(first, best) and best.cost - first.proof.bound <= tolerance

    def _bound_under_order(self, best: Solution) -> int:
        """A bound for any kernels and placement of state under the order of `best`."""
        ordered = in_order(self.reduction.relax(self.problem), first_executions(best.schedule.actions))
        share, options = KERNEL.proof_share, self.planner.options
        return solvers.bound_of_any_placement(
            ordered,
            best.cost,
            work_s=share * options.work_limit_s,
            stop_at=time.monotonic() + self.planner.within_s(share * options.time_limit_s),
        )

    def _with_proof(self, first: Solution | None, best: Solution) -> Solution:
        """With the bound that holds whatever kernels run."""
        own, once = best.proof, cost_of_computing_once(self.problem)
        bound, scope, status = once, everything(), Status.FEASIBLE
        if first is None or Status.LIMIT in (first.proof.status, own.status):
            status = Status.LIMIT
        if first is not None and bound_holds(first, best) and first.proof.bound > bound:
            bound, scope = first.proof.bound, first.proof.scope
        is_close = bound >= own.objective * (1 - self.planner.options.gap)
        if solvers.has_wide_gap(bound, own.objective) and not is_close:
            under_order = 0 if self.planner.options.is_quick else self._bound_under_order(best)
            if under_order > bound:
                bound, scope = under_order, best.scope
                for name in dict(scope.choices).keys() & {Kernels.name, "state"}:
                    scope = scope.with_choice(name, ANY)
        method = f"{own.method.partition('; bound: ')[0]}; bound: kernels left open"
        bound = solvers.bound_beside(bound, own.objective, method)
        proof = replace(own, bound=bound, scope=scope, status=status, method=method)
        if proof.gap() <= solvers.ROUNDING:
            proof = replace(proof, status=Status.OPTIMAL)
        elif proof.gap() <= self.planner.options.gap:
            proof = replace(proof, status=Status.FEASIBLE)
        return best.with_proof(proof)


def _floor_s(limit_s: float) -> float:
    """The least time that a solve gets, though the limit is passed."""
    return min(KERNEL.floor_s, KERNEL.floor_share * limit_s)


def _of_some_kernels(
    problem: Problem, error: InfeasibleError | LimitError | None
) -> InfeasibleError | LimitError | None:
    """The meaning for `problem` of `error`, which is about one choice of kernels: no proof."""
    if not isinstance(error, InfeasibleError):
        return error
    within, advice = "", "allow a larger --budget"
    if problem.deadline_ns is not None:
        within = f" within the deadline of {format_ns(problem.deadline_ns)}"
        advice = "allow a longer --deadline or a larger --budget"
    why = f"found no schedule for {problem.budget_bytes} bytes{within}, nor a proof that there is none"
    return LimitError(f"{why}; {advice}", details=error.details)


def _with_faster_kernels(problem: Problem, solution: Solution, stop_at: float) -> Solution:
    """`solution`, whose kernels need the least workspace, with the fastest of `problem` that it has room for."""
    limited = replace(solution.problem, deadline_ns=None)
    trace = verify(limited, solution.schedule)
    room = [problem.budget_bytes] * len(problem.operators)
    for action, in_use_bytes in zip(solution.schedule.actions, trace.ram_bytes, strict=True):
        if isinstance(action, Compute):
            room[action.operator] = min(room[action.operator], solution.problem.budget_bytes - in_use_bytes)
    used = [op.workspace_bytes for op in solution.problem.operators]
    until = max(stop_at, time.monotonic())
    for part in range(KERNEL.rooms, -1, -1):
        sizes = [ws + max(0, free) * part // KERNEL.rooms for ws, free in zip(used, room, strict=True)]
        choice = tuple(_at_most(op, size) for op, size in zip(problem.operators, sizes, strict=True))
        plain = replace(solution.problem, operators=KERNELS.fix(problem, choice).operators)
        if plain.operators == solution.problem.operators:
            return solution
        schedule = _recosted(solution.problem, plain, solution.schedule)
        if part == 0:
            break
        try:
            verify(replace(plain, deadline_ns=None), schedule)
        except ScheduleError:
            continue
        schedule, plan = packed(plain, without_moves(plain, schedule), until, until)
        if ram_bytes(plain, plan) <= solution.problem.budget_bytes:
            return replace(solution, problem=plain, schedule=schedule, plan=plan)
    return replace(solution, problem=plain, schedule=schedule)


def _recosted(before: Problem, after: Problem, schedule: Schedule) -> Schedule:
    """The schedule with the cost that it has where the operators are those of `after`, not of `before`."""
    cost, more = after.objective.cost, 0
    for action in schedule.actions:
        if isinstance(action, Compute):
            old, new = before.operators[action.operator], after.operators[action.operator]
            more += cost(new.energy_pj - old.energy_pj, new.time_ns - old.time_ns)
    proof = schedule.proof
    objective = proof.objective + more
    return replace(schedule, proof=replace(proof, objective=objective, bound=min(proof.bound, objective)))


def _with_kernel(op: OperatorSpec, number: int) -> OperatorSpec:
    if not op.low_workspace:
        return op
    k = _kernels(op)[number]
    plain = replace(op, low_workspace=(), kernel=k.kernel)
    return replace(
        plain,
        workspace_bytes=k.workspace_bytes,
        time_ns=k.time_ns,
        energy_pj=k.energy_pj,
        elsewhere=k.elsewhere,
    )


def _kernels(op: OperatorSpec) -> tuple[Variant, ...]:
    own = Variant(
        workspace_bytes=op.workspace_bytes,
        time_ns=op.time_ns,
        energy_pj=op.energy_pj,
        kernel=op.kernel,
        elsewhere=op.elsewhere,
    )
    return (own, *op.low_workspace)


def _at_most(op: OperatorSpec, size_bytes: float) -> int:
    """The fastest kernel with no more workspace; that with the least if there is none."""
    fitting = (n for n, k in enumerate(_kernels(op)) if k.workspace_bytes <= size_bytes)
    return next(fitting, len(op.low_workspace))
