"""`poetc solve`: from a request to a solved directory; and many budgets of one request together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from poetc import passes, reporting, solvers, training
from poetc.artifact import Artifact, check_out, write
from poetc.commands import encodings, programs
from poetc.commands.band import band_of
from poetc.commands.best_updates import best
from poetc.commands.from_profile import guesses_of, wear_of
from poetc.commands.milps import milps
from poetc.commands.pruned import pruned
from poetc.commands.requests import (
    LEAST_SHARE,
    SolveRequest,
    inference_model,
    least_streamed_bytes,
    limited,
    limits,
    load_model,
    must_stream,
    paging_of,
    problem_of,
    read_problem,
    require_offsets,
    require_time,
    shortest_ns,
    streams_of,
    training_graph,
    ways_of,
    with_short_pieces,
)
from poetc.commands.saving import with_ways
from poetc.devices import DeviceProfile, equal_cores, fit_notes, format_bytes, load_profile
from poetc.devices.reuse import parts_for_cache, working_set_bytes
from poetc.errors import InfeasibleError, LimitError, PoetcError, UsageError
from poetc.events import Progress, silent
from poetc.graph import Graph, TrainingGraph
from poetc.output_directory import digest
from poetc.planning import ENGINE, BestUpdates, MicroBatches, RamSearch, Solution, inference, ram_bytes, solve_curve
from poetc.planning.importance import update_text
from poetc.planning.kernels import low_workspace_operators
from poetc.planning.pieces import longest_piece
from poetc.planning.saved import Offer, Saved
from poetc.planning.search_log import END, SearchLog
from poetc.planning.smallest_ram import LONGEST_SEARCH_S, search_share_s
from poetc.planning.solution import cost_of_computing_once
from poetc.planning.ways import ALONE, NO_WAYS, Problems, Ways
from poetc.scheduling import MemoryPlan, Objective, Trace, keep_all_peak_bytes, stored_state, verify
from poetc.scheduling.problem import Problem

MOST_OPERATORS = 20_000  # of a training step that --micro-batches auto still considers
MOST_CACHED = 5_000  # the same where keep-all fits with fewer parts, so that only a cache gains
LEAST_S = 0.5  # for each search after the schedule is there, where time is up
LEAST_LEFT = 0.2  # of the time limit, for each further form of --saved auto


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A solution of `asked`, the problem with its choices open but for encodings of saved tensors.

    The model is None where there was a Problem alone.

    `request`: the one that was asked, with the updates that are trained. `plain`: the problem and the training step
    before encodings and streamed operands. `keep_all_bytes`: the RAM that a budget in per cent refers to.
    """

    request: SolveRequest
    asked: Problem
    solution: Solution
    smallest_ram: RamSearch
    search_s: float
    graph: Graph | None
    step: TrainingGraph | None
    profile: DeviceProfile | None
    plain: tuple[Problem, TrainingGraph | None]
    keep_all_bytes: int
    notes: tuple[str, ...] = ()


def solve(request: SolveRequest, progress: Progress = silent) -> Artifact:
    """Solve and, if `request.out` is given, write the directory. Raises the errors of `poetc.errors`.

    With `--saved auto`, saved tensors are encoded as little as the budget allows: without loss, in f16, or in int8.
    """
    if request.log is not None:
        try:
            with request.log.open("w", encoding="utf-8") as file:
                return solve(replace(request, log=None, events=SearchLog(file)), progress)
        except OSError as error:
            raise UsageError(f"--log {request.log}: {(error.strerror or str(error)).lower()}") from error
    try:
        return as_exactly_as_works(request, lambda r: _solve(r, progress), progress)
    except InfeasibleError as error:
        if request.is_problem or request.is_best or "min_budget_bytes" not in error.details:
            raise
        raise with_ways(request, error, progress) from None


def as_exactly_as_works(request: SolveRequest, way: Callable[[SolveRequest], Artifact], progress: Progress) -> Artifact:
    """The result of `way`; with `--saved auto` that of the most exact form for which there is one.

    A further form gets the time that the ones before it left, or a little where they left none.
    """
    if request.model.training.saved != "auto":
        return way(request)
    *others, last = encodings.formats_of_auto(request.model.training)
    limit_s, started = request.options.time_limit_s, time.monotonic()
    for form in others:
        with suppress(InfeasibleError, LimitError):
            return way(with_saved(request, form))
        progress(f"nothing found with saved tensors as --saved {form}")
        left_s = max(limit_s - (time.monotonic() - started), LEAST_LEFT * limit_s)
        request = replace(request, options=replace(request.options, time_limit_s=left_s))
    return way(with_saved(request, last))


def _solve(request: SolveRequest, progress: Progress) -> Artifact:
    started, stop_at = time.perf_counter(), time.monotonic() + request.options.time_limit_s
    if request.out is not None:
        check_out(request.out, force=request.force)
    progress("reading the model")
    by_parts = request.model.training.micro_batches == "auto" and not request.is_problem
    way = _solve_best if request.is_best else _solve_by_parts if by_parts else _solve_whole
    with milps(request) as milp_notes:
        answer = way(request, stop_at, progress)
    request = answer.request
    graph, step, profile, solution = answer.graph, answer.step, answer.profile, answer.solution
    saved = encodings.summary_of(answer.plain[1], solution)
    notes = [*answer.notes, *milp_notes, *reporting.choice_notes(answer.asked, solution, saved)]
    predicted = inference.InferencePlan()
    if graph is not None and step is not None and profile is not None:
        left_s = stop_at - time.monotonic()
        kept_s = min(answer.search_s, left_s / 2)  # for the smallest budget
        limit_s = max(LEAST_S, min(2 * inference.LIMIT_S, left_s - kept_s))  # of two searches
        solved = solution.problem, solution.schedule, solution.plan
        predicted = inference.within_budget(step, graph, profile, *solved, limit_s, progress)
        notes += [predicted.note] if predicted.note else []
    smallest = _smallest(answer, stop_at, progress) if request.smallest else None
    if request.smallest and smallest is None:
        notes.append("no time was left to look for the smallest budget: a smaller one may do; raise --time-limit")
    keep_all_bytes = answer.keep_all_bytes
    summary = summary_of(
        request, answer.asked, keep_all_bytes, solution, step, profile, smallest, started, notes, saved
    )
    summary |= {} if request.smallest else {"min_budget_bytes": None}
    plain, plain_step = answer.plain
    summary["pruned"] = None if plain_step is None else pruned(request.model, plain_step, plain)
    if request.events is not None:
        proof = solution.proof
        request.events.take(END, proof.objective, proof.bound, proof.bound)
        summary["search"] = [asdict(row) for row in request.events.rows]
    artifact = Artifact(
        summary=summary,
        problem=solution.problem,
        schedule=solution.schedule,
        plan=solution.plan,
        graph=step,
        inference=graph,
        inference_problem=predicted.problem,
        inference_schedule=predicted.schedule,
        inference_plan=predicted.plan,
        profile=profile,
    )
    summary |= programs.predicted_sizes(artifact)
    if request.band:
        summary["band"], more = band_of(artifact, request, progress)
        summary["notes"] += more
    if request.out is not None:
        progress("writing the report")
        summary["copies"] = write(artifact, request.out, reporting.reports(artifact), force=request.force)
    return artifact


def _smallest(answer: _Answer, stop_at: float, progress: Progress) -> int | None:
    """The smallest budget that is known, bytes; None where the time is up, and nobody has looked for it."""
    search = answer.smallest_ram
    if not search.is_done and time.monotonic() >= stop_at:
        return None
    progress("looking for the smallest budget")
    search.least_s = min(LEAST_S, search.least_s)
    return search.found.ram_bytes


def with_saved(request: SolveRequest, saved: str) -> SolveRequest:
    """The request with another `--saved`."""
    return replace(request, model=replace(request.model, training=replace(request.model.training, saved=saved)))


def _solve_whole(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """The problem as it is, or with the number of micro-batches that was asked for."""
    whole, step, profile, problem = read_problem(request)
    graph = None if whole is None else inference_model(request.model, whole)
    problem = with_short_pieces(request, problem, step, profile)
    offers: tuple[Offer, ...] = ()  # encoders are operators too, as long as their tensors are
    if request.longest_piece is None:
        offers = tuple(encodings.offers_of(step, profile, problem, paging_of(request, profile) if profile else None))
    ways = ways_of(request, problem, step, profile)
    problem, least = limited(request, problem, offers, ways)
    plain = problem, step
    if step is not None and profile is not None and not least and must_stream(request, step, profile, problem):
        step, graph, problem = _streaming(request, step, graph, profile, problem)
        ways = ways_of(request, problem, step, profile)
        offers = ()  # tensors that pass through windows are not encoded
    require_time(request, problem, ways)
    require_offsets(request, problem, step)
    progress("solving")
    # All of it within the limit, but for a model so large that hardly any time is left when it is read.
    left_s = max(stop_at - time.monotonic(), LEAST_SHARE * request.options.time_limit_s)
    search_s = search_share_s(left_s)
    offers = (*offers, *_offers_of_ways(request, ways, step, profile))
    planner = request.planner(
        left_s - (0.0 if least else search_s),
        progress,
        offers=offers,
        ways=[ways] if ways else (),
        streams=streams_of(step, profile=profile, longest_ns=request.longest_ns, ways=[ways]),
    )
    search = least or planner.search_ram(problem, search_s, stop_at)
    try:
        solution = planner.knowing(search).solve(problem)
    except (InfeasibleError, LimitError):
        if least is None or request.solver != ENGINE:
            raise
        solution = planner.least_ram_solution(problem, least)
    return _Answer(
        request=request,
        asked=_encoded(offers, _in_way(problem, ways, solution), solution),
        solution=solution,
        smallest_ram=search,
        search_s=search_s,
        graph=graph,
        step=None if step is None else encodings.made(step, Saved.option(solution)),
        profile=profile,
        plain=plain,
        keep_all_bytes=keep_all_peak_bytes(plain[0]),
    )


def _streaming(
    request: SolveRequest, step: TrainingGraph, graph: Graph | None, profile: DeviceProfile, limit: Problem
) -> tuple[TrainingGraph, Graph | None, Problem]:
    """The step with kernels for so little RAM; with those of the least workspace where no others fit."""
    for size_bytes in (limit.budget_bytes, 0):
        made = passes.for_small_ram(step, size_bytes)
        problem = with_short_pieces(request, problem_of(request, made, profile), made, profile)
        problem = _with_limits(limit, problem)
        if least_streamed_bytes(request, made, profile, problem) <= limit.budget_bytes:
            break
    return made, None if graph is None else passes.model_for_small_ram(graph, size_bytes), problem


def _with_limits(limit: Problem, problem: Problem) -> Problem:
    """`problem` with the limits and the objective of another one."""
    return replace(
        problem,
        budget_bytes=limit.budget_bytes,
        deadline_ns=limit.deadline_ns,
        write_limit_bytes=limit.write_limit_bytes,
        objective=limit.objective,
        paging=limit.paging,
    )


def _offers_of_ways(
    request: SolveRequest, ways: Mapping[int, Problem], step: TrainingGraph | None, profile: DeviceProfile | None
) -> list[Offer]:
    """Encodings in the ways of using several processors beside the main one alone."""
    found: list[Offer] = []
    for way, problem in ways.items():
        if way != ALONE and step is not None and profile is not None:

            def build(made: TrainingGraph, way: int = way, profile: DeviceProfile = profile) -> Problem:
                return ways_of(request, problem_of(request, made, profile), made, profile)[way]

            found += encodings.offers_of(step, profile, problem, paging_of(request, profile), build)
    return found


def _in_way(problem: Problem, ways: Problems, solution: Solution) -> Problem:
    """`problem` in the way that the solution chose."""
    return Ways([ways]).fix(problem, Ways.option(solution) or ALONE) if ways else problem


def _encoded(offers: Sequence[Offer], problem: Problem, solution: Solution) -> Problem:
    """`problem` with the encodings that the solution chose, and its other choices open."""
    return Saved(offers).fix(problem, Saved.option(solution) or ())


def _solve_by_parts(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """With the number of micro-batches whose schedule costs least, for limits that are those of the whole batch."""
    search_s = search_share_s(request.options.time_limit_s)
    profile = load_profile(request.model.device)
    whole = load_model(request.model)
    graph = inference_model(request.model, whole)
    graphs, problems, keep_all_bytes, notes = _problems_by_parts(request, whole, profile)
    ways = {count: found for count, p in problems.items() if (found := ways_of(request, p, graphs[count], profile))}
    fastest = min(problems, key=lambda count: shortest_ns(problems[count], ways.get(count, NO_WAYS)))
    require_time(request, problems[fastest], ways.get(fastest, NO_WAYS))
    paging = paging_of(request, profile)
    of_parts = {count: encodings.offers_of(graphs[count], profile, p, paging) for count, p in problems.items()}
    offers = [offer for found in of_parts.values() for offer in found]
    for parts, own in ways.items():
        offers += _offers_of_ways(request, own, graphs[parts], profile)
    planner = request.planner(
        request.options.time_limit_s - search_s,
        progress,
        problems,
        offers=offers,
        ways=tuple(ways.values()),
        streams=streams_of(*graphs.values(), profile=profile, ways=tuple(ways.values())),
    )
    solution = planner.solve(next(iter(problems.values())))
    count = MicroBatches.option(solution)
    assert count is not None
    require_offsets(request, problems[count], graphs[count])
    return _Answer(
        request=request,
        asked=_encoded(offers, _in_way(problems[count], ways.get(count, NO_WAYS), solution), solution),
        solution=solution,
        smallest_ram=planner.inner.search_ram(problems[count], search_s, stop_at),
        search_s=search_s,
        graph=graph,
        step=encodings.made(graphs[count], Saved.option(solution)),
        profile=profile,
        plain=(problems[count], graphs[count]),
        keep_all_bytes=keep_all_bytes,
        notes=notes,
    )


def _solve_best(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """With the updates of the most importance."""
    search_s = search_share_s(request.options.time_limit_s)
    choice, solution = best(request, request.options.time_limit_s - search_s, progress)
    updates = BestUpdates.option(solution)
    assert updates is not None
    chosen = choice.request_of(updates)
    step, asked = choice.step(updates)
    require_offsets(chosen, asked, step)
    return _Answer(
        request=chosen,
        asked=asked,
        solution=solution,
        smallest_ram=chosen.planner(search_s, progress).search_ram(asked, search_s, stop_at),
        search_s=search_s,
        graph=inference_model(chosen.model, load_model(chosen.model)),
        step=step,
        profile=choice.profile,
        plain=(asked, step),
        keep_all_bytes=keep_all_peak_bytes(asked),
        notes=tuple(choice.notes),
    )


def _problems_by_parts(
    request: SolveRequest, whole: Graph, profile: DeviceProfile
) -> tuple[dict[int, TrainingGraph], dict[int, Problem], int, tuple[str, ...]]:
    """The training step and its problem by the number of parts of the batch.

    Then the bytes of keep-all with the whole batch, and a note on parts that fit the cache.

    Where keep-all fits, more parts cost more even if nothing is recomputed. On a device with caches they may cost less:
    a part finds bytes there that the whole batch fetches from RAM.
    """
    batch = training.batch_of(whole) or 1
    counts = training.divisors(batch)
    if training.takes_batch_statistics(whole, replace(request.model.training, micro_batches=1)):
        counts = [1]
    graphs: dict[int, TrainingGraph] = {}
    problems: dict[int, Problem] = {}
    first: Problem | None = None
    cache, is_roomy = profile.memory.cache_bytes, False
    for count in counts:
        options = replace(request.model.training, micro_batches=count)
        try:
            _, step = training_graph(replace(request.model, training=options))
        except PoetcError:
            if count == 1:
                raise
            break  # this model cannot be split
        problem = problem_of(request, step, profile)
        if problems and len(problem.operators) > (MOST_CACHED if is_roomy else MOST_OPERATORS):
            break
        budget = request.budget if first is None else f"{first.budget_bytes}B"
        at_limits = limits(replace(request, budget=budget), problem, ways_of(request, problem, step, profile))
        if first is not None:
            at_limits = replace(at_limits, budget_bytes=first.budget_bytes, deadline_ns=first.deadline_ns)
        first = first or at_limits
        graphs[count], problems[count] = step, at_limits
        is_roomy = is_roomy or keep_all_peak_bytes(at_limits) <= at_limits.budget_bytes
        if is_roomy and cache is None:
            break
    assert first is not None
    keep_all_bytes = keep_all_peak_bytes(first)
    if cache is None or len(graphs) < 2:
        return graphs, problems, keep_all_bytes, ()
    fitting = parts_for_cache(graphs, int(cache.value))
    if solvers.info(request.solver).fits_cache:
        graphs, problems = {fitting: graphs[fitting]}, {fitting: problems[fitting]}
    note = f"micro-batches: each operator fits the cache of {format_bytes(int(cache.value))} in {fitting} parts"
    if working_set_bytes(graphs[fitting]) > cache.value:
        note = f"micro-batches: with more than {fitting} parts no operator comes closer to fitting the cache"
    return graphs, problems, keep_all_bytes, (note,)


def solve_budgets(
    request: SolveRequest, budgets: Sequence[str | None], progress: Progress = silent
) -> list[dict[str, Any] | PoetcError]:
    """A summary for each of `budgets`, or why there is none; work is shared between them (`poetc.planning.curve`).

    `request.budget` is not used, `request.options.time_limit_s` is that of one budget. Raises UsageError for a budget
    that cannot be read.
    """
    progress("reading the model")
    _, step, profile, problem = read_problem(request)
    ways = ways_of(request, problem, step, profile)
    problems = [limits(replace(request, budget=budget), problem, ways) for budget in budgets]
    offers = encodings.offers_of(step, profile, problem, paging_of(request, profile) if profile else None)
    offers = (*offers, *_offers_of_ways(request, ways, step, profile))
    sets = [ways] if ways else []
    planner = request.planner(request.options.time_limit_s, progress, offers=offers, ways=sets)
    points = solve_curve(problems[0], [p.budget_bytes for p in problems], planner)
    smallest = planner.search_ram(problems[0], LONGEST_SEARCH_S).found.ram_bytes
    answers: list[dict[str, Any] | PoetcError] = []
    for asked, point in zip(problems, points, strict=True):
        if point.solution is None:
            assert point.error is not None
            answers.append(point.error)
            continue
        started, keep_all_bytes = time.perf_counter() - point.seconds, keep_all_peak_bytes(asked)
        asked = _encoded(offers, _in_way(asked, ways, point.solution), point.solution)
        saved = encodings.summary_of(step, point.solution)
        notes = reporting.choice_notes(asked, point.solution, saved)
        answers.append(
            summary_of(request, asked, keep_all_bytes, point.solution, step, profile, smallest, started, notes, saved)
        )
    return answers


def summary_of(
    request: SolveRequest,
    asked: Problem,
    keep_all_bytes: int,
    solution: Solution,
    step: TrainingGraph | None,
    profile: DeviceProfile | None,
    min_budget_bytes: int | None,
    started: float,
    notes: Sequence[str] = (),
    saved: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The answer of `solve --json`.

    `asked`: the problem with its choices open. `keep_all_bytes`: the RAM that a budget in per cent refers to.

    `started`: by `time.perf_counter`. `saved`: the encodings of saved tensors.
    """
    problem, schedule, plan = solution.problem, solution.schedule, solution.plan
    trace = verify(problem, schedule)
    proof, needed_bytes = schedule.proof, ram_bytes(problem, plan)
    return {
        "status": proof.status.value,
        "energy_pj": trace.energy_pj,
        "energy_bound_pj": proof.bound if problem.objective is Objective.ENERGY else problem.compute_once_pj,
        "compute_once_pj": problem.compute_once_pj,
        "objective": problem.objective,
        "gap": proof.gap(),
        "asked_gap": request.options.gap,
        "overhead_gap": proof.overhead_gap(cost_of_computing_once(problem)),
        "schedule_class": reporting.scope_sentence(proof.scope),
        "scope": proof.scope.kinds(),
        "time_ns": trace.time_ns,
        "stall_ns": trace.stall_ns,
        "longest_piece": asdict(longest_piece(problem, schedule)),
        "longest_piece_limit_ns": request.longest_ns,
        "deadline_ns": problem.deadline_ns,
        "budget_bytes": problem.budget_bytes,
        "peak_bytes": trace.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "ram_bytes": needed_bytes,
        **_banks(problem, trace, plan),
        "keep_all_peak_bytes": keep_all_bytes,
        "min_budget_bytes": needed_bytes if min_budget_bytes is None else min(min_budget_bytes, needed_bytes),
        "recomputes": trace.recomputes,
        "recomputed_operators": sum(n > 1 for n in trace.executions),
        "page_outs": trace.page_outs,
        "page_ins": trace.page_ins,
        "low_workspace_kernels": len(low_workspace_operators(asked, problem)),
        "moves": trace.moves,
        "moved_bytes": trace.moved_bytes,
        "move_pj": trace.move_pj,
        "move_ns": trace.move_ns,
        "saved": list(saved),
        "state": request.state_mode,
        "state_on_store_bytes": sum(problem.tensors[chain[0]].size_bytes for chain in stored_state(problem)),
        "store_bytes": trace.store_bytes,
        "store_written_bytes": trace.written_bytes,
        "store_write_limit_bytes": problem.write_limit_bytes,
        **wear_of(problem, schedule, profile, trace.time_ns),
        "guesses": guesses_of(problem, schedule, profile, trace),
        "operators": len(problem.operators),
        "solver": schedule.solver,
        "solve_seconds": round(time.perf_counter() - started, 3),
        "model": str(request.model.source),
        "source": _source(request),
        "device": problem.device,
        "micro_batches": step.options["micro_batches"] if step else 1,
        "threads": Ways.option(solution) or 1,
        "one_core_of": _unused_cores(solution, profile),
        **_worth(solution),
        "notes": [
            *(step.notes if step else ()),
            *notes,
            # A budget of a bank is at most the bank.
            *(fit_notes(step, profile, 0 if problem.banks else problem.budget_bytes) if step and profile else ()),
        ],
        "out": str(request.out) if request.out is not None else None,
    }


def _unused_cores(solution: Solution, profile: DeviceProfile | None) -> int | None:
    """The equal cores of a device, where schedules on one of them alone were considered. None elsewhere."""
    cores = 1 + len(equal_cores(profile)) if profile else 1
    return cores if cores > 1 and not solution.ways and not solution.problem.processors else None


def _banks(problem: Problem, trace: Trace, plan: MemoryPlan) -> dict[str, Any]:
    """The use of each bank of RAM; nothing where the problem names none."""
    if not problem.banks:
        return {}
    rows = [
        {"name": b.name, "budget_bytes": b.budget_bytes, "peak_bytes": peak, "arena_bytes": use.arena_bytes}
        for b, peak, use in zip(problem.banks, trace.bank_peaks, plan.banks, strict=True)
    ]
    return {"banks": rows, "bank_pj": trace.bank_pj, "bank_ns": trace.bank_ns}


def _source(request: SolveRequest) -> dict[str, Any] | None:
    """The data by which `poetc export` finds and reads the ONNX file; None for a Problem.

    The batch is that of predictions."""
    model = request.model
    if request.is_problem:
        return None
    return {
        "path": str(model.source.absolute()),
        "sha256": digest(model.source),
        "batch": model.infer_batch or model.batch,
        "dim": model.training.dim,
        "shape": model.training.shape,
        "constant": model.training.constant,
        "random_weights": model.training.random_weights,
        "new_head": model.training.new_head,
        "output": model.training.output,
        "head_seed": model.training.head_seed,
        **({"train": model.training.train, "lora": list(model.training.lora)} if model.training.lora else {}),
    }


def _worth(solution: Solution) -> dict[str, Any]:
    """The importance of the updates, and their names; None where they were not chosen."""
    worth, updates = solution.worth, BestUpdates.option(solution)
    if worth is None or updates is None:
        return dict.fromkeys(("updates", "importance", "importance_bound", "importance_total", "cost_bound"))
    train, lora = updates.options()
    return {
        "updates": {"train": train, "lora": list(lora), "names": [f"{n} {update_text(u)}" for n, u in updates]},
        "importance": worth.value,
        "importance_bound": worth.bound,
        "importance_total": worth.total,
        "cost_bound": worth.cost_bound,
    }
