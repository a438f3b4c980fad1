"""A schedule and its memory plan together: what fits a budget is a packed arena, not only what is live at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import Completer, Compute, pack, settled
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, SolveOptions, Status

Progress = Callable[[str], None]
PACK_ATTEMPTS = 6
SOLVE_SHARE, AGAIN_SHARE = 0.9, 0.02  # of the time limit: the first solve; at least, each for a smaller budget
AGAIN_S = 2.0  # and never less than what some runs of the heuristic take on thousands of operators
SMALLEST_SHARE = 0.1  # at most, the search for the schedule of least RAM when nothing else fits
MINIMUM_SEARCH_S = 10.0


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


def smallest_ram(problem: Problem, time_limit_s: float = MINIMUM_SEARCH_S) -> SmallestRam:
    """How small the RAM can be, packing included."""
    found = solvers.min_budget(problem, time_limit_s=time_limit_s)
    if found.schedule is None:
        return SmallestRam(
            ram_bytes=None, bound_bytes=found.lower_bound_bytes, schedule=None, plan=None, tensors=found.tensors
        )
    plan = pack(problem, found.schedule)
    return SmallestRam(
        ram_bytes=ram_bytes(problem, plan),
        bound_bytes=found.lower_bound_bytes,
        schedule=found.schedule,
        plan=plan,
        tensors=found.tensors,
    )


def ram_bytes(problem: Problem, plan: MemoryPlan) -> int:
    """All RAM that a plan needs: the arena and what the problem counts outside it."""
    return problem.base_bytes + plan.arena_bytes


def solve_and_pack(
    problem: Problem, solver: str, options: SolveOptions, progress: Progress, search_s: float = MINIMUM_SEARCH_S
) -> tuple[Schedule, MemoryPlan]:
    """The cheapest schedule found whose packed arena fits the budget.

    Packing can need more than the most that is ever live. The problem is then solved again for a budget smaller by the
    excess; the bound proven for the whole budget still holds for the result. Raises InfeasibleError where it is proven
    that nothing fits, LimitError where nothing was found; both say the smallest RAM that is known to work, for which
    `search_s` is spent.
    """

    def report(event: solvers.Event) -> None:
        found = "no schedule yet" if event.objective is None else f"best {event.objective}"
        progress(f"{event.stage}: {found}, bound {event.bound}")

    limit_s = options.time_limit_s
    stop_at = time.monotonic() + limit_s
    search_s = min(search_s, max(1.0, SMALLEST_SHARE * limit_s))
    try:
        solved = first = solvers.solve(problem, solver, replace(options, time_limit_s=SOLVE_SHARE * limit_s), report)
    except InfeasibleError as error:
        raise _with_smallest(problem, error, progress, search_s) from error
    except LimitError as error:
        return _smallest_instead(problem, solver, None, str(error), progress, search_s)
    solved, plan = _less_ahead(problem, first, _packed(problem, first))
    first = solved
    budget, order = problem.budget_bytes, first_executions(first)  # what was proven is about this order
    for attempt in range(PACK_ATTEMPTS):
        excess = ram_bytes(problem, plan) - problem.budget_bytes
        if excess <= 0:
            return _relabelled(problem, solved, first), plan
        budget -= excess * (2 + attempt) // 2  # other schedules pack otherwise: more and more is put aside
        progress(f"packing needs {excess} bytes too much: solving for {budget}")
        # What is left is shared with the packing and the attempts to come.
        remaining = max((stop_at - time.monotonic()) / 3, AGAIN_SHARE * limit_s, AGAIN_S)
        tighter = solvers.reordered(replace(problem, budget_bytes=budget), order)
        again = replace(options, time_limit_s=remaining, fixed_order=True)
        try:
            solved = solvers.restored(solvers.solve(tighter, solver, again, report), order)
        except (InfeasibleError, LimitError):
            break
        solved, plan = _less_ahead(problem, solved, _packed(problem, solved))
    why = f"a schedule fits the budget of {problem.budget_bytes} bytes, but none was found that can be packed into it"
    return _smallest_instead(problem, solver, first, why, progress, search_s)


def _packed(problem: Problem, schedule: Schedule) -> MemoryPlan:
    """A plan that need not be lower than the budget."""
    return pack(problem, schedule, enough_bytes=problem.budget_bytes - problem.base_bytes)


def _less_ahead(problem: Problem, schedule: Schedule, plan: MemoryPlan) -> tuple[Schedule, MemoryPlan]:
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
        packed = _packed(problem, fewer)
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


def _smallest_instead(
    problem: Problem, solver: str, first: Schedule | None, why: str, progress: Progress, search_s: float
) -> tuple[Schedule, MemoryPlan]:
    """The schedule of least RAM, if it fits: not a cheap one, but one that runs."""
    progress("looking for the schedule of least RAM")
    smallest = smallest_ram(problem, search_s)
    schedule, plan = smallest.schedule, smallest.plan
    if schedule is None or plan is None or ram_bytes(problem, plan) > problem.budget_bytes:
        raise LimitError(f"{why}; {_advice(smallest)}", details=_details(problem, smallest))
    bound, of_class = _claim(problem, first, schedule)
    proof = Proof(
        status=Status.LIMIT,
        objective=schedule.proof.objective,
        bound=bound,
        schedule_class=of_class,
        method="the schedule of least RAM, since no cheaper one was found that fits when packed",
    )
    return replace(schedule, solver=solver, proof=proof), plan


def _with_smallest(problem: Problem, error: InfeasibleError, progress: Progress, search_s: float) -> InfeasibleError:
    if not isinstance(error, solvers.BudgetError):
        return error
    progress("looking for the smallest budget")
    smallest = smallest_ram(problem, search_s)
    if smallest.ram_bytes is None or smallest.ram_bytes <= problem.budget_bytes:
        return error
    within = "" if problem.deadline_ns is None else f" within the deadline of {problem.deadline_ns / 1e6:.3g} ms"
    if problem.write_limit_bytes is not None:
        within += f" with at most {problem.write_limit_bytes} bytes written to the store"
    # Below the bound nothing fits at all; above it the proof is about this order of first executions.
    order = "" if problem.budget_bytes < smallest.bound_bytes else " with operators in the model's order"
    return InfeasibleError(
        f"no schedule fits in {problem.budget_bytes} bytes{within}{order}; {_advice(smallest)}",
        details=_details(problem, smallest),
    )


def _advice(smallest: SmallestRam) -> str:
    if smallest.ram_bytes is None:
        return "the deadline is too short even with unlimited RAM"
    text = f"the smallest budget known to work is {smallest.ram_bytes} bytes (nothing below {smallest.bound_bytes} can)"
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
