"""Steps whose tensors are stored in 16 bits: which are, which operators convert, and the errors that this costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import DType, Graph, Phase, Role, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.passes import check_graph, run_standard
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, build
from tests.passes.test_encoding import pooled
from tests.program.models import make_problem
from tests.support.graphs import evaluate, random_inputs


def step_of(graph: Graph, precision: str, **options: object) -> TrainingGraph:
    step = run_standard(build(graph, TrainingOptions(precision=precision, **options)))  # type: ignore[arg-type]
    check_graph(step)
    return step


def kinds_of(step: TrainingGraph) -> Counter[str]:
    return Counter(str(op.attributes.get("of", op.kind)) for op in step.operators if op.kind != "Reshape")


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_everything_between_the_input_and_the_loss_has_16_bits(precision: str) -> None:
    step = step_of(pooled(batch=8), precision, optimizer="momentum")
    made = {t: step.tensors[t].dtype for op in step.operators for t in op.outputs if op.phase is Phase.FORWARD}
    assert {name for name, dtype in made.items() if dtype is DType.F32} == {"logits"}
    assert {dtype for name, dtype in made.items() if name != "logits"} == {DType(precision), DType.U8}
    state = {"x", "one", "two", "dense", *step.gradients.values(), *step.updates.values(), step.loss}
    assert {step.tensors[name].dtype for name in state} == {DType.F32}
    assert "Widen" not in kinds_of(step)  # every operator but those of loss and update has a form
    plain = run_standard(build(pooled(batch=8), TrainingOptions(optimizer="momentum")))
    assert keep_all_peak_bytes(make_problem(step)) < 0.72 * keep_all_peak_bytes(make_problem(plain))


@pytest.mark.parametrize(("precision", "error"), [("f16", 5e-3), ("bf16", 5e-2)])
def test_gradients_differ_by_the_rounding(precision: str, error: float) -> None:
    plain, step = (step_of(pooled(), p, optimizer="momentum") for p in ("f32", precision))
    inputs = random_inputs(step)
    expected, found = (evaluate(s, inputs, np.float32) for s in (plain, step))
    for name, gradient in plain.gradients.items():
        exact, rounded = expected[gradient], found[step.gradients[name]]
        assert 0 < np.linalg.norm(rounded - exact) < error * np.linalg.norm(exact), name


def test_the_loss_scale_keeps_small_gradients() -> None:
    """Without it the gradients of a loss with a small weight are zeros in f16."""
    options = {"loss": "logits=cross-entropy*0.000001", "optimizer": "momentum"}
    plain = step_of(pooled(), "f32", **options)
    inputs = random_inputs(plain)
    exact = evaluate(plain, inputs, np.float32)[plain.gradients["one"]]
    errors = {}
    for scale in (1, 1 << 18):
        step = step_of(pooled(), "f16", loss_scale=scale, **options)
        found = evaluate(step, inputs, np.float32)[step.gradients["one"]]
        errors[scale] = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert errors[1 << 18] < 5e-3 < 3e-2 < errors[1]


def test_other_operators_stand_between_conversions() -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 32)), Role.INPUT)
    w = b.add_tensor("w", TensorType((32, 32)), Role.PARAMETER, np.eye(32, dtype=np.float32))
    product = {"trans_a": False, "trans_b": False, "alpha": 1.0}
    h = b.emit1("Softmax", [b.emit1("MatMul", [x, w], product, hint="h")], {"axis": -1}, hint="p")
    y = b.emit1("MatMul", [h, w], product, hint="y")
    step = step_of(Graph("net", b.tensors, tuple(b.operators), ("x",), (y,), b.values), "bf16")
    (softmax,) = (op for op in step.operators if op.kind == "Softmax")
    before, after = (
        [op for op in step.operators if t in (*op.inputs, *op.outputs) and op is not softmax]
        for t in (softmax.inputs[0], softmax.outputs[0])
    )
    assert [op.kind for op in before] == ["Widen"] and [op.kind for op in after] == ["Narrow"]
    assert all(step.tensors[t].dtype is DType.F32 for t in (*softmax.inputs, *softmax.outputs))


@pytest.mark.parametrize("low", [-np.inf, -1e9])
@pytest.mark.parametrize("kind", ["Where", "Add", "Affine", "Log"])
def test_masked_scores_stay_in_32_bits_of_f16(kind: str, low: float) -> None:
    """The step runs, and its loss is that of 32 bits but for rounding."""
    b = Builder()
    x = b.add_tensor("x", TensorType((8, 32)), Role.INPUT)
    w = b.add_tensor("w", TensorType((32, 32)), Role.PARAMETER, np.eye(32, dtype=np.float32))
    product = {"trans_a": False, "trans_b": False, "alpha": 1.0}
    h = b.emit1("MatMul", [x, w], product, hint="h")
    hidden = np.arange(32) % 3 == 0
    if kind == "Where":
        seen = b.add_tensor("seen", TensorType((32,), DType.U8), Role.CONSTANT, (~hidden).astype(np.uint8))
        fill = b.add_tensor("fill", TensorType(()), Role.CONSTANT, np.array(low, np.float32))
        h = b.emit1("Where", [seen, h, fill], {}, hint="masked")
    elif kind != "Add":  # computed of an input: 1 hides
        asked = b.add_tensor("asked", TensorType((32,)), Role.INPUT)
        if kind == "Log":
            seen = b.emit1("Affine", [asked], {"alpha": -1.0, "beta": 1.0})
            mask = b.emit1("Log", [seen], {}, hint="mask")
        else:
            mask = b.emit1("Affine", [asked], {"alpha": float(max(low, -3e38)), "beta": 0.0}, hint="mask")
        h = b.emit1("Add", [h, mask], {}, hint="masked")
    else:
        mask = b.add_tensor("mask", TensorType((32,)), Role.CONSTANT, np.where(hidden, low, 0).astype(np.float32))
        h = b.emit1("Add", [h, mask], {}, hint="masked")
    p = b.emit1("Softmax", [h], {"axis": -1}, hint="p")
    y = b.emit1("MatMul", [p, w], product, hint="y")
    names = ("x", "asked") if kind in ("Affine", "Log") else ("x",)
    graph = Graph("net", b.tensors, tuple(b.operators), names, (y,), b.values)
    plain, step = (step_of(graph, precision, loss="mse") for precision in ("f32", "f16"))
    assert step.tensors["masked"].dtype is DType.F32 and step.tensors["p"].dtype is DType.F16
    inputs = random_inputs(plain)
    if len(names) > 1:
        inputs["asked"] = hidden.astype(np.float32)
    with np.errstate(divide="ignore"):
        expected, found = (evaluate(s, inputs, np.float32)[s.loss] for s in (plain, step))
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    bf16 = step_of(graph, "bf16", loss="mse")
    assert bf16.tensors["masked"].dtype is DType.BF16  # which holds them


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bf16", "loss_scale": 8}, "--loss-scale does nothing for --precision bf16, only for f16"),
        ({"precision": "f16", "loss_scale": 12}, "--loss-scale 12 is no power of two from 1 to 16,777,216"),
        ({"precision": "f16", "saved": "f16"}, "--saved f16: --precision f16 saves floats of 16 bits already"),
        ({"precision": "bf16", "rounding": "act=nearest"}, "--rounding does nothing for --precision bf16"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingOptions(**options)  # type: ignore[arg-type]
