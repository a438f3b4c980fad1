"""The training step by the number of parts of its batch, for `--micro-batches auto`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from poetc import solvers, training
from poetc.commands import encodings
from poetc.commands.requests import (
    SolveRequest,
    inference_model,
    limits,
    load_model,
    paging_of,
    problem_of,
    training_graph,
    ways_of,
)
from poetc.commands.small_ram import Step, least_bound_bytes, step_for_budget
from poetc.devices import DeviceProfile, format_bytes, load_profile
from poetc.devices.reuse import parts_for_cache, working_set_bytes
from poetc.errors import PoetcError
from poetc.graph import Graph, TrainingGraph
from poetc.scheduling import keep_all_peak_bytes
from poetc.scheduling.problem import Problem

MOST_OPERATORS = 20_000  # of a training step that --micro-batches auto still considers
MOST_CACHED = 5_000  # the same where keep-all fits with fewer parts, so that only a cache gains


def steps_by_parts(
    request: SolveRequest, profile: DeviceProfile, stop_at: float
) -> tuple[dict[int, Step], int, tuple[str, ...]]:
    """The training step by the number of parts of the batch.

    Then the bytes of keep-all with the whole batch, and a note on parts that fit the cache.

    Where keep-all fits, more parts cost more even if nothing is recomputed. On a device with caches they may cost less:
    a part finds bytes there that the whole batch fetches from RAM. No more are made after `stop_at`.
    """
    whole = load_model(request.model)
    model = inference_model(request.model, whole)
    steps: dict[int, Step] = {}
    first: Problem | None = None
    cache, is_roomy = profile.memory.cache_bytes, False
    for count, of_count, graph in _built(request, whole, stop_at):
        problem = problem_of(of_count, graph, profile)
        if steps and len(problem.operators) > (MOST_CACHED if is_roomy else MOST_OPERATORS):
            break
        budget = request.budget if first is None else f"{first.budget_bytes}B"
        at_limits = limits(replace(request, budget=budget), problem, ways_of(request, problem, graph, profile))
        if first is not None:
            at_limits = replace(at_limits, budget_bytes=first.budget_bytes, deadline_ns=first.deadline_ns)
        first = first or at_limits
        is_roomy = is_roomy or keep_all_peak_bytes(at_limits) <= at_limits.budget_bytes
        offers = encodings.offers_of(graph, profile, at_limits, paging_of(request, profile))
        step = Step(graph=graph, model=model, problem=at_limits)
        steps[count] = step_for_budget(request, step, profile, offers)
        if is_roomy and cache is None:
            break
    assert first is not None
    keep_all_bytes = keep_all_peak_bytes(first)
    if cache is None or len(steps) < 2:
        return steps, keep_all_bytes, ()
    graphs = {count: step.graph for count, step in steps.items()}
    fitting = parts_for_cache(graphs, int(cache.value))
    if solvers.info(request.solver).fits_cache:
        steps = {fitting: steps[fitting]}
    note = f"micro-batches: each operator fits the cache of {format_bytes(int(cache.value))} in {fitting} parts"
    if working_set_bytes(graphs[fitting]) > cache.value:
        note = f"micro-batches: with more than {fitting} parts no operator comes closer to fitting the cache"
    return steps, keep_all_bytes, (note,)


def _counts(request: SolveRequest, whole: Graph) -> list[int]:
    """The numbers of parts of a batch that change nothing but the order of sums."""
    if training.takes_batch_statistics(whole, replace(request.model.training, micro_batches=1)):
        return [1]
    return training.divisors(whole.batch or 1)


def _built(request: SolveRequest, whole: Graph, stop_at: float) -> Iterator[tuple[int, SolveRequest, TrainingGraph]]:
    """By number of parts: the request for it and its training step. Only the whole batch is made after `stop_at`."""
    for count in _counts(request, whole):
        if count > 1 and time.monotonic() >= stop_at:
            return
        training_options = replace(request.model.training, micro_batches=count)
        of_count = replace(request, model=replace(request.model, training=training_options))
        try:
            _, graph = training_graph(of_count.model)
        except PoetcError:
            if count == 1:
                raise
            return  # this model cannot be split
        yield count, of_count, graph


def with_frugal_parts(request: SolveRequest, stop_at: float) -> SolveRequest:
    """The request with the number of micro-batches that probably needs the least RAM, of those tried by `stop_at`."""
    profile, whole = load_profile(request.model.device), load_model(request.model)
    model, needs = inference_model(request.model, whole), dict[int, int]()
    requests: dict[int, SolveRequest] = {}
    for count, of_count, graph in _built(request, whole, stop_at):
        problem = replace(problem_of(of_count, graph, profile), budget_bytes=0)
        if needs and len(problem.operators) > MOST_OPERATORS:
            break
        needs[count] = least_bound_bytes(of_count, Step(graph=graph, model=model, problem=problem), profile)
        requests[count] = of_count
    return requests[min(needs, key=lambda count: (needs[count], count))]
