"""The inference plan: a schedule for the model itself, so that predictions keep to the budget of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.devices import DeviceProfile, build_problem
from poetc.devices.streaming import StreamedAlternatives, streamed_problem
from poetc.devices.tables import moved_by_rows, summed_tables
from poetc.errors import InfeasibleError, LimitError, format_count
from poetc.events import Progress
from poetc.graph import Graph, Phase, TrainingGraph
from poetc.passes import code_model
from poetc.planning.kernels import KERNELS, fastest, with_least_workspace
from poetc.planning.plain import ENGINE
from poetc.planning.settings import INFERENCE, STREAMING
from poetc.planning.streamed_operators import within
from poetc.program import Program, lower, lower_inference, paged_bytes, without_loss
from poetc.runtime.layout import DEFAULT_BLOCK_BYTES
from poetc.scheduling import (
    Paging,
    Problem,
    keep_all,
    keep_all_peak_bytes,
    pack,
    pack_around,
    state_chains,
    stored_state,
    verify,
)
from poetc.scheduling.schedule import MemoryPlan, Schedule, SolveOptions
from poetc.training import evaluation as evaluation_of

GAP, LIMIT_S = 0.02, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePlan:
    """How the model itself is run.

    `problem` names the kernels; it, `schedule` and `plan` are None where keep-all fits the budget, or nothing does.
    They are those of evaluation where `problem` has a loss in it.
    """

    problem: Problem | None = None
    schedule: Schedule | None = None
    plan: MemoryPlan | None = None
    note: str = ""


def alone_problem(inference: Graph, profile: DeviceProfile, training: Problem) -> Problem:
    """The scheduling problem of the model, on the state that `training` leaves in RAM or on the store.

    A weight that the loss does not reach has no place there: it is a constant of the program.
    """
    stored, kept = (
        {training.tensors[chain[0]].name for chain in chains(training)} for chains in (stored_state, state_chains)
    )
    unreached = inference.values.keys() - {t.name for t in training.tensors}
    return build_problem(inference, profile, budget_bytes=0, stored=stored, in_ram=kept, in_flash=unreached)


def programs(
    step: TrainingGraph,
    inference: Graph,
    profile: DeviceProfile,
    problem: Problem,
    training: Program,
    planned: InferencePlan,
) -> tuple[Program, Program]:
    """The model's, and the same with the loss of `step` (evaluation).

    They are on the state and the constants of `training`, which `problem` was solved for.
    """
    evaluation = code_model(evaluation_of(inference, step), step)
    inference = code_model(inference, step)
    if planned.schedule is None or planned.plan is None:
        infer = _keeping_all(inference, profile, problem, training, "infer")
        return infer, _keeping_all(evaluation, profile, problem, _sharing(training, infer), "evaluate")
    if planned.problem is None or not _has_loss(planned.problem):
        alone = planned.problem or _as_planned(alone_problem(inference, profile, problem), planned.plan)
        infer = lower_inference(inference, alone, planned.schedule, planned.plan, training, around=True)
        return infer, _keeping_all(evaluation, profile, problem, _sharing(training, infer), "evaluate")
    evaluate = lower_inference(
        evaluation, planned.problem, planned.schedule, planned.plan, training, name="evaluate", around=True
    )
    infer = without_loss(evaluate)
    alone = alone_problem(inference, profile, problem)
    if _above(alone) <= problem.budget_bytes - problem.base_bytes - training.state_bytes:
        kept = _keeping_all(inference, profile, problem, _sharing(training, evaluate), "infer")
        if problem.base_bytes + kept.arena_bytes <= problem.budget_bytes:
            infer = kept  # it is the loss alone that has no room beside all tensors
    return infer, evaluate


def _keeping_all(graph: Graph, profile: DeviceProfile, problem: Problem, layout: Program, name: str) -> Program:
    alone = fastest(alone_problem(graph, profile, problem))
    schedule = keep_all(alone)
    return lower_inference(graph, alone, schedule, pack(alone, schedule), layout, name=name)


def _sharing(training: Program, other: Program) -> Program:
    """The layout of `training` with the constants of `other`, which has more of them."""
    return replace(training, constants=other.constants, flash_bytes=other.flash_bytes)


def _has_loss(problem: Problem) -> bool:
    return any(op.phase == Phase.LOSS for op in problem.operators)


def _own_bytes(alone: Problem) -> int:
    """The bytes of the state that the model reads in RAM."""
    return sum(alone.tensors[chain[0]].size_bytes for chain in state_chains(alone))


def _above(alone: Problem) -> int:
    """The bytes that keep-all needs above the state, before packing."""
    return keep_all_peak_bytes(alone) - alone.base_bytes - _own_bytes(alone)


def _as_planned(alone: Problem, plan: MemoryPlan) -> Problem:
    """The kernels whose workspaces `plan` holds, for a directory of an earlier version, which does not name them."""
    sizes = {a.operator: a.size_bytes for a in plan.allocations if a.operator is not None and not a.tensors}
    chosen = [0] * len(alone.operators)
    for k, size_bytes in sizes.items():
        op = alone.operators[k]
        workspaces = (op.workspace_bytes, *(v.workspace_bytes for v in op.low_workspace))
        chosen[k] = next(
            (n for n, workspace in enumerate(workspaces) if workspace <= size_bytes), len(op.low_workspace)
        )
    return KERNELS.fix(alone, tuple(chosen))


def within_budget(
    graph: TrainingGraph,
    inference: Graph,
    profile: DeviceProfile,
    problem: Problem,
    schedule: Schedule,
    plan: MemoryPlan,
    limit_s: float,
    progress: Progress,
    training: Program | None = None,
) -> InferencePlan:
    """For the arena of the training step that was solved, if its pages leave room for predictions too.

    One schedule serves evaluation and prediction, which is the same without the loss. Where evaluation has none, or its
    outputs are others than the model's, the model itself is scheduled. All of it may take `limit_s`.
    `training`: the program of the step, if it is lowered already.
    """
    evaluation = code_model(evaluation_of(inference, graph), graph)
    inference = code_model(inference, graph)
    serves_both = (evaluation.inputs[:-1], evaluation.outputs[1:]) == (inference.inputs, inference.outputs)
    inference_plan = InferencePlan()
    end = time.monotonic() + limit_s
    models = [evaluation, inference] if serves_both else [inference]
    on_store = {tensor.name for tensor in problem.tensors if tensor.initial == "store"}
    block_bytes = problem.page_buffer_bytes or DEFAULT_BLOCK_BYTES
    tables = on_store & {*summed_tables(graph, problem, block_bytes), *moved_by_rows(graph, problem, block_bytes)}
    for left, model in zip(range(len(models), 0, -1), models, strict=True):
        alone = alone_problem(model, profile, problem)
        own_s = (end - time.monotonic()) / left
        offer = StreamedAlternatives(model, profile, alone, moves_state=False, tables=tables)
        inference_plan = _within_budget(
            graph, alone, offer, problem, schedule, plan, own_s, time.monotonic() + own_s, progress, training
        )
        if inference_plan.schedule is not None or not inference_plan.note or time.monotonic() >= end:
            break
    return inference_plan


def _within_budget(
    graph: TrainingGraph,
    alone: Problem,
    offer: StreamedAlternatives,
    problem: Problem,
    schedule: Schedule,
    plan: MemoryPlan,
    limit_s: float,
    stop_at: float,
    progress: Progress,
    training: Program | None = None,
) -> InferencePlan:
    own_bytes = _own_bytes(alone)
    above_bytes = problem.budget_bytes - problem.base_bytes - plan.state_bytes
    if INFERENCE.loose * _above(alone) <= above_bytes:
        return InferencePlan()
    kept = pack(alone, keep_all(alone), enough_bytes=own_bytes + max(0, above_bytes), stop_at=stop_at)
    if kept.arena_bytes - own_bytes <= above_bytes:
        return InferencePlan()
    progress("scheduling the model itself")
    training = lower(graph, problem, schedule, plan) if training is None else training
    limited, inference_plan = _limited(alone, training, problem), None
    for choice in _choices(limited, offer, problem.budget_bytes - problem.base_bytes):
        placed = _scheduled(choice, training, stop_at)
        if placed is not None:
            solved = replace(
                alone,
                operators=choice.operators,
                tensors=choice.tensors,
                budget_bytes=problem.budget_bytes,
                objective=problem.objective,
            )
            inference_plan = InferencePlan(problem=solved, schedule=placed[0], plan=placed[1])
        if placed is not None or time.monotonic() >= stop_at:
            break
    late = time.monotonic() >= stop_at - INFERENCE.late_share * limit_s
    needed = problem.base_bytes + kept.arena_bytes - own_bytes + plan.state_bytes
    if inference_plan is None:
        why = (
            f"training fits the budget of {problem.budget_bytes:,} bytes, but no schedule of the model itself was"
            f" found that does: predictions take {needed:,}"
        )
        why += "; the time limit ended the search for one" if late else ""
        return InferencePlan(note=why)
    assert (
        inference_plan.problem is not None and inference_plan.schedule is not None and inference_plan.plan is not None
    )
    trace = verify(inference_plan.problem, inference_plan.schedule)
    taken, again = problem.base_bytes + inference_plan.plan.arena_bytes, sum(n > 1 for n in trace.executions)
    note = (
        f"predictions are scheduled too, in {taken:,} bytes instead of {needed:,}:"
        f" {'1 operator is' if again == 1 else f'{again:,} operators are'} recomputed,"
        f" {format_count(trace.page_outs + trace.page_ins, 'page transfer')}"
    )
    return replace(inference_plan, note=note)


def _choices(limited: Problem, offer: StreamedAlternatives, room_bytes: int) -> Iterator[Problem]:
    """The fastest kernels, those with the least workspace, then operators that stream more and more."""
    seen = {fastest(limited): None, with_least_workspace(limited): None}
    yield from seen
    if not offer.is_possible or limited.paging is Paging.NONE:
        return
    for share in (*STREAMING.shares, 0.0):
        streamed = with_least_workspace(streamed_problem(limited, within(offer, int(share * room_bytes))))
        if streamed not in seen:
            seen[streamed] = None
            yield streamed


def _scheduled(alone: Problem, training: Program, stop_at: float) -> tuple[Schedule, MemoryPlan] | None:
    """Within the arena of `training`, whose state has its places there; None if nothing is found."""
    if solvers.lower_bound_bytes(alone) > alone.base_bytes + training.arena_bytes:
        return None
    places = {b.name: b.operand.offset_bytes for b in training.state}
    state = {chain[0]: places[alone.tensors[chain[0]].name] for chain in state_chains(alone)}
    own = {alone.tensors[t].name for t in state}
    unit = alone.alignment_bytes
    taken = [
        (b.operand.offset_bytes, -(-b.operand.type.size_bytes // unit) * unit)
        for b in training.state
        if b.name not in own
    ]
    room = training.arena_bytes - sum(size for _, size in taken)
    for attempt in range(INFERENCE.attempts):
        limited = replace(alone, budget_bytes=alone.base_bytes + room)
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            return None
        options = SolveOptions(time_limit_s=left_s / 2, gap=GAP, work_limit_s=LIMIT_S)  # others want time, too
        try:
            solved = solvers.solve(limited, ENGINE, options)
        except (InfeasibleError, LimitError):
            return None
        plan = pack_around(alone, solved, state, taken, enough_bytes=training.arena_bytes, stop_at=stop_at)
        excess = plan.arena_bytes - training.arena_bytes
        if excess <= 0:
            return solved, plan
        room -= excess * (2 + attempt) // 2
    return None


def _limited(alone: Problem, training: Program, problem: Problem) -> Problem:
    """Nothing is paged where training pages nothing; its pages keep their blocks."""
    limited = replace(alone, objective=problem.objective, write_limit_bytes=problem.write_limit_bytes)
    if not training.pages:
        return replace(limited, paging=Paging.NONE)
    if alone.store_capacity_bytes is None:
        return limited
    there = sum(t.footprint_bytes for t in alone.tensors if t.initial == "store")  # among training's pages already
    taken = paged_bytes(training)
    return replace(limited, store_capacity_bytes=max(0, alone.store_capacity_bytes - taken) + there)
