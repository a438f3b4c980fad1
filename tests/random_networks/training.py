"""poetc's side: the training step in double precision, by the numpy interpreter, and as C on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from poetc import measure
from poetc.artifact import Artifact
from poetc.commands import programs, requests
from poetc.commands import solve as solving
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.errors import PoetcError
from poetc.graph import Graph, Role, TrainingGraph, materialize
from poetc.ops import bind, spec
from poetc.program import Interpreter
from poetc.scheduling import SolveOptions
from tests.random_networks.recipe import Array, Recipe


@dataclass(frozen=True, slots=True)
class Trained:
    """Losses of all steps; gradients of the first, by parameter; parameters and statistics after the last."""

    losses: list[float]
    gradients: dict[str, Array] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)


class _Model(Protocol):
    probes: dict[str, Array]

    def run(self, inputs: Mapping[str, Array]) -> float: ...

    def state(self, name: str) -> Array: ...


def training_graph(recipe: Recipe, model: Path) -> tuple[Graph, TrainingGraph]:
    return requests.training_graph(_request(recipe, model))


def _request(recipe: Recipe, model: Path) -> ModelRequest:
    return ModelRequest(source=model, device=recipe.device, training=recipe.training)


def trained_names(step: TrainingGraph) -> list[str]:
    """Parameters and running statistics that a step changes."""
    return [n for n in step.updates if step.tensors[n].role in (Role.PARAMETER, Role.STATISTIC)]


def in_double(recipe: Recipe, step: TrainingGraph) -> Trained:
    """Every operator by its numpy reference in float64: whether the graph is the right one, apart from rounding."""
    state: dict[str, Array] = {}
    for name, value in step.values.items():
        array = np.asarray(materialize(value, step.tensors[name].type))
        state[name] = array.astype(np.float64) if array.dtype == np.float32 else array
        if step.tensors[name].role is Role.OPTIMIZER_STATE and re.match(r"learning_rate", name):
            state[name] = np.full_like(state[name], recipe.training.learning_rate)  # as given, not as rounded
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for number in range(recipe.steps):
        tensors = state | inputs_of(recipe, step, number, np.float64)
        for operator in step.operators:
            arguments = [tensors[name] for name in operator.inputs]
            with np.errstate(all="ignore"):
                results = spec(operator.kind).evaluate(bind(operator, step.tensors), arguments)
            tensors.update(zip(operator.outputs, results, strict=True))
        losses.append(float(np.asarray(tensors[step.loss]).reshape(-1)[0]))
        if not number:
            gradients = {p: np.asarray(tensors[g]) for p, g in step.gradients.items() if g in tensors}
        state.update({name: tensors[following] for name, following in step.updates.items()})
    return Trained(losses, gradients, {name: state[name] for name in trained_names(step)})


def inputs_of(recipe: Recipe, step: TrainingGraph, number: int, dtype: type[np.floating[Any]]) -> dict[str, Array]:
    """Input and target of a step by name, floats in `dtype`."""
    x, target = recipe.batch_of(number)
    given = {step.inputs[0]: x, step.target: target}
    return {name: a.astype(dtype if a.dtype.kind == "f" else np.int32) for name, a in given.items()}


def solve(recipe: Recipe, model: Path, time_limit_s: float) -> Artifact:
    """A schedule for the recipe's budget, or the least that is found where that is too little."""
    options = SolveOptions(time_limit_s=time_limit_s, gap=0.05)
    request = SolveRequest(model=_request(recipe, model), budget=f"{recipe.budget_percent}%", options=options)
    try:
        return solving.solve(request)
    except PoetcError:
        return solving.solve(SolveRequest(model=_request(recipe, model), budget="120%", options=options))


def interpreted(recipe: Recipe, solved: Artifact) -> Trained:
    """The scheduled program in numpy, float32, on its arena."""
    assert solved.graph is not None
    model = Interpreter(programs.training_program(solved), solved.graph.values)
    return _run(recipe, solved.graph, model)


def compiled(recipe: Recipe, solved: Artifact, directory: Path) -> Trained:
    """The emitted C on this machine."""
    assert solved.graph is not None
    program, values = programs.training_program(solved), solved.graph.values
    library = measure.compile_library([program], values, directory)
    with measure.HostModel(library, [program], values) as model:
        return _run(recipe, solved.graph, model)


def _run(recipe: Recipe, step: TrainingGraph, model: _Model) -> Trained:
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for number in range(recipe.steps):
        losses.append(model.run(inputs_of(recipe, step, number, np.float32)))
        if not number:
            gradients = {name: np.array(g) for name, g in model.probes.items()}
    return Trained(losses, gradients, {name: model.state(name) for name in trained_names(step)})
