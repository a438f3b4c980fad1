"""Nodes that a translation refuses: one line, with the node and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from poetc.errors import PoetcError
from poetc.frontend import load
from tests.frontend.support import make, normal, save

Operand = tuple[int, ...] | np.ndarray | None
OLD = {"Pad": 2}
MICROSOFT = {"FusedMatMul", "FusedConv", "SkipLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention"}
CLASSICAL = {"Scaler", "Normalizer", "Imputer", "ArrayFeatureExtractor"}


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


NONE, X, ROW = None, (2, 3, 4, 5), (2, 3)
# Operator, operands (a shape is an input of the model, an array is in the file), attributes, the reason.
CASES: list[tuple[str, list[Operand], dict[str, Any], str]] = [
    ("Reshape", [X, ints(7, -1)], {}, "does not fit into shape [7, -1]"),
    ("Reshape", [X, ints(-1, -1)], {}, "shape [-1, -1] is not valid"),
    ("Reshape", [ROW, ints(6, 1, 0)], {}, "dimension 2 of the shape is to be copied from an input of rank 2"),
    ("Reshape", [X, normal(2)], {}, "the shape must be integers, not float32"),
    ("Flatten", [ROW], {"axis": 3}, "axis 3 is out of range for rank 2"),
    ("Squeeze", [X, ints(1)], {}, "squeezes axes [1] of shape [2, 3, 4, 5]"),
    ("Unsqueeze", [X, ints(0, 0)], {}, "axes [0, 0] repeat"),
    ("Transpose", [X], {"perm": [0, 1, 2, 2]}, "perm [0, 1, 2, 2] is no permutation of 4 axes"),
    ("DepthToSpace", [X], {"blocksize": 2}, "blocksize 2 does not fit shape [2, 3, 4, 5]"),
    ("SpaceToDepth", [X], {"blocksize": 2}, "blocksize 2 does not fit shape [2, 3, 4, 5]"),
    ("Slice", [X, ints(0), ints(4), ints(1), ints(0)], {}, "a step is 0"),
    ("Slice", [X, ints(0, 0), ints(4)], {}, "is malformed"),
    ("Concat", [], {"axis": 0}, "has no inputs"),
    ("Split", [X, ints(1, 1)], {"axis": 1}, "the sizes [1, 1] do not add up to 3"),
    ("Split", [X], {"axis": 1, "num_outputs": 3}, "has 2 outputs, num_outputs is 3"),
    ("Pad", [X, ints(1, 1)], {}, "2 pads for rank 4"),
    ("Pad", [X, ints(0, 0, 0, -3, 0, 0, 0, -3)], {}, "the pads [0, 0, 0, -3, 0, 0, 0, -3] cut off more than there is"),
    ("Expand", [ROW, ints(-2, 3)], {}, "shape [-2, 3] is not valid"),
    ("Expand", [ROW, ints(5, 3)], {}, "[2, 3] does not broadcast to [5, 3]"),
    ("Tile", [ROW, ints(2)], {}, "repeats [2] do not fit rank 2"),
    ("Gather", [ROW, ints(3)], {"axis": 1}, "an index is out of range for length 3"),
    ("OneHot", [(4,), np.array(2.5, np.float32), normal(2)], {}, "a depth of 2.5"),
    ("SplitToSequence", [ROW, np.array(0)], {}, "splits into parts of 0"),
    ("Conv", [(1, 2, 3, 3, 3, 3), normal(2, 2, 1, 1, 1, 1)], {}, "4 spatial axes"),
    ("Conv", [X, normal(2, 3, 1)], {}, "the weight has shape [2, 3, 1]"),
    ("Conv", [X, normal(2, 3, 2, 2)], {"strides": [1, 0]}, "a stride or dilation is 0"),
    ("Conv", [X, normal(2, 3, 2, 2)], {"strides": [1, 1, 1]}, "strides [1, 1, 1] do not fit 2 spatial axes"),
    ("Conv", [X, normal(2, 3, 2, 2)], {"pads": [1, 1]}, "pads [1, 1] do not fit 2 spatial axes"),
    ("Conv", [X, normal(2, 3, 2, 2)], {"pads": [0, 0, -1, 0]}, "negative pads [0, 0, -1, 0]"),
    ("MaxPool", [X], {}, "kernel_shape is missing"),
    ("MatMul", [ROW, np.array(2, np.float32)], {}, "multiplies a scalar"),
    ("BatchNormalization", [(3,), *[normal(3)] * 4], {}, "normalises shape [3]"),
    ("BatchNormalization", [X, *[normal(3)] * 4], {"spatial": 0}, "spatial = 0"),
    ("LSTM", [ROW, normal(1, 8, 3), normal(1, 8, 2)], {"hidden_size": 2}, "X, W and R must have rank 3"),
    ("LSTM", [(0, 1, 3), normal(1, 8, 3), normal(1, 8, 2)], {"hidden_size": 2}, "a sequence without time steps"),
    ("LSTM", [(2, 1, 3), normal(1, 8, 3), normal(1, 8, 2)], {"input_forget": 1}, "input_forget"),
    ("LSTM", [(2, 1, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 8)], {}, "B has shape [1, 8]"),
    ("GRU", [(2, 1, 3), normal(1, 6, 3), normal(1, 6, 2)], {"activation_alpha": [1.0]}, "activation_alpha or"),
    ("RNN", [(2, 1, 3), normal(1, 4, 3), normal(1, 2, 2)], {}, "do not fit X [2, 1, 3]"),
    ("Einsum", [ROW, normal(4, 2)], {"equation": "ij,jk->ik"}, "index 'j' has lengths 3 and 4"),
    ("Einsum", [ROW], {"equation": "ii->i"}, "index 'i' has lengths 2 and 3"),
    ("Einsum", [ROW], {"equation": "ij->ik"}, "the result has an index that no operand has"),
    ("Einsum", [ROW], {"equation": "ij,jk->ik"}, "equation 'ij,jk->ik' for 1 operands"),
    ("Einsum", [ROW], {"equation": "i->i"}, "'i' does not fit an operand of rank 2"),
    ("Max", [], {}, "has no inputs"),
    ("TopK", [ROW, ints(4)], {}, "asks for 4 of 3 elements"),
    ("LpNormalization", [ROW], {"p": 3}, "p must be 1 or 2, not 3"),
    ("Cast", [ROW], {"to": TensorProto.INT8}, "a cast to int8"),
    ("Resize", [X, None, normal(2)], {}, "2 scales or sizes for 4 axes"),
    ("Resize", [X, None, np.array([1, 1, -2, 2], np.float32)], {}, "are not all positive numbers"),
    ("Resize", [(1, 0, 2, 2), None, np.array([1, 1, 2, 2], np.float32)], {}, "an input without elements, [1, 0, 2, 2]"),
    ("SoftmaxCrossEntropyLoss", [ROW, ints(0, 1), normal(2)], {}, "the class weights have shape [2]"),
    ("FusedMatMul", [(3,), normal(3, 2)], {}, "an operand of shape [3]"),
    ("FusedConv", [X, normal(2, 3, 1, 1)], {"activation": "Mystery"}, "the fused activation 'Mystery'"),
    ("SkipLayerNormalization", [ROW, (3, 2, 3), normal(3)], {}, "adds shape [3, 2, 3] to [2, 3]"),
    ("EmbedLayerNormalization", [ints(1, 2), None, *[normal(4, 3)] * 2, None, *[normal(3)] * 2], {}, "have shape [2]"),
    (
        "EmbedLayerNormalization",
        [np.zeros((1, 5), np.int32), None, normal(4, 3), normal(4, 3), None, normal(3), normal(3)],
        {},
        "[4, 3] has no rows for 5 places",
    ),
    (
        "EmbedLayerNormalization",
        [np.zeros((1, 2), np.int32), None, *[normal(4, 3)] * 3, normal(3), normal(3)],
        {},
        "segment numbers are missing",
    ),
    ("MultiHeadAttention", [(1, 2, 4)], {"num_heads": 2}, "keys or values are missing"),
    ("MultiHeadAttention", [(1, 2, 2, 2, 2)], {"num_heads": 2}, "3 tensors in one of shape [1, 2, 2, 2, 2]"),
    ("MultiHeadAttention", [*[(1, 2, 4)] * 3, normal(4)], {"num_heads": 2}, "the bias has shape [4], not [12]"),
    ("Scaler", [ROW], {"offset": [1.0, 2.0]}, "offset has 2 numbers for shape [2, 3]"),
    ("Normalizer", [ROW], {"norm": "MAX"}, "the norm MAX, whose definitions differ"),
    ("Normalizer", [ROW], {"norm": "L3"}, "norm 'L3' of shape [2, 3]"),
    ("Imputer", [ROW], {"imputed_value_int64s": [1]}, "imputed integers"),
]


@pytest.mark.parametrize(("op", "operands", "attributes", "reason"), CASES, ids=[f"{c[0]}: {c[3]}" for c in CASES])
def test_the_node_and_the_reason(
    tmp_path: Path, op: str, operands: list[Operand], attributes: dict[str, Any], reason: str
) -> None:
    domain = "com.microsoft" if op in MICROSOFT else "ai.onnx.ml" if op in CLASSICAL else ""
    names = ["" if o is None else f"i{k}" for k, o in enumerate(operands)]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    model = make(
        [make_node(op, names, outputs, name="culprit", domain=domain, **attributes)],
        {"x": (2, 3), **{n: o for n, o in zip(names, operands, strict=True) if isinstance(o, tuple)}},
        outputs,
        {n: o for n, o in zip(names, operands, strict=True) if isinstance(o, np.ndarray)},
        opset=21,
    )
    model.opset_import.extend(helper.make_opsetid(d, 1) for d in ("com.microsoft", "ai.onnx.ml"))
    with pytest.raises(PoetcError) as caught:
        load(save(model, tmp_path))
    text = str(caught.value)
    assert "culprit" in text and reason in text
    assert len(text.splitlines()) == 1 + ("1 node cannot be trained" in text)


def broken(change: str) -> onnx.ModelProto:
    """A model of two nodes with one fault in its graph."""
    model = make([make_node("Relu", ["x"], ["h"]), make_node("Relu", ["h"], ["y"])], {"x": (2, 3)}, ["y"])
    graph = model.graph
    if change == "twice":
        graph.node.append(make_node("Neg", ["x"], ["h"], name="again"))
    elif change == "cycle":
        graph.node[0].input[0] = "y"
    elif change == "sequence":
        graph.node.append(make_node("SequenceConstruct", ["y"], ["s"]))
        graph.output.append(onnx.ValueInfoProto(name="s"))
    elif change == "sparse":
        graph.sparse_initializer.add()
    elif change == "negative":
        graph.input[0].type.tensor_type.shape.dim[0].dim_value = -3
    elif change == "type":
        graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("twice", "tensor 'h' is made twice, the second time by "),
        ("cycle", "the graph has a cycle through "),
        ("sequence", "output 's' is a sequence"),
        ("sparse", "sparse initializers; export the model with dense weights"),
        ("negative", "input 'x' has a negative dimension (-3)"),
        ("type", "input 'x' has element type int8"),
    ],
)
def test_graphs_are_refused(tmp_path: Path, change: str, reason: str) -> None:
    with pytest.raises(PoetcError) as caught:
        load(save(broken(change), tmp_path))
    assert reason in str(caught.value)
