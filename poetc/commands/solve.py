"""`poetc solve`: from a request to a solved directory; and many budgets of one request together."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from poetc import reporting
from poetc.artifact import Artifact, check_out, write
from poetc.commands import encodings, programs
from poetc.commands.band import band_of
from poetc.commands.best_updates import best
from poetc.commands.from_profile import transfer_notes
from poetc.commands.milps import milps
from poetc.commands.partial_training import savings_of_part
from poetc.commands.parts import steps_by_parts, with_frugal_parts
from poetc.commands.requests import (
    LEAST,
    LEAST_SHARE,
    ModelRequest,
    Reader,
    SolveRequest,
    inference_model,
    limited,
    limits,
    load_model,
    paging_of,
    problem_of,
    read_problem,
    require_offsets,
    require_time,
    shortest_ns,
    streams_of,
    ways_of,
    with_short_pieces,
)
from poetc.commands.saving import is_about_budget, with_ways
from poetc.commands.small_ram import (
    Step,
    has_to_stream,
    in_least_ram,
    least_streamed,
    require_time_to_stream,
    step_for_budget,
)
from poetc.commands.summary import summary_of
from poetc.devices import DeviceProfile, load_profile
from poetc.errors import InfeasibleError, LimitError, PoetcError, UsageError
from poetc.events import Progress, silent
from poetc.graph import Graph, TrainingGraph
from poetc.planning import (
    ENGINE,
    BestUpdates,
    MicroBatches,
    Planner,
    RamSearch,
    Solution,
    inference,
    solve_curve,
)
from poetc.planning.progress import TIME_LIMIT, WORK_LIMIT
from poetc.planning.saved import Encodings, EncodingSpace, Saved
from poetc.planning.search_log import END, SearchLog
from poetc.planning.settings import PLAIN
from poetc.planning.smallest_ram import LONGEST_SEARCH_S, search_share_s
from poetc.planning.solution import with_bound_of
from poetc.planning.ways import ALONE, NO_WAYS, CoreUsage, Problems, untried
from poetc.program import lower
from poetc.scheduling import Status, keep_all_peak_bytes
from poetc.scheduling.problem import Problem

SHORT = 0.5  # of its usual time: a search for the smallest budget that had less was cut short
LEAST_S = 0.5  # for each search after the schedule is there, where time is up
ENCODINGS_SHARE = 0.6  # of the time, for encodings of saved tensors where streamed operands come next
LATER_SHARE = 0.1  # of the time limit, at most, for the model itself, and the same for reports


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A solution of `asked`, the problem with its choices open but for encodings of saved tensors.

    The model is None where there was a Problem alone.

    `request`: the one that was asked, with the updates that are trained. `plain`: the problem and the training step
    before encodings and streamed operands. `keep_all_bytes`: the RAM that a budget in per cent refers to.
    `once`: the step without further choices in all ways that are allowed, for the cost of computing once. `reports_s`:
    time for reports.
    `load`: reads the model of the request, with other updates too.
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
    once: tuple[Problem, ...] = ()
    stopped_by: str = TIME_LIMIT
    reports_s: float = 0.0
    load: Callable[[ModelRequest], Graph] = load_model


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
    stop_at = request.stop_at
    try:
        return encodings.as_exactly_as_works(request, lambda r: _solve(r, progress), progress)
    except (InfeasibleError, LimitError) as error:
        if request.is_problem or request.is_best or not is_about_budget(error):
            raise
        raise with_ways(request, error, progress, stop_at - time.monotonic()) from None


def _solve(request: SolveRequest, progress: Progress) -> Artifact:
    started, stop_at = time.perf_counter(), request.stop_at
    if request.out is not None:
        check_out(request.out, force=request.force, model=request.model.source)
    progress("reading the model")
    by_parts = request.model.training.micro_batches == "auto" and not request.is_problem
    if by_parts and request.budget == LEAST:
        until = time.monotonic() + LEAST_SHARE * request.options.time_limit_s / 2
        request, by_parts = with_frugal_parts(request, until), False
    way = _solve_best if request.is_best else _solve_by_parts if by_parts else _solve_whole
    with milps(request) as milp_notes:
        answer = way(request, stop_at, progress)
    request = answer.request
    graph, step, profile, solution = answer.graph, answer.step, answer.profile, answer.solution
    saved = encodings.summary_of(answer.plain[1], solution)
    notes = [*answer.notes, *milp_notes, *reporting.choice_notes(answer.asked, solution, saved)]
    if not saved:
        notes += encodings.notes_of_none(answer.plain[1], answer.keep_all_bytes, solution.problem.budget_bytes)
    notes += transfer_notes(solution.problem, solution.schedule, profile)
    solved = solution.problem, solution.schedule, solution.plan
    program = None if step is None else lower(step, *solved)
    predicted = inference.InferencePlan()
    if graph is not None and step is not None and profile is not None:
        left_s = stop_at - answer.reports_s - time.monotonic()
        kept_s = min(answer.search_s, left_s / 2)  # for the smallest budget
        limit_s = max(LEAST_S, min(2 * inference.LIMIT_S, left_s - kept_s))  # of two searches
        predicted = inference.within_budget(step, graph, profile, *solved, limit_s, progress, program)
        notes += [predicted.note] if predicted.note else []
    smallest, note = smallest_budget_known(answer, stop_at, progress) if request.smallest else (None, "")
    notes += [note] if note else []
    keep_all_bytes = answer.keep_all_bytes
    summary = summary_of(
        request,
        answer.asked,
        keep_all_bytes,
        solution,
        step,
        profile,
        smallest,
        started,
        notes,
        saved,
        answer.once,
        program,
    )
    summary |= {} if request.smallest else {"min_budget_bytes": None}
    summary |= _streamed_smallest(answer, summary, stop_at) if smallest is not None else {}
    is_open = solution.proof.status is not Status.OPTIMAL and not solution.is_close(request.options.gap)
    summary["stopped_by"] = answer.stopped_by if is_open else None
    plain, plain_step = answer.plain
    summary["pruned"] = None if plain_step is None else savings_of_part(request.model, plain_step, plain, answer.load)
    if request.events is not None:
        request.events.take(END, solution.cost, solution.proof.bound, solution.proof.bound, scope=END)
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
    summary |= programs.predicted_sizes(artifact, program)
    if request.band:
        summary["band"], more = band_of(artifact, request, progress)
        summary["notes"] += more
    if request.out is not None:
        progress("writing the report")
        summary["copies"] = write(artifact, request.out, reporting.reports(artifact), force=request.force)
    return artifact


def smallest_budget_known(answer: _Answer, stop_at: float, progress: Progress) -> tuple[int | None, str]:
    """The smallest budget that is known, bytes; None where the time is up, and nobody has looked for it.

    With a note where there was too little time, or "".
    """
    search = answer.smallest_ram
    left_s = math.inf if search.is_done else stop_at - time.monotonic()
    if left_s <= 0:
        return None, "no time was left to look for the smallest budget: a smaller one may do; raise --time-limit"
    progress("looking for the smallest budget")
    search.least_s = min(LEAST_S, search.least_s)
    smallest = search.result
    if left_s < SHORT * answer.search_s and smallest.ram_bytes != smallest.bound_bytes:
        return smallest.ram_bytes, "the search for the smallest budget was cut short by time: a smaller one may do"
    return smallest.ram_bytes, ""


def _streamed_smallest(answer: _Answer, summary: Mapping[str, Any], stop_at: float) -> dict[str, int]:
    """The least RAM with streamed operands, where there is time to look for it, and it is less than without."""
    (problem, graph), least_bytes = answer.plain, int(summary["min_budget_bytes"])
    left_s = stop_at - 2 * answer.reports_s - time.monotonic()  # to build that problem takes as long as reports
    if answer.graph is None or graph is None or answer.profile is None or left_s <= 0:
        return {}
    step = Step(graph=graph, model=answer.graph, problem=problem)
    least = least_streamed(answer.request, step, answer.profile, least_bytes, min(LEAST_S, answer.search_s))
    if least is None:
        return {}
    key = "min_budget_bytes" if summary["streamed_operators"] else "streamed_min_budget_bytes"
    return {key: least[0].problem.budget_bytes}


def _solve_whole(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """The problem as it is, or with the number of micro-batches that was asked for."""
    load, began = Reader(), time.monotonic()
    whole, step, profile, problem = read_problem(request, load)
    model = None if whole is None else inference_model(request.model, whole)
    read, reports_s = (model, step, profile, problem), time.monotonic() - began  # reports take about as long
    return replace(_solve_read(request, read, stop_at, progress, reports_s=reports_s), load=load)


def _solve_read(
    request: SolveRequest,
    read: tuple[Graph | None, TrainingGraph | None, DeviceProfile | None, Problem],
    stop_at: float,
    progress: Progress,
    *,
    reports_s: float,
    encodes: bool = True,
    fallback: tuple[Step, RamSearch] | None = None,
) -> _Answer:
    """`read`: the model for predictions, its training step, its device, and the problem.

    `reports_s`: the time that reports will take. `encodes`: saved tensors are encoded rather than operands streamed,
    where a schedule may fit so. `fallback`: with streams in the least RAM, where no other schedule was found.
    """
    model, graph, profile, problem = read
    problem = with_short_pieces(request, problem, graph, profile)
    offers: tuple[EncodingSpace, ...] = ()  # encoders are operators too, as long as their tensors are
    if request.longest_piece is None:
        offers = tuple(encodings.offers_of(graph, profile, problem, paging_of(request, profile) if profile else None))
    ways = ways_of(request, problem, graph, profile)
    limit_s = request.options.time_limit_s
    reports_s = min(reports_s, LATER_SHARE * limit_s)
    problem, least = limited(request, problem, offers, ways)
    problem_as_asked, graph_as_asked, ways_as_asked = problem, graph, ways
    step: Step | None = None
    streams_else = False  # where nothing is found with encodings
    if model is not None and graph is not None and profile is not None:
        as_it_is = step = Step(graph=graph, model=model, problem=problem)
        if fallback is not None:
            step, least = fallback
        elif least is None:
            step = step_for_budget(request, step, profile, offers if encodes else ())
            may_do = step is as_it_is and encodes and bool(offers)
            streams_else = may_do and has_to_stream(request, step, profile)
        else:
            progress("looking for the smallest budget with streamed operands")
            search_s = search_share_s(limit_s)
            step, least = least_streamed(request, step, profile, least.result.ram_bytes, search_s) or (step, least)
        if step is not as_it_is:
            graph, problem = step.graph, step.problem
            ways = ways_of(request, problem, graph, profile)
            offers = ()
            if fallback is None and least is None and request.longest_piece is None:
                paging = paging_of(request, profile)
                offers = tuple(encodings.offers_of(graph, profile, problem, paging, streams=True))
    if step is not None and profile is not None:
        require_time_to_stream(request, step, profile)
    require_time(request, problem, ways)
    require_offsets(request, problem, graph)
    progress("solving")
    # All of it within the limit, but for a model so large that hardly any time is left when it is read.
    prepared_s = limit_s - (stop_at - time.monotonic())
    left_s = max(0.0, limit_s - prepared_s)
    search_s = search_share_s(left_s)
    left_s = max(0.0, left_s - reports_s)  # the model itself has a part of `search_s`
    left_s *= ENCODINGS_SHARE if streams_else else 1.0
    if offers:
        offers = (*offers, *_offers_of_ways(request, ways, graph, profile))
    planner = request.planner(
        max(PLAIN.moment_s, left_s - (0.0 if least else search_s)),
        progress,
        offers=offers,
        ways=[ways] if ways else (),
        streams=streams_of(*encodings.steps_of(graph, offers), profile=profile, request=request, ways=[ways]),
        end_at=stop_at - reports_s - min(LEAST_S, search_s),
    )
    first = planner.first(problem) if step is None or step.floor is None else None
    search = least or _search(request, planner, problem, step, search_s, stop_at - reports_s)
    try:
        solution = planner.knowing(search).solve(problem)
        if first is not None and first.cost < solution.cost:
            solution = replace(with_bound_of(first, solution), ways=solution.ways)  # which is about every way
    except (InfeasibleError, LimitError) as failed:
        if first is None and streams_else:
            return _solve_read(request, read, stop_at, progress, reports_s=reports_s, encodes=False)
        if first is None and least is None and step is not None and profile is not None:
            progress("looking for the smallest budget with streamed operands")
            fallback = in_least_ram(request, step.whole, profile, search_s, failed)
            return _solve_read(
                request, read, stop_at, progress, reports_s=reports_s, encodes=encodes, fallback=fallback
            )
        if first is not None:
            solution = replace(first, ways=untried(ways, first))
        elif least is None or request.solver != ENGINE:
            raise
        else:
            solution = planner.least_ram_solution(problem, least)
    return _Answer(
        request=request,
        asked=_encoded(offers, _in_way(problem, ways, solution), solution),
        solution=solution,
        smallest_ram=search,
        search_s=search_s,
        graph=None if step is None else step.model,
        step=None if graph is None else encodings.encoded_step(graph, Saved.option(solution)),
        profile=profile,
        plain=(problem_as_asked, graph_as_asked),
        keep_all_bytes=keep_all_peak_bytes(problem_as_asked),
        notes=() if solution.is_close(request.options.gap) else _preparation(prepared_s, limit_s),
        once=(problem_as_asked, *ways_as_asked.values()),
        stopped_by=planner.stopped_by,
        reports_s=reports_s,
    )


def _preparation(prepared_s: float, limit_s: float) -> tuple[str, ...]:
    """A note for a user who waits longer than the time limit."""
    if prepared_s <= LEAST_SHARE * limit_s:
        return ()
    why = f"{prepared_s:.0f} s of --time-limit went into reading the model and pricing its steps"
    return (f"{why}: the schedule is one of the first that were found; raise it",)


def _search(
    request: SolveRequest, planner: Planner, problem: Problem, step: Step | None, search_s: float, stop_at: float
) -> RamSearch:
    """The search for the least RAM of `problem`, with as many operands streamed as can be where some have to be."""
    if step is not None and step.floor is not None:
        return request.planner(search_s).search_ram(step.floor, search_s, stop_at)
    return planner.search_ram(problem, search_s, stop_at)


def _offers_of_ways(
    request: SolveRequest, ways: Mapping[int, Problem], step: TrainingGraph | None, profile: DeviceProfile | None
) -> list[EncodingSpace]:
    """Encodings in the ways of using several processors beside the main one alone."""
    if step is None or profile is None:
        return []

    @functools.cache  # by the choice of encodings
    def encoded_ways(choice: Encodings) -> Problems:
        encoded = encodings.encoded_step(step, choice)
        return ways_of(request, problem_of(request, encoded, profile), encoded, profile)

    spaces: list[EncodingSpace] = []
    for way, problem in ways.items():
        if way != ALONE:
            build = functools.partial(lambda way, choice: encoded_ways(choice)[way], way)
            spaces += encodings.offers_of(step, profile, problem, paging_of(request, profile), build)
    return spaces


def _in_way(problem: Problem, ways: Problems, solution: Solution) -> Problem:
    """`problem` in the way that the solution chose."""
    return CoreUsage([ways]).fix(problem, CoreUsage.option(solution) or ALONE) if ways else problem


def _encoded(offers: Sequence[EncodingSpace], problem: Problem, solution: Solution) -> Problem:
    """`problem` with the encodings that the solution chose, and its other choices open."""
    return Saved(offers).fix(problem, Saved.option(solution) or ())


def _solve_by_parts(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """With the number of micro-batches whose schedule costs least, for limits that are those of the whole batch."""
    search_s = search_share_s(request.options.time_limit_s)
    profile = load_profile(request.model.device)
    steps, keep_all_bytes, notes = steps_by_parts(request, profile, stop_at)
    problems = {count: step.problem for count, step in steps.items()}
    ways = {c: of_step for c, step in steps.items() if (of_step := ways_of(request, step.problem, step.graph, profile))}
    fastest = min(problems, key=lambda count: shortest_ns(problems[count], ways.get(count, NO_WAYS)))
    require_time(request, problems[fastest], ways.get(fastest, NO_WAYS))
    paging, offers = paging_of(request, profile), list[EncodingSpace]()
    for count, step in steps.items():
        if step.floor is None:  # tensors that pass through windows are not encoded
            offers += encodings.offers_of(step.graph, profile, step.problem, paging)
            offers += _offers_of_ways(request, ways.get(count, NO_WAYS), step.graph, profile)
    planner = request.planner(
        max(stop_at - time.monotonic(), LEAST_SHARE * request.options.time_limit_s) - search_s,
        progress,
        problems,
        offers=offers,
        ways=tuple(ways.values()),
        streams=streams_of(*(s.graph for s in steps.values()), profile=profile, request=request, ways=[*ways.values()]),
    )
    solution = planner.solve(next(iter(problems.values())))
    parts = MicroBatches.option(solution)
    assert parts is not None
    step = steps[parts]
    whole = step.whole
    require_offsets(request, step.problem, step.graph)
    return _Answer(
        request=request,
        asked=_encoded(offers, _in_way(step.problem, ways.get(parts, NO_WAYS), solution), solution),
        solution=solution,
        smallest_ram=_search(request, planner.inner, step.problem, step, search_s, stop_at),
        search_s=search_s,
        graph=step.model,
        step=encodings.encoded_step(step.graph, Saved.option(solution)),
        profile=profile,
        plain=(whole.problem, whole.graph),
        keep_all_bytes=keep_all_bytes,
        once=(whole.problem, *ways_of(request, whole.problem, whole.graph, profile).values()),
        notes=notes,
        stopped_by=planner.stopped_by,
    )


def _solve_best(request: SolveRequest, stop_at: float, progress: Progress) -> _Answer:
    """With the updates of the most importance."""
    search_s = search_share_s(request.options.time_limit_s)
    limit_s, started = request.options.time_limit_s - search_s, time.monotonic()
    choice, solution = best(request, limit_s, progress)
    is_late = time.monotonic() - started >= PLAIN.solve_share * limit_s
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
        stopped_by=TIME_LIMIT if is_late else WORK_LIMIT,
        load=choice.load,
    )


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
    planner = request.planner(request.options.time_limit_s, progress, offers=offers, ways=[ways] if ways else [])
    points = solve_curve(problems[0], [p.budget_bytes for p in problems], planner)
    smallest = planner.search_ram(problems[0], LONGEST_SEARCH_S).result.ram_bytes
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
        encoded = None if step is None else encodings.encoded_step(step, Saved.option(point.solution))
        results = (point.solution, encoded, profile, smallest, started, notes, saved)
        answers.append(summary_of(request, asked, keep_all_bytes, *results, once=(problem, *ways.values())))
    return answers
