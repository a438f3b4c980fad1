"""`poetc analyze`: the costs of a training before it is begun, and the options that would save some of them.

Nothing is compiled or run. Each number is of the device profile: a schedule is priced with the profile's own values.
The band has every number at the low end and at the high end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from poetc.artifact import Artifact
from poetc.commands.analyze import Analyzed, at_least_ram
from poetc.commands.band import ENDS, SECTIONS, priced_as
from poetc.commands.encodings import encoded_step
from poetc.commands.facts import decided
from poetc.commands.from_profile import guesses_of, wear_of
from poetc.commands.largest_batch import MOST_BATCH
from poetc.commands.programs import predicted_sizes
from poetc.commands.requests import (
    ModelRequest,
    SolveRequest,
    streams_of,
    training_graph,
    with_any_weights,
)
from poetc.commands.saving import (
    MOST_OPERATORS,
    WAY_SEARCH_S,
    constant_bytes,
    has_first_rows,
    rows_to_save,
    search_time_s,
    ways_to_save,
    with_known,
)
from poetc.commands.small_ram import Step, least_streamed, step_for_budget
from poetc.datasets import BatchFunction, Settings, open_source, slots_of
from poetc.devices import DeviceProfile, build_problem, list_profiles, load_profile
from poetc.devices.modelled import End, at_end
from poetc.devices.units import parse_battery
from poetc.errors import InfeasibleError, LimitError, PoetcError, UsageError
from poetc.events import Progress, silent
from poetc.graph import Graph, TrainingGraph
from poetc.passes import code_model
from poetc.planning import Solution, ram_bytes
from poetc.planning.inference import alone_problem
from poetc.planning.saved import Saved
from poetc.planning.smallest_ram import PATIENCE
from poetc.planning.streaming import Streaming, Streams
from poetc.processes import KilledError, Worker, has_room_beside
from poetc.scheduling import Problem, Trace, keep_all, keep_all_peak_bytes, pack, verify, verify_parts

SEARCH_S = 2.0  # counted, for the smallest RAM, and again with streamed operands
SLOWER = 1.05  # of the time without recomputing or paging: the good budget is the smallest within this
GOOD_SEARCH_S = 1.0  # counted, for the good budget
BATCHES_OPERATORS = 5_000  # of all steps that are built for the largest batch, after which the answer is a range
BESIDE_OPERATORS = 250  # of a step, for a second process
LEAST_BATCHES = 4  # that are tried all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """`data`: as `poetc train` takes it, for the steps of an epoch. `battery`: 2000mAh@3.7V, 7.4Wh or an energy.

    `texts`: the options of texts, by name.
    """

    model: ModelRequest
    data: str | None = None
    texts: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    battery: str | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.data is None:
            raise UsageError("--epochs does nothing without --data: the steps of an epoch follow from the samples")
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"--epochs {self.epochs}: must be at least 1")
        if self.battery is not None:
            parse_battery(self.battery)  # before the work

    @property
    def battery_pj(self) -> int | None:
        """The energy of a full battery; UsageError where it cannot be read."""
        return None if self.battery is None else parse_battery(self.battery)


def with_facts_of_data(request: EstimateRequest, note: Progress) -> EstimateRequest:
    """The request with the loss and the axis of classes that its data tell."""
    if request.data is None:
        return request
    graph, step = training_graph(with_any_weights(request.model))
    options = decided(request.data, None, graph, step, request.model.training, note)
    return replace(request, model=replace(request.model, training=options))


class BackgroundWays:
    """Most of the table of ways of a large model, made in a second process where a core is there for it.

    Every search of the table ends by counted work: the rows are the same in either process.
    """

    def __init__(self, model: ModelRequest) -> None:
        self.model = model
        self._rows: Worker[list[dict[str, Any]]] | None = None

    def __enter__(self) -> BackgroundWays:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows is not None:
            self._rows.end()

    def begin(self, problem: Problem) -> None:
        """Begin, if the step is so large that another process takes less time to start than the rows take."""
        operators = len(problem.operators)
        if operators >= BESIDE_OPERATORS and has_room_beside() and has_first_rows(self.model, operators):
            with suppress(OSError):  # no more processes are allowed
                self._rows = Worker(rows_to_save, (self.model, operators))

    @property
    def has_begun(self) -> bool:
        return self._rows is not None

    def rows(self) -> list[dict[str, Any]] | None:
        """The first rows, once it has begun; None where its process was killed, or failed for want of memory."""
        assert self._rows is not None
        try:
            answer = self._rows.answer()
        except RuntimeError:
            return None  # a fault of the program shows when this process makes them
        return None if isinstance(answer, KilledError) else answer


def estimate(
    request: EstimateRequest,
    known: Analyzed,
    steps: int | None,
    progress: Progress = silent,
    background: BackgroundWays | None = None,
) -> dict[str, Any]:
    """RAM at three budgets, with time, energy, wear and flash of each; the ways to save; inference; the largest batch.

    `steps`: of an epoch, as `steps_of` says. `background`: the table of ways, where another process makes it. Raises
    UsageError for a battery that cannot be read.
    """
    battery_pj, whole = request.battery_pj, Step(graph=known.step, model=known.graph, problem=known.problem)
    progress("estimating three budgets")
    least = known.least()
    ends = {end: _AtEnd(known, end) for end in ENDS}
    budgets = [
        _budget(name, *solved, request, known, ends, steps, battery_pj)
        for name, solved in (
            ("least", least),
            ("good", _good(request.model, known)),
            ("keep-all", (whole, keep_all_solution(known.problem))),
        )
        if solved is not None
    ]
    largest_batch = _largest_batch(request.model, known, progress)
    enough = {"least_whole_bytes": known.least_whole_bytes, "least_bytes": budgets[0]["ram_bytes"]}
    model = code_model(known.graph, known.step)
    inference = keep_all_peak_bytes(alone_problem(model, known.profile, known.problem))
    progress("estimating options that would save RAM")
    asked, operators = SolveRequest(model=request.model), len(known.problem.operators)

    def rows_here(of_numbers: bool | None) -> list[dict[str, Any]]:
        return list(ways_to_save(asked, known.profile, operators, progress, of_numbers=of_numbers))

    if background is None or not background.has_begun:
        rows = rows_here(None)
    else:
        last = rows_here(True)
        first = background.rows()
        rows = [*(rows_here(False) if first is None else first), *last]
    return {
        "device": request.model.device,
        "ram_bytes": known.profile.ram_bytes,
        "flash_limit_bytes": known.profile.flash_bytes,
        "steps_per_epoch": steps,
        "epochs": request.epochs,
        "battery_pj": battery_pj,
        "budgets": budgets,
        "inference_peak_bytes": inference,
        "training_to_inference": budgets[-1]["ram_bytes"] / inference,
        "largest_batch": largest_batch,
        "least_without_streams_bytes": known.least_whole_bytes,
        "ways": list(with_known(rows, {key: size for key, size in enough.items() if size is not None})),
    }


def keep_all_solution(problem: Problem) -> Solution:
    """Every tensor kept until its last use, with no budget."""
    schedule = keep_all(problem)
    return Solution(problem=problem, schedule=schedule, plan=pack(problem, schedule))


def _good(request: ModelRequest, known: Analyzed) -> tuple[Step, Solution] | None:
    """The smallest RAM that is found for a step at most 5 % longer than without recomputing or paging."""
    limited = replace(known.problem, deadline_ns=math.floor(SLOWER * known.problem.compute_once_ns))
    search_s = search_time_s(known.problem, GOOD_SEARCH_S)
    asked, offers, clock_s = SolveRequest(model=request), known.offers, PATIENCE * search_s
    search = asked.planner(clock_s, offers=offers).search_ram(limited, clock_s, work_limit_s=search_s)
    step = Step(graph=known.step, model=known.graph, problem=limited)
    return at_least_ram(asked, known.profile, step, search, offers)


# --- one budget -------------------------------------------------------------------------------------------------------


def _budget(
    name: str,
    step: Step,
    solution: Solution,
    request: EstimateRequest,
    known: Analyzed,
    ends: Mapping[End, _AtEnd],
    steps: int | None,
    battery_pj: int | None,
) -> dict[str, Any]:
    needed = ram_bytes(solution.problem, solution.plan)
    solution = replace(solution, problem=replace(solution.problem, budget_bytes=needed))
    problem, schedule = solution.problem, solution.schedule
    trace = verify(problem, schedule)
    graph = encoded_step(step.graph, Saved.option(solution))
    streams = _streams(known.profile, step, graph, solution)
    low, high = (ends[end].trace(graph, solution, streams) for end in ENDS)
    wear = wear_of(problem, schedule, known.profile, trace.time_ns)
    sized = Artifact(
        summary={},
        problem=problem,
        schedule=schedule,
        plan=solution.plan,
        graph=graph,
        profile=known.profile,
    )
    total = None if steps is None else steps * (request.epochs or 1)
    life = wear["store_life_steps"]
    return {
        "name": name,
        "ram_bytes": needed,
        "fits": needed <= known.profile.ram_bytes,
        "time_ns": trace.time_ns,
        "time_band_ns": [low.time_ns, high.time_ns],
        "energy_pj": trace.energy_pj,
        "energy_band_pj": [low.energy_pj, high.energy_pj],
        "guesses": guesses_of(problem, schedule, known.profile, trace),
        "recomputes": trace.recomputes,
        "page_outs": trace.page_outs,
        "page_ins": trace.page_ins,
        "written_bytes": trace.written_bytes,
        "store_life_steps": life,
        "flash_bytes": predicted_sizes(sized)["flash_bytes"],
        "constant_bytes": constant_bytes(known.step),
        "epoch_ns": None if steps is None else steps * trace.time_ns,
        "run_ns": None if total is None else total * trace.time_ns,
        "run_band_ns": None if total is None else [total * low.time_ns, total * high.time_ns],
        "run_pj": None if total is None else total * trace.energy_pj,
        "run_band_pj": None if total is None else [total * low.energy_pj, total * high.energy_pj],
        "run_written_bytes": None if total is None else total * trace.written_bytes,
        "run_wear": None if total is None or life is None else total / life,
        "steps_per_battery": None if battery_pj is None else battery_pj // max(1, trace.energy_pj),
        "run_of_battery": None if battery_pj is None or total is None else total * trace.energy_pj / battery_pj,
    }


def _is_streamed(solution: Solution) -> bool:
    return any(op.is_streamed for op in solution.problem.operators)


def _streams(profile: DeviceProfile, step: Step, graph: TrainingGraph, solution: Solution) -> Streams:
    """The choice of streamed operands, which is the same at both ends."""
    if not _is_streamed(solution):
        return ()
    whole = step.problem if graph is step.graph else build_problem(graph, profile, budget_bytes=0)
    return Streaming(streams_of(graph, profile=profile)).chosen(whole, solution.problem) or ()


class _AtEnd:
    """Prices where every number of the profile is at one end of its band."""

    def __init__(self, known: Analyzed, end: End) -> None:
        self.known, self.profile = known, known.profile
        for section in SECTIONS:
            if getattr(known.profile, section) is not None:
                self.profile = at_end(self.profile, section, end)
        self.exact = self._problem(known.step)

    def _problem(self, step: TrainingGraph) -> Problem:
        return build_problem(step, self.profile, budget_bytes=0)

    def trace(self, graph: TrainingGraph, solution: Solution, streams: Streams) -> Trace:
        """Time and energy of the schedule there."""
        there = self.exact if graph is self.known.step else self._problem(graph)
        there = Streaming(streams_of(graph, profile=self.profile)).fix(there, streams)
        return verify_parts([(priced_as(solution.problem, there), solution.schedule.actions)])


def steps_of(request: EstimateRequest, step: TrainingGraph) -> int | None:
    """Training steps of an epoch of the data; None without data. UsageError for a function, which has no length."""
    if request.data is None:
        return None
    slots = slots_of(step)
    settings = Settings(values=request.texts, model=request.model.source)
    source = open_source(request.data, slots, silent, settings=settings)
    if isinstance(source, BatchFunction):
        raise UsageError(f"--data {request.data}: a function does not say how many samples it has; give a file")
    rows = slots[0].shape[0]
    return max(1, -(-len(source) // rows))


def _largest_batch(request: ModelRequest, known: Analyzed, progress: Progress) -> dict[str, Any] | None:
    """The largest batch that keeps all tensors within the device's RAM, and the largest that is not proven too large.

    None where the file fixes its batch, or the model is so large that the search takes long.
    """
    if request.batch is None or len(known.problem.operators) > MOST_OPERATORS:
        return None
    progress("looking for the largest batch")
    limit = known.profile.ram_bytes
    needs: dict[int, tuple[int, int]] = {}

    def need(batch: int) -> tuple[int, int]:
        if batch not in needs:
            step = training_graph(replace(with_any_weights(request), batch=batch))[1]
            problem = build_problem(step, known.profile, budget_bytes=limit)
            bound = SolveRequest(model=request).planner(1.0).lower_bound_bytes(problem)
            needs[batch] = keep_all_peak_bytes(problem), bound
        return needs[batch]

    most = max(LEAST_BATCHES, BATCHES_OPERATORS // len(known.problem.operators))
    try:
        kept, more = last_within(limit, lambda batch: need(batch)[0], lambda: len(needs) < most)
        _, possible = last_within(limit, lambda batch: need(batch)[1], lambda: len(needs) < most)
    except PoetcError:
        return None  # it cannot be read at another batch
    return {"keep_all": kept, "is_largest": kept == more < MOST_BATCH, "bound": possible, "most": MOST_BATCH}


def last_within(limit: int, need: Callable[[int], int], goes_on: Callable[[], bool] = lambda: True) -> tuple[int, int]:
    """A pair of batches: both are the largest one up to MOST_BATCH that needs at most `limit` bytes, or both are 0.

    0: one sample needs more. Where `goes_on` ends the search, the first is the largest batch known to need no more.
    Then the second is the largest that is not known to need more.
    `need` grows with the batch, nearly along a line, which is followed.
    """
    low, high = 0, MOST_BATCH + 1
    known = {1: need(1)}
    if known[1] > limit:
        return 0, 0
    low, guess = 1, 2
    while high - low > 1 and goes_on():
        known[guess] = need(guess)
        low, high = (guess, high) if known[guess] <= limit else (low, guess)
        a, b = sorted(known, key=lambda batch: abs(known[batch] - limit))[:2]
        slope = (known[b] - known[a]) / (b - a) or 1.0
        guess = min(max(math.floor(a + (limit - known[a]) / slope), low + 1), high - 1)
    return low, high - 1


# --- every board ------------------------------------------------------------------------------------------------------


def boards_to_buy() -> list[str]:
    """The devices of the list, but for this machine and the emulated boards."""
    return [name for name in list_profiles() if name != "host" and not name.startswith("qemu-")]


def every_board(request: EstimateRequest, progress: Progress = silent) -> dict[str, Any]:
    """A row for each board: whether the training fits, and its cost there; those of the least energy first."""
    battery_pj = request.battery_pj
    graph, step = training_graph(with_any_weights(request.model))
    steps = steps_of(request, step)
    total = None if steps is None else steps * (request.epochs or 1)
    known: dict[Any, int] = {}
    rows = []
    for name in boards_to_buy():
        progress(f"estimating {name}")
        rows.append(board_row(replace(request.model, device=name), load_profile(name), graph, step, known))
    for row in rows:
        time_ns, energy_pj = row["time_ns"], row["energy_pj"]
        row["run_ns"] = None if total is None or time_ns is None else total * time_ns
        row["run_pj"] = None if total is None or energy_pj is None else total * energy_pj
        row["steps_per_battery"] = None if battery_pj is None or not energy_pj else battery_pj // energy_pj
    rows.sort(key=lambda row: (row["fits"] is not True, row["energy_pj"] or 0, row["least_bytes"], row["device"]))
    return {
        "model": str(request.model.source),
        "notes": list(step.notes),
        "steps_per_epoch": steps,
        "epochs": request.epochs,
        "battery_pj": battery_pj,
        "boards": rows,
    }


def board_row(
    model: ModelRequest, profile: DeviceProfile, graph: Graph, step: TrainingGraph, known: dict[Any, int]
) -> dict[str, Any]:
    problem, request = build_problem(step, profile, budget_bytes=profile.ram_bytes), SolveRequest(model=model)
    keep, ram, whole = keep_all_peak_bytes(problem), profile.ram_bytes, Step(graph=step, model=graph, problem=problem)
    least = _least_above_base(request, profile, whole, known) + problem.base_bytes
    state = sum(step.tensors[name].size_bytes for name in step.updates)
    row: dict[str, Any] = {
        "device": profile.name,
        "title": profile.title,
        "ram_bytes": ram,
        "keep_all_peak_bytes": keep,
        "least_bytes": min(least, keep),
        "flash_bytes": constant_bytes(step) + state,
        "flash_limit_bytes": profile.flash_bytes,
        "fits": False,
        "schedule": None,
        "time_ns": None,
        "energy_pj": None,
    }
    if profile.flash_bytes is not None and row["flash_bytes"] > profile.flash_bytes:
        return {**row, "schedule": "flash is too small"}
    if keep <= ram:
        costs = {"time_ns": problem.compute_once_ns, "energy_pj": problem.compute_once_pj}
        return {**row, "fits": True, "schedule": "all tensors kept", **costs}
    made_step = step_for_budget(request, whole, profile)
    planner = request.planner(WAY_SEARCH_S * 3, streams=streams_of(made_step.graph, profile=profile))
    with suppress(InfeasibleError, LimitError):
        solution = planner.solve(made_step.problem)
        trace = verify(solution.problem, solution.schedule)
        costs = {"time_ns": trace.time_ns, "energy_pj": trace.energy_pj}
        schedule = "operands streamed" if _is_streamed(solution) else "scheduled"
        return {**row, "fits": True, "schedule": schedule, **costs}
    return {**row, "schedule": "RAM is too small"}


def _least_above_base(request: SolveRequest, profile: DeviceProfile, step: Step, known: dict[Any, int]) -> int:
    """The smallest RAM above the runtime's own; boards whose kernels and tensors are as large share one search."""
    problem = step.problem
    key = (
        tuple(t.size_bytes for t in problem.tensors),
        tuple((op.workspace_bytes, tuple(v.workspace_bytes for v in op.low_workspace)) for op in problem.operators),
        problem.paging,
        problem.page_buffer_bytes,
    )
    if key not in known:
        clock_s = PATIENCE * WAY_SEARCH_S
        answer = request.planner(clock_s).search_ram(problem, clock_s, work_limit_s=WAY_SEARCH_S).result
        needed = keep_all_peak_bytes(problem) if answer.ram_bytes is None else answer.ram_bytes
        streamed = least_streamed(request, step, profile, needed, clock_s, WAY_SEARCH_S)
        known[key] = (needed if streamed is None else streamed[0].problem.budget_bytes) - problem.base_bytes
    return known[key]
