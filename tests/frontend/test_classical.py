"""Models of scikit-learn as skl2onnx writes them: ai.onnx.ml beside ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc import training
from poetc.errors import UnsupportedModelError
from poetc.frontend import load, write_back
from poetc.training import TrainingOptions
from tests.frontend.support import evaluate, make, normal, parameters, save
from tests.frontend.test_node_gradients import disagreements

ML = "ai.onnx.ml"
WEIGHT, BIAS = normal(3, 4), normal(3)


def classical(nodes: list[onnx.NodeProto], outputs: list[str], **weights: Any) -> onnx.ModelProto:
    model = make(nodes, {"x": (2, 4)}, outputs, weights)
    model.ir_version = 10
    model.opset_import.add(domain=ML, version=1)
    return model


def linear(labels: dict[str, Any], after: str = "SOFTMAX") -> onnx.NodeProto:
    numbers = {"coefficients": WEIGHT.reshape(-1).tolist(), "intercepts": BIAS.tolist()}
    return make_node(
        "LinearClassifier",
        ["s"],
        ["label", "p"],
        "c",
        domain=ML,
        post_transform=after,
        multi_class=1,
        **numbers,
        **labels,
    )


def pipeline(labels: dict[str, Any], after: str = "SOFTMAX") -> onnx.ModelProto:
    """StandardScaler and LogisticRegression, whose first output is the class and second a list of maps."""
    zipped = {name.replace("ints", "int64s"): value for name, value in labels.items()}
    nodes = [
        make_node("Scaler", ["x"], ["s"], domain=ML, offset=[0.5, 0.0, -1.0, 2.0], scale=[1.0, 2.0, 0.5, 0.1]),
        linear(labels, after),
        make_node("Normalizer", ["p"], ["shares"], domain=ML, norm="L1"),
        make_node("ZipMap", ["shares"], ["map"], domain=ML, **zipped),
    ]
    model = classical(nodes, ["label", "map"])
    kind = TensorProto.INT64 if "classlabels_ints" in labels else TensorProto.STRING
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("label", kind, [2]))
    scores = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    key = onnx.helper.make_map_type_proto(kind, scores)
    model.graph.output[1].CopyFrom(onnx.helper.make_value_info("map", onnx.helper.make_sequence_type_proto(key)))
    return model


def scores(path: Path, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    label, maps = session.run(None, {"x": x})
    return np.asarray(label), np.array([list(m.values()) for m in maps], np.float32)


@pytest.mark.parametrize("after", ["SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("labels", [{"classlabels_ints": [3, 5, 7]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_a_pipeline_with_logistic_regression(tmp_path: Path, labels: dict[str, Any], after: str) -> None:
    path, x = save(pipeline(labels, after), tmp_path), normal(2, 4)
    graph = load(path)
    label, expected = scores(path, x)
    found = evaluate(graph, {"x": x})
    np.testing.assert_allclose(found["map"], expected, rtol=1e-5, atol=1e-6)
    if "classlabels_ints" in labels:
        np.testing.assert_array_equal(found["label"], label)
    assert parameters(graph) == {"c.coefficients", "c.intercepts"}
    step = training.build(graph, TrainingOptions())
    if after == "SOFTMAX":
        assert any("cross-entropy on output 'map'" in note for note in step.notes)
    assert set(step.gradients) == {"c.coefficients", "c.intercepts"}


def test_trained_weights_are_put_back(tmp_path: Path) -> None:
    path, out, x = (
        save(pipeline({"classlabels_strings": ["a", "b", "c"]}), tmp_path),
        tmp_path / "out.onnx",
        normal(2, 4),
    )
    graph = load(path)
    write_back(path, out, graph, {"c.coefficients": -WEIGHT})
    label, found = scores(out, x)
    np.testing.assert_allclose(found, evaluate(load(out), {"x": x})["map"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, scores(path, x)[1])
    assert [str(t) for t in label] == [str("abc"[k]) for k in found.argmax(1)]


def test_linear_regression(tmp_path: Path) -> None:
    node = make_node(
        "LinearRegressor", ["x"], ["y"], "r", domain=ML, coefficients=WEIGHT.reshape(-1).tolist(), targets=3,
        intercepts=BIAS.tolist(),
    )  # fmt: skip
    x = normal(2, 4)
    graph = load(save(classical([node], ["y"]), tmp_path))
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], x @ WEIGHT.T + BIAS, rtol=1e-5)
    assert parameters(graph) == {"r.coefficients", "r.intercepts"}
    assert disagreements(graph, {"x": x}) == (1, [])


def test_a_perceptron_chooses_columns(tmp_path: Path) -> None:
    nodes = [
        make_node("ArrayFeatureExtractor", ["x", "columns"], ["part"], domain=ML),
        make_node(
            "Imputer", ["part"], ["whole"], domain=ML, imputed_value_floats=[1.5, 2.5], replaced_value_float=np.nan
        ),
        make_node("Normalizer", ["whole"], ["y"], domain=ML, norm="L2"),
    ]
    x = normal(2, 4)
    x[0, 2] = np.nan
    model = classical(nodes, ["y"], columns=np.int64([2, 0]))
    graph = load(save(model, tmp_path))
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], expected, rtol=1e-5)
    assert disagreements(graph, {"x": normal(2, 4)}) == (1, [])


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML), "this operator"),
        (make_node("LinearRegressor", ["x"], ["y"], domain=ML, post_transform="PROBIT"), "this operator"),
        (make_node("Normalizer", ["x"], ["y"], domain=ML, norm="MAX"), "the norm MAX"),
    ],
)
def test_refused(tmp_path: Path, node: onnx.NodeProto, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"ai\.onnx\.ml\.{node.op_type} 'y': {says}"):
        load(save(classical([node], ["y"]), tmp_path))


def test_numbers_of_another_type_are_refused(tmp_path: Path) -> None:
    """A file may say of any attribute that it holds something else."""
    model = pipeline({"classlabels_ints": [3, 5, 7]})
    (node,) = (n for n in model.graph.node if n.op_type == "LinearClassifier")
    for attribute in node.attribute:
        kind = attribute.type
        for other in (onnx.AttributeProto.UNDEFINED, onnx.AttributeProto.STRING, onnx.AttributeProto.TENSOR):
            attribute.type = other
            if attribute.name != "multi_class" and other != kind:
                with pytest.raises(UnsupportedModelError, match="LinearClassifier 'c': this operator"):
                    load(save(model, tmp_path))
        attribute.type = kind
