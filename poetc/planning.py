"""A schedule and its memory plan together: what fits a budget is a packed arena, not only what is live at once."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.devices import format_bytes, format_ns, format_pj, format_share
from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import Completer, Compute, Move, pack, pack_with_moves, settled, verify
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, SolveOptions, Status

Progress = Callable[[str], None]
OURS = "poetc"
PACK_ATTEMPTS = 6
# Of the time limit: the first solve (HiGHS ends up to some seconds late); then packing, with time left to solve again.
SOLVE_SHARE, PACK_SHARE = 0.88, 0.075
TIGHT_SHARE = 0.5  # of the first solve where what it begins with does not pack
RETRY_SHARE = (
    0.05  # with less time than that to solve again, what short races find has to do: that much too late, at most
)
SMALLEST_SHARE = 0.1  # at most, the search for the schedule of least RAM
MINIMUM_SEARCH_S, MINIMUM_PACK_SHARE = 10.0, 0.4
SMALLEST_ATTEMPTS = 6
LEANEST = "the schedule of least RAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestRam:
    """The least RAM for which a schedule is known whose arena is packed in it; nothing fits in less than `bound_bytes`.

    `ram_bytes` is None when not even keep-all obeys the deadline. `tensors` (name, bytes): what RAM holds at the peak.
    """

    ram_bytes: int | None
    bound_bytes: int
    schedule: Schedule | None
    plan: MemoryPlan | None
    tensors: tuple[tuple[str, int], ...]


class Minimum:
    """The search for the least RAM, made when it is first asked for, once: until the clock says `stop_at`, but no
    shorter than `least_s` and no longer than MINIMUM_SEARCH_S. `least_bytes`: no bound above it is claimed, since other
    problems are asked for too.
    """

    def __init__(self, problem: Problem, least_s: float, stop_at: float = 0.0, least_bytes: int | None = None) -> None:
        self.problem, self.least_s, self.stop_at, self.least_bytes = problem, least_s, stop_at, least_bytes

    @functools.cached_property
    def found(self) -> SmallestRam:
        left_s = min(MINIMUM_SEARCH_S, self.stop_at - time.monotonic())
        found = smallest_ram(self.problem, max(self.least_s, left_s))
        if self.least_bytes is None:
            return found
        return replace(found, bound_bytes=min(found.bound_bytes, self.least_bytes))

    def as_budget(self) -> Minimum:
        """The same, found already, of the problem with this budget. Only where something was found."""
        assert self.found.ram_bytes is not None
        problem = replace(self.problem, budget_bytes=self.found.ram_bytes)
        same = Minimum(problem, self.least_s, self.stop_at, self.least_bytes)
        same.found = self.found
        return same


def search_share_s(time_limit_s: float) -> float:
    """How much of a time limit is set aside for the search for the least RAM."""
    return min(MINIMUM_SEARCH_S, SMALLEST_SHARE * time_limit_s)


def smallest_ram(problem: Problem, time_limit_s: float = MINIMUM_SEARCH_S) -> SmallestRam:
    """How small the RAM can be, packing included."""
    stop_at = time.monotonic() + time_limit_s
    found = solvers.min_budget(problem, time_limit_s=(1 - MINIMUM_PACK_SHARE) * time_limit_s)
    if found.schedule is None:
        return SmallestRam(
            ram_bytes=None, bound_bytes=found.lower_bound_bytes, schedule=None, plan=None, tensors=found.tensors
        )
    schedule, plan = found.schedule, pack(problem, found.schedule, stop_at=stop_at)
    low, high = plan.max_live_bytes, plan.arena_bytes
    for _ in range(SMALLEST_ATTEMPTS):  # what is live, or as little more as what cannot be moved leaves
        if low >= high:
            break
        capacity = low if low == plan.max_live_bytes else (low + high) // 2
        relocated = _relocated(problem, found.schedule, capacity, stop_at)
        if relocated is None:
            low = capacity + problem.alignment_bytes
        else:
            schedule, plan = relocated
            high = plan.arena_bytes
    return SmallestRam(
        ram_bytes=ram_bytes(problem, plan),
        bound_bytes=found.lower_bound_bytes,
        schedule=schedule,
        plan=plan,
        tensors=found.tensors,
    )


def progress_line(problem: Problem, event: solvers.Event) -> str:
    """How far a search is: the best schedule and the bound in the unit of the objective, the gap, and the stage."""
    show = format_pj if problem.objective == "energy" else format_ns
    if event.objective is None:
        return f"no schedule yet, bound {show(event.bound)} ({event.stage})"
    gap = max(0.0, 1 - event.bound / event.objective) if event.objective else 0.0
    return f"best {show(event.objective)}, bound {show(event.bound)}, gap {format_share(gap)} ({event.stage})"


def ram_bytes(problem: Problem, plan: MemoryPlan) -> int:
    """All RAM that a plan needs: the arena and what the problem counts outside it."""
    return problem.base_bytes + plan.arena_bytes


def solve_and_pack(
    problem: Problem,
    solver: str,
    options: SolveOptions,
    progress: Progress,
    minimum: Minimum | None = None,
    solve_share: float = SOLVE_SHARE,
) -> tuple[Schedule, MemoryPlan]:
    """The cheapest schedule found whose packed arena fits the budget, within the time limit.

    Where no offsets within the budget are found, tensors are moved while the step runs, which costs little. Where that
    does not help either, the problem is solved again for a budget smaller by the excess; the bound proven for the whole
    budget still holds for the result. Raises InfeasibleError where it is proven that nothing fits, LimitError where
    nothing was found; both say the smallest RAM that is known to work, which `minimum` looks for: its time comes on top
    of the limit. Where there is a cost to beat (`options.to_beat`), that is left out. `solve_share`: of the time limit,
    for the first solve.
    """

    def report(event: solvers.Event) -> None:
        progress(progress_line(problem, event))

    limit_s = options.time_limit_s
    stop_at = time.monotonic() + limit_s
    minimum = minimum or Minimum(problem, search_share_s(limit_s))
    try:
        solved = first = solvers.solve(problem, solver, replace(options, time_limit_s=solve_share * limit_s), report)
        if options.to_beat is not None and first.proof.objective >= options.to_beat:
            raise LimitError("nothing cheaper was found")
    except (InfeasibleError, LimitError) as error:
        if options.to_beat is not None:
            raise
        if isinstance(error, LimitError):
            why, scheduled_bytes = str(error), None
            if isinstance(error, solvers.NotFoundError) and error.smallest_bytes is not None:
                why, scheduled_bytes = error.why, error.smallest_bytes
            return _other_instead(problem, solver, None, why, progress, minimum, options.start, scheduled_bytes)
        raise _with_smallest(problem, error, progress, minimum) from error
    # Where nothing has been found that packs by then, solving again comes next, which needs some of the time.
    pack_until = time.monotonic() + PACK_SHARE * limit_s
    if solve_share == SOLVE_SHARE:
        pack_until = max(pack_until, stop_at - 2 * PACK_SHARE * limit_s)
    solved, plan = packed(problem, first, pack_until, stop_at)
    budget, order = problem.budget_bytes, first_executions(first)  # what was proven is about this order
    for attempt in range(PACK_ATTEMPTS):
        excess = ram_bytes(problem, plan) - problem.budget_bytes
        if excess <= 0:
            moves = [problem.tensors[s.tensor].size_bytes for s in solved.steps if isinstance(s, Move)]
            if moves:
                progress(f"packed with {len(moves)} moves of {format_bytes(sum(moves))} within RAM")
            return _relabelled(problem, solved, first), plan
        remaining = (stop_at - time.monotonic()) / 2  # the rest is for packing and the attempts to come
        in_haste = remaining < RETRY_SHARE * limit_s
        if in_haste and (solver != OURS or time.monotonic() >= stop_at + RETRY_SHARE * limit_s):
            break
        budget -= excess * (2 + attempt) // 2  # other schedules pack otherwise: more and more is put aside
        progress(f"packing needs {format_bytes(excess)} too much: solving for {format_bytes(budget)}")
        tighter = solvers.reordered(replace(problem, budget_bytes=budget), order)
        again = replace(
            options, time_limit_s=max(remaining, 0.0), fixed_order=True, start=None, bound=first.proof.bound
        )
        try:
            found = solvers.at_once(tighter, again) if in_haste else solvers.solve(tighter, solver, again, report)
        except (InfeasibleError, LimitError):
            break
        if found is None:
            break
        solved = solvers.restored(found, order)
        pack_until = stop_at + RETRY_SHARE * limit_s if in_haste else stop_at
        solved, plan = packed(problem, solved, pack_until, pack_until)
    why = f"a schedule fits the budget of {problem.budget_bytes} bytes, but none was found that can be packed into it"
    if options.to_beat is not None:
        raise LimitError(why)
    return _other_instead(problem, solver, first, why, progress, minimum, options.start)


def packed(problem: Problem, schedule: Schedule, stop_at: float, moves_until: float) -> tuple[Schedule, MemoryPlan]:
    """The schedule, with moves where it does not fit the budget without, or with less issued ahead; and a plan, which
    need not fit."""
    plan = _placed(problem, schedule, stop_at)
    if ram_bytes(problem, plan) <= problem.budget_bytes:
        return schedule, plan
    relocated = _relocated(problem, schedule, problem.budget_bytes - problem.base_bytes, moves_until)
    return relocated or _less_ahead(problem, schedule, plan, stop_at)


def _placed(problem: Problem, schedule: Schedule, stop_at: float) -> MemoryPlan:
    """A plan that need not be lower than the budget."""
    return pack(problem, schedule, enough_bytes=problem.budget_bytes - problem.base_bytes, stop_at=stop_at)


def _relocated(
    problem: Problem, schedule: Schedule, capacity_bytes: int, stop_at: float
) -> tuple[Schedule, MemoryPlan] | None:
    """With moves, if that fits and leaves the deadline time for them."""
    found = pack_with_moves(problem, schedule, capacity_bytes, stop_at=stop_at)
    if found is None or problem.deadline_ns is None:
        return found
    roomy = replace(problem, deadline_ns=None, budget_bytes=problem.base_bytes + capacity_bytes)
    return found if verify(roomy, found[0]).time_ns <= problem.deadline_ns else None


def _less_ahead(problem: Problem, schedule: Schedule, plan: MemoryPlan, stop_at: float) -> tuple[Schedule, MemoryPlan]:
    """Where transfers overlap compute, the same actions with less issued ahead, if that packs into the budget."""
    fits = ram_bytes(problem, plan) <= problem.budget_bytes
    if fits or problem.paging is not Paging.DMA:
        return schedule, plan
    actions, budget, packed = settled(problem, schedule.steps), problem.budget_bytes, plan
    for _ in range(PACK_ATTEMPTS):
        budget -= ram_bytes(problem, packed) - problem.budget_bytes
        completion = Completer(replace(problem, budget_bytes=max(0, budget))).run(actions)
        late = problem.deadline_ns is not None and completion.time_ns > problem.deadline_ns
        if late or completion.peak_bytes > problem.budget_bytes:
            break
        fewer = replace(schedule, steps=completion.steps)
        packed = _placed(problem, fewer, stop_at)
        if ram_bytes(problem, packed) <= problem.budget_bytes:
            return fewer, packed
    return schedule, plan


def _relabelled(problem: Problem, solved: Schedule, first: Schedule) -> Schedule:
    """`solved` for a tightened budget, as an answer to the problem that `first` answers: with its proven bound."""
    if solved is first:
        return solved
    bound, of_class = _claim(problem, first, solved)
    status = solved.proof.status
    if status is Status.OPTIMAL and solved.proof.objective > bound:
        status = Status.FEASIBLE
    return replace(solved, proof=replace(solved.proof, bound=bound, status=status, schedule_class=of_class))


def _claim(problem: Problem, proven: Schedule | None, schedule: Schedule) -> tuple[int, str]:
    """The bound, and its class, that `schedule` may claim where `proven` was proven."""
    once = problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
    bound, of_class = once, "all schedules"
    if proven is not None and bound_holds(proven, schedule):
        bound, of_class = proven.proof.bound, proven.proof.schedule_class
    return min(bound, schedule.proof.objective), of_class


def bound_holds(proven: Schedule, schedule: Schedule) -> bool:
    """Whether the bound that comes with `proven` is about `schedule` too: bounds are about one order of operators."""
    everything = proven.proof.schedule_class == "all schedules"
    return everything or first_executions(proven) == first_executions(schedule)


def first_executions(schedule: Schedule) -> tuple[int, ...]:
    """The operators in the order in which they are first executed."""
    return tuple(dict.fromkeys(step.operator for step in schedule.steps if isinstance(step, Compute)))


def _other_instead(
    problem: Problem,
    solver: str,
    first: Schedule | None,
    why: str,
    progress: Progress,
    minimum: Minimum,
    start: Schedule | None,
    scheduled_bytes: int | None = None,
) -> tuple[Schedule, MemoryPlan]:
    """The schedule of least RAM, if it fits, or the one that the search began with, if that is cheaper and packs: not
    the cheapest there is, but one that runs. `scheduled_bytes`: the smallest budget that the solver has a schedule for,
    which was not packed.
    """
    progress("looking for the schedule of least RAM")
    smallest = minimum.found
    others: list[tuple[str, Schedule, MemoryPlan]] = []
    if smallest.schedule is not None and smallest.plan is not None:
        others.append((LEANEST, smallest.schedule, smallest.plan))
    if start is not None:
        pack_until = time.monotonic() + MINIMUM_PACK_SHARE * minimum.least_s
        others.append(("what the search began with", *packed(problem, start, pack_until, pack_until)))
    fitting = [other for other in others if ram_bytes(problem, other[2]) <= problem.budget_bytes]
    if not fitting:
        known_bytes = math.inf if smallest.ram_bytes is None else smallest.ram_bytes
        if scheduled_bytes is not None and problem.budget_bytes < scheduled_bytes < known_bytes:
            # One budget is named, the smaller: this search had less time.
            details = _details(problem, replace(smallest, ram_bytes=scheduled_bytes, tensors=()))
            advice = f"the smallest budget with a schedule is {scheduled_bytes} bytes; {_next(problem)}"
            raise LimitError(f"{why}; {advice}", details=details)
        raise LimitError(f"{why}; {_advice(problem, smallest)}", details=_details(problem, smallest))
    name, schedule, plan = min(fitting, key=lambda other: other[1].proof.objective)
    return _instead(problem, solver, name, schedule, first), plan


def leanest(problem: Problem, solver: str, schedule: Schedule) -> Schedule:
    """The schedule of least RAM, as the answer of `solver`."""
    return _instead(problem, solver, LEANEST, schedule, None)


def _instead(problem: Problem, solver: str, name: str, schedule: Schedule, proven: Schedule | None) -> Schedule:
    """`schedule`, with what `proven` proved."""
    bound, of_class = _claim(problem, proven, schedule)
    proof = Proof(
        status=Status.LIMIT,
        objective=schedule.proof.objective,
        bound=bound,
        schedule_class=of_class,
        method=f"{name}, since no cheaper one was found that fits when packed",
    )
    return replace(schedule, solver=solver, proof=proof)


def _with_smallest(problem: Problem, error: InfeasibleError, progress: Progress, minimum: Minimum) -> InfeasibleError:
    if not isinstance(error, solvers.BudgetError):
        return error
    progress("looking for the smallest budget")
    smallest = minimum.found
    if smallest.ram_bytes is None or smallest.ram_bytes <= problem.budget_bytes:
        return error
    within = "" if problem.deadline_ns is None else f" within the deadline of {format_ns(problem.deadline_ns)}"
    if problem.write_limit_bytes is not None:
        within += f" with at most {problem.write_limit_bytes} bytes written to the store"
    # Below the bound nothing fits at all; above it the proof is about this order of first executions.
    order = "" if problem.budget_bytes < smallest.bound_bytes else " with operators in the model's order"
    return InfeasibleError(
        f"no schedule fits in {problem.budget_bytes} bytes{within}{order}; {_advice(problem, smallest)}",
        details=_details(problem, smallest),
    )


def _next(problem: Problem) -> str:
    """What the user may do where the budget is too small."""
    return "raise --budget" + ("" if problem.deadline_ns is None else ", or allow a longer --deadline")


def _advice(problem: Problem, smallest: SmallestRam) -> str:
    if smallest.ram_bytes is None:
        return "the deadline is too short even with unlimited RAM: allow a longer --deadline"
    text = f"the smallest budget known to work is {smallest.ram_bytes} bytes (nothing below {smallest.bound_bytes} can)"
    text += f"; {_next(problem)}"
    if smallest.tensors:
        text += "; at its peak: " + ", ".join(f"{name} ({size})" for name, size in smallest.tensors[:5])
    return text


def _details(problem: Problem, smallest: SmallestRam) -> dict[str, object]:
    return {
        "budget_bytes": problem.budget_bytes,
        "min_budget_bytes": smallest.ram_bytes,
        "min_budget_bound_bytes": smallest.bound_bytes,
        "tensors_at_peak": [list(tensor) for tensor in smallest.tensors],
    }
