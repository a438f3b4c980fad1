"""Predictions keep to the budget of training: the model itself is scheduled where keeping all of it would not fit."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from poetc import artifact
from poetc.commands import programs
from poetc.commands.solve import LEAST_S, smallest_budget_known
from poetc.devices.streaming import StreamedAlternatives
from poetc.errors import LimitError
from poetc.events import silent
from poetc.measure import HostModel, compile_library
from poetc.planning import RamSearch, SmallestRam, inference, smallest_ram
from poetc.program import Interpreter, PageIn, PageOut, sample_inputs
from poetc.scheduling import Problem
from tests.cli.conftest import Ended, run
from tests.support.problems import training_problem

pytestmark = pytest.mark.searches
BOARD = ("-d", "stm32f746", "--gap", "0.5", "--time-limit", "60")


@pytest.fixture(scope="module")
def tight(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    out = tmp_path_factory.mktemp("tight") / "digits.poetc"
    ended = run("solve", model, *BOARD, "--batch", "4", "-b", "55%", "--state", "ram", "-o", out)
    assert ended.code == 0, ended.err
    return out, ended


def test_predictions_are_scheduled_where_time_is_minimised(model: Path) -> None:
    ended = run("solve", model, *BOARD, "--batch", "4", "-b", "55%", "--state", "ram", "--objective", "time")
    assert ended.code == 0, ended.err
    assert "note: predictions are scheduled too, in " in ended.err


def test_predictions_take_no_more_than_training_and_give_the_same_bits(
    tight: tuple[Path, Ended], tmp_path: Path
) -> None:
    """On state that training left, which training finds again afterwards."""
    out, ended = tight
    assert "note: predictions are scheduled too, in " in ended.err
    solved = artifact.read(out)
    training = programs.training_program(solved)
    scheduled, evaluation = programs.inference_programs(solved, training)
    plain = replace(solved, inference_schedule=None, inference_plan=None)
    kept = next(iter(programs.inference_programs(plain, training)), None)
    assert solved.inference_problem is not None and (out / "inference_problem.json").is_file()
    assert kept is not None and solved.graph is not None and solved.inference is not None
    assert max(scheduled.arena_bytes, evaluation.arena_bytes) <= training.arena_bytes < kept.arena_bytes
    assert solved.problem.base_bytes + kept.arena_bytes > solved.problem.budget_bytes
    assert scheduled.state == kept.state
    assert any(isinstance(i, PageOut) for i in scheduled.instructions), "weights leave RAM and come back"
    assert any(isinstance(i, PageIn) for i in scheduled.instructions) and not scheduled.updates_state
    values = {**solved.inference.values, **solved.graph.values}
    lowered = [training, scheduled, evaluation, replace(kept, name="kept")]
    library = compile_library(lowered, values, tmp_path)
    inputs = sample_inputs(training, 3)
    with HostModel(library, lowered, values) as host:
        losses = [host.run(inputs) for _ in range(2)]
        state = {name: host.state(name) for name in host.state_names()}
        found = []
        for program in lowered[1:]:
            host.select(program)
            host.run(inputs)
            found.append(host.output(program.outputs[-1].name))
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
        assert np.abs(found[0]).max() > 0
        host.select(training)
        assert all(np.array_equal(host.state(name), state[name]) for name in state)
        assert host.run(inputs) < losses[0]


def test_a_directory_of_before_has_a_plan_for_the_model_alone(tight: tuple[Path, Ended]) -> None:
    """And no problem beside it: kernels are told by the workspaces in the plan."""
    solved = artifact.read(tight[0])
    assert solved.graph is not None and solved.inference is not None and solved.profile is not None
    alone = inference.alone_problem(solved.inference, solved.profile, solved.problem)
    solution = solved.problem, solved.schedule, solved.plan
    offer = StreamedAlternatives(solved.inference, solved.profile, alone, moves_state=False)
    found = inference._within_budget(
        solved.graph, alone, offer, *solution, 60, time.monotonic() + 60, lambda text: None
    )
    assert found.problem is not None
    training = programs.training_program(solved)
    now = replace(solved, inference_problem=found.problem, inference_schedule=found.schedule, inference_plan=found.plan)
    scheduled, evaluation = programs.inference_programs(now, training)
    assert programs.inference_programs(replace(now, inference_problem=None), training) == (scheduled, evaluation)
    assert scheduled.arena_bytes <= training.arena_bytes < evaluation.arena_bytes


def test_a_search_that_the_time_limit_ended_says_so(tight: tuple[Path, Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    solved = artifact.read(tight[0])
    assert solved.graph is not None and solved.inference is not None and solved.profile is not None
    parts = solved.graph, solved.inference, solved.profile, solved.problem, solved.schedule, solved.plan

    def nothing(*words: object) -> None:
        raise LimitError("found no schedule")

    monkeypatch.setattr(inference.solvers, "solve", nothing)
    notes = [inference.within_budget(*parts, limit_s, lambda text: None).note for limit_s in (0.0, 3600.0)]
    assert all("no schedule of the model itself was found" in note for note in notes)
    without = [re.sub(r"[\d,]+\d", "N", note) for note in notes]  # less time may pack into a few bytes more
    assert without[0] == f"{without[1]}; the time limit ended the search for one"


def test_both_searches_are_within_one_limit(tight: tuple[Path, Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    solved = artifact.read(tight[0])
    assert solved.graph is not None and solved.inference is not None and solved.profile is not None
    parts = solved.graph, solved.inference, solved.profile, solved.problem, solved.schedule, solved.plan
    given: list[float] = []

    def nothing(*parts: object) -> inference.InferencePlan:
        given.append(parts[6])  # type: ignore[arg-type]
        return inference.InferencePlan(note="nothing found")

    monkeypatch.setattr(inference, "_within_budget", nothing)
    inference.within_budget(*parts, 8.0, lambda text: None)
    assert len(given) == 2 and given[0] <= 4.0, "the second one has what the first one leaves"


def test_the_smallest_budget_is_not_looked_for_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that has begun before is asked for its result."""
    asked: list[float] = []

    def searched(problem: Problem, time_limit_s: float, work_limit_s: float) -> SmallestRam:
        asked.append(time_limit_s)
        return SmallestRam(ram_bytes=7, bound_bytes=7, schedule=None, plan=None, tensors=())

    monkeypatch.setattr(smallest_ram, "find_smallest_ram", searched)
    problem = training_problem(Random(0), 1)
    search, now = RamSearch(problem, 6.0), time.monotonic()
    answer: Any = SimpleNamespace(smallest_ram=search, search_s=6.0)
    smallest, note = smallest_budget_known(answer, now - 1, silent)
    assert smallest is None and not asked and note.startswith("no time was left")
    assert smallest_budget_known(answer, now + 3600, silent) == (7, "") and asked == [LEAST_S]
    assert smallest_budget_known(answer, now - 1, silent) == (7, "") and len(asked) == 1


@pytest.mark.parametrize(("bound_bytes", "left_s", "is_noted"), [(5, 2.0, True), (7, 2.0, False), (5, 3600.0, False)])
def test_a_search_for_the_smallest_budget_that_time_cut_short_is_noted(
    bound_bytes: int, left_s: float, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget at its bound is the smallest, however short the search was."""
    smallest = SmallestRam(ram_bytes=7, bound_bytes=bound_bytes, schedule=None, plan=None, tensors=())
    monkeypatch.setattr(smallest_ram, "find_smallest_ram", lambda *_: smallest)
    answer: Any = SimpleNamespace(smallest_ram=RamSearch(training_problem(Random(0), 1), 6.0), search_s=6.0)
    known, note = smallest_budget_known(answer, time.monotonic() + left_s, silent)
    assert known == 7 and ("cut short by time" in note) is is_noted


@pytest.mark.long
def test_what_does_not_fit_is_said_when_it_is_solved(digits: Path, tmp_path: Path) -> None:
    """Training takes the batch in parts, predictions all of it."""
    out = tmp_path / "solved"
    options = ("-b", "216kB", "--batch", "16", "--micro-batches", "8", "--no-paging")
    ended = run("solve", digits, *BOARD, *options, "-o", out)
    assert ended.code == 0, ended.err
    assert "no schedule of the model itself was found that does: predictions take" in ended.err
    ended = run("emit", out, "--target", "cortex-m", "-o", tmp_path / "src")
    header = (tmp_path / "src" / "model.h").read_text()
    whole, alone = (int(re.findall(rf"DIGITS_{n}ARENA_BYTES (\d+)u", header)[0]) for n in ("", "TRAIN_"))
    assert alone < whole
    larger = r"the program infer takes one of [\d,]+ and the program evaluate takes one of"
    assert re.search(rf"an arena of {alone:,}; {larger} {whole:,}", ended.err)
    assert f"{alone:,} B for training alone" in ended.out
    assert f"(`DIGITS_TRAIN_ARENA_BYTES`) | {alone} |" in (tmp_path / "src" / "README.md").read_text()
    firmware = run("emit", out, "--target", "cortex-m7", "-o", tmp_path / "firmware", "--json").json
    assert firmware["programs"] == ["train"]  # it is linked for the budget


def test_predictions_have_a_batch_of_their_own(model: Path, tmp_path: Path) -> None:
    """One row computes what it computes among others."""
    out = tmp_path / "solved"
    ended = run("solve", model, *BOARD, "--batch", "4", "--infer-batch", "1", "-b", "100%", "-o", out)
    assert ended.code == 0, ended.err
    solved = artifact.read(out)
    assert solved.graph is not None and solved.inference is not None
    training = programs.training_program(solved)
    infer, evaluation = programs.inference_programs(solved, training)
    assert {b.operand.type.shape[0] for p in (infer, evaluation) for b in (*p.inputs, p.outputs[-1])} == {1}
    assert evaluation.target is not None and evaluation.target.operand.type.shape == (1,)
    whole = run("solve", model, *BOARD, "--batch", "4", "-b", "100%", "-o", tmp_path / "whole")
    assert whole.code == 0
    of_four = programs.inference_programs(artifact.read(tmp_path / "whole"), training)[1]
    assert evaluation.arena_bytes < of_four.arena_bytes
    values = {**solved.inference.values, **solved.graph.values}
    inputs = sample_inputs(of_four, 5)
    by_four = Interpreter(of_four, values)
    mean = by_four.run(inputs)
    by_one, losses = Interpreter(evaluation, values), []
    for k in range(4):
        losses.append(by_one.run({name: array[k : k + 1] for name, array in inputs.items()}))
        np.testing.assert_allclose(by_one.output("logits")[0], by_four.output("logits")[k], rtol=1e-4, atol=1e-5)
    assert np.mean(losses) == pytest.approx(mean, rel=1e-5)


def test_a_batch_that_the_model_cannot_have_is_refused_in_one_line(tmp_path: Path) -> None:
    """A file that holds its batch of 4 in a constant."""
    rows = onnx.numpy_helper.from_array(np.ones((4, 6), np.float32), "rows")
    weight = onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w")
    nodes = [oh.make_node("Add", ["x", "rows"], ["h"]), oh.make_node("MatMul", ["h", "w"], ["y"])]
    x = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 6])
    y = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 3])
    file = tmp_path / "fixed.onnx"
    onnx.save(oh.make_model(oh.make_graph(nodes, "g", [x], [y], [rows, weight])), file)
    ended = run("solve", file, "--infer-batch", "1", "-o", tmp_path / "solved")
    assert ended.code == 2 and "Traceback" not in ended.err
    (line,) = [text for text in ended.err.splitlines() if "error" in text.lower() or "--infer-batch" in text]
    assert "--infer-batch 1: " in line and "holds its batch in a constant: output 'y'" in line
    assert not (tmp_path / "solved").exists()
    ended = run("solve", file, "--micro-batches", "2", "-o", tmp_path / "solved", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "--micro-batches 2: " in ended.err and "use --micro-batches 1" in ended.err and "--batch 4" not in ended.err


def test_a_head_that_the_loss_does_not_reach_predicts(tmp_path: Path) -> None:
    """On the host its weights have no place among the state of training."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((6, n)).astype(np.float32) for name, n in {"v": 4, "w": 2}.items()}
    nodes = [oh.make_node("MatMul", ["x", "v"], ["cls"]), oh.make_node("MatMul", ["x", "w"], ["reg"])]
    outputs = [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("cls", "reg")]
    inputs = [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 6])]
    held = [onnx.numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = oh.make_graph(nodes, "heads", inputs, outputs, held)
    path = tmp_path / "heads.onnx"
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)]), path)
    ended = run("solve", path, "--loss", "reg=mse", "--solver", "keep_all", "-o", tmp_path / "heads")
    assert ended.code == 0, ended.err
    solved = artifact.read(tmp_path / "heads")
    training = programs.training_program(solved)
    infer, _ = programs.inference_programs(solved, training)
    assert [b.name for b in infer.constants] == ["v"]
    assert solved.inference is not None and solved.graph is not None
    program = Interpreter(infer, {**solved.inference.values, **solved.graph.values})
    x = random.standard_normal((3, 6)).astype(np.float32)
    program.run({"x": x})
    for name, weight in {"cls": "v", "reg": "w"}.items():
        np.testing.assert_allclose(program.output(name), x @ weights[weight], rtol=1e-5, atol=1e-6)


def test_losses_of_several_outputs_may_be_given_one_by_one(tmp_path: Path) -> None:
    """A repeated option would otherwise lose all but the last."""
    twice = run("analyze", tmp_path / "m.onnx", "--loss", "mse", "--loss", "l1")
    assert (twice.code, twice.err) == (
        2,
        "poetc: error: --loss is given twice; for several outputs write OUTPUT=LOSS each time\n",
    )
