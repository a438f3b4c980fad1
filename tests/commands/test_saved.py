"""Saved tensors in fewer bytes, from the ONNX file to the bits of the compiled C."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.artifact import Artifact
from poetc.commands import compare, encodings, sweep
from poetc.commands.compare import CompareRequest
from poetc.commands.encodings import notes_of_none
from poetc.commands.requests import ModelRequest, SolveRequest, training_graph
from poetc.errors import LimitError, UsageError
from poetc.events import silent
from poetc.graph import Phase
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions


def network(path: Path, depth: int = 1) -> Path:
    """Convolution and ReLU, `depth` times, max pooling, convolution, ReLU, dense layer."""
    random = np.random.default_rng(2)
    weights = []
    nodes = []

    def layer(kind: str, x: str, y: str, *shape: int, **attributes: object) -> None:
        weight = random.normal(0, 0.3, shape).astype(np.float32)
        weights.extend([numpy_helper.from_array(weight, f"w{len(weights) + 1}")] if shape else [])
        nodes.append(helper.make_node(kind, [x, weights[-1].name] if shape else [x], [y], **attributes))

    for i in range(depth):
        layer("Conv", f"x{i}" if i else "x", f"a{i}", 8, 8 if i else 1, 3, 3, pads=[1, 1, 1, 1])
        layer("Relu", f"a{i}", f"x{i + 1}")
    layer("MaxPool", f"x{depth}", "b", kernel_shape=[2, 2], strides=[2, 2])
    layer("Conv", "b", "c", 8, 8, 3, 3, pads=[1, 1, 1, 1])
    layer("Relu", "c", "d")
    layer("Flatten", "d", "e")
    layer("MatMul", "e", "y", 288, 5)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def solved(folder: Path, saved: str, budget: str, depth: int = 1) -> poetc.Solution:
    path = network(folder / "network.onnx", depth)
    model = poetc.load(path, training=TrainingOptions(saved=saved, optimizer="momentum"))
    return model.solve(device="stm32f746", budget=budget, paging=False, gap=0.3, time_limit_s=30)


def test_lossless_encodings_have_the_bits_of_keep_all_without_them(tmp_path: Path) -> None:
    solution = solved(tmp_path, "exact", "80%")
    assert {e["format"] for e in solution.summary["saved"]} == {"slope", "place"}
    assert any("(the same results)" in note for note in solution.summary["notes"])
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"]
    assert found["saved_errors"] == ()


@pytest.mark.long
@pytest.mark.parametrize(("saved", "budget", "largest"), [("f16", "67%", 1e-3), ("int8", "70%", 2e-2)])
def test_lossy_encodings_have_the_same_bits_under_each_schedule_and_their_error_is_told(
    tmp_path: Path, saved: str, budget: str, largest: float
) -> None:
    solution = solved(tmp_path, saved, budget, depth=4)
    assert {e["format"] for e in solution.summary["saved"]} >= {"slope", saved}
    found = solution.validate()
    assert found["bit_identical_to_keep_all"]
    errors = {e["name"]: e["rel_error"] for e in found["saved_errors"]}
    assert errors.keys() == {f"w{i}" for i in range(1, 7)}
    assert 0 < max(errors.values()) < largest


@pytest.mark.long
def test_auto_is_as_exact_as_the_budget_allows(tmp_path: Path) -> None:
    roomy, tight = (solved(tmp_path, "auto", budget, depth=4) for budget in ("100%", "67%"))
    assert roomy.summary["saved"] == []
    assert "f16" in {e["format"] for e in tight.summary["saved"]}


def test_what_cannot_have_encodings_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--saved f16: --precision niti saves integers of 8 bits already"):
        TrainingOptions(saved="f16", precision="niti")
    with pytest.raises(UsageError, match="--saved 'int4': did you mean 'int8'"):
        TrainingOptions(saved="int4")
    request = ModelRequest(source=network(tmp_path / "n.onnx"), training=TrainingOptions(saved="auto"))
    with pytest.raises(UsageError, match="--saved auto: poetc compare compares schedules of one step; name a format"):
        compare.run(CompareRequest(task=SolveRequest(model=request), budgets=("60%",)))


def test_a_format_that_had_no_effect_is_told(tmp_path: Path) -> None:
    said = [n for n in solved(tmp_path, "f16", "100%").summary["notes"] if "--saved" in n]
    assert said == ["--saved f16 had no effect: the budget has room for every tensor"]
    for saved in ("exact", "auto"):
        assert not [n for n in solved(tmp_path, saved, "100%").summary["notes"] if "--saved" in n]
    step = training_graph(ModelRequest(source=network(tmp_path / "n.onnx"), training=TrainingOptions(saved="int8")))[1]
    (note,) = notes_of_none(step, 2, 1)
    assert note == "--saved int8 had no effect: the cheapest schedule that was found has no encodings"
    alone = replace(step, operators=tuple(op for op in step.operators if op.phase is Phase.FORWARD))
    (note,) = notes_of_none(alone, 2, 1)
    assert note == "--saved int8 had no effect: the step saves no tensor that has such an encoding"


@pytest.mark.long
def test_a_bundle_takes_lossless_encodings_where_nothing_else_fits(tmp_path: Path) -> None:
    model = poetc.load(network(tmp_path / "n.onnx"))
    bundle = model.bundle(device="stm32f746", budgets=("100%", "80%"), paging=False, gap=0.3, time_limit_s=8)
    assert {e["format"] for e in bundle.summary["saved"]} == {"slope", "place"}
    assert bundle.validate()["saved_errors"] == ()


@pytest.mark.long
def test_all_plans_of_a_bundle_have_the_encodings_of_the_smallest(tmp_path: Path) -> None:
    model = poetc.load(network(tmp_path / "n.onnx", depth=4), training=TrainingOptions(saved="int8"))
    bundle = model.bundle(device="stm32f746", budgets=("100%", "63%"), paging=False, gap=0.3, time_limit_s=8)
    assert "int8" in {e["format"] for e in bundle.summary["saved"]}
    assert len(bundle.summary["bundle"]["plans"]) == 2
    assert bundle.validate(switches=1)["passed"]
    assert 0 < max(e["rel_error"] for e in bundle.validate()["saved_errors"]) < 2e-2


def test_a_sweep_asks_of_each_budget_for_itself_how_exact_it_can_be(tmp_path: Path) -> None:
    for form, curves in (("auto", 2), ("int8", 1)):
        model = ModelRequest(source=network(tmp_path / "n.onnx"), training=TrainingOptions(saved=form))
        template = SolveRequest(model=model, options=SolveOptions(time_limit_s=2))
        points = sweep.make_points(template, [model.source], ["stm32f746"], ["100%", "67%"])
        assert len(sweep._curves(points)) == curves


def test_all_forms_together_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes 70 of 100 s, the next one more than its 30; the work that is counted stays."""
    now, limits = [0.0], list[float]()

    def way(request: SolveRequest) -> Artifact:
        assert request.options.work_limit_s == 100.0
        limits.append(request.options.time_limit_s)
        now[0] += 70.0
        raise LimitError("none found")

    monkeypatch.setattr(encodings.time, "monotonic", lambda: now[0])
    model = ModelRequest(source=Path("x.onnx"), training=TrainingOptions(saved="auto"))
    request = SolveRequest(model=model, options=SolveOptions(time_limit_s=100.0, work_limit_s=100.0))
    with pytest.raises(LimitError):
        encodings.as_exactly_as_works(request, way, silent)
    assert limits[:3] == [100.0, 30.0, 20.0][: len(limits)] and len(limits) > 1


def test_a_comparison_has_the_encodings_of_a_format(tmp_path: Path) -> None:
    """Every solver has the step with them, whose peak with all tensors kept is lower."""
    path, rows = network(tmp_path / "n.onnx", depth=4), {}
    for saved in ("exact", "int8"):
        model = ModelRequest(source=path, device="stm32f746", training=TrainingOptions(saved=saved))
        names = ("poetc", "keep_all")
        rows[saved] = compare.run(CompareRequest(task=SolveRequest(model=model), budgets=("100%",), names=names))
    assert rows["int8"].keep_all_peak_bytes < 0.9 * rows["exact"].keep_all_peak_bytes
    assert rows["int8"].operators > rows["exact"].operators
    assert {row.status for row in rows["int8"].rows} == {"optimal"}
