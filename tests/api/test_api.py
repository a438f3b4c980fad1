"""`import poetc`: fast, typed, the same answers as the command line."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import poetc
from poetc.errors import UsageError
from tests.support.small import small_model

MODEL = small_model()


@pytest.fixture(scope="module")
def solution() -> poetc.Solution:
    model = poetc.load(MODEL, batch=4, training=poetc.TrainingOptions(optimizer="momentum"))
    return model.solve(device="stm32f746", budget="65%", gap=0.1, time_limit_s=90)


def test_import_loads_nothing_else() -> None:
    code = (
        "import sys, poetc; print([m for m in ('numpy', 'onnx', 'highspy', 'click', 'poetc.api') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_without_a_file() -> None:
    whole = poetc.load(onnx.load(MODEL), batch=4)
    assert whole.parameters == poetc.load(MODEL, batch=4).parameters
    assert whole.solve(budget="80%", gap=0.2, time_limit_s=2).summary["keep_all_peak_bytes"] > 0
    with pytest.raises(UsageError, match="a bytes is neither a path"):
        poetc.load(b"model")  # type: ignore[arg-type]


def test_lengths_of_dimensions() -> None:
    (name,) = poetc.load(MODEL, batch=1).graph.inputs
    shape = poetc.load(MODEL, batch=1).graph.tensors[name].shape
    found = poetc.load(MODEL, shapes={name: (3, *shape[1:])})
    assert found.graph.tensors[name].shape == (3, *shape[1:])
    with pytest.raises(UsageError, match="--dim length=4: no input has a symbolic dimension of that name"):
        poetc.load(MODEL, batch=1, dims={"length": 4})


def test_options_may_be_a_dictionary() -> None:
    options = {"optimizer": "adam", "learning_rate": 0.01}
    found = poetc.load(MODEL, batch=4, training=options)
    assert found.training == poetc.load(MODEL, batch=4, training=poetc.TrainingOptions(**options)).training
    for wrong, message in (({"rate": 1}, "unexpected keyword argument 'rate'"), ("adam", "training: ")):
        with pytest.raises(poetc.PoetcError, match=message):
            poetc.load(MODEL, batch=4, training=wrong)  # type: ignore[arg-type]


def test_every_public_name_is_there() -> None:
    assert [name for name in dir(poetc) if not name.startswith("__")] == sorted(poetc.__all__)
    for name in poetc.__all__:
        assert getattr(poetc, name).__name__ == name
    assert set(poetc.__all__) <= set(dir(poetc))
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        _ = poetc.solv  # type: ignore[attr-defined]


def test_a_model_shows_itself() -> None:
    model = poetc.load(MODEL, batch=4)
    assert model.parameters > 1000
    assert f"parameters {model.parameters:,}" in repr(model)
    table = ElementTree.fromstring(model._repr_html_())
    assert table.findtext("caption") == MODEL.name
    assert model.analyze(device="stm32f746")["parameters"] == model.parameters


def test_solve(solution: poetc.Solution) -> None:
    assert solution.status in ("optimal", "feasible")
    assert solution.peak_bytes <= solution.problem.budget_bytes < solution.summary["keep_all_peak_bytes"]
    assert solution.energy_pj == solution.schedule.proof.objective >= solution.summary["compute_once_pj"]
    assert 0 <= solution.gap <= 0.1
    assert solution.time_ns > 0
    assert "digits" in solution.report()


def test_weights_go_out_by_name_and_come_back(solution: poetc.Solution, tmp_path: Path) -> None:
    solution.export(None, tmp_path / "start.npz")
    with np.load(tmp_path / "start.npz") as archive:
        state = {name: archive[name] + np.float32(0.125) for name in archive.files}
    other = solution.with_state(state)
    assert other.schedule == solution.schedule
    other.export(None, tmp_path / "other.onnx")
    written = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "other.onnx").graph.initializer}
    assert all(np.array_equal(written[name], array) for name, array in state.items())
    with pytest.raises(UsageError, match="'nobody', which the model has not"):
        solution.export({**state, "nobody": np.zeros(1)}, tmp_path / "no.onnx")


def test_a_solution_shows_itself(solution: poetc.Solution) -> None:
    assert "stm32f746" in repr(solution)
    page = ElementTree.fromstring(f"<div>{solution._repr_html_()}</div>")
    assert [child.tag for child in page] == ["table", "svg", "div"]
    assert "red: budget" in "".join(page.itertext())
    assert "energy (modelled)" in [cell.text for cell in page.iter("th")]


def test_save_open_emit(solution: poetc.Solution, tmp_path: Path) -> None:
    saved = solution.save(tmp_path / "digits.poetc")
    again = poetc.open_solution(saved)
    assert again.schedule == solution.schedule
    assert again.plan == solution.plan
    assert not solution.diff(again).sentences
    assert str(solution.diff(again)) == "The schedules do the same."
    emitted = again.emit(tmp_path / "src", target="host")
    assert emitted["train_arena_bytes"] == solution.plan.arena_bytes
    assert (tmp_path / "src" / "Makefile").exists()


@pytest.mark.searches
def test_a_problem_of_ones_own(solution: poetc.Solution, tmp_path: Path) -> None:
    saved = solution.save(tmp_path / "digits.poetc")
    problem = poetc.load_problem(saved / "problem.json")
    assert "problem.json" in repr(problem)
    again = problem.solve(gap=0.05, time_limit_s=30)
    assert again.problem == solution.problem  # without the model there are fewer schedules, so energies may differ
    assert again.summary["gap"] <= 0.05
    assert again.summary["peak_bytes"] <= solution.problem.budget_bytes


def test_errors_are_the_projects(tmp_path: Path) -> None:
    with pytest.raises(poetc.PoetcError):
        poetc.load(tmp_path / "none.onnx")
    with pytest.raises(poetc.PoetcError, match="smallest budget") as error:
        poetc.load(MODEL, batch=4).solve(device="stm32f746", budget="5kB", time_limit_s=20)
    assert error.value.details["min_budget_bytes"]


@pytest.mark.parametrize(
    "options", [{"time_limit_s": 0.0}, {"time_limit_s": -1.0}, {"seed": -1}, {"objective": "moon"}, {"gap": 2.0}]
)
def test_what_the_command_line_would_refuse(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"must be|there are"):
        poetc.load_problem(tmp_path / "none.json").solve(**options)


def test_devices() -> None:
    devices = poetc.list_devices()
    assert devices["stm32f746"].ram_bytes == 327_680
    assert len(devices) >= 16
    # In a notebook each is one line, not hundreds of numbers with their sources.
    assert repr(devices["stm32f746"]).startswith("<device stm32f746: ")
    assert all(len(repr(device)) < 160 for device in devices.values())
    assert len(list(ElementTree.fromstring(devices._repr_html_()).iter("tr"))) == len(devices)


def test_a_trainer_takes_steps(solution: poetc.Solution, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    with solution.trainer(undo=True) as trainer:
        assert trainer.programs == ("train", "infer", "evaluate")
        (x, (shape, dtype)), (target, (classes, _)) = trainer.inputs().items()
        images, labels = random.standard_normal(shape).astype(dtype), random.integers(0, 10, classes)
        losses = [trainer.step(images, labels) for _ in range(8)]
        assert losses[-1] < losses[0]
        assert trainer.predict(images).shape == (4, 10)
        with pytest.raises(ValueError, match="not 0 to 9"):
            trainer.step(images, labels + 10)
        predicted = trainer.manifest["session"]["programs"]["train"]["high_water_bytes"]
        assert trainer.measure_peak({x: images, target: labels}) == predicted
        assert trainer.steps == 8
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="make not found: install make and gcc") as raised:
        solution.trainer()
    assert "\n" not in str(raised.value)


def test_what_validate_would_not_use_is_refused(solution: poetc.Solution) -> None:
    with pytest.raises(UsageError, match="steps does nothing where switches are compared"):
        solution.validate(steps=1, switches=1)
    with pytest.raises(UsageError, match="reference does nothing"):
        solution.validate("reference.npz", switches="all")


@pytest.mark.long
def test_a_bundle_of_plans() -> None:
    model = poetc.load(MODEL, batch=4)
    found = model.bundle(device="stm32f746", budgets=("100%", "60%"), gap=0.1, time_limit_s=5)
    assert [p["budget_bytes"] for p in found.summary["bundle"]["plans"]] == sorted(
        (p["budget_bytes"] for p in found.summary["bundle"]["plans"]), reverse=True
    )
    assert found.validate(switches=3)["tried"] == 3
    with pytest.raises(UsageError, match="--budgets or --points"):
        model.bundle()
