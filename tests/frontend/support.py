"""Small ONNX models, and two evaluators to compare: ours over the imported graph, and onnx's own over the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from poetc.frontend import load
from poetc.graph import Graph, Role, materialize
from poetc.ops import bind, spec
from tests.support.files import write_anew


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model. `inputs`: name → shape (float32), or → (element type, shape)."""

    def info(name: str, what: Any) -> onnx.ValueInfoProto:
        dtype, shape = what if len(what) == 2 and isinstance(what[1], tuple) else (TensorProto.FLOAT, what)
        return helper.make_tensor_value_info(name, dtype, shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(w, n) for n, w in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    write_anew(path, model.SerializeToString())
    return path


def evaluate(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of the graph by name. Holds the graph to its own types: of values, and of what operators make."""
    held: dict[str, Any] = {name: materialize(v, graph.tensors[name].type) for name, v in graph.values.items()}
    for name, value in held.items():
        assert value.shape == graph.tensors[name].shape, f"{name}: {value.shape} is not {graph.tensors[name].shape}"
        assert value.dtype == graph.tensors[name].dtype.numpy, f"{name}: {value.dtype}"
    for name in graph.inputs:
        held[name] = np.asarray(feeds[name]).astype(graph.tensors[name].dtype.numpy)
    for op in graph.operators:
        results = spec(op.kind).evaluate(bind(op, graph.tensors), [held[t] for t in op.inputs])
        for name, result in zip(op.outputs, results, strict=True):
            tensor = graph.tensors[name]
            assert np.shape(result) == tensor.shape, f"{op.name}: {np.shape(result)} is not {tensor.shape}"
            held[name] = np.asarray(result).astype(tensor.dtype.numpy)
    return {name: held[name] for name in graph.outputs}


def assert_agrees(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path, **options: Any) -> Graph:
    """Import, run both evaluators, compare; returns the imported graph for a closer look."""
    graph = load(save(model, folder), **options)
    expected = dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, feeds), strict=True))
    for name, value in evaluate(graph, feeds).items():
        assert value.shape == expected[name].shape
        np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)
    return graph


def kinds(graph: Graph) -> list[str]:
    """Operator kinds in order, views left out."""
    return [op.kind for op in graph.operators if not spec(op.kind).is_view]


def parameters(graph: Graph) -> set[str]:
    return {name for name, tensor in graph.tensors.items() if tensor.role is Role.PARAMETER}
