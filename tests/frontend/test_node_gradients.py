"""Gradients of every ONNX operator that is claimed: the onnx package's node tests, differentiated as the importer
leaves them, against finite differences in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from poetc import training
from poetc.errors import PoetcError
from poetc.frontend import load
from poetc.graph import DType, Graph, Role, Tensor, TrainingGraph, materialize
from poetc.ops import bind, spec
from poetc.training import TrainingOptions
from tests.frontend.support import make, save
from tests.frontend.test_node_cases import array, cases, with_constants

Array = np.ndarray[Any, np.dtype[Any]]
STEP = 1e-5


def double(values: Any) -> Any:
    array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def run(step: TrainingGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of the step, all floats in double precision."""
    held = {name: double(materialize(v, step.tensors[name].type)) for name, v in step.values.items()}
    held.update(inputs)
    for op in step.operators:
        results = spec(op.kind).evaluate(bind(op, step.tensors), [held[t] for t in op.inputs])
        held.update(zip(op.outputs, map(double, results), strict=True))
    return held


def imported(case: Any, arrays: list[Array], folder: Path) -> Graph | None:
    """With all inputs, or all but the first in the file, where some must be constant; None where it is refused."""
    for varying in (len(arrays), 1):
        try:
            return load(save(with_constants(case.model, arrays, varying), folder))
        except PoetcError:
            continue
    return None


def is_trainable(graph: Graph, name: str) -> bool:
    return graph.tensors[name].dtype is DType.F32 and graph.tensors[name].type.elements > 0


def disagreements(graph: Graph, given: Mapping[str, Array]) -> tuple[int, list[str]]:
    """Every float output in every float input, along one direction: how many were compared, and which are wrong."""
    trained = [name for name in graph.inputs if is_trainable(graph, name)]
    draw = np.random.default_rng(3)
    tensors, values, point = dict(graph.tensors), dict(graph.values), dict[str, Array]()
    for name in graph.inputs:
        point[name] = np.asarray(given[name]).astype(graph.tensors[name].dtype.numpy)
        if name in trained:
            tensors[name] = Tensor(name, tensors[name].type, Role.PARAMETER)
            values[name] = point[name]
            # Off the kinks, where the cases like to be.
            point[name] = double(point[name]) + draw.uniform(-0.01, 0.01, point[name].shape)
    inputs = tuple(name for name in graph.inputs if name not in trained)
    model, compared, wrong = replace(graph, tensors=tensors, values=values, inputs=inputs), 0, []
    for output in filter(lambda name: is_trainable(graph, name), graph.outputs if trained else ()):
        try:
            step = training.build(model, TrainingOptions(loss="mse", output=output))
        except PoetcError:
            continue  # an output that no float input moves
        at = {**point, step.target: draw.standard_normal(step.tensors[step.target].shape)}
        held = run(step, at)
        for name in trained:
            direction = draw.standard_normal(point[name].shape)
            above, below = (
                float(run(step, {**at, name: point[name] + e * direction})[step.loss]) for e in (STEP, -STEP)
            )
            finite = (above - below) / (2 * STEP)
            gradient = step.gradients.get(name)
            exact = float(np.sum(held[gradient] * direction)) if gradient else 0.0
            if np.isfinite(finite):
                compared += 1
                if abs(finite - exact) > 1e-4 * max(abs(finite), abs(exact)) + 1e-5 * max(1.0, abs(above)):
                    wrong.append(f"{output} in {name}: {exact}, differences say {finite}")
    return compared, wrong


@pytest.mark.parametrize("expanded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_gradients_of_claimed_operators(tmp_path: Path, expanded: bool) -> None:
    """`expanded`: the same cases as ONNX writes them with simpler operators."""
    compared, wrong = 0, []
    for case in cases():
        if ("_expanded" in case.name) != expanded:
            continue
        arrays = [array(a) for a in case.data_sets[0][0]]
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in arrays):
            continue
        graph = imported(case, arrays, tmp_path)
        if graph is None:
            continue
        names = [i.name for i in case.model.graph.input]
        with np.errstate(all="ignore"):
            count, found = disagreements(graph, dict(zip(names, arrays, strict=False)))
        compared += count
        wrong += [f"{case.name}: {text}" for text in found]
    assert not wrong
    assert compared >= (1400 if expanded else 1800)


def test_a_distance_between_equal_points_has_a_slope_of_0(tmp_path: Path) -> None:
    """As `torch.cdist` has it. The slope of the root alone is infinite there, which times 0 is no number."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Sub", ["a", "point"], ["d"]),
        make_node("Mul", ["d", "d"], ["square"]),
        make_node("ReduceSum", ["square", "axis"], ["sum"], keepdims=0),
        make_node("Sqrt", ["sum"], ["y"]),
    ]
    weights = {"w": np.float32([[1, 0], [0, 2]]), "point": np.float32([[3, 4]]), "axis": np.array([1], np.int64)}
    graph = load(save(make(nodes, {"x": (2, 2)}, ["y"], weights, 17), tmp_path))
    step = training.build(graph, TrainingOptions(loss="mse"))
    x = np.array([[3.0, 2.0], [0.0, 4.0]])  # the first one lies on the point
    held = run(step, {"x": x, step.target: np.zeros(2)})
    assert float(held[step.loss]) == pytest.approx((0 + 25) / 2)
    np.testing.assert_allclose(held[step.gradients["w"]], [[0, 0], [-12, 16]])
