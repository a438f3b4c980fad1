"""Losses of several outputs: what is refused, what is evaluated, what the caller gives."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import DType, Graph, Role, TensorType
from poetc.ops import Builder, Use
from poetc.ops.losses import LOSSES
from poetc.passes import check_graph
from poetc.program import limit_of
from poetc.training import TrainingOptions, build, evaluation, takes_batch_statistics
from tests.support.graphs import evaluate
from tests.training.pytorch_cases import CLASSES, HIDDEN, ROWS, network

BOTH = ("logits", "hidden")
LOSS = "logits=cross-entropy*0.75,hidden=mse*2"


def test_every_loss_has_a_target() -> None:
    step = build(network(ROWS, BOTH), TrainingOptions(loss=LOSS))
    assert step.inputs == ("x", "target.hidden")
    assert step.tensors["target.hidden"].shape == (ROWS, HIDDEN)
    assert step.tensors["target.hidden"].role is Role.INPUT
    assert step.target == "target"
    assert [note for note in step.notes if "times" in note] == [
        "loss cross-entropy on output 'logits' [6, 4], times 0.75",
        "loss mse on output 'hidden' [6, 7], times 2",
    ]


def test_a_loss_by_name_alone_counts_once() -> None:
    """Without a weight nothing is added to the step."""
    one = build(network(ROWS, BOTH), TrainingOptions(loss="hidden=mse"))
    other = build(network(ROWS, BOTH), TrainingOptions(loss="mse", output="hidden"))
    assert one.operators == other.operators


@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_declared_loss_makes_a_step_and_an_evaluation(loss: str) -> None:
    """A new one needs no tests of its own of its step, target, gradient, and options that others refuse."""
    graph = speech(*((4, 3, 4) if loss == "ctc" else (12, 4)))
    step = build(graph, TrainingOptions(loss=loss))
    check_graph(step)
    assert set(step.gradients) == {"w"}
    target = step.tensors[step.target]
    assert (target.dtype is DType.I32) == any(word in LOSSES[loss].target for word in ("index", "labels"))
    check_graph(evaluation(graph, step))
    random = np.random.default_rng(3)
    values = random.integers(0, 3, target.shape) if target.dtype is DType.I32 else np.sort(random.random(target.shape))
    inputs = {"x": random.standard_normal((2, 6, 3)).astype(np.float32), step.target: values.astype(target.dtype.numpy)}
    assert np.isfinite(evaluate(step, inputs)[step.loss])


def test_the_sum_is_evaluated() -> None:
    graph = network(ROWS, BOTH)
    step = build(graph, TrainingOptions(loss=LOSS))
    found = evaluation(graph, step)
    check_graph(found)
    assert found.inputs == ("x", "target.hidden", "target")
    random = np.random.default_rng(3)
    inputs = {
        "x": random.standard_normal((ROWS, 5)).astype(np.float32),
        "target": random.integers(0, CLASSES, ROWS).astype(np.int32),
        "target.hidden": random.standard_normal((ROWS, HIDDEN)).astype(np.float32),
    }
    values, trained = evaluate(found, inputs), evaluate(step, inputs)
    logits = values["logits"]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    entropy = -log_p[np.arange(ROWS), inputs["target"]].mean()
    expected = 0.75 * entropy + 2 * np.square(values["hidden"] - inputs["target.hidden"]).mean()
    assert float(values[found.outputs[0]]) == pytest.approx(expected, rel=1e-12)
    assert float(trained[step.loss]) == pytest.approx(expected, rel=1e-12)
    assert found.outputs[1:] == BOTH


def speech(*shape: int) -> Graph:
    """Twelve rows of logits, seen in a shape with time steps; the batch is the first axis of the input."""
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 6, 3)), Role.INPUT)
    weights = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    w = b.add_tensor("w", TensorType((3, 4)), Role.PARAMETER, weights)
    y = b.emit1("MatMul", [b.emit1("Reshape", [x], {"shape": (12, 3)}), w])
    y = b.emit1("Reshape", [y], {"shape": shape}, hint="y")
    return Graph("speech", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def test_labels_of_ctc_are_a_target_of_the_batch() -> None:
    for shape, options, wanted in (((2, 6, 4), {}, (2, 3)), ((6, 2, 4), {"ctc_labels": 5}, (2, 5))):
        step = build(speech(*shape), TrainingOptions(loss="ctc", **options))
        check_graph(step)
        assert step.tensors[step.target].shape == wanted
        (op,) = [op for op in step.operators if op.kind == "Ctc"]
        assert op.attributes["time_first"] == (shape[0] == 6)
        uses = [Use(o.kind, o.attributes, o.inputs, o.outputs, step.tensors[o.inputs[0]].type) for o in step.operators]
        assert str(limit_of(uses, {step.target})) == "0 to 3, or -1"
    for message, kwargs in (
        ("--ctc-labels 7: output 'y' has 6 time steps", {"ctc_labels": 7}),
        ("--ctc-blank 4: .* 4 classes", {"ctc_blank": 4}),
    ):
        with pytest.raises(UsageError, match=message):
            build(speech(2, 6, 4), TrainingOptions(loss="ctc", **kwargs))
    with pytest.raises(UsageError, match=r"\[12, 4\] is not \[batch, steps, classes\]"):
        build(speech(12, 4), TrainingOptions(loss="ctc"))
    with pytest.raises(UsageError, match="--ctc-blank does nothing for --loss mse"):
        TrainingOptions(loss="mse", ctc_blank=1)


def test_rows_are_compared_within_a_whole_batch() -> None:
    step = build(network(), TrainingOptions(loss="triplet"))
    assert (step.tensors[step.target].shape, step.tensors[step.target].dtype) == ((ROWS,), DType.I32)
    assert takes_batch_statistics(network(), TrainingOptions(loss="logits=contrastive"))
    with pytest.raises(UsageError, match="--micro-batches 2: --loss triplet compares"):
        build(network(), TrainingOptions(loss="triplet", micro_batches=2), network(3))
    with pytest.raises(UsageError, match=r"\[2, 6, 4\] is not \[batch, width\]"):
        build(speech(2, 6, 4), TrainingOptions(loss="contrastive"))
    with pytest.raises(UsageError, match="--margin does nothing for --loss mse"):
        TrainingOptions(loss="mse", margin=0.5)


def test_what_cannot_be_is_refused() -> None:
    for loss, message in (
        ("logits=hinge", "--loss 'hinge': choose from"),
        ("logits=mse*x", r"--loss 'logits=mse\*x': write OUTPUT=KIND"),
        ("logits=mse*0", "a weight above 0"),
        ("=mse", "write OUTPUT=KIND"),
        ("logits=mse,hidden", "--loss 'hidden': write OUTPUT=KIND"),
        ("logits=mse,logits=l1", "output 'logits' has two losses"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainingOptions(loss=loss)
    with pytest.raises(UsageError, match="--model-output"):
        TrainingOptions(loss=LOSS, output="logits")
    with pytest.raises(UsageError, match="--huber-delta"):
        TrainingOptions(loss=LOSS, huber_delta=0.5)
    with pytest.raises(UsageError, match="'nothing' is no output of the model; its outputs are logits, hidden"):
        build(network(ROWS, BOTH), TrainingOptions(loss="logits=mse,nothing=mse"))


def test_dice_is_a_mean_over_samples_and_classes() -> None:
    step = build(network(), TrainingOptions(loss="dice", dice_smooth=0.5, output="logits"))
    check_graph(step)
    assert (step.tensors[step.target].shape, step.tensors[step.target].dtype) == ((ROWS,), DType.I32)
    uses = [Use(o.kind, o.attributes, o.inputs, o.outputs, step.tensors[o.inputs[0]].type) for o in step.operators]
    limit = limit_of(uses, {step.target})
    assert limit is not None and (limit.least, limit.most) == (0, CLASSES - 1)
    random = np.random.default_rng(3)
    target = random.integers(0, CLASSES, ROWS).astype(np.int32)
    inputs = {"x": random.standard_normal((ROWS, 5)).astype(np.float32), "target": target}
    values = evaluate(step, inputs)
    (op,) = [op for op in step.operators if op.kind == "Dice"]
    total = 0.0
    for row, label in zip(values[op.inputs[0]], target, strict=True):
        shares = np.exp(row) / np.exp(row).sum()
        for index, share in enumerate(shares):
            hit = float(index == label)
            total += 1 - (2 * share * hit + 0.5) / (share + hit + 0.5)
    assert float(values[step.loss]) == pytest.approx(total / (ROWS * CLASSES), rel=1e-9)
    with pytest.raises(UsageError, match="--dice-smooth does nothing for --loss mse"):
        TrainingOptions(loss="mse", dice_smooth=1.0)


def test_weights_of_what_is_present() -> None:
    """One number, or one for each column; columns of an image are its channels."""
    step = build(network(), TrainingOptions(loss="bce", class_weights=(1.0, 2.0, 3.0, 4.0)))
    (op,) = [op for op in step.operators if op.kind == "BceWithLogits"]
    assert (op.attributes["pos_weight"], op.attributes["axis"]) == ((1.0, 2.0, 3.0, 4.0), 1)
    assert any("--class-weights weighs positive targets, along axis 1" in note for note in step.notes)
    with pytest.raises(UsageError, match=r"--class-weights: 2 weights .*takes one, or one for each of 4 columns along"):
        build(network(), TrainingOptions(loss="bce", class_weights=(1.0, 2.0)))
    with pytest.raises(UsageError, match="--label-smoothing: --loss auto means mse here"):
        build(speech(12, 1, 4, 1), TrainingOptions(label_smoothing=0.1, output="y"))


def test_focal_of_one_class_is_binary() -> None:
    step = build(speech(12, 4, 1), TrainingOptions(loss="focal", focal_gamma=1.5))
    (op,) = [op for op in step.operators if op.kind == "BceWithLogits"]
    assert op.attributes == {"gamma": 1.5}
    assert step.tensors[step.target].shape == (12, 4, 1)
    with pytest.raises(UsageError, match="--ignore-index: --loss focal means binary-focal here"):
        build(speech(12, 4, 1), TrainingOptions(loss="focal", ignore_index=1))


def test_indices_of_the_shape_of_the_logits_are_no_target() -> None:
    """Floats of that shape may be what the model restores; two columns of categories are not its two logits."""
    for dtype, kind in ((DType.I32, "CrossEntropy"), (DType.F32, "MeanSquaredError")):
        b = Builder()
        x = b.add_tensor("x", TensorType((4, 2), dtype), Role.INPUT)
        if dtype is DType.I32:
            b.add_tensor("table", TensorType((9, 1)), Role.PARAMETER, np.ones((9, 1), np.float32))
            x = b.emit1("Reshape", [b.emit1("Gather", ["table", x], {"axis": 0})], {"shape": (4, 2)})
        b.add_tensor("w", TensorType((2, 2)), Role.PARAMETER, np.ones((2, 2), np.float32))
        y = b.emit1("MatMul", [x, "w"])
        graph = Graph("g", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
        assert kind in {op.kind for op in build(graph, TrainingOptions()).operators}


def test_boxes_are_four_numbers() -> None:
    step = build(speech(2, 6, 4), TrainingOptions(loss="giou", box_format="xywh"))
    (op,) = [op for op in step.operators if op.kind == "Giou"]
    assert op.attributes == {"format": "xywh"}
    assert step.tensors[step.target].shape == (2, 6, 4)
    with pytest.raises(UsageError, match=r"--loss iou: output 'y' \[4, 12\] is not of boxes"):
        build(speech(4, 12), TrainingOptions(loss="iou"))
    with pytest.raises(UsageError, match="--box-format 'yxyx': did you mean 'xyxy'"):
        TrainingOptions(loss="iou", box_format="yxyx")
