"""Fused operators: which, and that memory does not grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc.devices import build_problem, load_profile
from poetc.frontend import load
from poetc.graph import Attribute, Graph, Operator, Phase, Role, Tensor, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.passes import order_backward, run_standard
from poetc.planning.smallest_ram import LONGEST_SEARCH_S
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, build
from tests.passes.networks import gained, kinds, network, steps, tied
from tests.program.models import make_problem
from tests.support.graphs import small_cnn
from tests.support.planning import planner

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


def test_what_is_fused() -> None:
    assert gained(network()) == {
        "Add": -1,
        "BatchNormActivate": 2,
        "BatchNormActivateGradInput": 1,
        "BatchNormActivateGradParams": 1,
        "BatchNormApply": -2,
        "BatchNormGradInput": -1,
        "BatchNormGradParams": -1,
        "ConvGradWeight": -2,
        "ConvGradWeightSgd": 2,
        "GatherGrad": -1,
        "GatherGradSgd": 1,
        "HardSwish": -1,
        "HardSwishGrad": -1,
        "MatMul": -1,
        "MatMulSgd": 1,
        "Relu": -1,
        "Sgd": -4,
    }


@pytest.mark.usefixtures("however_small")
def test_what_convolutions_read_is_made_again_by_their_gradients() -> None:
    """What the first rectifier makes is not kept, though the forward pass reads it twice; the last one's output is."""
    found = gained(network("Relu"))
    assert (found["BatchNormActivate"], found["Relu"]) == (2, -2)
    assert (found["ReluGrad"], found["BatchNormGradInput"], found["BatchNormActivateGradInput"]) == (-1, -1, 1)
    step = steps(network("Relu"))[1]
    made = next(op.outputs[0] for op in step.operators if op.kind == "BatchNormActivate")
    readers = [op for op in step.operators if made in op.inputs]
    assert {op.phase for op in readers} == {Phase.FORWARD}
    assert len(readers) == 2


@pytest.mark.usefixtures("however_small")
def test_what_is_viewed_is_kept() -> None:
    """A view is the same bytes; what reads it keeps them."""
    graph = network("Relu")
    active = next(op.outputs[0] for op in graph.operators if op.kind == "Relu")
    view = Operator("view", "Reshape", (active,), ("viewed",), {"shape": graph.tensors[active].shape})
    operators = [
        replace(op, inputs=tuple("viewed" if t == active else t for t in op.inputs)) if op.kind == "Add" else op
        for op in graph.operators
    ]
    at = next(i for i, op in enumerate(operators) if active in op.outputs) + 1
    tensors = {**graph.tensors, "viewed": Tensor("viewed", graph.tensors[active].type, Role.ACTIVATION)}
    graph = replace(graph, operators=(*operators[:at], view, *operators[at:]), tensors=tensors)
    assert "BatchNormActivateGradInput" not in gained(graph)


@pytest.mark.usefixtures("however_small")
def test_a_gradient_that_would_need_more_than_any_operator_does_not_make_its_input_again() -> None:
    """It needs workspace for that: the one convolution of this network, larger than all else."""
    random = np.random.default_rng(3)
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 12, 12, 12)), Role.INPUT)
    vectors = [
        b.add_tensor(name, TensorType((12,)), role, random.uniform(0.5, 1, 12).astype(np.float32))
        for name, role in (
            ("mean", Role.STATISTIC),
            ("var", Role.STATISTIC),
            ("scale", Role.PARAMETER),
            ("bias", Role.PARAMETER),
        )
    ]
    first = b.add_tensor("first", TensorType((12, 12, 1, 1)), Role.PARAMETER, np.ones((12, 12, 1, 1), np.float32))
    y = b.emit1("Conv", [x, first], {"pads": (0, 0, 0, 0)})
    y = b.emit1("Relu", [b.emit1("BatchNormApply", [y, *vectors], {"epsilon": 1e-5, "momentum": 0.9})])
    second = b.add_tensor("second", TensorType((40, 12, 3, 3)), Role.PARAMETER, np.ones((40, 12, 3, 3), np.float32))
    y = b.emit1("Conv", [y, second], {"pads": (1, 1, 1, 1)})
    y = b.emit1("ReduceMean", [y], {"axes": (2, 3), "keepdims": False})
    graph = Graph("one", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    assert "BatchNormActivateGradInput" not in gained(graph, optimizer="adam")


def test_what_is_small_is_kept() -> None:
    assert "BatchNormActivateGradInput" not in gained(network("Relu"))


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"optimizer": "momentum"}, {"weight_decay": 0.1}])
def test_only_plain_descent_takes_gradients_in(options: dict[str, object]) -> None:
    assert not [kind for kind in gained(network(), **options) if kind.endswith("Sgd")]


def test_without_fusion_nothing_changes() -> None:
    graph = build(network(), TrainingOptions(fusion=False))
    assert run_standard(graph) == order_backward(graph)


@pytest.mark.parametrize("name", ["w", "minus one"])
def test_gradients_are_added_up_where_the_first_is(name: str) -> None:
    assert gained(tied(4, name)) == {"Add": -3, "MatMul": -3, "MatMulSum": 3}
    assert gained(tied(4, name), optimizer="adam") == gained(tied(4, name))
    sums = [op for op in steps(tied(4, name))[1].operators if op.kind == "MatMulSum"]
    assert sums[0].inputs[-1] == ("minus one" if name == "w" else "minus one'")


def test_a_sum_that_is_read_elsewhere_stays() -> None:
    """Only the forward pass reads it, and the loss."""
    b = Builder()
    w = b.add_tensor("w", TensorType((8, 8)), Role.PARAMETER, np.eye(8, dtype=np.float32))
    x = b.add_tensor("x", TensorType((2, 8)), Role.INPUT)
    y = b.emit1("MatMul", [x, x], {"trans_a": True})
    y = b.emit1("Add", [b.emit1("Relu", [w]), y])
    y = b.emit1("Mul", [y, y])
    assert not [
        k for k in gained(Graph("forward", b.tensors, tuple(b.operators), ("x",), (y,), b.values)) if "Sum" in k
    ]


def test_what_is_small_stays() -> None:
    """A gradient smaller than what it is made of would keep that for longer."""
    assert "ConvGradWeightSgd" not in gained(small_cnn(batch=16))


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("graph", [network(), network("Silu", 3), small_cnn()], ids=str)
def test_memory_does_not_grow(graph: Graph) -> None:
    without, fused = (keep_all_peak_bytes(make_problem(step)) for step in steps(graph))
    assert fused <= without


def smallest_bytes(graph: TrainingGraph) -> int:
    """The smallest budget found on a microcontroller, wherever state lives, and a bound within a hundredth of it."""
    problem = build_problem(graph, load_profile("stm32f746"), budget_bytes=0)
    found = planner().search_ram(problem, LONGEST_SEARCH_S).result
    assert found.ram_bytes is not None and found.ram_bytes <= 1.01 * found.bound_bytes
    return found.ram_bytes


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("batch", [1, 4, pytest.param(8, marks=pytest.mark.long)])
def test_the_smallest_budget_does_not_grow(batch: int) -> None:
    """Weights that come from the store for their update alone leave RAM while their gradient is made apart."""
    without, fused = steps(load(DIGITS, batch=batch))
    assert {"ConvGradWeightSgd", "MatMulSgd"} & kinds(fused).keys()
    assert smallest_bytes(fused) <= 1.001 * smallest_bytes(without), "as near as an arena is searched for"


def test_descent_stays_apart_where_it_sets_the_smallest_budget() -> None:
    """Even with the least workspace, weights beside what makes their gradient are the most that is there."""
    b = Builder()
    x = b.add_tensor("x", TensorType((1, 20, 11, 11)), Role.INPUT)
    w = b.add_tensor("w", TensorType((160, 20, 3, 3)), Role.PARAMETER, np.zeros((160, 20, 3, 3), np.float32))
    geometry: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = b.emit1("ReduceMean", [b.emit1("Conv", [x, w], geometry)], {"axes": (2, 3), "keepdims": False})
    alone = Graph("alone", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    without, fused = steps(alone)
    assert kinds(fused) == kinds(without)
    # The same layer before one that needs more anyway.
    v = b.add_tensor("v", TensorType((160, 500)), Role.PARAMETER, np.zeros((160, 500), np.float32))
    y = b.emit1("MatMul", [y, v])
    step = steps(Graph("before", b.tensors, tuple(b.operators), ("x",), (y,), b.values))[1]
    assert kinds(step)["ConvGradWeightSgd"] == 1
