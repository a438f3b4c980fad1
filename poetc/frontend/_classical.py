"""Linear models of ai.onnx.ml, whose weights are attributes of a node, as layers of ONNX with initializers.

The reader and the writer of a file see the same layers, so that weights can be trained and put back.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetc.frontend._node import Malformed, Node

CLASSICAL = "ai.onnx.ml"
_AFTER = {"SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid", "NONE": ""}
_ASSUMED_OPSET = 13  # where the file declares no version of the default domain


def with_layers(model: onnx.ModelProto) -> None:
    """Replace each LinearClassifier and LinearRegressor of `model` whose numbers fit; others stay as they are."""
    if all(o.domain != CLASSICAL for o in model.opset_import):
        return
    graph, nodes = model.graph, list[onnx.NodeProto]()
    layers = [_layer(node, graph) if node.domain == CLASSICAL else None for node in graph.node]
    for node, layer in zip(graph.node, layers, strict=True):
        nodes += [node] if layer is None else layer
    if not any(layers):
        return
    del graph.node[:]
    graph.node.extend(nodes)
    if all(o.domain not in ("", "ai.onnx") for o in model.opset_import):
        model.opset_import.add(domain="", version=_ASSUMED_OPSET)


def _layer(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto] | None:
    """A Gemm, the operators behind it, and the best class; None for a node of another kind, or a malformed one."""
    is_classifier = node.op_type == "LinearClassifier"
    if not (is_classifier or node.op_type == "LinearRegressor") or not node.output or not node.input:
        return None
    n = Node(node)
    try:
        after = _AFTER.get(n.get_str("post_transform", "NONE"))
        weight = np.asarray(n.get_floats("coefficients") or (), np.float32)
        bias = np.asarray(n.get_floats("intercepts") or (), np.float32)
        labels = list(n.get_ints("classlabels_ints") or n.get_strs("classlabels_strings"))
        rows = len(labels) if is_classifier else n.get_int("targets", 1)
    except Malformed:
        return None
    if after is None or rows < 1 or not weight.size or weight.size % rows or bias.size not in (0, rows):
        return None
    scores = node.output[-1]
    if is_classifier and len(node.output) < 2:
        scores = f"{node.output[0]}.scores"
    name = node.name or node.output[0]
    arrays = {"coefficients": weight.reshape(rows, -1), **({"intercepts": bias} if bias.size else {})}
    names = [_initializer(graph, f"{name}.{what}", array) for what, array in arrays.items()]
    linear = f"{scores}.linear" if after else scores
    nodes = [helper.make_node("Gemm", [node.input[0], *names], [linear], f"{name}.gemm", transB=1)]
    if after:
        rest = {"axis": 1} if after == "Softmax" else {}
        nodes.append(helper.make_node(after, [linear], [scores], f"{name}.{after.lower()}", **rest))
    if is_classifier and node.output[0]:
        best = f"{node.output[0]}.best"
        held = np.asarray(labels, np.int64 if isinstance(labels[0], int) else object)
        table = _initializer(graph, f"{name}.labels", held)
        nodes.append(helper.make_node("ArgMax", [scores], [best], f"{name}.argmax", axis=1, keepdims=0))
        nodes.append(helper.make_node("Gather", [table, best], [node.output[0]], f"{name}.label", axis=0))
    return nodes


def _initializer(graph: onnx.GraphProto, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    graph.initializer.append(numpy_helper.from_array(array, name))
    return name
