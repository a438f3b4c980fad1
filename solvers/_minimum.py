"""How small the RAM can be at all: the smallest budget with a verified schedule, and a proven lower bound."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from poetc.scheduling import (
    Completer,
    Completion,
    Compute,
    Problem,
    Proof,
    Schedule,
    Status,
    keep_all_peak_bytes,
    verify,
)
from poetc.solvers._model import Model
from poetc.solvers._ram import operand_bytes, pinned_interval, working_set_bytes
from poetc.solvers._search import Race
from poetc.solvers._types import Work

RESOLUTION = 400  # the bisection ends within so small a part of the bound
STEP_FACTOR = 4  # by which its steps grow as long as nothing is found
FIRST_RUNS = 3  # of the heuristic for a budget, before the bisection that takes more
WORK_S = 4.0  # of a usual machine, at most: three times what DenseNet-121 takes


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumBudget:
    """`smallest_bytes`: a schedule for it was verified (None: not even keep-all is one); `tensors` (name, bytes): RAM
    at its peak, workspace included, what is made in place not.
    """

    smallest_bytes: int | None
    lower_bound_bytes: int
    schedule: Schedule | None
    tensors: tuple[tuple[str, int], ...] = ()


def lower_bound_bytes(problem: Problem) -> int:
    """No schedule, in whatever order, needs less.

    For each operator: its operands and workspace, beside what can neither be made again nor paged and therefore always
    stays; what is there at the start, and at the end;
    and, one step before an operator, the arrival of the last of its inputs, the others being there already.
    """
    model = Model(problem)
    pinned = [pinned_interval(model, t) for t in range(model.n_tensors)]
    # The order of first executions is not assumed: only what is there from the start and until the end counts.
    always = set()
    for t in range(model.n_tensors):
        if pinned[t] is not None and model.in_ram[t] and model.ends_in_ram[t]:
            always.add(t)
    updated: dict[int, int] = {}  # state in place: input and output of one required pair are the same bytes
    for pairs in model.pairs:
        for i, o, required in pairs:
            if (
                required
                and model.in_ram[i]
                and pinned[i] is not None
                and model.ends_in_ram[o]
                and not model.pageable[o]
            ):
                updated[i] = o
                updated[o] = i
    fixed = sum(model.size[t] for t in always)
    fixed += sum(model.size[i] for i in updated if model.in_ram[i])

    def outside(operands: set[int]) -> int:
        """Bytes that stay beside `operands`."""
        inside = sum(model.size[t] for t in operands & always)
        inside += sum(model.size[i] for i in updated if model.in_ram[i] and (i in operands or updated[i] in operands))
        return fixed - inside

    bound = 0
    for v in range(model.n_ops):
        operands = {*model.inputs[v], *model.outputs[v]}
        bound = max(bound, working_set_bytes(model, v) + outside(operands))
        bound = max(bound, _arrival_bytes(model, v, outside))
    bound = max(bound, sum(s for s, there in zip(model.size, model.in_ram, strict=True) if there))
    bound = max(bound, sum(s for s, there in zip(model.size, model.ends_in_ram, strict=True) if there))
    base = problem.base_bytes + (problem.page_buffer_bytes if model.must_page else 0)
    return base + bound


def _arrival_bytes(model: Model, v: int, outside: object) -> int:
    """RAM when the last input of `v` to arrive is made: least over which one is last; 0 if they may all be there from
    the start.
    """
    assert callable(outside)
    least = None
    for u in model.inputs[v]:
        others = set(model.inputs[v]) - {u}
        p = model.producer[u]
        options = []
        if p >= 0:
            present = set(model.inputs[p]) | (others - set(model.outputs[p]))
            size = sum(model.size[t] for t in present) + operand_bytes(model, p)
            options.append(size + outside(present | set(model.outputs[p])))
        if model.on_store[u] or model.pageable[u]:
            options.append(sum(model.size[t] for t in model.inputs[v]) + outside(set(model.inputs[v])))
        if model.in_ram[u]:
            options.append(0)
        option = min(options, default=0)
        least = option if least is None else min(least, option)
    return least or 0


def min_budget(problem: Problem, *, time_limit_s: float = 30.0, seed: int = 0, runs: int = 12) -> MinimumBudget:
    """Bisection over budgets, each tried with a few runs of the heuristic, then again with up to `runs`. The
    deadline holds, the budget is ignored. What ends it is counted work, or the time limit on a slow machine.
    """
    work = Work(WORK_S, time.monotonic() + time_limit_s)
    low = lower_bound_bytes(problem)
    model = Model(problem)
    high = keep_all_peak_bytes(problem)
    best = _completed(problem, model, model.keep_all(), high)
    in_time = problem.deadline_ns is None or best.time_ns <= problem.deadline_ns
    if not in_time or model.stored_bytes(model.keep_all()) > model.store_free:
        return MinimumBudget(smallest_bytes=None, lower_bound_bytes=low, schedule=None)
    resolution = max(problem.alignment_bytes, min(high - low, low) // RESOLUTION)
    for count in (FIRST_RUNS, runs):
        # The bound is often reached, or nearly: first it is tried, then more and more above it.
        tight, probe, step = low, low, resolution
        while high - tight >= resolution and not work.over:
            race = Race(dataclasses.replace(problem, budget_bytes=probe), seed, work.stop_at)
            race.page_alone()
            race.run(count, float("inf"))
            work.spend_runs(race.runs, model.n_ops)
            if race.incumbent is not None:
                best = _completed(problem, model, race.incumbent.codes, probe)
                high = min(probe, best.peak_bytes)
            else:
                tight, step = probe + 1, step * STEP_FACTOR
            probe = min((tight + high) // 2, tight + step)
    return _answer(problem, best, low)


def _completed(problem: Problem, model: Model, codes: list[int], budget_bytes: int) -> Completion:
    """For a budget: transfers that overlap compute use all of it."""
    return Completer(dataclasses.replace(problem, budget_bytes=budget_bytes)).run(model.actions(codes))


def _answer(problem: Problem, completion: Completion, low: int) -> MinimumBudget:
    cost = completion.energy_pj if problem.objective == "energy" else completion.time_ns
    proof = Proof(
        status=Status.FEASIBLE, objective=cost, bound=0, schedule_class="all schedules", method="smallest budget"
    )
    schedule = Schedule(solver="poetc", steps=completion.steps, proof=proof)
    trace = verify(dataclasses.replace(problem, budget_bytes=completion.peak_bytes), schedule)
    present = {problem.tensors[t].name: problem.tensors[t].size_bytes for t in trace.resident_at(trace.peak_step)}
    step = schedule.steps[trace.peak_step]
    if isinstance(step, Compute):
        for _, made in step.in_place:  # its bytes are those of what it overwrites
            present.pop(problem.tensors[made].name)
        operator = problem.operators[step.operator]
        if operator.workspace_bytes:
            present[f"workspace of {operator.name}"] = operator.workspace_bytes
    largest = sorted(present.items(), key=lambda part: -part[1])[:8]
    return MinimumBudget(
        smallest_bytes=completion.peak_bytes,
        lower_bound_bytes=min(low, completion.peak_bytes),
        schedule=schedule,
        tensors=tuple(largest),
    )
