"""Requests: which model or problem, how it is trained, and the limits that it is solved for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poetc import frontend, passes, solvers, training
from poetc.commands.options import BATCH, DEVICE, INFER_BATCH
from poetc.devices import (
    AUTO,
    DeviceProfile,
    build_problem,
    format_bytes,
    format_ns,
    load_profile,
    names_banks,
    parse_banks,
    parse_duration,
    parse_processors,
    parse_size,
    with_bank_budgets,
)
from poetc.devices.streaming import StreamedAlternatives
from poetc.devices.threads import Prices, in_threads, threads_of
from poetc.errors import InfeasibleError, UnsupportedModelError, UsageError
from poetc.events import Progress, silent
from poetc.files import read_file
from poetc.graph import Graph, Role, TrainingGraph
from poetc.ops import spec
from poetc.planning import ENGINE, BestUpdates, Planner, RamSearch, reductions
from poetc.planning.pieces import in_pieces
from poetc.planning.progress import BestSoFar
from poetc.planning.saved import EncodingSpace
from poetc.planning.search_log import SearchLog
from poetc.planning.smallest_ram import LONGEST_SEARCH_S
from poetc.planning.streaming import AlternativesOf
from poetc.planning.ways import ALONE, NO_WAYS, SIDE_BY_SIDE, Problems
from poetc.program import OFFSET_LIMIT
from poetc.scheduling import Objective, keep_all_peak_bytes, problem_from_json, validate_problem
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import SolveOptions
from poetc.training import BEST, TrainingOptions

LEAST_SHARE = 0.5  # of the time limit, at most, for the search for the least RAM where that is the budget
LEAST = "least"  # as a budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Which model, and how it is to be trained."""

    source: Path
    batch: int | None = None
    rows: int | None = None  # in place of the batch, whichever option fixed it
    infer_batch: int | None = None  # of predictions and evaluations; None: the batch of training
    device: str = "host"
    training: TrainingOptions = field(default_factory=TrainingOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRequest:
    """A model or a Problem (`.json`), and the limits to solve it for. `budget` and `deadline` as typed by the user.

    The budget LEAST is the least RAM that is found to work, within the deadline if there is one.

    `objective`: the name of an `Objective`; None: a Problem's own, and energy for a model.
    """

    model: ModelRequest
    budget: str | None = None
    deadline: str | None = None
    max_written: str | None = None  # to the store, in one step
    objective: str | None = None
    processors: str = AUTO  # beside the main one; see `poetc.devices.parse_processors`
    paging: bool = True
    dma: bool = False  # transfers overlap compute, where the store can
    importance: Path | None = None  # of updates, for --train best
    importance_at_least: str | None = None  # a number, or 80% of that of all updates
    max_energy: str | None = None  # of one step, for --train best
    longest_piece: str | None = None  # of the step that cannot be interrupted
    state: str = "auto"  # where state lives between steps: "ram", "store"; see `poetc.planning.state`
    solver: str = "poetc"
    options: SolveOptions = field(default_factory=SolveOptions)
    milp_solver: str = "highs"  # for the solver's MILPs; see `poetc.solvers.milp`
    write_model: str | None = None  # file for the first of these MILPs, others beside it
    log: Path | None = None  # the best schedule and the bound over time, a line of JSON an event
    events: SearchLog | None = field(default=None, compare=False, repr=False)  # takes them
    band: bool = False  # the result is priced at the ends of the profile's bands, too
    out: Path | None = None
    force: bool = False  # files in `out` that the user changed are replaced, and copies kept
    smallest: bool = True  # the least RAM is looked for, to be told
    began: float | None = None  # when the time limit began, by `time.monotonic`; None: when it is solved

    def __post_init__(self) -> None:
        if self.options.time_limit_s <= 0:
            raise UsageError(f"--time-limit {self.options.time_limit_s:g}: must be a number of seconds above 0")
        if self.objective not in (None, *Objective):
            raise UsageError(f"--objective {self.objective!r}: there are {' and '.join(Objective)}")
        if self.max_written is not None and not self.paging:
            raise UsageError("--max-written does nothing with --no-paging: nothing is written to a store")
        if self.band and self.is_problem:
            raise UsageError(f"--band needs a model: {self.model.source} has prices and no device profile")
        if self.is_best and self.importance is None:
            raise UsageError(f"--train {BEST} needs --importance FILE, which poetc importance writes")
        if self.longest_piece is not None and (self.is_best or self.model.training.micro_batches == "auto"):
            raise UsageError("--longest-piece needs --micro-batches as a number, and no --train best")
        if self.longest_piece is not None and (self.dma or self.processors not in (AUTO, "main")):
            raise UsageError("--longest-piece is for one processor without --dma")
        for option, value in (
            ("--importance", self.importance),
            ("--importance-at-least", self.importance_at_least),
            ("--max-energy", self.max_energy),
        ):
            if value is not None and not self.is_best:
                raise UsageError(f"{option} does nothing without --train {BEST}")

    @property
    def stop_at(self) -> float:
        """When the time is up, by `time.monotonic`; of a limit that begins now, where none has begun."""
        return (time.monotonic() if self.began is None else self.began) + self.options.time_limit_s

    @property
    def is_best(self) -> bool:
        """Whether the updates are to be chosen."""
        return self.model.training.train == BEST and not self.is_problem

    @property
    def is_problem(self) -> bool:
        """Whether the source is a Problem rather than a model."""
        return self.model.source.suffix == ".json"

    @property
    def longest_ns(self) -> int | None:
        """`longest_piece` as a number. UsageError where it is no time."""
        if self.longest_piece is None:
            return None
        return parse_duration(self.longest_piece, option="--longest-piece")

    @property
    def state_mode(self) -> str:
        """State is placed for models; a Problem says itself where its state lives, unless it is told to move."""
        return "ram" if self.state == "auto" and self.is_problem else self.state

    def planner(
        self,
        time_limit_s: float,
        progress: Progress = silent,
        micro_batches: Mapping[int, Problem] | None = None,
        updates: BestUpdates | None = None,
        offers: Sequence[EncodingSpace] = (),
        ways: Sequence[Problems] = (),
        streams: Sequence[AlternativesOf] = (),
        end_at: float = math.inf,
    ) -> Planner:
        """The planner for this request.

        `micro_batches`: the problems by number of parts, where that is open too. `updates`: the choice of the updates.
        `offers`: encodings of saved tensors. `ways`: of using several processors.
        `streams`: make the streamed alternatives of operators. `end_at`: when all has to be done.
        """
        return Planner(
            options=replace(self.options, time_limit_s=time_limit_s),
            solver=self.solver,
            reductions=reductions(self.state_mode, micro_batches, updates, offers, ways, streams),
            progress=progress,
            best=BestSoFar(log=self.events or SearchLog()),
            end_at=end_at,
        )


def streams_of(
    *steps: TrainingGraph | None,
    profile: DeviceProfile | None,
    request: SolveRequest | None = None,
    ways: Sequence[Problems] = (),
) -> tuple[AlternativesOf, ...]:
    """Make the streamed alternatives of the problems of these steps, when a planner asks for them.

    `request`: no block takes longer than its longest piece, and with `--state ram` no state streams. `ways`: of using
    the processors, whose problems may be asked for.
    """
    longest_ns = None if request is None else request.longest_ns
    moves_state = request is None or request.state_mode != "ram"

    def of(step: TrainingGraph, profile: DeviceProfile) -> AlternativesOf:
        def offer(problem: Problem) -> StreamedAlternatives | None:
            names = [op.name for op in step.operators if not spec(op.kind).is_view]
            is_its = names == [op.name for op in problem.operators]
            if not is_its:
                return None
            prices = prices_in_threads(problem, step, profile, ways)
            return StreamedAlternatives(
                step, profile, problem, longest_ns=longest_ns, prices=prices, moves_state=moves_state
            )

        return offer

    return () if profile is None else tuple(of(step, profile) for step in steps if step is not None)


def prices_in_threads(
    problem: Problem, step: TrainingGraph, profile: DeviceProfile, ways: Sequence[Problems]
) -> Prices | None:
    """Those of kernels in threads, if the problem is one of `ways` that has them."""
    for way in ways:
        parallel = way.get(SIDE_BY_SIDE)
        if parallel is None or [op.name for op in parallel.operators] != [op.name for op in problem.operators]:
            continue  # of another step
        count = len(parallel.processors)
        if count in way and problem.operators == way[count].operators:
            threads = threads_of(parallel, step, profile)
            return None if threads is None else Prices.of(parallel, threads)
    return None


def load_model(request: ModelRequest) -> Graph:
    """The forward pass: with the adapters that are trained, or in integers."""
    return prepared(read_model(request), request.training)


class Reader:
    """`load_model` for training steps of one model that train other parameters: it reads the file once."""

    def __init__(self) -> None:
        self._read: dict[int | None, Graph] = {}  # by the rows of the batch

    def __call__(self, request: ModelRequest) -> Graph:
        if request.rows not in self._read:
            self._read[request.rows] = read_model(request)
        return prepared(self._read[request.rows], request.training)


def read_model(request: ModelRequest) -> Graph:
    """The forward pass as the file has it, in floats."""
    options = request.training
    head = new_head(options.new_head, options.output, options.head_seed)
    sizes = frontend.Sizes.parse(request.batch, options.dim, options.shape, request.rows, options.constant)
    return frontend.load(
        request.source,
        batch=sizes.batch,
        dims=sizes.dims,
        shapes=sizes.shapes,
        constants=sizes.constants,
        rows=sizes.rows,
        random_weights=options.random_weights,
        new_head=head,
        quantized=training.PRECISIONS[options.precision].reads_codes,
    )


def prepared(graph: Graph, options: TrainingOptions) -> Graph:
    """A model as its file has it, with the adapters that are trained, or in integers."""
    graph = adapted(graph, options.train, options.lora)
    return training.in_precision(graph, options)


def adapted(graph: Graph, train: str, lora: Sequence[str]) -> Graph:
    """The model with the adapters that `--lora` asks for; itself without that option."""
    return training.with_adapters(graph, training.select_updates(graph, train, lora)) if lora else graph


def new_head(text: str, output: str, seed: int) -> frontend.NewHead | None:
    """The value of --new-head; UsageError where it cannot be read."""
    return frontend.NewHead.parse(text, output, seed) if text else None


def inference_model(request: ModelRequest, whole: Graph) -> Graph:
    """The model for predictions, at a batch of its own if one is asked for. `whole` is the model at training's batch.

    Raises UsageError where the model cannot be had at that batch, or has other weights there.
    """
    batch = request.infer_batch
    if batch is None or batch == whole.batch:
        return whole
    try:
        return training.at_batch(whole, load_model(replace(request, rows=batch)))
    except UsageError as error:
        raise UsageError(f"--infer-batch {batch}: {error}") from error


def with_any_weights(request: ModelRequest) -> ModelRequest:
    """For a look at the model alone: a note instead of a refusal where the file of its weights is absent."""
    seed = request.training.random_weights or 0
    return replace(request, training=replace(request.training, random_weights=seed))


def training_graph(
    request: ModelRequest, load: Callable[[ModelRequest], Graph] = load_model, *, names_sums: bool = False
) -> tuple[Graph, TrainingGraph]:
    """The model, and its whole training step.

    `load`: `load_model`, or one that reads no file twice. `names_sums`: see `training.build`.
    """
    graph = load(request)
    count, part = request.training.micro_batches, None
    if count != "auto" and count > 1:
        rows = training.micro_batch_of(graph, count)
        try:
            part = load(replace(request, rows=rows))
        except (UnsupportedModelError, UsageError) as error:  # it was read at the whole batch
            raise UsageError(
                f"--micro-batches {count}: {request.source} cannot be read at a part of its batch, {rows} samples; use"
                " --micro-batches 1, or export it with a dynamic batch"
            ) from error
    return graph, passes.run_standard(training.build(graph, request.training, part, names_sums=names_sums))


def read_problem(
    request: SolveRequest, load: Callable[[ModelRequest], Graph] = load_model
) -> tuple[Graph | None, TrainingGraph | None, DeviceProfile | None, Problem]:
    """The model, its training step and its device, None for a Problem; and the scheduling problem."""
    source = request.model.source
    if request.is_problem:
        try:
            problem = problem_from_json(read_file(source), source=str(source))
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror}") from error
        if request.processors != AUTO:
            raise UsageError(f"--processors: {source} says itself which processors there are")
        idle = of_models(request.model)
        if idle:
            raise UsageError(f"{', '.join(idle)}: {source} is a problem, which has no model to train")
        if request.dma and problem.paging is not Paging.DMA:
            raise UsageError(f"--dma: {source} says itself how it pages: {problem.paging.value!r}")
        return None, None, None, problem
    profile = load_profile(request.model.device)
    graph, step = training_graph(request.model, load)
    return graph, step, profile, problem_of(request, step, profile)


def of_models(model: ModelRequest) -> list[str]:
    """The options that are about a model or a device, and that have another value than the default."""
    of_request = {option.name: getattr(model, option.name) for option in (DEVICE, BATCH, INFER_BATCH)}
    values = of_request | vars(model.training)
    return [o.flag for o in (DEVICE, BATCH, INFER_BATCH, *training.TRAINING) if o.is_given(values)]


def problem_of(request: SolveRequest, step: TrainingGraph, profile: DeviceProfile) -> Problem:
    """The scheduling problem of a training step on the main processor, with the paging that was asked for.

    `ways_of` has the same step on others. A published solver that was given processors places operators on them.
    """
    processors = processors_of(request, profile)
    banks = parse_banks(request.budget, profile)
    if banks and processors:
        raise UsageError(f"--budget {request.budget} and --processors exclude each other: banks are for one processor")
    if request.solver == ENGINE or request.processors == AUTO:
        processors = ()
    paging = paging_of(request, profile)
    return build_problem(
        step, profile, budget_bytes=profile.ram_bytes, paging=paging, processors=processors, banks=banks
    )


def with_short_pieces(
    request: SolveRequest, problem: Problem, step: TrainingGraph | None, profile: DeviceProfile | None
) -> Problem:
    """The problem with no piece longer than the request's; itself where it has no limit."""
    longest_ns = request.longest_ns
    if longest_ns is None:
        return problem
    offer = None if step is None or profile is None else StreamedAlternatives(step, profile, problem)
    return in_pieces(problem, longest_ns, offer)


def processors_of(request: SolveRequest, profile: DeviceProfile) -> tuple[str, ...]:
    """The processors beside the main one that may work: of those that no one named, where ways can be weighed."""
    names = parse_processors(request.processors, profile)
    one_alone = request.longest_piece is not None or request.is_best or names_banks(request.budget)
    return () if request.processors == AUTO and one_alone else names


def ways_of(
    request: SolveRequest, problem: Problem, step: TrainingGraph | None, profile: DeviceProfile | None
) -> dict[int, Problem]:
    """The scheduling problem of the same step for each way to use several processors; empty where there is one.

    Without named processors, published solvers and `--dma` run operators one after another.
    """
    if step is None or profile is None or problem.processors:
        return {}
    processors = processors_of(request, profile)
    if not processors:
        return {}
    side = build_problem(
        step, profile, budget_bytes=problem.budget_bytes, paging=paging_of(request, profile), processors=processors
    )
    ways, threads = {ALONE: problem}, threads_of(side, step, profile)
    if request.solver == ENGINE and not (request.dma and request.processors == AUTO):
        ways[SIDE_BY_SIDE] = side
    if threads is not None:
        ways[threads.count] = in_threads(side, problem, threads)
    return ways


def paging_of(request: SolveRequest, profile: DeviceProfile) -> Paging | None:
    """How tensors are transferred to and from the store. None leaves the choice to the device: one after another."""
    if request.dma and not request.paging:
        raise UsageError("--dma and --no-paging exclude each other")
    if not request.dma:
        return None
    store = profile.stores[profile.default_store] if profile.default_store else None
    if store is None:
        raise UsageError(f"--dma: device {profile.name!r} has no store to page to")
    if store.mode != "dma":
        raise UsageError(f"--dma: the store of device {profile.name!r} cannot transfer while the processor computes")
    return Paging.DMA


def limits(request: SolveRequest, problem: Problem, ways: Problems = NO_WAYS) -> Problem:
    """Budget and deadline as numbers. A Problem brings its own; options override. `ways`: of using processors.

    Raises UsageError for a file that cannot be read, and where a Problem and the options together are no Problem.
    """
    return limited(request, problem, ways=ways)[0]


def limited(
    request: SolveRequest, problem: Problem, offers: Sequence[EncodingSpace] = (), ways: Problems = NO_WAYS
) -> tuple[Problem, RamSearch | None]:
    """The same, and where the budget is LEAST the search that found it.

    A deadline in parts is one of the time that operators take in turn, in the fastest way.
    """
    budget = problem.budget_bytes
    if names_banks(request.budget) and request.is_problem:
        problem = with_bank_budgets(problem, request.budget or "")
        budget = problem.budget_bytes
    elif problem.banks and request.budget is not None and not names_banks(request.budget):
        names = ", ".join(b.name for b in problem.banks)
        raise UsageError(f"--budget {request.budget}: {problem.name} has banks; give them budgets by name: {names}")
    elif request.budget is not None and request.budget != LEAST and not problem.banks:
        budget = parse_size(request.budget, of=keep_all_peak_bytes(problem), option="--budget", or_word=LEAST)
    if budget <= 0 and request.budget != LEAST:
        raise UsageError("no RAM budget: pass --budget, for example 256MB, or 60% (of the keep-all peak)")
    deadline = problem.deadline_ns
    if request.deadline is not None:
        deadline = parse_duration(request.deadline, of=_once_ns(problem, ways), option="--deadline")
    changes: dict[str, Any] = {"budget_bytes": budget, "deadline_ns": deadline}
    if request.max_written is not None:
        changes["write_limit_bytes"] = parse_size(request.max_written, option="--max-written")
    if request.objective is not None:
        changes["objective"] = Objective(request.objective)
    if not request.paging:
        changes["paging"] = type(problem.paging).NONE
    search = None
    if request.budget == LEAST:
        search = _least(request, replace(problem, **changes), offers, ways)
        changes["budget_bytes"] = search.problem.budget_bytes
    changed = replace(problem, **changes)
    validate_problem(changed, f"{request.model.source} with these options")
    return changed, search


def require_offsets(request: SolveRequest, problem: Problem, step: TrainingGraph | None) -> None:
    """The arena and the constants must not be larger than the offsets of the runtime.

    UsageError for an arena, which follows from options, and UnsupportedModelError for constants of the model.
    """
    if step is None:
        return
    constant_bytes = sum(t.size_bytes for t in step.tensors.values() if t.role is Role.CONSTANT)
    arena_bytes = min(problem.budget_bytes, keep_all_peak_bytes(problem))
    kind, size_bytes = max(("constants", constant_bytes), ("tensors", arena_bytes), key=lambda pair: pair[1])
    if size_bytes >= OFFSET_LIMIT:
        why = f"{request.model.source}: {format_bytes(size_bytes)} of {kind}, more than 32-bit offsets reach"
        if kind == "tensors":
            raise UsageError(f"{why}; give --budget 4GB or less, or a smaller --batch")
        raise UnsupportedModelError(f"{why}; train a smaller model")


def _once_ns(problem: Problem, ways: Problems) -> int:
    """Of every operator once, in turn, in the fastest way."""
    in_turn = (p for way, p in ways.items() if way != SIDE_BY_SIDE)
    return min((p.compute_once_ns for p in in_turn), default=problem.compute_once_ns)


def shortest_ns(problem: Problem, ways: Problems) -> int:
    """No step takes less time, in any of `ways`."""
    return min(map(solvers.shortest_ns, ways.values() or [problem]))


def require_time(request: SolveRequest, problem: Problem, ways: Problems = NO_WAYS) -> None:
    """InfeasibleError where every operator once takes longer than the deadline, in any of `ways`."""
    deadline = problem.deadline_ns
    once = shortest_ns(problem, ways)
    if deadline is not None and deadline < once:
        limit = f"the deadline of {format_ns(deadline)}, which {request.model.source} says,"
        if request.deadline is not None:
            limit = f"--deadline {request.deadline}"
        least = f"every operator once takes {format_ns(once)}"
        parallel = ways.get(SIDE_BY_SIDE, problem)
        if parallel.processors:
            path_ns = solvers.critical_path_ns(parallel)
            least = f"a step takes {format_ns(once)} at least, its critical path {format_ns(path_ns)}"
        raise InfeasibleError(f"{limit} cannot be met: {least}; allow more than that")


def _least(request: SolveRequest, problem: Problem, offers: Sequence[EncodingSpace], ways: Problems) -> RamSearch:
    """The least RAM that works in time, as the budget. Raises InfeasibleError where not even keep-all does."""
    search_s = min(LONGEST_SEARCH_S, LEAST_SHARE * request.options.time_limit_s)
    planner = request.planner(search_s, offers=offers, ways=[ways] if ways else ())
    search = planner.search_ram(problem, search_s)
    if search.result.ram_bytes is None:
        deadline = format_ns(problem.deadline_ns or 0)
        raise InfeasibleError(
            f"--budget {LEAST}: not even keep-all obeys the deadline of {deadline}; allow a longer --deadline"
        )
    return search.as_budget()


def out_directory(source: Path) -> Path:
    """`MODEL.poetc` in the working directory."""
    return named_after(source, ".poetc")


def named_after(source: Path, suffix: str) -> Path:
    """The model's name with another suffix, in the working directory. Raises UsageError if it has no name."""
    if not source.name:
        raise UsageError(f"{source}: is a directory, not a model")
    return Path(source.name).with_suffix(suffix)
