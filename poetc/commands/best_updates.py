"""`--train best`: the choice of the updates, from a request and a file of importance."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from poetc.commands.encodings import is_lossy, offers_of
from poetc.commands.requests import (
    LEAST,
    LEAST_SHARE,
    ModelRequest,
    Reader,
    SolveRequest,
    limits,
    paging_of,
    training_graph,
)
from poetc.devices import AUTO, DeviceProfile, build_problem, load_profile, names_banks
from poetc.devices.capacity import flash_needed_bytes
from poetc.devices.profile import MAIN
from poetc.devices.units import parse_energy
from poetc.errors import PoetcError, UsageError, shortened
from poetc.events import Progress, silent
from poetc.graph import Role, TrainingGraph
from poetc.planning import BestUpdates, Goal, Solution, Step
from poetc.planning.importance import Importance, read_importance
from poetc.scheduling import Problem
from poetc.training import BEST, PRECISIONS, TRAINING, Channels, Updates

_PERCENT = re.compile(r"([0-9.]+)\s*%")
_REMEDY_S = 1.0  # of search for the RAM of one way out


@dataclass(slots=True)
class Choice:
    """The choice of a request. `everything`: the problem of training all parameters, which limits may refer to."""

    request: SolveRequest
    profile: DeviceProfile
    everything: Problem
    load: Reader
    notes: list[str] = field(default_factory=list)

    def request_of(self, updates: Updates) -> SolveRequest:
        """The request with these updates in place of `--train best`."""
        train, lora = updates.options()
        model = with_updates(self.request.model, train, lora)
        return replace(self.request, model=model, importance=None, importance_at_least=None, max_energy=None)

    def step(self, updates: Updates) -> tuple[TrainingGraph, Problem]:
        """The training step with these updates, and its problem at the limits of the request."""
        return self._step(self.request_of(updates))

    def _step(self, request: SolveRequest) -> tuple[TrainingGraph, Problem]:
        graph = training_graph(request.model, self.load)[1]
        problem = build_problem(
            graph, self.profile, budget_bytes=self.profile.ram_bytes, paging=paging_of(request, self.profile)
        )
        everything = self.everything
        within = replace(request, budget=f"{everything.budget_bytes}B", deadline=None)
        at_limits = limits(within, problem)
        return graph, replace(at_limits, deadline_ns=everything.deadline_ns)

    def remedy(self, updates: Updates, ram_bytes: int) -> str:
        """The ways in which an update that needs too much RAM would fit; "" where none is found."""
        asked = self.request_of(updates)
        train = asked.model.training.train
        training = asked.model.training
        ways = (
            [(f"--train {shortened(train, 80)!r} with encodings of saved tensors", training)]
            if not training.lora
            else []
        )
        if not PRECISIONS[training.precision].narrow:
            integers = [p.name for p in PRECISIONS.values() if p.is_integer and not p.reads_codes]
            ways += [(f"--precision {name}", replace(training, precision=name)) for name in integers]
        remedies = []
        for remedy_name, options in ways:
            needed = self._ram_bytes(replace(asked, model=replace(asked.model, training=options)))
            if needed is not None and needed <= self.everything.budget_bytes and needed < ram_bytes:
                remedies.append(f"{remedy_name} needs {needed:,} bytes")
        return ", ".join(remedies)

    def _ram_bytes(self, request: SolveRequest) -> int | None:
        """The least RAM that a short search finds, with encodings of saved tensors; None where it cannot be trained."""
        try:
            graph, problem = self._step(request)
        except PoetcError:
            return None
        offers = offers_of(graph, self.profile, problem, paging_of(request, self.profile))
        return request.planner(_REMEDY_S, offers=offers).search_ram(problem, _REMEDY_S).result.ram_bytes

    def importance(self) -> Importance:
        """The candidates that the request can train. UsageError for a file that does not fit the model, or has none."""
        assert self.request.importance is not None
        model = with_updates(self.request.model, "all", ())
        options = model.training.of_groups(*{option.group for option in TRAINING} - {"precision"})
        recorded = read_importance(self.request.importance, self.load(replace(model, training=options)))
        precision = PRECISIONS[model.training.precision]
        if not precision.is_integer:
            return recorded
        graph = self.load(model)
        trained = {name for name, tensor in graph.tensors.items() if tensor.role is Role.PARAMETER}
        able = tuple(
            c for c in recorded.candidates if isinstance(c.update, precision.updates) and c.parameter in trained
        )
        if not any(c.importance > 0 for c in able):
            shares = ", shares of channels" if Channels in precision.updates else ""
            known = f"whole weights{shares} and biases"
            raise UsageError(
                f"{self.request.importance}: --precision {model.training.precision} trains {known},"
                " and no update of the file is one with an importance above 0"
            )
        if left := len(recorded.candidates) - len(able):
            self.notes.append(f"{left} of {len(recorded.candidates)} updates have no integer form, and were left out")
        return replace(recorded, candidates=able)

    def reduction(self) -> BestUpdates:
        """The choice as a reduction. Raises UsageError for a file of importance that does not fit the model."""
        request, importance = self.request, self.importance()
        total = sum(
            max(c.importance for c in importance.candidates if c.parameter == name)
            for name in {c.parameter for c in importance.candidates if c.importance > 0}
        )
        flash_bytes = self.profile.flash_bytes if self.profile.memory.flash_readable_in_place else None

        def build(updates: Updates) -> Step:
            graph, problem = self.step(updates)
            return Step(problem, flash_needed_bytes(graph, self.profile))

        goal = Goal(
            least=_least_importance(request.importance_at_least, total),
            energy_pj=None
            if request.max_energy is None
            else parse_energy(request.max_energy, of=self.everything.compute_once_pj, option="--max-energy"),
            flash_bytes=flash_bytes,
        )
        return BestUpdates(importance, build, goal, self.remedy)


def choice_of(request: SolveRequest) -> Choice:
    """The choice of a request with `--train best`. Raises UsageError for options that do not go with it."""
    training = request.model.training
    for option, is_used in (
        ("--lora", bool(training.lora)),
        ("--lr-for", bool(training.lr_for)),
        ("--weight-decay-for", bool(training.weight_decay_for)),
        ("--micro-batches auto", training.micro_batches == "auto"),
        (f"--budget {LEAST}", request.budget == LEAST),
        (f"--saved {training.saved}", is_lossy(training)),
        ("--processors", request.processors not in (AUTO, "", MAIN)),
        (f"--budget {request.budget}", names_banks(request.budget)),
    ):
        if is_used:
            raise UsageError(f"{option} and --train {BEST} exclude each other")
    profile = load_profile(request.model.device)
    load = Reader()
    graph = training_graph(with_updates(request.model, "all", ()), load)[1]
    problem = build_problem(graph, profile, budget_bytes=profile.ram_bytes, paging=paging_of(request, profile))
    everything = limits(replace(request, model=with_updates(request.model, "all", ()), **_NO_CHOICE), problem)
    return Choice(request, profile, everything, load)


_NO_CHOICE: dict[str, Any] = {"importance": None, "importance_at_least": None, "max_energy": None}


def with_updates(model: ModelRequest, train: str, lora: tuple[str, ...]) -> ModelRequest:
    """The request with these values of `--train` and `--lora`."""
    return replace(model, training=replace(model.training, train=train, lora=lora))


def best(request: SolveRequest, time_limit_s: float, progress: Progress = silent) -> tuple[Choice, Solution]:
    """The best set of updates within the limits of a request, with its schedule."""
    started = time.monotonic()
    choice = choice_of(request)
    reduction = choice.reduction()
    left_s = max(time_limit_s - (time.monotonic() - started), LEAST_SHARE * time_limit_s)
    planner = request.planner(left_s, progress, updates=reduction)
    return choice, planner.solve(choice.everything)


class Settled(NamedTuple):
    """A request with the best updates by name and limits as numbers; `notes` say which updates, and their bound."""

    request: SolveRequest
    budgets: tuple[str, ...]
    notes: tuple[str, ...] = ()


def settled(request: SolveRequest, budgets: Sequence[str] = (), progress: Progress = silent) -> Settled:
    """The answer for commands that solve several times. Without `--train best` everything is as it was.

    Shares among the limits are those of training everything. Of `budgets` the smallest counts, as one set of updates
    has to fit all of them.
    """
    if not request.is_best:
        return Settled(request, tuple(budgets))
    sizes = [choice_of(replace(request, budget=text)).everything.budget_bytes for text in budgets]
    if sizes:
        request = replace(request, budget=f"{min(sizes)}B")
    choice, solution = best(request, request.options.time_limit_s, progress)
    updates = BestUpdates.option(solution)
    assert updates is not None
    everything = choice.everything
    deadline = None if everything.deadline_ns is None else f"{everything.deadline_ns}ns"
    chosen = replace(choice.request_of(updates), budget=f"{everything.budget_bytes}B", deadline=deadline)
    return Settled(chosen, tuple(f"{size}B" for size in sizes), (*choice.notes, BestUpdates.note(everything, solution)))


def _least_importance(text: str | None, total: float) -> float:
    """The least importance that the user accepts: a number, or a percentage of `total`. Raises UsageError."""
    if text is None:
        return 0.0
    share = _PERCENT.fullmatch(text.strip())
    try:
        value = float(share[1]) / 100 * total if share else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(
            f"--importance-at-least {shortened(text, 40)!r}: write a number above 0, or a percentage such as 80%"
        )
    return value
