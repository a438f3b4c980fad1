"""The onnx package's own cases of what only training does: optimizers, batch norm in training mode, dropout, the loss.

Each runs through the reference numerics and through the C kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from poetc.graph import Attribute
from tests.support.kernels import AnyArray, evaluate, run_kernel
from tests.support.onnx_cases import cases_of

NEVER_CORRECTED = 2**30  # a step so late that Adam's bias correction is a factor of 1: what ONNX means by step 0


MODULES = ("adagrad", "adam", "batch_normalization", "dropout", "momentum", "softmax_cross_entropy_loss")
CASES = {case.name.removeprefix("test_"): case for case in cases_of(*MODULES)}
OPTIMIZERS = sorted(
    name
    for name, case in CASES.items()
    if case.model.graph.node[0].domain == "ai.onnx.preview.training" and len(case.model.graph.node) == 1
)
BATCH_NORMS = ["batchnorm_epsilon_training_mode", "batchnorm_example_training_mode"]
DROPOUTS = [name for name in CASES if name.startswith("training_dropout")]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def mean_losses() -> list[str]:
    """Cross-entropies without class weights, averaged: what a training step computes."""
    found = []
    for name, case in CASES.items():
        node = case.model.graph.node[0]
        single = node.op_type == "SoftmaxCrossEntropyLoss" and len(node.input) == 2
        if single and attributes_of(node).get("reduction", b"mean") == b"mean":
            found.append(name)
    return found


def agrees(
    kind: str, attributes: Mapping[str, Attribute], inputs: Sequence[AnyArray], expected: Sequence[AnyArray]
) -> None:
    for results in (evaluate(kind, attributes, inputs), run_kernel(kind, attributes, inputs)):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-7)


def ours(node: onnx.NodeProto, rate: float, count: int) -> tuple[str, dict[str, Attribute], float, list[np.ndarray]]:
    """Kind, attributes, learning rate and further inputs that mean what an optimizer node of ONNX means."""
    given = attributes_of(node)
    decay: dict[str, Attribute] = {"weight_decay": given.get("norm_coefficient", 0.0)}
    if node.op_type == "Adagrad":
        rate /= 1 + count * given.get("decay_factor", 0.0)
        return "Adagrad", {**decay, "epsilon": given["epsilon"]}, rate, []
    if node.op_type == "Momentum":
        assert count == 0 or given["beta"] == 1  # else ONNX damps the gradient
        more: dict[str, Attribute] = {"momentum": given["alpha"], "nesterov": given["mode"] == b"nesterov"}
        return "Momentum", {**decay, **more}, rate, []
    more = {"beta1": given["alpha"], "beta2": given["beta"], "epsilon": given["epsilon"], "decoupled": False}
    assert not given.get("norm_coefficient_post")
    return "Adam", {**decay, **more}, rate, [np.array([count or NEVER_CORRECTED], np.int32)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    case = CASES[name]
    inputs, expected = case.data_sets[0]
    rate, count, *tensors = (np.asarray(a) for a in inputs)
    weights = 2 if name.endswith("multiple") else 1
    kind, attributes, rate, more = ours(case.model.graph.node[0], float(rate), int(count))
    for k in range(weights):
        w, g, *state = tensors[k::weights]
        made = [np.asarray(a) for a in expected[k::weights]]
        agrees(kind, attributes, [w, *state, g, np.array([rate], np.float32), *more], made)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norm_in_training_mode(name: str) -> None:
    case = CASES[name]
    (x, scale, bias, mean, var), (y, new_mean, new_var) = case.data_sets[0]
    given = attributes_of(case.model.graph.node[0])
    statistics = evaluate("BatchNormStats", {}, [x])
    attributes = {"epsilon": given.get("epsilon", 1e-5), "training": True}
    agrees("BatchNormApply", attributes, [x, *statistics, scale, bias], [y])
    agrees("BatchNormUpdate", {"momentum": given.get("momentum", 0.9)}, [mean, var, *statistics], [new_mean, new_var])


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout(name: str) -> None:
    """ONNX leaves the random numbers open: which elements are dropped may differ, what is made of the others not."""
    case = CASES[name]
    (x, ratio, training), expected = case.data_sets[0]
    assert training
    for run in (evaluate, run_kernel):
        (y,) = run("Dropout", {"ratio": float(ratio), "seed": 0}, [x, np.array([1], np.int32)])
        kept = y != 0
        np.testing.assert_allclose(y[kept], x[kept] / (1 - ratio), rtol=1e-6)
        theirs = np.asarray(expected[0]) != 0
        # Binomial: within five standard deviations of each other's share.
        spread = 5 * np.sqrt(2 * float(ratio) * (1 - float(ratio)) / x.size)
        assert abs(kept.mean() - theirs.mean()) <= spread
        if ratio == 0:
            np.testing.assert_array_equal(y, expected[0])


@pytest.mark.parametrize("name", mean_losses())
def test_cross_entropy(name: str) -> None:
    case = CASES[name]
    (x, target), expected = case.data_sets[0]
    ignored = attributes_of(case.model.graph.node[0]).get("ignore_index")
    attributes: dict[str, Attribute] = {"axis": 1} if ignored is None else {"axis": 1, "ignore_index": ignored}
    agrees("CrossEntropy", attributes, [x, np.asarray(target, np.int32)], [np.asarray(expected[0])])


def test_all_of_them_ran() -> None:
    assert len(OPTIMIZERS) == 7
    assert len(DROPOUTS) == 6
    assert len(mean_losses()) == 10
