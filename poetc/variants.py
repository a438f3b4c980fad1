"""Which kernel each operator runs, where one with less workspace gives the same results (`OperatorSpec.leaner`):
`homes` for a problem in which that is open.

First every operator has its fastest kernel. Only where RAM is short, or nothing is found, leaner ones count: a
problem in which each operator needs its least workspace and costs what its fastest kernel does is solved; what is
proven of it holds whatever runs. Its schedule leaves each operator some room, in which the fastest kernel that fits
runs; then that choice, and the fastest kernels where they may do, are solved for themselves. What comes out is a plain
problem: the numbers of its operators are those of the kernels that were chosen.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from poetc import homes, planning, solvers
from poetc.devices import format_bytes, format_ns
from poetc.errors import InfeasibleError, LimitError
from poetc.homes import Placed
from poetc.scheduling import (
    Compute,
    OperatorSpec,
    Problem,
    Schedule,
    ScheduleError,
    Variant,
    verify,
    without_moves,
)
from poetc.scheduling.schedule import Proof, SolveOptions, Status

Progress = Callable[[str], None]
TIGHT = 1.1  # times what the fastest kernels need at least: smaller budgets have leaner ones considered at once
OPEN_SHARE, CHOSEN_SHARE = 0.45, 0.6  # of the time that is left: with kernels open, then for the choice
ROOMS = 4  # of the room beside a schedule, so many parts are given back until it packs
FASTEST, ANY = "; the fastest kernels", "; any kernels"  # what a class of schedules says of kernels
NAMES = 4  # in a remark


def solve_and_pack(
    problem: Problem,
    state: str,
    solver: str,
    options: SolveOptions,
    progress: Progress,
    minimum: planning.Minimum | None = None,
) -> Placed:
    """`homes.solve_and_pack` for a problem with variants of operators; `minimum` is that of this module."""
    quick = fastest(problem)
    if quick is problem or solver != planning.OURS:
        return homes.solve_and_pack(quick, state, solver, options, progress, minimum)
    placed = _solved(problem, quick, state, options, progress, minimum)
    choice_of(problem, placed.problem)
    return placed


def _solved(
    problem: Problem,
    quick: Problem,
    state: str,
    options: SolveOptions,
    progress: Progress,
    minimum: planning.Minimum | None,
) -> Placed:
    started = time.monotonic()
    if minimum is None:
        minimum = least_ram(problem, state, planning.search_share_s(options.time_limit_s))
    needed_bytes = homes.lower_bound_bytes(quick, state)
    late = problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns
    if late or problem.budget_bytes > TIGHT * needed_bytes or needed_bytes == lower_bound_bytes(problem, state):
        try:
            known = _Known(quick, minimum)
            return _of_fastest(homes.solve_and_pack(quick, state, planning.OURS, options, progress, known))
        except (InfeasibleError, LimitError):
            if late or lower_bound_bytes(problem, state) > problem.budget_bytes:
                raise
        progress("nothing found with the fastest kernels")
        left_s = options.time_limit_s - (time.monotonic() - started)
        options = replace(options, time_limit_s=max(left_s, homes.FLOOR_SHARE * options.work_limit_s))
    return _Open(problem, state, options, progress, minimum).solve()


def least_ram(problem: Problem, state: str, least_s: float, stop_at: float = 0.0) -> planning.Minimum:
    """`homes.minimum`, with the leanest kernels if they are fast enough."""
    lean, deadline_ns = leanest(problem), problem.deadline_ns
    if deadline_ns is not None and lean.compute_once_ns > deadline_ns:
        lean = fastest(problem)
    found = homes.minimum(lean, state, least_s, stop_at)
    found.least_bytes = lower_bound_bytes(problem, state)
    return found


def smallest_ram(problem: Problem, state: str, time_limit_s: float = planning.MINIMUM_SEARCH_S) -> planning.SmallestRam:
    """`homes.smallest_ram`, with the leanest kernels."""
    return least_ram(problem, state, time_limit_s).found


def lower_bound_bytes(problem: Problem, state: str) -> int:
    """No schedule needs less RAM, whatever kernels run."""
    return homes.lower_bound_bytes(relaxed(problem), state)


def least(minimum: planning.Minimum, problem: Problem, solver: str) -> Placed:
    """`homes.leanest`, with the fastest kernels for which it has room."""
    return _remarked(problem, _faster(problem, homes.leanest(minimum, solver)))


def bound_holds(proven: Placed, placed: Placed) -> bool:
    """Whether the bound that comes with `proven` is about the schedule of `placed` too."""
    open_kernels = FASTEST not in proven.schedule.proof.schedule_class
    same = proven.problem.operators == placed.problem.operators
    return (open_kernels or same) and homes.bound_holds(proven, placed)


def fastest(problem: Problem) -> Problem:
    """Without variants."""
    return with_variants(problem, [0] * len(problem.operators))


def leanest(problem: Problem) -> Problem:
    """Each operator with the least workspace."""
    return with_variants(problem, [len(op.leaner) for op in problem.operators])


def relaxed(problem: Problem) -> Problem:
    """Each operator with the least workspace and what it costs with the most: no choice needs or costs less."""

    def least(op: OperatorSpec) -> OperatorSpec:
        last = op.leaner[-1]
        return replace(op, leaner=(), workspace_bytes=last.workspace_bytes, kernel=last.kernel)

    return _with(problem, (least(op) if op.leaner else op for op in problem.operators))


def with_variants(problem: Problem, chosen: Sequence[int]) -> Problem:
    """The plain problem in which operator k is its variant `chosen[k]`: 0 is the fastest."""
    return _with(problem, (_as_variant(op, n) for op, n in zip(problem.operators, chosen, strict=True)))


def choice_of(problem: Problem, solved: Problem) -> tuple[int, ...]:
    """Which variant of each operator of `problem` the plain problem `solved` has: `with_variants` backwards. Raises
    ScheduleError for numbers that no variant has.
    """
    chosen = []
    for op, plain in zip(problem.operators, solved.operators, strict=True):
        found = [n for n in range(1 + len(op.leaner)) if _as_variant(op, n) == plain]
        if not found:
            reason = f"{op.name!r} has a workspace of {plain.workspace_bytes} bytes, {plain.time_ns} ns and"
            raise ScheduleError(None, f"{reason} {plain.energy_pj} pJ, which no variant of it has")
        chosen += found
    return tuple(chosen)


def leaner_operators(asked: Problem, problem: Problem) -> list[tuple[OperatorSpec, int]]:
    """Operators of `problem`, solved, that need less workspace than in `asked`, with what they need there."""
    pairs = zip(problem.operators, asked.operators, strict=True)
    return [(op, other.workspace_bytes) for op, other in pairs if op.workspace_bytes < other.workspace_bytes]


def _with(problem: Problem, operators: Iterable[OperatorSpec]) -> Problem:
    if not any(op.leaner for op in problem.operators):
        return problem
    return replace(problem, operators=tuple(operators))


def _as_variant(op: OperatorSpec, number: int) -> OperatorSpec:
    if not op.leaner:
        return op
    v = _variants(op)[number]
    plain = replace(op, leaner=(), kernel=v.kernel)
    return replace(plain, workspace_bytes=v.workspace_bytes, time_ns=v.time_ns, energy_pj=v.energy_pj)


def _variants(op: OperatorSpec) -> tuple[Variant, ...]:
    own = Variant(workspace_bytes=op.workspace_bytes, time_ns=op.time_ns, energy_pj=op.energy_pj, kernel=op.kernel)
    return (own, *op.leaner)


def _at_most(op: OperatorSpec, size_bytes: float) -> int:
    """The fastest variant with no more workspace; the leanest if there is none."""
    fitting = (n for n, v in enumerate(_variants(op)) if v.workspace_bytes <= size_bytes)
    return next(fitting, len(op.leaner))


class _Known(planning.Minimum):
    """For `problem`, with kernels of which nothing is known: the smallest RAM with the leanest ones, without a
    schedule."""

    def __init__(self, problem: Problem, other: planning.Minimum) -> None:
        own = replace(other.problem, operators=problem.operators)  # with the homes that need the least RAM
        super().__init__(own, other.least_s, other.stop_at, other.least_bytes)
        self.other = other

    @functools.cached_property
    def found(self) -> planning.SmallestRam:
        return replace(self.other.found, schedule=None, plan=None)


def _of_fastest(placed: Placed) -> Placed:
    """Leaner kernels leave more RAM to schedules that these bounds are not about, unless every operator runs once."""
    proof, problem = placed.schedule.proof, placed.problem
    once = problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
    if proof.bound <= once:
        return placed
    return _proven(placed, replace(proof, schedule_class=proof.schedule_class + FASTEST))


def _proven(placed: Placed, proof: Proof) -> Placed:
    return replace(placed, schedule=replace(placed.schedule, proof=proof))


def _remarked(asked: Problem, placed: Placed) -> Placed:
    found = sorted(leaner_operators(asked, placed.problem), key=lambda o: o[0].workspace_bytes - o[1])
    if not found:
        return placed
    shown = [f"{op.name} ({format_bytes(b)} -> {format_bytes(op.workspace_bytes)})" for op, b in found[:NAMES]]
    more = f" and {len(found) - NAMES} more" if len(found) > NAMES else ""
    operators = "1 operator" if len(found) == 1 else f"{len(found)} operators"
    remark = f"{operators} in kernels with less workspace than the fastest, as RAM is short (the same "
    remark += f"results): {', '.join(shown)}{more}"
    return replace(placed, remark="; ".join(r for r in (placed.remark, remark) if r))


@dataclass(slots=True)
class _Open:
    """A solve with kernels left open, within the time limit."""

    problem: Problem
    state: str
    options: SolveOptions
    progress: Progress
    minimum: planning.Minimum

    def solve(self) -> Placed:
        limit_s = self.options.time_limit_s
        stop_at = time.monotonic() + limit_s
        self.progress("kernels with less workspace")
        first, error = self._placed(relaxed(self.problem), OPEN_SHARE * limit_s, math.inf)
        if isinstance(error, InfeasibleError):
            raise error
        best = None if first is None else self._realised(first, stop_at)
        for other in self._choices(best):
            if best is not None and first is not None and self._closed(first, best):
                break
            cost = math.inf if best is None else best.schedule.proof.objective
            left_s = CHOSEN_SHARE * (stop_at - time.monotonic())
            found, failed = self._in_order(first, other, max(left_s, homes.FLOOR_SHARE * limit_s), cost)
            error = error or _of_some_kernels(self.problem, failed)
            if found is not None:
                found = self._realised(found, stop_at)
            if found is not None and found.schedule.proof.objective < cost:
                best = found
        if best is None:
            smallest = self.minimum.found
            if smallest.ram_bytes is None or smallest.ram_bytes > self.problem.budget_bytes:
                assert error is not None
                raise error
            best = least(self.minimum, self.problem, planning.OURS)
            best = replace(best, problem=replace(best.problem, budget_bytes=self.problem.budget_bytes))
        return _remarked(self.problem, self._with_proof(first, best))

    def _placed(
        self, problem: Problem, limit_s: float, to_beat: float, fixed_order: bool = False
    ) -> tuple[Placed | None, InfeasibleError | LimitError | None]:
        share = limit_s / max(self.options.time_limit_s, 1e-9)
        beat = None if to_beat == math.inf else int(to_beat)
        options = replace(
            self.options,
            time_limit_s=limit_s,
            work_limit_s=share * self.options.work_limit_s,
            to_beat=beat,
            fixed_order=self.options.fixed_order or fixed_order,
        )
        known = _Known(problem, self.minimum)
        try:
            return homes.solve_and_pack(problem, self.state, planning.OURS, options, self.progress, known), None
        except (InfeasibleError, LimitError) as error:
            return None, error

    def _in_order(
        self, first: Placed | None, problem: Problem, limit_s: float, to_beat: float
    ) -> tuple[Placed | None, InfeasibleError | LimitError | None]:
        """Under the order of `first`, of which its bound is."""
        order = tuple(range(len(problem.operators))) if first is None else planning.first_executions(first.schedule)
        found, error = self._placed(solvers.reordered(problem, order), limit_s, to_beat, first is not None)
        if found is not None and first is not None:
            workspaces = tuple(
                replace(a, operator=None if a.operator is None else order[a.operator]) for a in found.plan.allocations
            )
            found = replace(
                found,
                problem=replace(found.problem, operators=problem.operators),
                schedule=solvers.restored(found.schedule, order),
                plan=replace(found.plan, allocations=workspaces),
            )
        return found, error

    def _choices(self, best: Placed | None) -> Iterator[Problem]:
        """Kernels to solve for: what was chosen, or the leanest; the fastest where they may do."""
        if best is None:
            yield leanest(self.problem)
        else:
            yield _with(self.problem, best.problem.operators)
        quick = fastest(self.problem)
        if homes.lower_bound_bytes(quick, self.state) <= self.problem.budget_bytes:
            yield quick

    def _realised(self, placed: Placed, stop_at: float) -> Placed | None:
        """With the fastest kernels that it has room for; None if that is too late."""
        found = _faster(self.problem, placed, stop_at)
        deadline_ns = self.problem.deadline_ns
        if deadline_ns is None:
            return found
        late = verify(replace(found.problem, deadline_ns=None), found.schedule).time_ns > deadline_ns
        return None if late else found

    def _closed(self, first: Placed, best: Placed) -> bool:
        bound, cost = first.schedule.proof.bound, best.schedule.proof.objective
        return bound_holds(first, best) and cost - bound <= max(solvers.ROUNDING, self.options.gap) * cost

    def _with_proof(self, first: Placed | None, best: Placed) -> Placed:
        """With what was proven whatever kernels run."""
        own, problem = best.schedule.proof, self.problem
        once = problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
        bound, of_class, status = min(once, own.objective), "all schedules", Status.FEASIBLE
        if first is None or Status.LIMIT in (first.schedule.proof.status, own.status):
            status = Status.LIMIT
        if first is not None and homes.bound_holds(first, best) and first.schedule.proof.bound > bound:
            proof = first.schedule.proof
            bound, of_class = min(proof.bound, own.objective), proof.schedule_class + ANY
        proof = replace(own, bound=bound, schedule_class=of_class, status=status)
        proof = replace(proof, method=f"{own.method.partition('; bound: ')[0]}; bound: kernels left open")
        if proof.gap() <= solvers.ROUNDING:
            proof = replace(proof, status=Status.OPTIMAL)
        elif proof.gap() <= self.options.gap:
            proof = replace(proof, status=Status.FEASIBLE)
        return _proven(best, proof)


def _of_some_kernels(
    problem: Problem, error: InfeasibleError | LimitError | None
) -> InfeasibleError | LimitError | None:
    """What `error`, about one choice of kernels, says of `problem`: no proof."""
    if not isinstance(error, InfeasibleError):
        return error
    within, advice = "", "allow a larger --budget"
    if problem.deadline_ns is not None:
        within = f" within the deadline of {format_ns(problem.deadline_ns)}"
        advice = "allow a longer --deadline or a larger --budget"
    why = f"found no schedule for {problem.budget_bytes} bytes{within}, nor a proof that there is none"
    return LimitError(f"{why}; {advice}", details=error.details)


def _faster(problem: Problem, placed: Placed, stop_at: float = 0.0) -> Placed:
    """`placed`, whose kernels are the leanest or need as little, with the fastest of `problem` that it has room for."""
    limited = replace(placed.problem, deadline_ns=None)
    trace = verify(limited, placed.schedule)
    room = [problem.budget_bytes] * len(problem.operators)
    for step, ram_bytes in zip(placed.schedule.steps, trace.ram_bytes, strict=True):
        if isinstance(step, Compute):
            room[step.operator] = min(room[step.operator], placed.problem.budget_bytes - ram_bytes)
    used = [op.workspace_bytes for op in placed.problem.operators]
    for part in range(ROOMS, -1, -1):
        sizes = [ws + max(0, free) * part // ROOMS for ws, free in zip(used, room, strict=True)]
        chosen = [_at_most(op, size) for op, size in zip(problem.operators, sizes, strict=True)]
        plain = replace(placed.problem, operators=with_variants(problem, chosen).operators)
        if plain.operators == placed.problem.operators:
            return placed
        schedule = _recosted(placed.problem, plain, placed.schedule)
        if part == 0:
            break
        try:
            verify(replace(plain, deadline_ns=None), schedule)
        except ScheduleError:
            continue
        until = max(stop_at, time.monotonic())
        schedule, plan = planning.packed(plain, without_moves(plain, schedule), until, until)
        if planning.ram_bytes(plain, plan) <= placed.problem.budget_bytes:
            return replace(placed, problem=plain, schedule=schedule, plan=plan)
    return replace(placed, problem=plain, schedule=schedule)


def _recosted(before: Problem, after: Problem, schedule: Schedule) -> Schedule:
    """`schedule`, solved for `before`, with what it costs with the operators of `after`."""
    energy, more = after.objective == "energy", 0
    for step in schedule.steps:
        if isinstance(step, Compute):
            old, new = before.operators[step.operator], after.operators[step.operator]
            more += new.energy_pj - old.energy_pj if energy else new.time_ns - old.time_ns
    proof = schedule.proof
    objective = proof.objective + more
    return replace(schedule, proof=replace(proof, objective=objective, bound=min(proof.bound, objective)))
