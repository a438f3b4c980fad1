"""`--train PATTERN@SHARE`: the part of a weight that is trained, its gradient, what is saved for it, and its update."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import Graph, Phase, Role, TensorType
from poetc.ops import Builder
from poetc.passes import check_graph, run_standard
from poetc.training import TrainingOptions, build
from tests.support.graphs import evaluate, random_inputs, small_cnn


def _products() -> Graph:
    """Products with a matrix, as ONNX has them (inputs first) and as PyTorch does, over a batch of sequences."""
    random = np.random.default_rng(0)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.standard_normal(shape).astype(np.float32))

    x = b.add_tensor("x", TensorType((2, 5, 8)), Role.INPUT)
    h = b.emit1("Relu", [b.emit1("MatMul", [x, parameter("first.weight", 8, 6)])])
    h = b.emit1("Relu", [b.emit1("MatMul", [h, parameter("middle.weight", 6, 6)])])
    h = b.emit1("MatMul", [h, parameter("last.weight", 3, 6), parameter("last.bias", 3)], {"trans_b": True})
    return Graph("products", b.tensors, tuple(b.operators), ("x",), (h,), b.values)


CASES = [
    (small_cnn(channels=8), "block.weight@1/4,fc.*@1/2:norm"),
    (small_cnn(channels=8), "all,block.weight@1/8:norm"),
    (_products(), "middle.*@1/2:norm,last.*@1/3"),
    (_products(), "first.weight@1/4"),
]


@pytest.mark.parametrize("graph, train", CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_update_is_that_of_the_masked_gradient(graph: Graph, train: str, optimizer: str) -> None:
    """In the trained channels as if all were trained; elsewhere not a bit moves."""
    given = {"optimizer": optimizer, "learning_rate": 0.1}
    whole = train.replace("@1/8:norm", "").replace("@1/4", "").replace("@1/2:norm", "").replace("@1/3", "")
    part = build(graph, TrainingOptions(train=train, **given))  # type: ignore[arg-type]
    full = build(graph, TrainingOptions(train=whole, **given))  # type: ignore[arg-type]
    check_graph(part)
    standard = run_standard(part)
    inputs = random_inputs(part)
    values, expected, passed = (evaluate(s, inputs) for s in (part, full, standard))
    assert part.updates.keys() == full.updates.keys()
    for name in (n for n in part.updates if graph.tensors.get(n) and graph.tensors[n].role is Role.PARAMETER):
        before, after = values[name], values[part.updates[name]]
        kept = np.ones(before.shape, bool)
        channels = part.values.get(f"{name}.channels")
        if channels is not None:
            axis = 1 if before.ndim == 4 or name in ("fc.weight", "last.weight") else 0
            kept = np.zeros(before.shape, bool)
            kept[(slice(None),) * axis + (channels,)] = True  # type: ignore[index]
            assert 0 < kept.sum() < kept.size
        np.testing.assert_allclose(after[kept], expected[full.updates[name]][kept], rtol=1e-12)
        np.testing.assert_array_equal(after[~kept], before[~kept])
        np.testing.assert_array_equal(passed[standard.updates[name]], after)


def test_the_largest_channels_are_those_of_the_largest_norm() -> None:
    graph = small_cnn(channels=8)
    step = build(graph, TrainingOptions(train="block.weight@1/4:norm"))
    weight = graph.values["block.weight"]
    assert isinstance(weight, np.ndarray)
    norms = np.square(weight).sum((0, 2, 3))
    np.testing.assert_array_equal(step.values["block.weight.channels"], np.sort(np.argsort(-norms)[:2]))
    first = build(graph, TrainingOptions(train="block.weight@1/4"))
    np.testing.assert_array_equal(first.values["block.weight.channels"], [0, 1])


@pytest.mark.parametrize("graph, train", CASES[2:])
def test_only_the_trained_channels_of_an_input_are_saved(graph: Graph, train: str) -> None:
    """No gradient of a weight reads, or is as large as, more than its share."""
    step = run_standard(build(graph, TrainingOptions(train=train, optimizer="momentum")))
    made = {t: op for op in step.operators for t in op.outputs}
    for name, shape in (("middle.weight", (3, 6)), ("last.weight", (3, 2)), ("first.weight", (2, 6))):
        if name in step.updates:
            assert step.tensors[step.gradients[name]].shape == shape
            assert step.tensors[f"{name}:velocity"].shape == shape
            operands = list(made[step.gradients[name]].inputs)
            while any(made[t].kind == "Reshape" for t in operands):
                operands = [made[t].inputs[0] if made[t].kind == "Reshape" else t for t in operands]
            assert {made[t].kind for t in operands if made[t].phase is Phase.FORWARD} <= {"Slice", "Gather"}


def test_micro_batches_and_accumulation_keep_the_part() -> None:
    graph = small_cnn(channels=8)
    options = TrainingOptions(train="block.weight@1/4", accumulate=2, optimizer="adam")
    step = run_standard(build(graph, options))
    check_graph(step)
    assert step.tensors["block.weight:gradient"].shape == (8, 2, 3, 3)
    parts = run_standard(build(graph, TrainingOptions(train="block.weight@1/4", micro_batches=2), small_cnn(2, 8)))
    check_graph(parts)
    assert sum(op.kind == "Slice" and op.outputs[0].endswith("saved") for op in parts.operators) == 2
