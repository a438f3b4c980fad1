"""`poetc bundle`: plans for several budgets over one state, and the switches between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from poetc import emit, reporting, training
from poetc.artifact import Artifact, check_out, write
from poetc.commands.best_updates import settled
from poetc.commands.encodings import as_exactly_as_works, encoded_step, is_lossy, offers_of, require_exact
from poetc.commands.encodings import summary_of as summary_of_encodings
from poetc.commands.parts import MOST_OPERATORS
from poetc.commands.programs import POINTER_BYTES, switches_of
from poetc.commands.requests import (
    SolveRequest,
    inference_model,
    limits,
    load_model,
    paging_of,
    problem_of,
    read_problem,
    require_offsets,
    require_time,
    training_graph,
)
from poetc.commands.summary import summary_of
from poetc.devices import AUTO, load_profile, parse_size
from poetc.devices.profile import MAIN
from poetc.devices.streaming import may_stream
from poetc.errors import InfeasibleError, LimitError, PoetcError, UsageError
from poetc.events import Progress, silent
from poetc.graph import TrainingGraph
from poetc.planning import MicroBatches, Solution, inference, ram_bytes, solve_bundle
from poetc.planning.safe_points import waits
from poetc.planning.saved import EncodingSpace, Saved
from poetc.planning.smallest_ram import search_share_s
from poetc.scheduling import Problem, keep_all_peak_bytes

MOST_PLANS = 16


def bundle(
    request: SolveRequest,
    budgets: Sequence[str] = (),
    *,
    points: int | None = None,
    switch_flash: str | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Solve for each of `budgets`, or for `points` budgets from keep-all down to the least; write `request.out`.

    The artifact is that of the largest budget, with the other plans beside it. All plans have the encodings of saved
    tensors that the smallest budget asks for, as they are one step. With `--saved exact` there are none where it has a
    schedule without them.

    `switch_flash`: the most flash that the tables of switches may take. Raises the errors of `poetc.errors`.
    """
    started = time.perf_counter()
    if request.is_problem:
        raise UsageError(f"{request.model.source}: a bundle needs a model, not a problem alone")
    if request.processors not in (AUTO, "", MAIN):
        raise UsageError("--processors: the plans of a bundle run on one processor; leave it out")
    request = replace(request, processors=MAIN)
    split = request.model.training.micro_batches == "auto"
    if split:
        one = replace(request.model.training, micro_batches=1)
        request = replace(request, model=replace(request.model, training=one))
        require_exact(request.model, "with --micro-batches auto the plans of a bundle have no encodings")
    if request.out is not None:
        check_out(request.out, force=request.force, model=request.model.source)
    progress("reading the model")
    request, budgets, chosen = settled(request, budgets, progress)

    def way(request: SolveRequest) -> Artifact:
        return _bundle(request, budgets, chosen, points, switch_flash, started, progress, split=split)

    return as_exactly_as_works(request, way, progress)


def _without_streams(failed: InfeasibleError | LimitError, problem: Problem) -> InfeasibleError | LimitError:
    """The same error, which says that operands do not stream here, though they could elsewhere."""
    if not may_stream(problem):
        return failed
    text = f"{failed}; the plans of a bundle stream no operands, since all switch between the same tensors"
    kind = InfeasibleError if isinstance(failed, InfeasibleError) else LimitError
    return kind(f"{text}: `poetc solve` may need less", details=failed.details)


def _bundle(
    request: SolveRequest,
    budgets: Sequence[str],
    chosen: Sequence[str],
    points: int | None,
    switch_flash: str | None,
    started: float,
    progress: Progress,
    *,
    split: bool,
) -> Artifact:
    """The bundle of a request whose updates and whose `--saved` are settled; `chosen` are notes about the former."""
    whole, step, profile, problem = read_problem(request)
    assert whole is not None and step is not None and profile is not None
    graph = inference_model(request.model, whole)
    problem = limits(replace(request, budget=f"{profile.ram_bytes}B"), problem)
    keep_all_bytes = keep_all_peak_bytes(problem)
    require_time(request, problem)
    require_offsets(request, problem, step)
    flash_bytes = None if switch_flash is None else parse_size(switch_flash, option="--switch-flash")
    planner = request.planner(request.options.time_limit_s, progress)
    is_lossless = not is_lossy(request.model.training)
    offers = () if split else offers_of(step, profile, problem, paging_of(request, profile))
    sizes = _budgets(request, problem, budgets, points, () if is_lossless else offers)
    graphs, problems, split_notes = _by_parts(request, step, problem, min(sizes)) if split else ({}, {}, [])
    saved: list[dict[str, Any]] = []
    if offers and not is_lossless:
        step, problem, saved = _encoded(request, step, problem, sizes[-1], offers, progress)
    try:
        bundle = solve_bundle(problem, sizes, planner, problems)
    except (InfeasibleError, LimitError) as failed:
        if saved or not offers:
            raise _without_streams(failed, problem) from None
        try:
            step, problem, saved = _encoded(request, step, problem, sizes[-1], offers, progress)
            bundle = solve_bundle(problem, sizes, planner)
        except (InfeasibleError, LimitError) as again:
            raise _without_streams(again, problem) from None
    steps = [graphs[MicroBatches.option(s) or 1] if graphs else step for s in bundle.solutions]
    step = steps[0]
    plans = [(s.problem, s.schedule, s.plan) for s in bundle.solutions]
    predicted = inference.within_budget(
        steps[-1], graph, profile, *plans[-1], min(inference.LIMIT_S, request.options.time_limit_s), progress
    )
    largest = bundle.solutions[0]
    asked = problems.get(MicroBatches.option(largest) or 1, problem)
    first = replace(asked, budget_bytes=largest.problem.budget_bytes)
    served = {s.problem.budget_bytes for s in bundle.solutions}
    notes = [
        f"the budget of {size:,} bytes has no plan of its own: nothing cheaper was found than for the next smaller one"
        for size in sizes
        if size not in served
    ]
    notes += split_notes
    notes += [*chosen, *reporting.choice_notes(first, largest, saved), *([predicted.note] if predicted.note else [])]
    least_bytes = ram_bytes(*plans[-1][::2])
    summary = summary_of(request, first, keep_all_bytes, largest, step, profile, least_bytes, started, notes, saved)
    artifact = Artifact(
        summary=summary,
        problem=largest.problem,
        schedule=largest.schedule,
        plan=largest.plan,
        graph=step,
        inference=graph,
        inference_problem=predicted.problem,
        inference_schedule=predicted.schedule,
        inference_plan=predicted.plan,
        others=tuple(plans[1:]),
        other_graphs=tuple(steps[1:]) if len(problems) > 1 else (),
        profile=profile,
    )
    progress("looking for switches")
    summary["bundle"] = {"switch_flash_bytes": flash_bytes}
    lowered, switches, switching = switches_of(artifact)
    switch_bytes = emit.switch_bytes(lowered, POINTER_BYTES)
    if artifact.others and flash_bytes is not None and switch_bytes > flash_bytes:
        raise UsageError(
            f"--switch-flash {switch_flash}: the tables take {switch_bytes:,} bytes without any switch; allow more"
        )
    summary["bundle"] |= {
        "plans": [_plan(s, own.options["micro_batches"]) for s, own in zip(bundle.solutions, steps, strict=True)],
        "switches": [asdict(w) for w in waits(switching, switches)],
        "switch_bytes": switch_bytes,
    }
    if request.out is not None:
        progress("writing the report")
        summary["copies"] = write(artifact, request.out, reporting.reports(artifact), force=request.force)
    return artifact


def _by_parts(
    request: SolveRequest, whole: TrainingGraph, problem: Problem, least_bytes: int
) -> tuple[dict[int, TrainingGraph], dict[int, Problem], list[str]]:
    """The training step and its problem by number of micro-batches, and why there are no more.

    Numbers end with the first that keeps every tensor in `least_bytes`.
    """
    why = ""
    model = load_model(request.model)
    if training.takes_batch_statistics(model, request.model.training):
        note = "the batch is not split: its statistics (batch norm, losses of pairs) would not be those of the whole"
        return {1: whole}, {1: problem}, [f"{note}; --batch-norm frozen has none"]
    profile = load_profile(request.model.device)
    graphs: dict[int, TrainingGraph] = {}
    for count in training.divisors(model.batch or 1):
        options = replace(request.model.training, micro_batches=count)
        try:
            step = training_graph(replace(request.model, training=options), names_sums=True)[1]
        except PoetcError:
            why = "this model has a fixed batch"
            break
        if graphs and len(step.operators) > MOST_OPERATORS:
            why = f"its step would have more than {MOST_OPERATORS:,} operators"
            break
        graphs[count] = step
        if keep_all_peak_bytes(limits(request, problem_of(request, step, profile))) <= least_bytes:
            why = "all tensors fit the smallest budget as it is"
            break
    if len(graphs) < 2:
        return {1: whole}, {1: problem}, [f"the batch is not split: {why or 'it has one sample'}"]
    graphs = training.with_own_names(graphs)
    problems = {
        count: replace(
            limits(replace(request, budget=f"{problem.budget_bytes}B"), problem_of(request, step, profile)),
            deadline_ns=problem.deadline_ns,
        )
        for count, step in graphs.items()
    }
    return graphs, problems, []


def _encoded(
    request: SolveRequest,
    step: TrainingGraph,
    problem: Problem,
    budget_bytes: int,
    offers: Sequence[EncodingSpace],
    progress: Progress,
) -> tuple[TrainingGraph, Problem, list[dict[str, Any]]]:
    """The step and its problem with the encodings that this budget asks for, and the summary of these."""
    progress(f"encodings of saved tensors for {budget_bytes} bytes")
    planner = request.planner(request.options.time_limit_s, progress, offers=offers)
    solution = planner.solve(replace(problem, budget_bytes=budget_bytes))
    choice = Saved.option(solution) or ()
    return encoded_step(step, choice), Saved(offers).fix(problem, choice), summary_of_encodings(step, solution)


def _budgets(
    request: SolveRequest, problem: Problem, budgets: Sequence[str], points: int | None, offers: Sequence[EncodingSpace]
) -> list[int]:
    """In bytes, the largest first."""
    if bool(budgets) == (points is not None):
        raise UsageError("give --budgets or --points, one of the two")
    keep_all_bytes = keep_all_peak_bytes(problem)
    if points is not None:
        search_s = search_share_s(request.options.time_limit_s)
        least = (
            request.planner(search_s, offers=offers).search_ram(problem, search_s).result.ram_bytes or keep_all_bytes
        )
        sizes = [keep_all_bytes - i * (keep_all_bytes - least) // (points - 1) for i in range(points)]
    else:
        sizes = [parse_size(text, of=keep_all_bytes, option="--budgets") for text in budgets]
    distinct = sorted(set(sizes), reverse=True)
    if len(distinct) < 2:
        raise UsageError("--budgets: a bundle needs two budgets or more, as in 512kB,384kB")
    if len(distinct) > MOST_PLANS:
        raise UsageError(f"--budgets: {len(distinct)} plans, a bundle has {MOST_PLANS} at most")
    return distinct


def _plan(solution: Solution, micro_batches: object) -> dict[str, Any]:
    proof = solution.proof
    return {
        "budget_bytes": solution.problem.budget_bytes,
        "ram_bytes": ram_bytes(solution.problem, solution.plan),
        "arena_bytes": solution.plan.arena_bytes,
        "micro_batches": micro_batches,
        "cost": proof.objective,
        "bound": proof.bound,
        "gap": proof.gap(),
        "status": proof.status.value,
        "scope": reporting.scope_sentence(proof.scope),
    }
