"""Forms of nodes that few exporters write: the imported graph computes what ONNX's evaluator does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

from poetc.errors import UsageError
from poetc.frontend import load
from tests.frontend.support import assert_agrees, evaluate, kinds, make, normal, save

Weights = Mapping[str, np.ndarray]


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def node(op: str, *weights: str, **attributes: Any) -> list[NodeProto]:
    return [make_node(op, ["x", *weights], ["y"], **attributes)]


STACKED = [
    make_node("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=0),
    make_node("ConcatFromSequence", ["parts"], ["y"], axis=-1, new_axis=1),
]
MASKED = [make_node("Where", ["all", "x", "other"], ["y"])]
SWISH = [
    make_node("Add", ["x", "shift"], ["a"]),
    make_node("Clip", ["a", "low", "high"], ["c"]),
    make_node("Mul", ["x", "c"], ["m"]),
    make_node("Mul", ["m", "share"], ["y"]),
]


def swish(shift: float = 3, high: float = 6, share: float = 1 / 6) -> Weights:
    numbers = {"shift": shift, "low": 0, "high": high, "share": share}
    return {name: np.array(number, np.float32) for name, number in numbers.items()}


CASES: dict[str, tuple[Sequence[NodeProto], tuple[int, ...], Weights, int]] = {
    "squeeze of all": (node("Squeeze"), (1, 3, 1, 4), {}, 13),
    "slice by attributes": (node("Slice", starts=[1, -3], ends=[9, -1], axes=[0, 2]), (4, 2, 5), {}, 9),
    "slice by attributes, no axes": (node("Slice", starts=[1, 0], ends=[3, 2]), (4, 2, 5), {}, 9),
    "split into one": (node("Split", "s", axis=1), (2, 3), {"s": ints(3)}, 13),
    "odd indices": (node("Gather", "at", axis=1), (3, 5), {"at": ints(0, 1, 4, -1)}, 13),
    "indices of two axes": (node("GatherND", "at"), (3, 4, 2), {"at": np.array([[2, -1], [0, 3]])}, 13),
    "known elements": (node("GatherElements", "at", axis=0), (3, 2), {"at": np.array([[0, -1], [2, 1]])}, 13),
    "stack": (STACKED, (2, 3, 4), {}, 13),
    "a mask that is all true": (MASKED, (2, 3), {"all": np.array([True]), "other": np.zeros(3, np.float32)}, 16),
    "mean of nothing but ones": (node("ReduceMean", axes=[1], keepdims=0), (3, 1, 2), {}, 13),
    "a valid convolution": (node("Conv", "w", auto_pad="VALID"), (1, 2, 5, 5), {"w": normal(3, 2, 3, 3)}, 13),
    "layer norm without bias": (node("LayerNormalization", "s"), (2, 3, 4), {"s": normal(4)}, 17),
    "layer norm with one scale": (node("LayerNormalization", "s", axis=1), (2, 3, 4), {"s": normal(1)}, 17),
    "hard swish": (SWISH, (2, 5), swish(), 17),
    "hard swish of another shift": (SWISH, (2, 5), swish(shift=2.5), 17),
    "hard swish of another bound": (SWISH, (2, 5), swish(high=5), 17),
    "hard swish of another share": (SWISH, (2, 5), swish(share=0.2), 17),
    **{f"power {p:g}": (node("Pow", "p"), (2, 3), {"p": np.array(p, np.float32)}, 15) for p in (1, 0.5, -1, -0.5, 3)},
}


@pytest.mark.parametrize("name", CASES)
def test_a_form(tmp_path: Path, name: str) -> None:
    nodes, shape, weights, opset = CASES[name]
    # A layer before it: what depends on no weight would not be trained.
    first = make_node("Mul", ["given", "gain"], ["x"])
    model = make([first, *nodes], {"given": shape}, ["y"], {"gain": np.full(shape, 1.5, np.float32), **weights}, opset)
    values = normal(*shape)
    graph = assert_agrees(model, {"given": np.abs(values) if name.startswith("power") else 3 * values}, tmp_path)
    assert ("HardSwish" in kinds(graph)) == (name in ("hard swish", "hard swish of another share"))


PADDED = [
    ("MaxPool", [0, 0, 1, 1, 0, 0, 1, 1], {}, -np.inf, False),
    ("MaxPool", [0, 0, 1, 1, 0, 0, 1, 1], {}, 0.0, False),
    ("AveragePool", [0, 0, 1, 0, 0, 0, 1, 0], {"count_include_pad": 1}, 0.0, True),
    ("AveragePool", [0, 0, 1, 1, 0, 0, 1, 1], {}, 0.0, True),
    ("AveragePool", [0, 0, 1, 1, 0, 0, 1, 1], {"pads": [1, 1, 1, 1]}, 0.0, False),
    ("AveragePool", [0, 0, 1, 1, 0, 0, 1, 1], {"ceil_mode": 1}, 0.0, False),
    ("AveragePool", [0, 1, 0, 0, 0, 0, 0, 0], {}, 0.0, False),
    ("AveragePool", [0, 0, 3, 0, 0, 0, 0, 0], {}, 0.0, False),
]


@pytest.mark.parametrize(("op", "pads", "attributes", "value", "joined"), PADDED)
def test_pads_before_a_pool(
    tmp_path: Path, op: str, pads: list[int], attributes: dict[str, Any], value: float, joined: bool
) -> None:
    """They become the pool's own only where its numbers stay what they are."""
    nodes = [
        make_node("Conv", ["x", "w"], ["h"]),
        make_node("Pad", ["h", "pads", "value"], ["p"]),
        make_node(op, ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2], **attributes),
    ]
    weights = {"w": normal(2, 2, 1, 1), "pads": ints(*pads), "value": np.array(value, np.float32)}
    graph = assert_agrees(make(nodes, {"x": (1, 2, 6, 6)}, ["y"], weights, 19), {"x": normal(1, 2, 6, 6)}, tmp_path)
    assert ("Pad" not in kinds(graph)) == joined


RECURRENT = [
    ("LSTM", {"activations": ["Tanh", "Sigmoid", "Tanh"]}, False),
    ("LSTM", {"clip": 0.2}, False),
    ("LSTM", {"layout": 1}, False),
    ("LSTM", {}, True),
    ("GRU", {"activations": ["Sigmoid", "Relu"], "linear_before_reset": 1}, False),
    ("GRU", {"activations": ["Sigmoid", "Relu"]}, False),
]


@pytest.mark.parametrize(("op", "attributes", "peepholes"), RECURRENT)
def test_layers_other_than_the_default(tmp_path: Path, op: str, attributes: dict[str, Any], peepholes: bool) -> None:
    """Beside onnxruntime: ONNX's evaluator knows the default activations alone."""
    import onnxruntime

    gates, hidden, size, steps, batch = (4 if op == "LSTM" else 3), 3, 2, 4, 2
    batch_first = attributes.get("layout", 0) == 1
    state = (batch, 1, hidden) if batch_first else (1, batch, hidden)
    names = ["x", "w", "r", "b", "", "h0", *(["c0"] if op == "LSTM" else []), *(["p"] if peepholes else [])]
    weights = {
        "w": normal(1, gates * hidden, size),
        "r": normal(1, gates * hidden, hidden),
        "b": normal(1, 2 * gates * hidden),
        "h0": normal(*state),
        **({"c0": normal(*state, seed=5)} if op == "LSTM" else {}),
        **({"p": normal(1, 3 * hidden)} if peepholes else {}),
    }
    shape = (batch, steps, size) if batch_first else (steps, batch, size)
    model = make([make_node(op, names, ["y"], hidden_size=hidden, **attributes)], {"x": shape}, ["y"], weights, 17)
    model.graph.output[0].type.tensor_type.elem_type = 1
    model.ir_version = 9
    feeds = {"x": normal(*shape)}
    path = save(model, tmp_path)
    if batch_first:  # which onnxruntime lacks: the same model with the steps first
        other = make(
            [
                make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
                make_node(op, ["t", *names[1:]], ["s"], hidden_size=hidden),
                make_node("Transpose", ["s"], ["y"], perm=[2, 0, 1, 3]),
            ],
            {"x": shape},
            ["y"],
            {n: w.transpose(1, 0, 2) if n in ("h0", "c0") else w for n, w in weights.items()},
            17,
        )
        other.graph.output[0].type.tensor_type.elem_type = 1
        other.ir_version = 9
        data = other.SerializeToString()
    else:
        data = path.read_bytes()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    np.testing.assert_allclose(evaluate(load(path), feeds)["y"], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceSum", "ReduceMax"])
def test_a_reduction_of_a_single_number_keeps_its_arithmetic(tmp_path: Path, kind: str) -> None:
    """There are no axes, and a norm is still no negative number."""
    model = make([make_node(kind, ["x"], ["y"], keepdims=0)], {"x": ()}, ["y"], opset=18)
    assert_agrees(model, {"x": np.float32(-3.0)}, tmp_path)
    model = make([make_node(kind, ["x"], ["y"], noop_with_empty_axes=1)], {"x": (3,)}, ["y"], opset=18)
    assert_agrees(model, {"x": np.float32([-1, 2, -3])}, tmp_path)


def test_a_nan_may_be_the_answer_of_a_branch(tmp_path: Path) -> None:
    nodes = [
        make_node("IsNaN", ["x"], ["m"]),
        make_node("Mul", ["x", "w"], ["p"]),
        make_node("Where", ["m", "nan", "p"], ["y"]),
    ]
    weights = {"nan": np.array([np.nan], np.float32), "w": np.float32([2, 3])}
    model = make(nodes, {"x": (2,)}, ["y"], weights, opset=18)
    assert_agrees(model, {"x": np.float32([1, np.nan])}, tmp_path)
    damaged = make([*nodes[:2], make_node("Mul", ["p", "nan"], ["y"])], {"x": (2,)}, ["y"], weights, opset=18)
    with pytest.raises(UsageError, match="tensor 'nan' holds NaN; the file's weights are damaged"):
        load(save(damaged, tmp_path))
