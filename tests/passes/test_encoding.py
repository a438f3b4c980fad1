"""Encodings of saved tensors: which a step is offered, and that lossless ones change no bit."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import Graph, Role, TensorType, TrainingGraph
from poetc.ops import Builder, bind, spec
from poetc.passes import check_graph, encoded, offered, run_standard, without_encodings
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, build
from tests.program.models import make_problem
from tests.support.graphs import evaluate, random_inputs


def pooled(rectifier: str = "Relu", kernel: tuple[int, int] = (2, 2), batch: int = 2, **attributes: float) -> Graph:
    """Convolution, rectifier, max pooling, convolution, rectifier, dense layer: as in LeNet."""
    random = np.random.default_rng(5)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        value = random.normal(0, 0.4, shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    def conv(x: str, name: str, channels: int) -> str:
        inputs = [x, parameter(name, channels, b.type(x).shape[1], 3, 3)]
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
        return b.emit1(rectifier, [b.emit1("Conv", inputs, window, hint=name)], attributes, hint=f"{name}.active")

    x = conv(b.add_tensor("x", TensorType((batch, 1, 12, 12)), Role.INPUT), "one", 8)
    x = b.emit("MaxPool", [x], {"kernel": kernel, "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)})[0]
    x = conv(x, "two", 8)
    features = b.type(x).elements // batch
    x = b.emit1("Reshape", [x], {"shape": (batch, features)})
    weight = parameter("dense", 3, features)
    y = b.emit1("MatMul", [x, weight], {"trans_a": False, "trans_b": True, "alpha": 1.0}, hint="logits")
    return Graph("pooled", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def step_of(graph: Graph, **options: object) -> TrainingGraph:
    return run_standard(build(graph, TrainingOptions(**options)))  # type: ignore[arg-type]


def kinds_of(step: TrainingGraph) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(op.name, op.inputs, op.outputs) for op in step.operators]


RECTIFIERS = [("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("Clip", {"min": 0.0, "max": 0.4})]


@pytest.mark.parametrize(("rectifier", "attributes"), RECTIFIERS)
def test_lossless_encodings_change_no_bit(rectifier: str, attributes: dict[str, float]) -> None:
    step = step_of(pooled(rectifier, **attributes), optimizer="momentum")
    inputs = random_inputs(step)
    plain = evaluate(step, inputs, np.float32)
    for k in range(len(offered(step)) + 1):
        small = encoded(step, offered(step)[:k])
        check_graph(small)
        check_graph(without_encodings(small))
        assert sorted(kinds_of(without_encodings(small))) == sorted(kinds_of(step))
        results = evaluate(small, inputs, np.float32)
        for name in (step.loss, *step.updates.values(), *step.gradients.values()):
            np.testing.assert_array_equal(results[name], plain[name], err_msg=name)


def test_what_is_offered() -> None:
    found = offered(step_of(pooled()))
    assert [(e.format, e.is_alone, e.saved_bytes, e.encoded_bytes) for e in found] == [
        ("slope", True, 4 * 2 * 8 * 144, 2 * 18 * 8),
        ("place", True, 2 * 8 * 36, 8 * 36),
        ("slope", False, 4 * 2 * 8 * 36, 2 * 36),
    ]
    assert [e.format for e in offered(step_of(pooled(kernel=(5, 4))))] == ["slope", "slope"]
    assert all(e.is_alone for e in offered(step_of(pooled(), train="one")))


def test_encoded_tensors_take_less_memory() -> None:
    step = step_of(pooled())
    peaks = [keep_all_peak_bytes(make_problem(encoded(step, offered(step)[:k]))) for k in range(3)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] - peaks[1] > 4 * 2 * 8 * 144 // 2


def test_micro_batches_encode_each_part() -> None:
    options = TrainingOptions(micro_batches=2)
    step = run_standard(build(pooled(), options, pooled(batch=1)))
    found = offered(step)
    assert [(e.format, e.tensor[-2:]) for e in found] == [
        (kind, f"~{part}") for part in (1, 2) for kind in ("slope", "place", "slope")
    ]
    inputs = random_inputs(step)
    plain, small = (evaluate(graph, inputs, np.float32) for graph in (step, encoded(step, found)))
    for name in step.updates.values():
        np.testing.assert_array_equal(small[name], plain[name], err_msg=name)


def test_rectifiers_that_share_a_saved_input_keep_slopes_of_their_own() -> None:
    """Below 0 a LeakyRelu saves its input, which the gradients of two others read too."""
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 64)), Role.INPUT)
    value = np.random.default_rng(3).normal(0, 0.3, (64, 64)).astype(np.float32)
    weight = b.add_tensor("w", TensorType((64, 64)), Role.PARAMETER, value)
    h = b.emit1("MatMul", [x, weight], {"trans_a": False, "trans_b": True, "alpha": 1.0})
    parts = [b.emit1("LeakyRelu", [h], {"alpha": alpha}) for alpha in (-0.5, -0.25, -0.5)]
    y = b.emit1("Add", [b.emit1("Add", parts[:2]), parts[2]])
    step = step_of(Graph("shared", b.tensors, tuple(b.operators), ("x",), (y,), b.values), optimizer="sgd")
    (found,) = offered(step)
    assert not found.is_alone
    inputs = random_inputs(step)
    plain, small = (evaluate(graph, inputs, np.float32) for graph in (step, encoded(step, [found])))
    for name in step.updates.values():
        np.testing.assert_array_equal(small[name], plain[name], err_msg=name)


def test_a_slope_of_zero_keeps_the_sign_of_its_product() -> None:
    step = step_of(pooled("LeakyRelu", alpha=0.0))
    small = encoded(step, offered(step))
    kernels = {spec(op.kind).kernel(bind(op, small.tensors)).symbol for op in small.operators if op.kind == "SlopeGrad"}
    assert kernels == {"poetc_op_slope_grad_leaky"}
