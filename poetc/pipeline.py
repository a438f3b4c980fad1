"""What the commands do, stage after stage. The command line parses, calls one function here and prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poetc import (
    codegen,
    frontend,
    homes,
    outputs,
    passes,
    planning,
    predicting,
    reporting,
    splitting,
    training,
    variants,
)
from poetc.artifact import Artifact, check_out, write
from poetc.curve import solve_curve as solve_points
from poetc.devices import (
    DeviceProfile,
    build_problem,
    fit_notes,
    format_bytes,
    format_ns,
    format_pj,
    life_steps,
    load_profile,
    parse_duration,
    parse_size,
)
from poetc.errors import InfeasibleError, LimitError, PoetcError, UnsupportedModelError, UsageError
from poetc.files import read_file
from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import bind, spec
from poetc.saved import lean, saved_bytes
from poetc.scheduling import keep_all_peak_bytes, problem_from_json, stored_state, validate_problem, verify
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import PageOut, Schedule, SolveOptions
from poetc.training import TrainingOptions

Progress = Callable[[str], None]
MOST_OPERATORS = 20_000  # of a training step that --micro-batches auto still considers
LEAST_SHARE = 0.5  # of the time limit, at least, is left for solving when the model has been read
LEAST = "least"  # as a budget
YEAR_NS = 365 * 24 * 3600 * 10**9


def _silent(message: str) -> None:
    del message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Which model, and how it is to be trained."""

    source: Path
    batch: int | None = None
    device: str = "host"
    training: TrainingOptions = field(default_factory=TrainingOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRequest:
    """A model or a Problem (`.json`), and what to solve it for. `budget` and `deadline` as typed by the user.
    The budget LEAST is the least RAM that is found to work, within the deadline if there is one.

    `objective`: "energy" or "time"; None: a Problem's own, and energy for a model.
    """

    model: ModelRequest
    budget: str | None = None
    deadline: str | None = None
    max_written: str | None = None  # to the store, in one step
    objective: str | None = None
    paging: bool = True
    dma: bool = False  # transfers overlap compute, where the store can
    state: str = "auto"  # where state lives between steps: "ram", "store"; see `poetc.homes`
    solver: str = "poetc"
    options: SolveOptions = field(default_factory=SolveOptions)
    out: Path | None = None
    force: bool = False  # files in `out` that the user changed are replaced, and copies kept


def _model(request: ModelRequest) -> Graph:
    return frontend.load(request.source, batch=request.batch, random_weights=request.training.random_weights)


def _with_any_weights(request: ModelRequest) -> ModelRequest:
    """For what only looks at the model: a note instead of a refusal where the file of its weights is absent."""
    seed = request.training.random_weights or 0
    return replace(request, training=replace(request.training, random_weights=seed))


def training_graph(request: ModelRequest) -> tuple[Graph, TrainingGraph]:
    """The model, and its whole training step."""
    graph = _model(request)
    count, part = request.training.micro_batches, None
    if count != "auto" and count > 1:
        part = _model(replace(request, batch=training.micro_batch_of(graph, count)))
    return graph, passes.run_standard(training.build(graph, request.training, part))


def analyze(
    request: ModelRequest, search_s: float = planning.MINIMUM_SEARCH_S, progress: Progress = _silent
) -> dict[str, Any]:
    """What `poetc analyze` prints: the model, its training step, how small its RAM can be (`search_s` of search)."""
    graph, step = training_graph(_with_any_weights(request))
    problem = build_problem(step, load_profile(request.device), budget_bytes=0)
    peak = keep_all_peak_bytes(problem)
    progress(f"looking for the smallest budget of {len(problem.operators):,} operators")
    minimum = variants.smallest_ram(problem, "auto", search_s)
    leanest = lean(problem, step)
    macs = {phase.value: 0 for phase in Phase}
    for op in step.operators:
        macs[op.phase.value] += spec(op.kind).work(bind(op, step.tensors)).macs
    parameters = [t for t in graph.tensors.values() if t.role is Role.PARAMETER]
    kinds: dict[str, int] = {}
    for op in graph.operators:
        kinds[op.kind] = kinds.get(op.kind, 0) + 1
    return {
        "model": str(request.source),
        "supported": True,
        "device": request.device,
        "inputs": {name: list(graph.tensors[name].shape) for name in graph.inputs},
        "outputs": {name: list(graph.tensors[name].shape) for name in graph.outputs},
        "operators": len(problem.operators),
        "forward_operators": dict(sorted(kinds.items())),
        "parameters": sum(t.type.elements for t in parameters),
        "parameter_bytes": sum(t.size_bytes for t in parameters),
        "trained_parameters": sum(
            step.tensors[name].type.elements for name in step.updates if step.tensors[name].role is Role.PARAMETER
        ),
        "forward_macs": macs[Phase.FORWARD.value],
        "step_macs": sum(macs.values()),
        "saved_bytes": saved_bytes(problem),
        "saved_bytes_lean": leanest.saved_bytes,
        "saved_lean_energy_pj": leanest.energy_pj,
        "keep_all_peak_bytes": peak,
        "min_budget_bytes": minimum.ram_bytes,
        "min_budget_bound_bytes": minimum.bound_bytes,
        "notes": list(step.notes),
    }


def solve(request: SolveRequest, progress: Progress = _silent) -> Artifact:
    """Solve and, if `request.out` is given, write the directory. Raises the errors of `poetc.errors`."""
    started, stop_at = time.perf_counter(), time.monotonic() + request.options.time_limit_s
    if request.out is not None:
        check_out(request.out, force=request.force)
    progress("reading the model")
    remarks: list[str] = []
    graph: Graph | None
    step: TrainingGraph | None
    profile: DeviceProfile | None
    if request.model.training.micro_batches == "auto" and request.model.source.suffix != ".json":
        search_s = planning.search_share_s(request.options.time_limit_s)
        options = replace(request.options, time_limit_s=request.options.time_limit_s - search_s)
        graph, step, profile, problem, split = _split(replace(request, options=options), progress)
        _require_offsets(request, problem, step)
        minimum = variants.least_ram(problem, request.state, search_s, stop_at)
        placed = split.placed
        remarks.append(_tried(split, problem))
    else:
        graph, step, profile, problem = _problem(request)
        problem, least = _limited(request, problem)
        _require_time(request, problem)
        _require_offsets(request, problem, step)
        progress("solving")
        # All of it within the limit, but for a model so large that hardly any time is left when it is read.
        left_s = max(stop_at - time.monotonic(), LEAST_SHARE * request.options.time_limit_s)
        search_s, state = planning.search_share_s(left_s), _state(request)
        minimum = least or variants.least_ram(problem, state, search_s, stop_at)
        options = replace(request.options, time_limit_s=left_s - (0.0 if least else search_s))
        try:
            placed = variants.solve_and_pack(problem, state, request.solver, options, progress, minimum)
        except (InfeasibleError, LimitError):
            if least is None or request.solver != planning.OURS:
                raise
            placed = variants.least(least, problem, request.solver)
    prediction = predicting.Prediction()
    if graph is not None and step is not None and profile is not None:
        limit_s = max(search_s, min(predicting.LIMIT_S, stop_at - time.monotonic()))
        solved = placed.problem, placed.schedule, placed.plan
        prediction = predicting.within_budget(step, graph, profile, *solved, limit_s, progress)
        remarks += [prediction.note] if prediction.note else []
    progress("looking for the smallest budget")
    smallest = minimum.found.ram_bytes
    summary = _summary(request, problem, placed, step, profile, smallest, started, remarks)
    artifact = Artifact(
        summary=summary,
        problem=placed.problem,
        schedule=placed.schedule,
        plan=placed.plan,
        graph=step,
        inference=graph,
        inference_problem=prediction.problem,
        inference_schedule=prediction.schedule,
        inference_plan=prediction.plan,
        profile=profile,
    )
    summary |= outputs.predicted_sizes(artifact)
    if request.out is not None:
        progress("writing the report")
        summary["copies"] = write(artifact, request.out, reporting.reports(artifact), force=request.force)
    return artifact


def _summary(
    request: SolveRequest,
    asked: Problem,
    placed: homes.Placed,
    step: TrainingGraph | None,
    profile: DeviceProfile | None,
    min_budget_bytes: int | None,
    started: float,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:
    """What `solve --json` prints; `asked`: the problem before homes of state were chosen; `started`: when, by
    `time.perf_counter`.
    """
    problem, schedule, plan = placed.problem, placed.schedule, placed.plan
    trace = verify(problem, schedule)
    proof, ram_bytes = schedule.proof, planning.ram_bytes(problem, plan)
    remarks = [*remarks, *([placed.remark] if placed.remark else [])]
    return {
        "status": proof.status.value,
        "energy_pj": trace.energy_pj,
        "energy_bound_pj": proof.bound if problem.objective == "energy" else problem.compute_once_pj,
        "compute_once_pj": problem.compute_once_pj,
        "objective": problem.objective,
        "gap": proof.gap(),
        "asked_gap": request.options.gap,
        "overhead_gap": proof.overhead_gap(
            problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
        ),
        "schedule_class": proof.schedule_class,
        "time_ns": trace.time_ns,
        "stall_ns": trace.stall_ns,
        "deadline_ns": problem.deadline_ns,
        "budget_bytes": problem.budget_bytes,
        "peak_bytes": trace.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "ram_bytes": ram_bytes,
        "keep_all_peak_bytes": keep_all_peak_bytes(asked),
        "min_budget_bytes": ram_bytes if min_budget_bytes is None else min(min_budget_bytes, ram_bytes),
        "recomputes": trace.recomputes,
        "recomputed_operators": sum(n > 1 for n in trace.executions),
        "page_outs": trace.page_outs,
        "page_ins": trace.page_ins,
        "leaner_kernels": len(variants.leaner_operators(asked, problem)),
        "moves": trace.moves,
        "moved_bytes": trace.moved_bytes,
        "move_pj": trace.move_pj,
        "move_ns": trace.move_ns,
        "state": _state(request),
        "state_on_store_bytes": sum(problem.tensors[chain[0]].size_bytes for chain in stored_state(problem)),
        "store_bytes": trace.store_bytes,
        "store_written_bytes": trace.written_bytes,
        "store_write_limit_bytes": problem.write_limit_bytes,
        **_wear(problem, schedule, profile, trace.time_ns),
        "operators": len(problem.operators),
        "solver": schedule.solver,
        "solve_seconds": round(time.perf_counter() - started, 3),
        "model": str(request.model.source),
        "device": problem.device,
        "micro_batches": step.options["micro_batches"] if step else 1,
        "notes": [
            *(step.notes if step else ()),
            *remarks,
            *(fit_notes(step, profile, problem.budget_bytes) if step and profile else ()),
        ],
        "out": str(request.out) if request.out is not None else None,
    }


def solve_curve(
    request: SolveRequest, budgets: Sequence[str | None], progress: Progress = _silent
) -> list[dict[str, Any] | PoetcError]:
    """A summary for each of `budgets`, or why there is none; work is shared between them (`poetc.curve`).

    `request.budget` is not used, `request.options.time_limit_s` is that of one budget. Raises UsageError for a budget
    that cannot be read.
    """
    progress("reading the model")
    _, step, profile, problem = _problem(request)
    problems = [_limits(replace(request, budget=budget), problem) for budget in budgets]
    limits = [p.budget_bytes for p in problems]
    state = _state(request)
    points = solve_points(problems[0], limits, request.solver, request.options, progress, state)
    minimum = variants.smallest_ram(problems[0], state)
    answers: list[dict[str, Any] | PoetcError] = []
    for limited, point in zip(problems, points, strict=True):
        if point.placed is None:
            assert point.error is not None
            answers.append(point.error)
            continue
        started = time.perf_counter() - point.seconds
        smallest = minimum.ram_bytes
        answers.append(_summary(request, limited, point.placed, step, profile, smallest, started))
    return answers


def _split(
    request: SolveRequest, progress: Progress
) -> tuple[Graph, TrainingGraph, DeviceProfile, Problem, splitting.Split]:
    """The number of micro-batches whose schedule costs least, for limits that are those of the whole batch."""
    profile = load_profile(request.model.device)
    whole = _model(request.model)
    batch = training.batch_of(whole) or 1
    counts = training.divisors(batch)
    if training.takes_batch_statistics(whole, replace(request.model.training, micro_batches=1)):
        counts = [1]
    graphs: dict[int, TrainingGraph] = {}
    problems: list[tuple[int, Problem]] = []
    for count in counts:
        options = replace(request.model.training, micro_batches=count)
        try:
            _, step = training_graph(replace(request.model, training=options))
        except PoetcError:
            if count == 1:
                raise
            break  # this model cannot be split
        problem = build_problem(step, profile, budget_bytes=profile.ram_bytes, paging=_paging(request, profile))
        if problems and len(problem.operators) > MOST_OPERATORS:
            break
        first = problems[0][1] if problems else None
        budget = request.budget if first is None else f"{first.budget_bytes}B"
        limited = _limits(replace(request, budget=budget), problem)
        if first is not None:
            limited = replace(limited, budget_bytes=first.budget_bytes, deadline_ns=first.deadline_ns)
        graphs[count] = step
        problems.append((count, limited))
        if keep_all_peak_bytes(limited) <= limited.budget_bytes:
            break  # more parts cost more even if nothing is recomputed
    split = splitting.best_split(problems, request.solver, request.options, progress, request.state)
    return whole, graphs[split.count], profile, dict(problems)[split.count], split


def _state(request: SolveRequest) -> str:
    """Homes of state are chosen for models; a Problem says itself where its state lives, unless it is told to move."""
    return "ram" if request.state == "auto" and request.model.source.suffix == ".json" else request.state


def _tried(split: splitting.Split, problem: Problem) -> str:
    show = format_pj if problem.objective == "energy" else format_ns
    if len(split.tried) == 1 and split.count == 1:
        return (
            "micro-batches: the batch is not split (batch-norm needs it whole, it fits as it is, or it has no divisor)"
        )
    parts = (
        f"{t.count}: {t.outcome}" if t.cost is None else f"{t.count}: {show(t.cost)} ({t.outcome})" for t in split.tried
    )
    return f"micro-batches tried: {'; '.join(parts)}"


def _wear(problem: Problem, schedule: Schedule, profile: DeviceProfile | None, time_ns: int) -> dict[str, Any]:
    """How long the store lasts, in steps and in years of training without a pause; None where nothing is written or the
    profile does not say what the store endures."""
    pages = Counter(step.tensor for step in schedule.steps if isinstance(step, PageOut))
    store = profile.stores[profile.default_store] if profile is not None and profile.default_store else None
    steps = None
    if store is not None and pages:
        steps = life_steps(store, [(problem.tensors[t].footprint_bytes, times) for t, times in pages.items()])
    return {
        "store_life_steps": steps,
        "store_life_years": None if steps is None else steps * time_ns / YEAR_NS,
    }


def _problem(
    request: SolveRequest,
) -> tuple[Graph | None, TrainingGraph | None, DeviceProfile | None, Problem]:
    source = request.model.source
    if source.suffix == ".json":
        try:
            problem = problem_from_json(read_file(source), source=str(source))
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror}") from error
        if request.dma and problem.paging is not Paging.DMA:
            raise UsageError(f"--dma: {source} says itself how it pages: {problem.paging.value!r}")
        return None, None, None, problem
    profile = load_profile(request.model.device)
    graph, step = training_graph(request.model)
    return (
        graph,
        step,
        profile,
        build_problem(step, profile, budget_bytes=profile.ram_bytes, paging=_paging(request, profile)),
    )


def _paging(request: SolveRequest, profile: DeviceProfile) -> Paging | None:
    """None: as the device's store does it, each transfer for itself."""
    if request.dma and not request.paging:
        raise UsageError("--dma and --no-paging exclude each other")
    if request.dma and request.objective == "time":
        raise UsageError("--objective time and --dma exclude each other; set a --deadline")
    if not request.dma:
        return None
    store = profile.stores[profile.default_store] if profile.default_store else None
    if store is None:
        raise UsageError(f"--dma: device {profile.name!r} has no store to page to")
    if store.mode != "dma":
        raise UsageError(f"--dma: the store of device {profile.name!r} cannot transfer while the processor computes")
    return Paging.DMA


def _limits(request: SolveRequest, problem: Problem) -> Problem:
    """Budget and deadline as numbers. A Problem brings its own; options override.

    Raises UsageError for what cannot be read, and where a Problem and the options together are no Problem.
    """
    return _limited(request, problem)[0]


def _limited(request: SolveRequest, problem: Problem) -> tuple[Problem, planning.Minimum | None]:
    """The same, and where the budget is LEAST the schedule that it was found with."""
    budget = problem.budget_bytes
    if request.budget is not None and request.budget != LEAST:
        budget = parse_size(request.budget, of=keep_all_peak_bytes(problem), option="--budget", or_word=LEAST)
    if budget <= 0 and request.budget != LEAST:
        raise UsageError("no RAM budget: pass --budget, for example 256MB, or 60% (of the keep-all peak)")
    deadline = problem.deadline_ns
    if request.deadline is not None:
        deadline = parse_duration(request.deadline, of=problem.compute_once_ns, option="--deadline")
    changes: dict[str, Any] = {"budget_bytes": budget, "deadline_ns": deadline}
    if request.max_written is not None:
        changes["write_limit_bytes"] = parse_size(request.max_written, option="--max-written")
    if request.objective is not None:
        changes["objective"] = request.objective
    if not request.paging:
        changes["paging"] = type(problem.paging).NONE
    minimum = None
    if request.budget == LEAST:
        minimum = _least(request, replace(problem, **changes))
        changes["budget_bytes"] = minimum.problem.budget_bytes
    changed = replace(problem, **changes)
    validate_problem(changed, f"{request.model.source} with these options")
    return changed, minimum


def _require_offsets(request: SolveRequest, problem: Problem, step: TrainingGraph | None) -> None:
    """UnsupportedModelError where the arena or the constants would be larger than the offsets of the runtime."""
    if step is None:
        return
    constant_bytes = sum(t.size_bytes for t in step.tensors.values() if t.role is Role.CONSTANT)
    arena_bytes = min(problem.budget_bytes, keep_all_peak_bytes(problem))
    what, size_bytes = max(("constants", constant_bytes), ("tensors", arena_bytes), key=lambda pair: pair[1])
    if size_bytes >= codegen.OFFSET_LIMIT:
        remedy = "give --budget 4GB or less, or a smaller --batch" if what == "tensors" else "train a smaller model"
        raise UnsupportedModelError(
            f"{request.model.source}: {format_bytes(size_bytes)} of {what}, more than 32-bit offsets reach; {remedy}"
        )


def _require_time(request: SolveRequest, problem: Problem) -> None:
    """InfeasibleError where every operator once takes longer than the deadline."""
    deadline, once = problem.deadline_ns, problem.compute_once_ns
    if deadline is not None and deadline < once:
        given = f"the deadline of {format_ns(deadline)}, which {request.model.source} says,"
        if request.deadline is not None:
            given = f"--deadline {request.deadline}"
        raise InfeasibleError(
            f"{given} cannot be met: every operator once takes {format_ns(once)}; allow more than that"
        )


def _least(request: SolveRequest, problem: Problem) -> planning.Minimum:
    """The least RAM that works in time, as the budget. Raises InfeasibleError where not even keep-all does."""
    search_s = min(planning.MINIMUM_SEARCH_S, LEAST_SHARE * request.options.time_limit_s)
    minimum = variants.least_ram(problem, _state(request), search_s)
    if minimum.found.ram_bytes is None:
        deadline = format_ns(problem.deadline_ns or 0)
        raise InfeasibleError(
            f"--budget {LEAST}: not even keep-all obeys the deadline of {deadline}; allow a longer --deadline"
        )
    return minimum.as_budget()


def out_directory(source: Path) -> Path:
    """`MODEL.poetc` in the working directory."""
    return named_after(source, ".poetc")


def named_after(source: Path, suffix: str) -> Path:
    """The model's name with another suffix, in the working directory. Raises UsageError if it has no name."""
    if not source.name:
        raise UsageError(f"{source}: is a directory, not a model")
    return Path(source.name).with_suffix(suffix)


def parameter_table(request: ModelRequest) -> list[Mapping[str, Any]]:
    """What the importer took for a weight and what for a constant, with its reason, and which of them are trained."""
    graph = _model(_with_any_weights(request))
    trained = training.select_parameters(graph, request.training.train)
    return [
        {"name": d.name, "shape": list(d.shape), "role": d.decision, "reason": d.reason, "trained": d.name in trained}
        for d in frontend.parameter_decisions(graph)
    ]
