"""Our numerics against the reference implementation of ONNX: the meaning of attributes, seen by somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from poetc.graph import Attribute
from tests.support.kernels import evaluate


def reference(kind: str, inputs: list[np.ndarray], attributes: Mapping[str, Any], outputs: int = 1) -> list[np.ndarray]:
    """What ONNX's reference says of one node."""
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(kind, names, results, **attributes)

    def info(name: str, array: np.ndarray | None) -> onnx.ValueInfoProto:
        dtype = onnx.TensorProto.FLOAT if array is None else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.helper.make_tensor_value_info(name, dtype, None if array is None else array.shape)

    graph = onnx.helper.make_graph(
        [node], "one", [info(n, x) for n, x in zip(names, inputs, strict=True)], [info(n, None) for n in results]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    return list(onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ours(kind: str, inputs: list[np.ndarray], attributes: Mapping[str, Attribute]) -> list[np.ndarray]:
    return list(evaluate(kind, attributes, inputs))


def assert_same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "group": 2},
        {"strides": (3, 2), "pads": (0, 1, 0, 1), "group": 4},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2), "group": 1},
    ],
)
def test_convolution(attributes: dict[str, Any]) -> None:
    inputs = [normal(2, 4, 9, 8), normal(8, 4 // attributes["group"], 3, 2), normal(8)]
    assert_same(ours("Conv", inputs, attributes), reference("Conv", inputs, attributes))


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (2, 3), "pads": (1, 0, 2, 1), "output_padding": (1, 2)},
        {"strides": (2, 2), "dilations": (2, 1), "pads": (0, 1, 1, 0)},
        {},
    ],
)
def test_transposed_convolution(attributes: dict[str, Any]) -> None:
    inputs = [normal(2, 4, 5, 4), normal(4, 3, 3, 2), normal(3)]
    assert_same(ours("ConvTranspose", inputs, attributes), reference("ConvTranspose", inputs, attributes))


POOLS: list[dict[str, Any]] = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (1, 2), "dilations": (3, 2), "pads": (1, 2, 1, 1)},
]


def onnx_pool(attributes: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"kernel_shape" if k == "kernel" else k: v for k, v in attributes.items()}
    return {k: int(v) if isinstance(v, bool) else v for k, v in renamed.items()}


@pytest.mark.parametrize("attributes", POOLS)
def test_max_pool(attributes: dict[str, Any]) -> None:
    x = normal(2, 3, 8, 10)
    assert_same(ours("MaxPool", [x], attributes)[:1], reference("MaxPool", [x], onnx_pool(attributes)))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("attributes", POOLS)
def test_average_pool(attributes: dict[str, Any], include: bool) -> None:
    x, attributes = normal(2, 3, 8, 10), {**attributes, "count_include_pad": include}
    assert_same(ours("AveragePool", [x], attributes), reference("AveragePool", [x], onnx_pool(attributes)))


def test_batch_norm() -> None:
    x, scale, bias, mean, var = normal(4, 3, 5), normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.1
    expected = reference(
        "BatchNormalization", [x, scale, bias, mean, var], {"epsilon": 1e-3, "momentum": 0.8, "training_mode": 1}, 3
    )
    batch_mean, batch_var = ours("BatchNormStats", [x], {})
    apply = {"epsilon": 1e-3, "training": True}
    y = ours("BatchNormApply", [x, batch_mean, batch_var, scale, bias], apply)
    running = ours("BatchNormUpdate", [mean, var, batch_mean, batch_var], {"momentum": 0.8})
    assert_same([*y, *running], expected)


@pytest.mark.parametrize("axis", [1, 2])
def test_layer_norm(axis: int) -> None:
    x = normal(3, 4, 5)
    inputs = [x, normal(*x.shape[axis:]), normal(*x.shape[axis:])]
    attributes = {"axis": axis, "epsilon": 1e-4}
    assert_same(ours("LayerNorm", inputs, attributes), reference("LayerNormalization", inputs, attributes, 3))


def test_group_and_instance_norm() -> None:
    inputs = [normal(2, 6, 4, 3), normal(6), normal(6)]
    grouped = ours("GroupNorm", inputs, {"groups": 2, "epsilon": 1e-4})[:1]
    assert_same(grouped, reference("GroupNormalization", inputs, {"num_groups": 2, "epsilon": 1e-4}))
    instance = ours("GroupNorm", inputs, {"groups": 6, "epsilon": 1e-4})[:1]
    assert_same(instance, reference("InstanceNormalization", inputs, {"epsilon": 1e-4}))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response_norm(size: int) -> None:
    """As many samples as channels: the reference takes the one for the other."""
    x, attributes = normal(7, 7, 3, 4), {"size": size, "alpha": 0.2, "beta": 0.6, "bias": 1.5}
    assert_same(ours("Lrn", [x], attributes), reference("LRN", [x], attributes))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int) -> None:
    x = 5 * normal(3, 4, 5)
    assert_same(ours("Softmax", [x], {"axis": axis}), reference("Softmax", [x], {"axis": axis}))
    assert_same(ours("LogSoftmax", [x], {"axis": axis}), reference("LogSoftmax", [x], {"axis": axis}))


@pytest.mark.parametrize("ignored", [None, 2])
def test_cross_entropy(ignored: int | None) -> None:
    logits, target = 3 * normal(4, 5, 3), np.random.default_rng(0).integers(0, 5, (4, 3))
    extra = {} if ignored is None else {"ignore_index": ignored}
    expected = reference("SoftmaxCrossEntropyLoss", [logits, target], {"reduction": "mean", **extra})
    assert_same(ours("CrossEntropy", [logits, target.astype(np.int32)], {"axis": 1, **extra}), expected)
