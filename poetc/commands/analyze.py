"""`poetc analyze`: the model, its training step, and how small its RAM can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from poetc import frontend, passes, training
from poetc.commands.encodings import offers_of
from poetc.commands.partial_training import savings_of_part
from poetc.commands.requests import (
    ModelRequest,
    SolveRequest,
    load_model,
    streams_of,
    training_graph,
    with_any_weights,
)
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.saved import saved_bytes, saved_near_free
from poetc.events import Progress, silent
from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import bind, spec
from poetc.planning import Planner, RamSearch, Solution, reductions
from poetc.planning.pieces import longest_piece
from poetc.planning.smallest_ram import LONGEST_SEARCH_S, SmallestRam
from poetc.planning.streaming import Streaming
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import SolveOptions


@dataclass(frozen=True, slots=True)
class Analyzed:
    """The model that was analysed, and the schedules of least RAM: without streamed operands, and with them."""

    graph: Graph
    step: TrainingGraph
    profile: DeviceProfile
    problem: Problem
    least: Callable[[], Solution | None]  # made when they are asked for
    streamed: Callable[[], Solution | None]


def analyze(
    request: ModelRequest, search_s: float = LONGEST_SEARCH_S, progress: Progress = silent, *, streams: bool = True
) -> dict[str, Any]:
    """The answer of `poetc analyze`: the model, its training step, how small its RAM can be (`search_s` of search).

    `streams`: with streamed operands too, which takes several times as long.
    """
    return analyze_parts(request, search_s, progress, streams=streams)[0]


def analyze_parts(
    request: ModelRequest, search_s: float = LONGEST_SEARCH_S, progress: Progress = silent, *, streams: bool = True
) -> tuple[dict[str, Any], Analyzed]:
    """The answer, and the values that it was read from."""
    graph, step = training_graph(with_any_weights(request))
    profile = load_profile(request.device)
    problem = build_problem(step, profile, budget_bytes=0)
    peak = keep_all_peak_bytes(problem)
    progress(f"looking for the smallest budget of {len(problem.operators):,} operators")
    offers = offers_of(step, profile, problem, None)
    planner = SolveRequest(model=request).planner(search_s, offers=offers)
    search = planner.search_ram(problem, search_s)
    minimum = search.found
    streamed: SmallestRam | None = None
    of_streamed: Callable[[], Solution | None] = _nothing
    if streams:
        streamed, of_streamed = _streamed(step, profile, problem, minimum, search_s, progress)
    near_free = saved_near_free(problem, step)
    macs = {phase.value: 0 for phase in Phase}
    for op in step.operators:
        macs[op.phase.value] += spec(op.kind).work(bind(op, step.tensors)).macs
    parameters = [t for t in graph.tensors.values() if t.role is Role.PARAMETER]
    kinds: dict[str, int] = {}
    for op in graph.operators:
        kinds[op.kind] = kinds.get(op.kind, 0) + 1
    answer = {
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
        "longest_piece": asdict(longest_piece(problem)),
        "saved_bytes": saved_bytes(problem),
        "saved_near_free_bytes": near_free.saved_bytes,
        "saved_near_free_energy_pj": near_free.energy_pj,
        "keep_all_peak_bytes": peak,
        "min_budget_bytes": minimum.ram_bytes,
        "min_budget_bound_bytes": minimum.bound_bytes,
        "streamed_min_budget_bytes": None if streamed is None else streamed.ram_bytes,
        "streamed_min_budget_bound_bytes": None if streamed is None else streamed.bound_bytes,
        "pruned": savings_of_part(request, step, problem),
        "notes": list(step.notes),
    }
    of_least = partial(of_least_ram, planner, problem, search)
    return answer, Analyzed(graph, step, profile, problem, of_least, of_streamed)


def _nothing() -> None:
    """No solution."""


def of_least_ram(planner: Planner, problem: Problem, search: RamSearch) -> Solution | None:
    """The solution that the search found, for the budget that it needs; None where it found none."""
    if search.found.schedule is None or search.found.ram_bytes is None:
        return None
    asked = replace(problem, budget_bytes=search.found.ram_bytes)
    return planner.least_ram_solution(asked, search.as_budget())


def _streamed(
    step: TrainingGraph,
    profile: DeviceProfile,
    problem: Problem,
    minimum: SmallestRam,
    search_s: float,
    progress: Progress,
) -> tuple[SmallestRam | None, Callable[[], Solution | None]]:
    """The same with as many operands streamed as can be; None where the store cannot do it, or it saves nothing."""
    step = passes.for_small_ram(step, 0)
    problem = build_problem(step, profile, budget_bytes=0)
    streaming = Streaming(streams_of(step, profile=profile))
    if not streaming.is_open(problem):
        return None, _nothing
    planner = Planner(options=SolveOptions(time_limit_s=search_s), reductions=reductions())
    fixed = streaming.floor(problem)
    if minimum.ram_bytes is not None and planner.lower_bound_bytes(fixed) >= minimum.ram_bytes:
        return None, _nothing
    progress("looking for the smallest budget with streamed operands")
    search = planner.search_ram(fixed, search_s)
    return search.found, partial(of_least_ram, planner, fixed, search)


def parameter_table(request: ModelRequest) -> list[Mapping[str, Any]]:
    """The importer's weights and constants, each with its reason, and which of them are trained."""
    graph = load_model(with_any_weights(request))
    trained = training.select_parameters(graph, request.training.train, request.training.lora)
    return [
        {"name": d.name, "shape": list(d.shape), "role": d.decision, "reason": d.reason, "trained": d.name in trained}
        for d in frontend.parameter_decisions(graph)
    ]


def fact_table(request: ModelRequest) -> list[Mapping[str, Any]]:
    """The facts about the model that its file does not say, each with its evidence."""
    return [asdict(fact) for fact in load_model(with_any_weights(request)).facts]
