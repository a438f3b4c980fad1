"""Options that change a training so that it needs less RAM, each with the numbers of the training that it makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from poetc import training
from poetc.commands.encodings import offers_of
from poetc.commands.requests import (
    LEAST,
    ModelRequest,
    SolveRequest,
    limited,
    paging_of,
    prepared,
    problem_of,
    read_model,
    training_graph,
    with_any_weights,
    with_short_pieces,
)
from poetc.commands.small_ram import Step, least_streamed
from poetc.devices import DeviceProfile, build_problem, load_profile, names_banks
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.events import Progress, silent
from poetc.graph import Graph, Role, TrainingGraph
from poetc.ops.optimizers import OPTIMIZERS
from poetc.planning import ENGINE
from poetc.planning.smallest_ram import PATIENCE
from poetc.scheduling import Paging, Problem, keep_all_peak_bytes

_Change = Callable[[], ModelRequest]

WAYS_S = 30.0  # of processor time for the table of ways, after which the others are left out
WAY_SEARCH_S = 0.5  # counted, for the smallest RAM of each way, and of each board
LARGE_TIMES = 4.0  # as much for steps of more than MOST_OPERATORS
MOST_REPEATED = 3_000  # operators of a step in micro-batches
MOST_OPERATORS = 1_000  # of a step; with more, the largest batch is not searched for, and few ways are tried
RANK = 8
WAYS_OF_ERROR_S = 6.0  # the same, behind an infeasible budget
LATE_SHARE = 0.1  # of the time limit, for the same where no time is left
SEARCH_OF_ERROR_S = 0.1  # for each of them
NOTHING: Mapping[str, int] = MappingProxyType({})
_MICRO_BATCHES = "--micro-batches"
_SAVED = "--saved"
_PRECISION = "--precision"
_WAY = ("name", "options", "least_bytes", "least_whole_bytes", "keep_all_peak_bytes", "refused")


def search_time_s(problem: Problem, usual_s: float) -> float:
    """Counted work of a search for the least RAM, in seconds: more for a large step."""
    return LARGE_TIMES * usual_s if len(problem.operators) > MOST_OPERATORS else usual_s


def constant_bytes(step: TrainingGraph) -> int:
    """Frozen weights and other constants: in flash on a microcontroller, in the program's file elsewhere."""
    return sum(t.size_bytes for t in step.tensors.values() if t.role is Role.CONSTANT)


def ways_to_save(
    request: SolveRequest,
    profile: DeviceProfile,
    operators: int,
    progress: Progress = silent,
    *,
    limit_s: float = WAYS_S,
    search_s: float = WAY_SEARCH_S,
    known: Mapping[str, int] = NOTHING,
    of_numbers: bool | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each option that changes the training; `refused`: why the model does not take it.

    `operators`: of the step as it is. `known`: as `with_known` takes them. `of_numbers`: only the options that
    choose how numbers are stored, which come last, or only the others.

    Every search takes `search_s` of counted work; after `limit_s` the other options are left out. The option that makes
    the step longest is tried last, so that it takes no time from the others.
    """
    model = request.model
    graph, stop_at = read_model(with_any_weights(model)), time.process_time() + limit_s

    def load(wanted: ModelRequest) -> Graph:
        is_read = wanted.rows is None and wanted.batch == model.batch
        return prepared(graph if is_read else read_model(with_any_weights(wanted)), wanted.training)

    offers = list(ways_to_try(model, graph.batch, operators))
    offers = [o for o in offers if of_numbers is None or o[1].startswith((_SAVED, _PRECISION)) == of_numbers]
    rows: dict[str, dict[str, Any]] = {options: {"name": name, "options": options} for name, options, _ in offers}
    for _, options, change in sorted(offers, key=lambda offer: offer[1].startswith(_MICRO_BATCHES)):
        row: dict[str, Any] = {"refused": f"left out: the others took {limit_s:g} s"}
        if time.process_time() <= stop_at:
            progress(f"estimating {options}")
            try:
                row = {"refused": None, **_way(replace(request, model=change()), load, profile, search_s)}
            except PoetcError as error:
                row = {"refused": str(error).split("; ")[0]}
        rows[options] |= row
    yield from with_known(rows.values(), known)


def with_known(rows: Iterable[dict[str, Any]], known: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The rows. With more encodings of saved tensors none needs more RAM than the step as it is.

    `known`: `least_bytes` that do for it, and `least_whole_bytes` without streamed operands.
    """
    for row in rows:
        better = row["options"].startswith(_SAVED) and row["refused"] is None
        yield row | {key: min(row[key], size) for key, size in known.items() if row[key]} if better else row


def has_first_rows(model: ModelRequest, operators: int) -> bool:
    """Whether `rows_to_save` has any: few options are tried with a large step."""
    offers = ways_to_try(model, model.batch, operators)
    return any(not options.startswith((_SAVED, _PRECISION)) for _, options, _ in offers)


def rows_to_save(task: tuple[ModelRequest, int]) -> list[dict[str, Any]]:
    """The first rows of a model whose step has so many operators, in a process of its own: most of the work."""
    model, operators = task
    return list(ways_to_save(SolveRequest(model=model), load_profile(model.device), operators, of_numbers=False))


def ways_to_try(request: ModelRequest, batch: int | None, operators: int) -> Iterator[tuple[str, str, _Change]]:
    """Name, options and the changed request of every way that the request does not take yet.

    `operators`: of its step. Micro-batches repeat them, so a large batch is not divided into single samples.
    UsageError from a change whose options and the request's exclude each other.
    """
    options = request.training
    precision, is_large = training.PRECISIONS[options.precision], operators > MOST_OPERATORS

    def with_(**changes: Any) -> _Change:
        return lambda: replace(request, training=replace(options, **changes))

    if not is_large:
        if batch is not None and batch > 1 and options.micro_batches == 1:
            fitting = (n for n in range(2, batch + 1) if batch % n == 0 and n * operators <= MOST_REPEATED)
            parts = max(fitting, default=1)
            name = "one sample at a time" if parts == batch else f"{batch // parts:,} samples at a time"
            if parts > 1:
                yield name, f"{_MICRO_BATCHES} {parts}", with_(micro_batches=parts)
        if request.batch is not None and request.batch > 1:
            half = request.batch // 2
            yield "half the batch", f"--batch {half}", partial(replace, request, batch=half)
        if options.optimizer != "sgd":
            own = {option.name: option.default for option in _options_of(options)}
            yield "no state of the optimizer", "--optimizer sgd", with_(optimizer="sgd", **own)
    if options.train == "all" and not options.lora:
        yield "the last layer", "--train last:1", with_(train="last:1")
        if not is_large:
            yield "the last two layers", "--train last:2", with_(train="last:2")
    adapters = {"train": "all", "lora": (str(RANK),)}
    if not options.lora and training.Adapter in precision.updates:
        yield "adapters", f"--lora {RANK}", with_(**adapters)
        if not options.frozen or options.frozen == "f32":
            changed = with_(**adapters, frozen="int8")
            yield "adapters, frozen weights in 8 bits", f"--lora {RANK} --frozen int8", changed
    if options.saved in ("exact", "off") and not precision.narrow and not is_large:
        yield "saved tensors in 8 bits", f"{_SAVED} int8", with_(saved="int8")
    if not precision.narrow and not options.lora and not is_large:
        for other in training.PRECISIONS.values():
            if other.is_integer and not other.reads_codes:
                yield other.help, f"{_PRECISION} {other.name}", with_(precision=other.name)


def _options_of(options: Any) -> Iterator[Any]:
    """The options of the optimizer that plain descent does not take."""
    kept = {option.name for option in OPTIMIZERS["sgd"].options}
    return (option for option in OPTIMIZERS[options.optimizer].options if option.name not in kept)


def _way(
    request: SolveRequest, load: Callable[[ModelRequest], Graph], profile: DeviceProfile, search_s: float
) -> dict[str, Any]:
    graph, step = training_graph(request.model, load)
    paging = paging_of(request, profile) if request.paging else Paging.NONE
    request = replace(request, solver=ENGINE, events=None)
    problem = _within_limits(request, build_problem(step, profile, budget_bytes=0, paging=paging), step, profile)
    offers = offers_of(step, profile, problem, paging) if request.longest_piece is None else ()
    search_s = search_time_s(problem, search_s)
    clock_s = PATIENCE * search_s
    search = request.planner(clock_s, offers=offers).search_ram(problem, clock_s, work_limit_s=search_s)
    whole_bytes, whole = search.result.ram_bytes, Step(graph=step, model=graph, problem=problem)
    streamed = least_streamed(request, whole, profile, whole_bytes, clock_s, search_s)
    trained = sum(
        step.tensors[name].type.elements for name in step.updates if step.tensors[name].role is Role.PARAMETER
    )
    return {
        "trained_parameters": trained,
        "keep_all_peak_bytes": keep_all_peak_bytes(problem),
        "least_bytes": whole_bytes if streamed is None else streamed[0].problem.budget_bytes,
        "least_whole_bytes": whole_bytes,
        "constant_bytes": constant_bytes(step),
        "time_ns": problem.compute_once_ns,
        "energy_pj": problem.compute_once_pj,
    }


def _within_limits(request: SolveRequest, problem: Problem, step: TrainingGraph, profile: DeviceProfile) -> Problem:
    """The problem with the limits of the request, but for the budget."""
    problem = with_short_pieces(request, problem, step, profile)
    if request.budget is None or request.budget == LEAST or names_banks(request.budget):
        return problem
    return replace(limited(request, problem)[0], budget_bytes=0)


def is_about_budget(error: InfeasibleError | LimitError) -> bool:
    """Whether it names a budget that works, and the asked one is smaller."""
    least_bytes, budget_bytes = (error.details.get(key) for key in ("min_budget_bytes", "budget_bytes"))
    if isinstance(error, InfeasibleError):
        return "min_budget_bytes" in error.details
    return isinstance(budget_bytes, int) and isinstance(least_bytes, int) and budget_bytes < least_bytes


def with_ways(
    request: SolveRequest, error: InfeasibleError | LimitError, progress: Progress, left_s: float
) -> InfeasibleError | LimitError:
    """`error` with the options that would need less RAM: in its details all of them, in its message those that fit.

    Options that need as much or more are left out.

    `left_s`: of the time limit. Where little is left, the options get a tenth of the limit beyond it.
    """
    are_parts_open = request.model.training.micro_batches == "auto"
    if are_parts_open:  # all numbers of parts were tried: the others are options of the whole batch
        model = replace(request.model, training=replace(request.model.training, micro_batches=1))
        request = replace(request, model=model)
    step = training_graph(request.model)[1]
    profile = load_profile(request.model.device)
    problem = problem_of(request, step, profile)
    limit_s = min(WAYS_OF_ERROR_S, max(left_s, LATE_SHARE * request.options.time_limit_s))
    least_bytes = error.details["min_budget_bytes"]
    known = {"least_bytes": least_bytes} if isinstance(least_bytes, int) and not are_parts_open else NOTHING
    ways = list(
        ways_to_save(
            request,
            profile,
            len(problem.operators),
            progress,
            limit_s=limit_s,
            search_s=SEARCH_OF_ERROR_S,
            known=known,
        )
    )
    ways = [way for way in ways if not (are_parts_open and way["options"].startswith(_MICRO_BATCHES))]
    if isinstance(least_bytes, int):
        ways = [way for way in ways if way["refused"] is not None or (way["least_bytes"] or 0) < least_bytes]
    budget = error.details["budget_bytes"]
    tried = [way for way in ways if way["refused"] is None and way["least_bytes"] is not None]
    fitting = [way for way in tried if way["least_bytes"] <= budget]
    advice = "no single option that was tried fits"
    if fitting:
        is_part = (request.budget or "").rstrip().endswith(("%", "x"))  # with the option, of another keep-all peak
        advice = f"with --budget {budget} it fits with " if is_part else "it fits with "
        advice += ", or ".join(f"{w['options']} ({w['least_bytes']} bytes)" for w in fitting[:3])
    details = {**error.details, "ways": [{k: w.get(k) for k in _WAY} for w in ways]}
    return type(error)(f"{error}{_no_store(request, profile)}; {advice}", details=details)


def _no_store(request: SolveRequest, profile: DeviceProfile) -> str:
    """Why no operand may pass through a window, in words; "" where it may."""
    if not profile.default_store:
        return f"; device {profile.name!r} has no store, so no operand streams"
    return "" if request.paging else "; --no-paging keeps operands from streaming"
