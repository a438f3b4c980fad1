"""`--train best`: the choice of the updates, from a request and a file of importance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from poetc.commands.encodings import is_lossy
from poetc.commands.requests import LEAST, ModelRequest, SolveRequest, limits, load_model, paging_of, training_graph
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.capacity import flash_needed_bytes
from poetc.devices.units import parse_energy
from poetc.errors import UsageError, shortened
from poetc.events import Progress, silent
from poetc.graph import TrainingGraph
from poetc.planning import BestUpdates, Goal, Solution, Step
from poetc.planning.importance import read_importance
from poetc.scheduling import Problem
from poetc.training import BEST, Updates

_PERCENT = re.compile(r"([0-9.]+)\s*%")


@dataclass(slots=True)
class Choice:
    """The choice of a request. `everything`: the problem of training all parameters, which limits may refer to."""

    request: SolveRequest
    profile: DeviceProfile
    everything: Problem

    def request_of(self, updates: Updates) -> SolveRequest:
        """The request with these updates in place of `--train best`."""
        train, lora = updates.options()
        model = with_updates(self.request.model, train, lora)
        return replace(self.request, model=model, importance=None, importance_at_least=None, max_energy=None)

    def step(self, updates: Updates) -> tuple[TrainingGraph, Problem]:
        """The training step with these updates, and its problem at the limits of the request."""
        graph = training_graph(self.request_of(updates).model)[1]
        problem = build_problem(
            graph, self.profile, budget_bytes=self.profile.ram_bytes, paging=paging_of(self.request, self.profile)
        )
        everything = self.everything
        given = replace(self.request_of(updates), budget=f"{everything.budget_bytes}B", deadline=None)
        at_limits = limits(given, problem)
        return graph, replace(at_limits, deadline_ns=everything.deadline_ns)

    def reduction(self) -> BestUpdates:
        """The choice as a reduction. Raises UsageError for a file of importance that does not fit the model."""
        request = self.request
        assert request.importance is not None
        importance = read_importance(request.importance, load_model(with_updates(request.model, "all", ())))
        total = sum(
            max(c.importance for c in importance.candidates if c.parameter == name)
            for name in {c.parameter for c in importance.candidates if c.importance > 0}
        )
        flash_bytes = self.profile.flash_bytes if self.profile.memory.flash_readable_in_place else None

        def build(updates: Updates) -> Step:
            graph, problem = self.step(updates)
            return Step(problem, flash_needed_bytes(graph, self.profile))

        goal = Goal(
            least=_least(request.importance_at_least, total),
            energy_pj=None
            if request.max_energy is None
            else parse_energy(request.max_energy, of=self.everything.compute_once_pj, option="--max-energy"),
        )
        reduction = BestUpdates(importance, build, goal)
        if flash_bytes is not None:
            least = min(reduction.step(single).flash_bytes for single in reduction.singles)
            if least <= flash_bytes:  # otherwise no set fits the flash, which is a note and no refusal
                reduction.goal = replace(goal, flash_bytes=flash_bytes)
        return reduction


def choice_of(request: SolveRequest) -> Choice:
    """The choice of a request with `--train best`. Raises UsageError for options that do not go with it."""
    training = request.model.training
    for option, given in (
        ("--lora", bool(training.lora)),
        ("--lr-for", bool(training.lr_for)),
        ("--weight-decay-for", bool(training.weight_decay_for)),
        ("--micro-batches auto", training.micro_batches == "auto"),
        (f"--budget {LEAST}", request.budget == LEAST),
        (f"--saved {training.saved}", is_lossy(training)),
        ("--processors", bool(request.processors)),
    ):
        if given:
            raise UsageError(f"{option} and --train {BEST} exclude each other")
    profile = load_profile(request.model.device)
    graph = training_graph(with_updates(request.model, "all", ()))[1]
    problem = build_problem(graph, profile, budget_bytes=profile.ram_bytes, paging=paging_of(request, profile))
    everything = limits(replace(request, model=with_updates(request.model, "all", ()), **_NO_CHOICE), problem)
    return Choice(request, profile, everything)


_NO_CHOICE: dict[str, Any] = {"importance": None, "importance_at_least": None, "max_energy": None}


def with_updates(model: ModelRequest, train: str, lora: tuple[str, ...]) -> ModelRequest:
    """The request with these values of `--train` and `--lora`."""
    return replace(model, training=replace(model.training, train=train, lora=lora))


def best(request: SolveRequest, time_limit_s: float, progress: Progress = silent) -> tuple[Choice, Solution]:
    """The best set of updates within the limits of a request, with its schedule."""
    choice = choice_of(request)
    planner = request.planner(time_limit_s, progress, updates=choice.reduction())
    return choice, planner.solve(choice.everything)


def settled(request: SolveRequest, budgets: Sequence[str] = (), progress: Progress = silent) -> SolveRequest:
    """`request` with the best updates by name, for commands that solve several times; itself without `--train best`.

    Of `budgets` the smallest counts, since one set of updates has to fit all of them.
    """
    if not request.is_best:
        return request
    if budgets:
        sizes = {text: choice_of(replace(request, budget=text)).everything.budget_bytes for text in budgets}
        request = replace(request, budget=min(budgets, key=sizes.__getitem__))
    choice, solution = best(request, request.options.time_limit_s, progress)
    assert solution.choices.updates is not None
    return choice.request_of(solution.choices.updates)


def _least(text: str | None, total: float) -> float:
    """The value of --importance-at-least: a number, or a percentage of all importance."""
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
