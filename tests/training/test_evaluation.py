"""Evaluation: the model in inference mode and the loss that it is trained with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator

from poetc import frontend, passes
from poetc.devices import build_problem, load_profile
from poetc.graph import Array, Graph, Role, TrainingGraph
from poetc.program import Interpreter, lower, lower_inference, sample_inputs
from poetc.scheduling import Problem, keep_all, pack
from poetc.training import TrainingOptions, build, evaluation

DIGITS = Path(__file__).parents[2] / "demo" / "digits.onnx"


def run(graph: Graph, step: TrainingGraph, seed: int) -> tuple[Interpreter, dict[str, Array], float]:
    """The evaluation of `graph` on the initial state: the interpreter, its inputs and the loss."""
    training = lower(step, *kept(step))
    model = evaluation(graph, step)
    problem, schedule, plan = kept(model, tuple(b.name for b in training.state))
    program = lower_inference(model, problem, schedule, plan, training, name="evaluate")
    values = {**graph.values, **step.values}
    interpreter = Interpreter(program, values)
    inputs = sample_inputs(program, seed)
    return interpreter, inputs, interpreter.run(inputs)


def kept(graph: Graph, in_ram: tuple[str, ...] = ()) -> tuple[Problem, ...]:
    problem = build_problem(graph, load_profile("host"), budget_bytes=0, in_ram=in_ram)
    schedule = keep_all(problem)
    return problem, schedule, pack(problem, schedule)  # type: ignore[return-value]


def cross_entropy(logits: Array, target: Array) -> float:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(target)), target].mean())


@pytest.mark.parametrize("batch", [1, 4])
def test_batch_norm_uses_its_running_statistics(batch: int) -> None:
    """The same outputs as the ONNX reference, at the batch of training and at another."""
    step = build(frontend.load(DIGITS, batch=4), TrainingOptions())
    interpreter, inputs, loss = run(frontend.load(DIGITS, batch=batch), step, 3)
    (name,) = [i.name for i in onnx.load(DIGITS).graph.input]
    (logits,) = ReferenceEvaluator(str(DIGITS)).run(None, {name: inputs[name]})
    np.testing.assert_allclose(interpreter.output("logits"), logits, rtol=1e-4, atol=1e-4)
    assert loss == pytest.approx(cross_entropy(logits, inputs["target"]), rel=1e-5)


def mlp(*tail: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), labels: bool = False) -> onnx.ModelProto:
    """x [4, 6] → w → h, and what `tail` makes of h."""
    weight = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    given = [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 6])]
    given += [oh.make_tensor_value_info("labels", onnx.TensorProto.INT64, [4])] * labels
    made = [oh.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in outputs]
    graph = oh.make_graph(
        [oh.make_node("MatMul", ["x", "w"], ["h"]), *tail],
        "g",
        given,
        made,
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)])


def load(model: onnx.ModelProto, tmp_path: Path) -> Graph:
    onnx.save(model, tmp_path / "model.onnx")
    return frontend.load(tmp_path / "model.onnx")


def test_a_final_softmax_stays_an_output(tmp_path: Path) -> None:
    graph = load(mlp(oh.make_node("Softmax", ["h"], ["y"], axis=1)), tmp_path)
    interpreter, inputs, loss = run(graph, build(graph, TrainingOptions()), 0)
    probabilities = interpreter.output("y")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert loss == pytest.approx(-np.log(probabilities[np.arange(4), inputs["target"]]).mean(), rel=1e-5)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_it_is_the_loss_of_the_step_without_batch_norm(tmp_path: Path, micro_batches: int) -> None:
    graph = load(mlp(oh.make_node("Tanh", ["h"], ["y"])), tmp_path)
    options = TrainingOptions(loss="mse", micro_batches=micro_batches)
    part = frontend.load(tmp_path / "model.onnx", batch=4 // micro_batches) if micro_batches > 1 else None
    step = build(graph, options, part)
    _, inputs, loss = run(graph, step, 1)
    trained = Interpreter(lower(step, *kept(step)), step.values).run(inputs)  # type: ignore[arg-type]
    assert loss == pytest.approx(trained, rel=1e-6) if micro_batches > 1 else loss == trained


def test_a_model_with_a_loss_of_its_own_has_its_scores_instead(tmp_path: Path) -> None:
    tail = oh.make_node("SoftmaxCrossEntropyLoss", ["h", "labels"], ["y"])
    graph = load(mlp(tail, labels=True), tmp_path)
    step = build(graph, TrainingOptions())
    model = evaluation(graph, step)
    assert (model.inputs, model.outputs) == (("x", step.target), ("loss", "h"))
    assert model.tensors[step.target].role is Role.TARGET
    interpreter, inputs, loss = run(graph, step, 2)
    assert loss == pytest.approx(cross_entropy(interpreter.output("h"), inputs[step.target]), rel=1e-5)


def test_logits_of_the_step_survive_it(tmp_path: Path) -> None:
    """Whole and in parts; the loss and the updates are the same as without them."""
    graph = load(mlp(oh.make_node("Softmax", ["h"], ["y"], axis=1)), tmp_path)
    part = frontend.load(tmp_path / "model.onnx", batch=2)
    for micro_batches in (1, 2):
        results = []
        for output_logits in (False, True):
            options = TrainingOptions(output_logits=output_logits, micro_batches=micro_batches)
            step = passes.run_standard(build(graph, options, part if micro_batches > 1 else None))
            program = lower(step, *kept(step))  # type: ignore[arg-type]
            assert [b.name for b in program.outputs] == ["loss" if micro_batches == 1 else "loss.sum", "h"][
                : 1 + output_logits
            ]
            interpreter = Interpreter(program, step.values)
            inputs = sample_inputs(program, 1)
            results.append((interpreter.run(inputs), interpreter.state("w").tobytes()))
        weight = graph.values["w"]
        assert isinstance(weight, np.ndarray)
        np.testing.assert_allclose(interpreter.output("h"), inputs["x"] @ weight, rtol=1e-5, atol=1e-6)
        assert results[0] == results[1]
