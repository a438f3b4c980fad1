"""The smallest budget with a verified schedule, and a proven lower bound."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

from poetc.scheduling import (
    Completer,
    Completion,
    Compute,
    Problem,
    Proof,
    Schedule,
    Scope,
    Status,
    keep_all_peak_bytes,
    verify_parts,
)
from poetc.solvers.interface import ENGINE_NAME
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.ram import lower_bound_bytes
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import SMALLEST_BUDGET
from poetc.solvers.poetc.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumBudget:
    """The smallest budget with a verified `schedule`.

    `smallest_bytes` is None if not even keep-all is one. `tensors`: names and bytes of the tensors in RAM at the peak,
    workspace included, outputs in place left out.
    """

    smallest_bytes: int | None
    lower_bound_bytes: int
    schedule: Schedule | None
    tensors: tuple[tuple[str, int], ...] = ()


def has_schedule(problem: Problem) -> bool:
    """Whether some budget is enough for the deadline, the room on the store and the limit on bytes written.

    Keep-all obeys them where any schedule does.
    """
    model = Model(problem)
    codes = model.keep_all()
    if model.stored_bytes(codes) > model.store_free:
        return False
    if problem.deadline_ns is None:
        return True
    return _completed(problem, model, codes, keep_all_peak_bytes(problem)).time_ns <= problem.deadline_ns


def min_budget(
    problem: Problem,
    *,
    time_limit_s: float = 30.0,
    work_limit_s: float = math.inf,
    seed: int = 0,
    runs: int = 12,
) -> MinimumBudget:
    """Search for the smallest budget by bisection, ignoring that of the problem; its deadline holds.

    Each budget is tried with a few runs of the heuristic; a second bisection takes up to `runs`. Counted work ends the
    search, at `work_limit_s` or the usual limit, or the time limit on a slow machine.
    """
    work = Work(min(work_limit_s, SMALLEST_BUDGET.work_s), time.monotonic() + time_limit_s)
    low = lower_bound_bytes(problem)
    if not has_schedule(problem):
        return MinimumBudget(smallest_bytes=None, lower_bound_bytes=low, schedule=None)
    model = Model(problem)
    high = keep_all_peak_bytes(problem)
    best = _completed(problem, model, model.keep_all(), high)
    resolution = max(problem.alignment_bytes, min(high - low, low) // SMALLEST_BUDGET.resolution)
    # The bound is often reached, or nearly: it is tried first, then larger and larger steps above it. A deadline keeps
    # most schedules far from it, so that small steps would use the work up.
    first_step = resolution if problem.deadline_ns is None else max(resolution, (high - low) // 8)
    for count in (SMALLEST_BUDGET.first_runs, runs):
        tight, probe, step = low, low, first_step
        while high - tight >= resolution and not work.over:
            race = Race(dataclasses.replace(problem, budget_bytes=probe), seed, work.stop_at)
            race.is_needed = False
            race.page_alone()
            race.run(count, float("inf"))
            work.spend_runs(race.runs, model.n_ops)
            if race.incumbent is not None:
                best = _completed(problem, model, race.incumbent.codes, probe)
                high = min(probe, best.peak_bytes)
            else:
                tight, step = probe + 1, step * SMALLEST_BUDGET.step_factor
            probe = min((tight + high) // 2, tight + step)
    return _answer(problem, best, low)


def _completed(problem: Problem, model: Model, codes: list[int], budget_bytes: int) -> Completion:
    """The sequence completed for a budget, all of which transfers that overlap compute may use."""
    return Completer(dataclasses.replace(problem, budget_bytes=budget_bytes)).run(model.decisions(codes))


def _answer(problem: Problem, completion: Completion, low: int) -> MinimumBudget:
    trace = verify_parts([(dataclasses.replace(problem, budget_bytes=completion.peak_bytes), completion.actions)])
    cost = problem.objective.cost(trace.energy_pj, trace.time_ns)  # that of waiting for transfers included
    proof = Proof(status=Status.FEASIBLE, objective=cost, bound=0, scope=Scope(), method="smallest budget")
    schedule = Schedule(solver=ENGINE_NAME, actions=completion.actions, proof=proof)
    present = {problem.tensors[t].name: problem.tensors[t].size_bytes for t in trace.resident_at(trace.peak_action)}
    action = schedule.actions[trace.peak_action]
    if isinstance(action, Compute):
        for _, output in action.in_place:  # it has the bytes of the tensor that it overwrites
            present.pop(problem.tensors[output].name)
        operator = problem.operators[action.operator]
        if operator.workspace_bytes:
            present[f"workspace of {operator.name}"] = operator.workspace_bytes
    there = [part for part in present.items() if part[1]]  # tensors on the store alone have no bytes here
    largest = sorted(there, key=lambda part: -part[1])[: SMALLEST_BUDGET.tensors]
    return MinimumBudget(
        smallest_bytes=completion.peak_bytes,
        lower_bound_bytes=min(low, completion.peak_bytes),
        schedule=schedule,
        tensors=tuple(largest),
    )
