"""Several plans of one training step that share its state, for a budget that changes while it trains.

All plans execute the operators first in the same order, so that a run can go over from one plan to another in mid-step
(`poetc.planning.switching`). The plan of the smallest budget is made first. It chooses the order, the place of state
between steps, and the offsets of state, inputs and page buffer. The others follow it.

Where the number of micro-batches is open, plans may have different ones. Those of one number have one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from poetc.errors import InfeasibleError, LimitError
from poetc.planning.arena import ram_bytes
from poetc.planning.kernels import Kernels
from poetc.planning.micro_batches import MicroBatches
from poetc.planning.order import in_order, with_own_order
from poetc.planning.planner import Planner
from poetc.planning.settings import BUNDLE
from poetc.planning.solution import Solution
from poetc.planning.state import StatePlacement
from poetc.scheduling import (
    PageIn,
    PageOut,
    Problem,
    buffer_offset,
    on_store,
    pack_around,
    state_chains,
    verify,
    verify_plan,
    without_moves,
)
from poetc.scheduling.problem import Paging
from poetc.scheduling.schedule import MemoryPlan, Schedule, first_executions

WISHES = (
    1.0,
    0.25,
    0.0,
)  # shares of the tensors, the largest first, for which a plan tries the smallest plan's offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Plans of one problem, the largest budget first. Their arenas do not grow from one to the next."""

    solutions: tuple[Solution, ...]

    @property
    def smallest(self) -> Solution:
        return self.solutions[-1]


def solve_bundle(
    problem: Problem, budgets_bytes: Sequence[int], planner: Planner, by_parts: Mapping[int, Problem] | None = None
) -> Bundle:
    """A plan for each budget, the time of `planner` for each of them.

    A budget for which nothing cheaper is found than for the next smaller one has no plan of its own.

    `problem` has its choices open. `by_parts`: the problems by number of micro-batches, if that is open. Tensors of one
    name are one quantity in all of them. Raises the errors of `Planner.solve` for the smallest budget, whose plan the
    others follow.
    """
    budgets = sorted(set(budgets_bytes), reverse=True)
    limit_s = planner.options.time_limit_s
    first = _named(planner.part(limit_s), budgets[-1])
    if by_parts:
        parts = MicroBatches({count: replace(p, budget_bytes=budgets[-1]) for count, p in by_parts.items()})
        first = replace(first, reductions=(parts, *first.reductions))
    smallest = first.solve(replace(problem, budget_bytes=budgets[-1]))
    solutions = [smallest]
    for budget in reversed(budgets[:-1]):
        of_budget: list[Solution] = []
        for count, own in by_parts.items() if by_parts else [(None, problem)]:
            leader = next((s for s in solutions if MicroBatches.option(s) == count), None)
            part = _named(planner.part(limit_s / len(by_parts or (None,))), budget)
            following = _following(own, budget, smallest, solutions[-1], leader, part)
            if following is not None:
                of_budget.append(following.with_choice(MicroBatches.name, count))
        if of_budget:
            solutions.append(min(of_budget, key=lambda s: s.cost))
    return Bundle(solutions=tuple(reversed(solutions)))


def _named(planner: Planner, budget_bytes: int) -> Planner:
    """Its progress says which plan it is about, also before the first event."""
    name = f"plan for {budget_bytes:,} bytes"
    planner.progress(name)
    return replace(planner, progress=lambda text: planner.progress(f"{name}: {text}"))


def _following(
    problem: Problem, budget: int, smallest: Solution, previous: Solution, leader: Solution | None, planner: Planner
) -> Solution | None:
    """The plan for a larger budget; None where none is found that is cheaper than the `previous`, smaller one.

    `leader`: a plan of the same problem, whose order it has.
    """
    order = None if leader is None else first_executions(leader.schedule.actions)
    state = frozenset(same_tensors(smallest.problem, problem, StatePlacement.option(smallest) or ()).values())
    placed = on_store(problem, state)
    # Without transfers in the smallest plan there is no page buffer in the layout that the plans share.
    paging = placed.paging if _pages(smallest.schedule) else Paging.NONE
    asked = in_order(replace(placed, budget_bytes=budget, paging=paging), order)
    options = replace(planner.options, fixed_order=planner.options.fixed_order or order is not None)
    inner = replace(planner, options=options, reductions=tuple(r for r in planner.reductions if isinstance(r, Kernels)))
    target = budget
    for attempt in range(BUNDLE.attempts):
        try:
            limit_s = planner.options.time_limit_s / (1 + attempt)
            solved = inner.part(limit_s).solve(replace(asked, budget_bytes=target))
        except (InfeasibleError, LimitError):
            break
        solution = with_own_order(order, solved)
        schedule = without_moves(solution.problem, solution.schedule)
        own = replace(solution.problem, budget_bytes=budget)
        plan = _packed_alike(own, schedule, smallest)
        excess = ram_bytes(own, plan) - budget
        if excess <= 0:
            if schedule.proof.objective >= previous.cost or plan.arena_bytes <= previous.plan.arena_bytes:
                break
            verify(own, schedule)
            verify_plan(own, schedule, plan)
            solution = replace(solution, problem=own, schedule=schedule, plan=plan)
            chosen = StatePlacement.option(smallest) is not None
            return solution.with_choice(StatePlacement.name, state) if chosen else solution
        target -= excess * (2 + attempt) // 2
    return None


def same_tensors(a: Problem, b: Problem, tensors: Iterable[int]) -> dict[int, int]:
    """Of those `tensors` of `a` that `b` has too: the numbers in both. The two are one step, but for micro-batches."""
    if a.tensors == b.tensors:
        return {t: t for t in tensors}
    numbers = {tensor.name: t for t, tensor in enumerate(b.tensors)}
    return {t: numbers[a.tensors[t].name] for t in tensors if a.tensors[t].name in numbers}


def _packed_alike(problem: Problem, schedule: Schedule, smallest: Solution) -> MemoryPlan:
    """A plan with state, inputs and page buffer where `smallest` has them, and the tensors too where that fits.

    A tensor with one place in both plans need not move in a switch.
    """
    numbers = same_tensors(smallest.problem, problem, range(len(smallest.problem.tensors)))
    places = {numbers[t]: offset for t, offset in places_at_start(smallest).items() if t in numbers}
    state = {chain[0]: places[chain[0]] for chain in state_chains(problem)}
    allocated = ((t, a.offset_bytes) for a in smallest.plan.allocations for t, _ in a.tensors)
    wishes = {numbers[t]: offset for t, offset in allocated if t in numbers}
    by_size = sorted(wishes, key=lambda t: -problem.tensors[t].size_bytes)
    for share in WISHES:
        plan = pack_around(
            problem,
            schedule,
            state,
            [],
            inputs={t: offset for t, offset in places.items() if t not in state},
            buffer_offset=buffer_offset(smallest.plan),
            wishes={t: wishes[t] for t in by_size[: round(share * len(by_size))]},
            enough_bytes=problem.budget_bytes - problem.base_bytes,
        )
        if ram_bytes(problem, plan) <= problem.budget_bytes:
            break
    return plan


def places_at_start(solution: Solution) -> dict[int, int]:
    """The offset of each tensor that is in RAM when a step begins."""
    return {t: a.offset_bytes for a in solution.plan.allocations for t, first in a.tensors if first == 0 == a.start}


def _pages(schedule: Schedule) -> bool:
    return any(isinstance(s, PageIn | PageOut) for s in schedule.actions)
