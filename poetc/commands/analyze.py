"""`poetc analyze`: the model, its training step, and how small its RAM can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from poetc import frontend, training
from poetc.commands.encodings import offers_of
from poetc.commands.partial_training import savings_of_part
from poetc.commands.requests import (
    ModelRequest,
    Reader,
    SolveRequest,
    load_model,
    streams_of,
    training_graph,
    with_any_weights,
)
from poetc.commands.small_ram import Step, least_streamed
from poetc.devices import DeviceProfile, build_problem, equal_cores, load_profile
from poetc.devices.saved import saved_bytes, saved_near_free
from poetc.errors import InfeasibleError, LimitError, format_count
from poetc.events import Progress, silent
from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import bind, spec
from poetc.planning import RamSearch, Solution
from poetc.planning.pieces import longest_piece
from poetc.planning.saved import EncodingSpace
from poetc.planning.smallest_ram import LONGEST_SEARCH_S, PATIENCE
from poetc.scheduling import Problem, keep_all_peak_bytes

LEAST_WORK_S = 1.0  # counted, for a schedule that is shown beside the least RAM
LEAST_S = 60.0  # on the clock, for the same: counted work ends it, on a busy machine too
LEAST_GAP = 0.02  # ends it


@dataclass(frozen=True, slots=True)
class Analyzed:
    """The model that was analysed, and its least RAM.

    `offers`: the encodings that saved tensors may have. `least_whole_bytes`: without streamed operands. `least`: the
    step of the least RAM, and a schedule of it. It is solved for when it is asked for.
    """

    graph: Graph
    step: TrainingGraph
    profile: DeviceProfile
    problem: Problem
    offers: Sequence[EncodingSpace]
    least_whole_bytes: int | None
    least: Callable[[], tuple[Step, Solution] | None]


def analyze(
    request: ModelRequest, search_s: float = LONGEST_SEARCH_S, progress: Progress = silent, *, streams: bool = True
) -> dict[str, Any]:
    """The answer of `poetc analyze`: the model, its training step, how small its RAM can be.

    `search_s`: of the search for that, in counted work. `streams`: with streamed operands too, which takes several
    times as long.
    """
    return analyze_parts(request, search_s, progress, streams=streams)[0]


def analyze_parts(
    request: ModelRequest,
    search_s: float = LONGEST_SEARCH_S,
    progress: Progress = silent,
    *,
    streams: bool = True,
    on_problem: Callable[[Problem], None] = lambda _: None,
) -> tuple[dict[str, Any], Analyzed]:
    """The answer, and the values that it was read from. `on_problem` is called before the searches."""
    load = Reader()
    graph, step = training_graph(with_any_weights(request), load)
    profile = load_profile(request.device)
    problem = build_problem(step, profile, budget_bytes=0)
    on_problem(problem)
    peak = keep_all_peak_bytes(problem)
    progress(f"looking for the smallest budget of {format_count(len(problem.operators), 'operator')}")
    offers = offers_of(step, profile, problem, None)
    asked = SolveRequest(model=request)
    clock_s = PATIENCE * search_s
    search = asked.planner(clock_s, offers=offers).search_ram(problem, clock_s, work_limit_s=search_s)
    minimum, whole = search.result, Step(graph=step, model=graph, problem=problem)
    streamed: tuple[Step, RamSearch] | None = None
    if streams:
        progress("looking for the smallest budget with streamed operands")
        streamed = least_streamed(asked, whole, profile, minimum.ram_bytes, clock_s, search_s)
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
        "streamed_min_budget_bytes": None if streamed is None else streamed[1].result.ram_bytes,
        "streamed_min_budget_bound_bytes": None if streamed is None else streamed[1].result.bound_bytes,
        "pruned": savings_of_part(request, step, problem, load),
        "notes": [*step.notes, *_of_one_core(profile)],
    }
    of_least = partial(at_least_ram, asked, profile, whole, search, offers)
    if streamed is not None:
        of_least = partial(at_least_ram, asked, profile, *streamed)
    return answer, Analyzed(graph, step, profile, problem, offers, minimum.ram_bytes, of_least)


def _of_one_core(profile: DeviceProfile) -> list[str]:
    """`solve` uses all equal cores by default."""
    cores = 1 + len(equal_cores(profile))
    return [f"times and energies are of one core; `poetc solve` uses all {cores} by default"] if cores > 1 else []


def at_least_ram(
    request: SolveRequest, profile: DeviceProfile, step: Step, search: RamSearch, offers: Sequence[EncodingSpace] = ()
) -> tuple[Step, Solution] | None:
    """The step solved for the budget that the search found, in little counted work; None where it found none.

    The schedule of the search needs the least RAM, and often several times the energy.
    """
    if search.result.schedule is None or search.result.ram_bytes is None:
        return None
    problem, search = replace(step.problem, budget_bytes=search.result.ram_bytes), search.as_budget()
    options = replace(request.options, work_limit_s=LEAST_WORK_S, is_quick=True, gap=LEAST_GAP)
    streams = streams_of(step.graph, profile=profile) if any(op.is_streamed for op in search.problem.operators) else ()
    planner = replace(request, options=options).planner(LEAST_S, offers=offers, streams=streams)
    known = planner.least_ram_solution(problem, search)
    try:
        solution = planner.knowing(search).solve(problem)
    except (InfeasibleError, LimitError):
        solution = known
    return replace(step, problem=problem), min(solution, known, key=lambda candidate: candidate.cost)


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
