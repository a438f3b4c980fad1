"""What `validate` lets pass and what it does not."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc import artifact, measure, passes
from poetc.commands.validate import validate
from poetc.devices import build_problem, load_profile
from poetc.errors import CheckFailed, UsageError
from poetc.graph import DType, Filed, Graph, Role, TensorType, TrainingGraph, materialize
from poetc.measure._validate import _by_last_bits, _is_of_probabilities
from poetc.ops import Builder
from poetc.program import Call, Interpreter, Program, lower
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions, build

SIZE, CLASSES = 16, 5


def attention(path: Path) -> Path:
    """One head with a bias of its own on the keys, which softmax cancels: its gradient is zero."""
    random = np.random.default_rng(0)
    shapes = {"wq": (SIZE, SIZE), "wk": (SIZE, SIZE), "wv": (SIZE, SIZE), "bq": (SIZE,), "bk": (SIZE,), "bv": (SIZE,)}
    shapes |= {"wo": (SIZE, CLASSES), "bo": (CLASSES,)}
    weights = [
        numpy_helper.from_array((0.3 * random.normal(size=shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    weights.append(numpy_helper.from_array(np.float32(0.25), "scale"))
    nodes = []
    for name in "qkv":
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]))
        nodes.append(helper.make_node("Add", [f"{name}0", f"b{name}"], [name]))
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "wo"], ["l"]),
        helper.make_node("Add", ["l", "bo"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 12, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [4, CLASSES])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_the_rounding_noise_of_a_gradient_that_cancels_is_no_difference(tmp_path: Path) -> None:
    model = poetc.load(attention(tmp_path / "attention.onnx"))
    solution = model.solve(device="stm32f746", budget="80%", gap=1.0, time_limit_s=20)
    found = solution.validate()  # raises CheckFailed
    assert found["passed"] and found["bit_identical_to_keep_all"]


def layers(count: int, width: int) -> tuple[Program, TrainingGraph, int]:
    """The program of products in a row, its graph, and the bytes of all weights."""
    b = Builder()
    x = b.add_tensor("x", TensorType((2, width)), Role.INPUT)
    random, size = np.random.default_rng(0), 0
    for layer in range(count):
        weight = random.normal(0, 0.05, (width, width)).astype(np.float32)
        b.add_tensor(f"w{layer}", TensorType(weight.shape), Role.PARAMETER, weight)
        x = b.emit1("Relu", [b.emit1("MatMul", [x, f"w{layer}"])])
        size += weight.nbytes
    return *keep_all_of(b, x), size


def keep_all_of(b: Builder, result: str, loss: str = "mse") -> tuple[Program, TrainingGraph]:
    graph = Graph("layers", b.tensors, tuple(b.operators), ("x",), (result,), b.values)
    step = passes.run_standard(build(graph, TrainingOptions(loss=loss)))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 30)
    schedule = keep_all(problem)
    return lower(step, problem, schedule, pack(problem, schedule)), step


def test_a_validation_runs_one_step_more_than_it_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    program, step, _ = layers(2, 16)
    run, ran = measure.HostModel.run, list[str]()
    monkeypatch.setattr(
        measure.HostModel, "run", lambda model, inputs: ran.append(model.program.name) or run(model, inputs)
    )
    for steps in (1, 2):
        ran.clear()
        result = measure.validate(program, program, step.values, steps=steps)
        assert result.problems() == () and result.steps == steps
        assert ran == [program.name] * (steps + 1) + ["keep_all"] * steps


def test_a_peak_that_is_not_as_predicted_is_measured_again_by_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last byte of the arena may be the filling by chance, in steps with other numbers."""
    program, step, _ = layers(2, 16)
    touched, calls = measure.HostModel.touched_bytes, list[int]()

    def by_chance(model: measure.HostModel, pattern: int) -> tuple[int, ...]:
        calls.append(pattern)
        return tuple(end - (len(calls) <= 2) for end in touched(model, pattern))

    monkeypatch.setattr(measure.HostModel, "touched_bytes", by_chance)
    assert measure.validate(program, program, step.values, steps=1).problems() == ()
    assert len(calls) == 4


@pytest.mark.parametrize("of_tokens", [False, True])
def test_last_bits_bring_a_number_to_either_side_of_a_kink(tmp_path: Path, of_tokens: bool) -> None:
    """Rounding alone may leave it on the other side, as in MobileNetV2, where a gradient changed by 0.3 %.

    Tokens have no last bits, but the rows of the table that they name have.
    """
    bit = np.finfo(np.float32).eps
    for side, before in ((bit, True), (-bit, False)):
        row, b = np.array([[1 + side, 1]], np.float32), Builder()
        b.add_tensor("w", TensorType((2, 1)), Role.PARAMETER, np.array([[1], [-1]], np.float32))
        if of_tokens:
            b.add_tensor("x", TensorType((1,), DType.I32), Role.INPUT)
            b.add_tensor("table", TensorType((3, 2)), Role.CONSTANT, np.repeat(row, 3, 0))
            x = b.emit1("Gather", ["table", "x"], {"axis": 0})
        else:
            x = b.add_tensor("x", TensorType((1, 2)), Role.INPUT)
        program, step = keep_all_of(b, b.emit1("Relu", [b.emit1("MatMul", [x, "w"])]))
        batch = {"x": np.array([2], np.int32) if of_tokens else row, "target": np.ones((1, 1), np.float32)}
        interpreter = Interpreter(program, step.values)
        loss = interpreter.run(batch)
        assert bool(interpreter.probes["w"].any()) is before
        found = _by_last_bits(program, step.values, batch, interpreter.probes, loss, tmp_path / str(before))
        assert found[0] >= 1


def test_last_bits_hide_no_wrong_gradient_of_tokens() -> None:
    """A product of the C that is off by 0.01 % is found, though the rows of the table were nudged."""
    random, b = np.random.default_rng(0), Builder()
    x = b.add_tensor("x", TensorType((1, 6), DType.I32), Role.INPUT)
    for name, rows in (("table", 20), ("w0", 8), ("w1", 8)):
        b.add_tensor(name, TensorType((rows, 8)), Role.PARAMETER, random.normal(0, 0.5, (rows, 8)).astype(np.float32))
    hidden = b.emit1("MatMul", [b.emit1("Gather", ["table", x], {"axis": 0}), "w0"], {"alpha": 0.5})
    program, step = keep_all_of(b, b.emit1("MatMul", [b.emit1("Relu", [hidden]), "w1"], {"alpha": 0.5}))
    assert measure.validate(program, program, step.values, steps=1).problems() == ()
    products = [c for c in program.instructions if isinstance(c, Call) and c.kind == "MatMul" and c.floats]
    assert len(products) >= 4, "two of them are backward"
    for product in products:
        wrong = replace(product, floats=tuple(1.0001 * number for number in product.floats))
        instructions = tuple(wrong if call is product else call for call in program.instructions)
        planted = replace(program, instructions=instructions)
        found = measure.validate(planted, planted, step.values, steps=1)
        assert found.bit_identical_to_keep_all and 0 < found.last_bits_grad_rel_error < 1e-5
        assert any("gradients differ" in problem for problem in found.problems()), product.operator


def test_a_gradient_of_zero_passes_for_no_step() -> None:
    """Not even where last bits change gradients by a third, as in a network with batch norms of one image."""
    program, step, _ = layers(2, 16)
    found = measure.validate(program, program, step.values, steps=1)
    bad = replace(found, max_grad_rel_error=0.31, last_bits_grad_rel_error=0.31, last_bits_loss_rel_error=0.31)
    assert bad.problems() == ()
    assert len(replace(bad, max_grad_rel_error=1.0).problems()) == 1
    assert len(replace(bad, loss_rel_error=1.0).problems()) == 1


def test_a_validation_holds_the_weights_twice() -> None:
    """Beside the values an arena of one program at a time, and a few copies of one tensor."""
    program, step, size = layers(16, 256)
    tracemalloc.start()
    try:
        result = measure.validate(program, program, step.values, steps=3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.problems() == ()
    assert peak < 1.5 * size, "besides the values, which were there before"


def test_a_validation_makes_no_copy_of_a_large_tensor() -> None:
    """A table of words that is the head, too, is a fifth of some models: its gradient is made a block at a time."""
    b = Builder()
    random, words = np.random.default_rng(0), 1 << 15
    table = random.normal(0, 0.05, (words, 128)).astype(np.float32)
    ids = b.add_tensor("ids", TensorType((1, 4), DType.I32), Role.INPUT)
    b.add_tensor("table", TensorType(table.shape), Role.PARAMETER, table)
    hidden = b.emit1("Gather", ["table", ids], {"axis": 0})
    logits = b.emit1("MatMul", [hidden, "table"], {"trans_b": True})
    graph = Graph("tied", b.tensors, tuple(b.operators), ("ids",), (logits,), b.values)
    step = passes.run_standard(build(graph, TrainingOptions(loss="cross-entropy")))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 30)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    tracemalloc.start()
    try:
        result = measure.validate(program, program, step.values, steps=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.problems() == ()
    assert peak < program.arena_bytes + 0.9 * table.nbytes


def heavy(folder: Path) -> Path:
    """A solved directory whose weights are nearly all of it: 8 products with 512 x 512 of them."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(0, 0.05, (512, 512)).astype(np.float32), f"w{i}") for i in range(8)
    ]
    nodes = [helper.make_node("MatMul", [f"y{i}" if i else "x", f"w{i}"], [f"y{i + 1}"]) for i in range(8)]
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 512]) for name in ("x", "y8"))
    graph = helper.make_graph(nodes, "heavy", *([end] for end in ends), weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "m.onnx")
    model = poetc.load(folder / "m.onnx", training=TrainingOptions(loss="mse"))
    model.solve(device="host", budget="100%", paging=False, time_limit_s=5).save(folder / "solved")
    return folder / "solved"


def test_the_command_holds_the_weights_in_the_arena_alone(tmp_path: Path) -> None:
    """Values stay in their file: less than 2 x the weights in all, arena, gradients and an image of them included."""
    directory = heavy(tmp_path)
    size = 8 * 512 * 512 * 4
    arena = artifact.read(directory).plan.arena_bytes
    assert arena < 1.3 * size
    tracemalloc.start()
    try:
        checked = validate(directory, steps=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert checked.problems == ()
    assert peak < min(2 * size, arena + 0.75 * size)


def test_values_that_are_exchanged_during_a_validation_are_told(tmp_path: Path) -> None:
    directory = heavy(tmp_path)
    solved = artifact.read(directory, filed=True)
    assert solved.graph is not None
    value = solved.graph.values["w3"]
    assert isinstance(value, Filed)
    held = artifact.read(directory).graph
    assert held is not None
    np.testing.assert_array_equal(materialize(value, held.tensors["w3"].type), held.values["w3"])  # type: ignore[arg-type]
    file = directory / "values.npz"
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(UsageError, match="was changed while it was in use"):
        value.read()
    file.write_bytes(data[:-1])
    with pytest.raises(UsageError, match="was changed while it was in use"):
        value.read()


def sure(path: Path, classes: int, lead: float) -> Path:
    """A classifier whose last class is ahead of the others by about `lead`."""
    random = np.random.default_rng(3)
    weight = numpy_helper.from_array((0.1 * random.normal(size=(8, classes))).astype(np.float32), "w")
    bias = (0.1 * random.normal(size=classes) + lead * np.eye(classes)[-1]).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "sure",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        [weight, numpy_helper.from_array(bias, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def float64_reference(path: Path, target: int) -> dict[str, np.ndarray]:
    """Loss and gradients of a step of `sure`, by the formulas in float64."""
    w, b = (numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(path).graph.initializer)
    x = np.random.default_rng(0).normal(size=(1, len(w)))
    scores = x @ w + b
    others = np.exp(scores[0] - scores[0, target])
    others[target] = 0
    p = others / (1 + others.sum())
    slope = p.copy()
    slope[target] = -p.sum()
    return {
        "in.x": x.astype(np.float32), "target": np.array([target], np.int32), "loss": np.log1p(others.sum()),
        "grad.w": x.T * slope, "grad.b": slope,
    }  # fmt: skip


@pytest.mark.parametrize("lead", [13.0, 14.3, 15.1, 16.2])
def test_a_model_that_is_sure_of_its_target_has_the_last_bit_of_a_probability(tmp_path: Path, lead: float) -> None:
    """Its gradients of 5e-7 are left of numbers near 1: a unit of those is no fault, and any other is one."""
    path = sure(tmp_path / "sure.onnx", 4, lead)
    expected = float64_reference(path, target=3)
    model = poetc.load(path)
    np.savez(tmp_path / "reference.npz", **expected)
    solved = model.solve(device="stm32f746", time_limit_s=1)
    document = solved.validate(tmp_path / "reference.npz", steps=1)
    assert document["probability_rel_error"] == pytest.approx(2.0**-23 / max(expected["loss"], 2.0**-23))
    np.savez(tmp_path / "other.npz", **{**expected, "grad.w": expected["grad.w"].reshape(-1)})
    with pytest.raises(UsageError, match=r"other\.npz gives 'grad\.w' in shape \(\d+,\), the program computes it in"):
        solved.validate(tmp_path / "other.npz", steps=1)
    np.savez(tmp_path / "wrong.npz", **{**expected, "grad.w": expected["grad.w"] / 100})
    with pytest.raises(CheckFailed, match="gradients differ from the reference"):
        solved.validate(tmp_path / "wrong.npz", steps=1)


@pytest.mark.parametrize("loss", ["cross-entropy", "bce", "dice", "ctc", "mse", "huber", "focal"])
def test_the_last_bit_of_a_probability_is_no_excuse_of_other_losses(loss: str) -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 3, 4) if loss == "ctc" else (2, 4)), Role.INPUT)
    w = b.add_tensor("w", TensorType((4, 4)), Role.PARAMETER, np.eye(4, dtype=np.float32))
    program, _ = keep_all_of(b, b.emit1("MatMul", [x, w]), loss)
    assert _is_of_probabilities(program) == (loss not in ("mse", "huber", "focal"))
