"""Budgets below what a schedule needs without streamed operands: numbers of parts, the least RAM, costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import poetc
from poetc.cli._text import solve_text
from poetc.commands import requests
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.small_ram import Step, step_for_budget
from poetc.commands.solve import solve, solve_budgets
from poetc.commands.validate import validate
from poetc.devices import format_enough
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.passes import for_small_ram
from poetc.planning import Planner, Solution
from poetc.planning.streaming import Streaming
from poetc.scheduling import Problem, verify
from poetc.scheduling.schedule import SolveOptions
from poetc.solvers import lower_bound_bytes
from poetc.training import TrainingOptions
from tests.support.streamed import dense, rectified

DEVICE, BUDGET = "nrf52840", 24_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("model") / "dense.onnx")


def request(model: Path, parts: int | str, budget: str = f"{BUDGET}B", time_limit_s: float = 8) -> SolveRequest:
    training = TrainingOptions(micro_batches=parts)
    asked = ModelRequest(source=model, batch=4, device=DEVICE, training=training)
    return SolveRequest(model=asked, budget=budget, options=SolveOptions(time_limit_s=time_limit_s, gap=0.05))


@pytest.mark.long
def test_parts_of_a_batch_are_compared_with_their_operands_streamed(model: Path) -> None:
    """Each number of parts gets the kernels for little RAM that it has when it is asked for alone."""
    alone = {parts: solve(request(model, parts)).summary for parts in (1, 4)}
    assert all(found["streamed_operators"] for found in alone.values()), "no schedule fits without"
    auto = solve(request(model, "auto", time_limit_s=16)).summary
    assert auto["streamed_operators"] and auto["peak_bytes"] <= BUDGET
    assert auto["energy_pj"] <= 1.05 * min(found["energy_pj"] for found in alone.values())


def test_kernels_of_less_workspace_are_taken_where_fewer_operands_stream_then(tmp_path: Path) -> None:
    """Before, those for the budget were taken wherever they fitted: 13 % dearer here."""
    asked = replace(request(rectified(tmp_path / "rectified.onnx"), 1), smallest=False)
    graph, step, profile, problem = requests.read_problem(asked)
    assert graph is not None and step is not None and profile is not None
    whole = Step(graph=step, model=graph, problem=requests.limits(asked, problem))
    costs = {}
    for ram_bytes in (BUDGET, 0):
        made = for_small_ram(step, ram_bytes)
        own = requests.limits(asked, requests.problem_of(asked, made, profile))
        streaming = Streaming(requests.streams_of(made, profile=profile))
        fixed = [streaming.fix(own, choice) for choice in streaming.propose(own, None)]
        costs[ram_bytes] = min(p.compute_once_pj for p in fixed if lower_bound_bytes(p) <= BUDGET), made
    assert costs[0][0] < 0.9 * costs[BUDGET][0]
    assert step_for_budget(asked, whole, profile).graph == costs[0][1]


def test_the_least_budget_is_the_least_with_streams(model: Path) -> None:
    """It is one at which the network is solved, and a smaller one is refused."""
    found = solve(request(model, 1, "least")).summary
    assert found["streamed_operators"] and found["budget_bytes"] == found["min_budget_bytes"] < BUDGET
    assert solve(request(model, 1, f"{found['budget_bytes']}B")).summary["peak_bytes"] <= found["budget_bytes"]
    with pytest.raises(InfeasibleError):
        solve(request(model, 1, f"{found['budget_bytes'] // 2}B"))
    least_of_parts = solve(request(model, "auto", "least")).summary
    assert least_of_parts["budget_bytes"] <= found["budget_bytes"]


def test_a_budget_too_small_for_any_number_of_parts_says_so(model: Path) -> None:
    """Options that would fit are those of the whole batch."""
    with pytest.raises(InfeasibleError, match="no schedule fits in 2000 bytes"):
        solve(request(model, "auto", "2000B"))


def test_the_cost_of_computing_once_has_no_transfers(model: Path) -> None:
    """The overhead is that of fitting into RAM, transfers of streamed operands included."""
    roomy = solve(request(model, 1, "1MB")).summary
    tight = solve(request(model, 1)).summary
    assert roomy["streamed_operators"] == 0 and roomy["may_stream"]
    assert tight["compute_once_pj"] == roomy["compute_once_pj"] < tight["energy_pj"]
    above = tight["energy_pj"] - tight["compute_once_pj"]
    assert tight["overhead_gap"] == pytest.approx((tight["energy_pj"] - tight["energy_bound_pj"]) / above)


def test_weights_trained_with_streams_go_back_into_the_file(model: Path, tmp_path: Path) -> None:
    """Its step has other kernels than the file's model asks for, and is the same model."""
    solution = poetc.load(model, batch=4).solve(device=DEVICE, budget=BUDGET, gap=0.05, time_limit_s=8)
    assert solution.summary["streamed_operators"]
    random = np.random.default_rng(0)
    batch = random.standard_normal((4, 2, 12, 12), np.float32), np.arange(4, dtype=np.int32)
    with solution.trainer() as session:
        session.step(*batch)
        session.save(tmp_path / "trained.bin")
        expected = session.predict(batch[0])
    solution.export(tmp_path / "trained.bin", tmp_path / "trained.onnx")
    answer = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": batch[0]})[0]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_saved_tensors_are_encoded_before_operands_stream(tmp_path: Path) -> None:
    """No schedule fits without either: encodings cost a little computing, streams cost transfers."""
    asked = request(rectified(tmp_path / "rectified.onnx"), 1, "128kB")
    encoded = solve(asked).summary
    assert encoded["saved"] and not encoded["streamed_operators"]
    exact = replace(asked.model, training=replace(asked.model.training, saved="off"))
    streamed = solve(replace(asked, model=exact)).summary
    assert streamed["streamed_operators"] and streamed["energy_pj"] > 2 * encoded["energy_pj"]


def test_the_model_is_read_once_where_nothing_is_found_with_encodings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams come then, in the same step."""
    read, solved = list[Path](), list[bool]()
    load, plan = requests.frontend.load, Planner.solve

    def counted(source: Path, **options: Any) -> Any:
        read.append(source)
        return load(source, **options)

    def first_fails(planner: Planner, problem: Problem) -> Solution:
        solved.append(True)
        if len(solved) == 1:
            raise LimitError("nothing was found")
        return plan(planner, problem)

    monkeypatch.setattr(requests.frontend, "load", counted)
    monkeypatch.setattr(Planner, "solve", first_fails)
    asked = request(rectified(tmp_path / "rectified.onnx"), 1, "128kB")
    found = solve(replace(asked, smallest=False)).summary
    assert found["streamed_operators"] and len(solved) > 1 and len(read) == 1


def test_least_ram_is_answered_where_nothing_cheaper_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule of the search is one with its streamed operands."""

    def fails(planner: Planner, problem: Problem) -> Solution:
        raise LimitError("nothing was found")

    monkeypatch.setattr(Planner, "solve", fails)
    found = solve(request(model, 1, "least"))
    assert found.summary["streamed_operators"] and verify(found.problem, found.schedule).peak_bytes <= BUDGET


def test_options_fit_a_budget_where_their_operands_stream(model: Path) -> None:
    """The least RAM of the step as it is is more; each option that the message names is solved for the budget."""
    least = solve(request(model, 1, "least")).summary["budget_bytes"]
    budget = f"{least - 500}B"
    with pytest.raises((InfeasibleError, LimitError), match="it fits with --") as failed:
        solve(request(model, 1, budget))
    ways = failed.value.details["ways"]
    assert isinstance(ways, list)
    layer = next(way for way in ways if way["options"] == "--train last:1")
    assert layer["least_bytes"] <= least - 500 < layer["least_whole_bytes"], "without streams it would not fit"
    asked = request(model, 1, budget)
    of_layer = replace(asked, model=replace(asked.model, training=TrainingOptions(train="last:1")))
    assert solve(of_layer).summary["streamed_operators"]


@pytest.mark.parametrize("budget", ["24kB", "60kB", "200kB", "1MB"])
@pytest.mark.long_but("60kB", "1MB")
def test_the_peak_is_that_of_the_validation(model: Path, budget: str, tmp_path: Path) -> None:
    """With streams, with pages, and with neither: one figure, to the byte, in the reports too."""
    asked = request(model, 1, budget)
    solved = solve(replace(asked, options=SolveOptions(time_limit_s=3, gap=0.5), out=tmp_path / "out"))
    found = validate(tmp_path / "out", steps=1).document
    peak = solved.summary["peak_bytes"]
    assert found["peak_predicted_bytes"] == found["peak_measured_bytes"] == peak <= solved.problem.budget_bytes
    assert f"{peak:,} B" in (tmp_path / "out" / "report.txt").read_text()
    assert f"{peak:,} bytes" in (tmp_path / "out" / "report.html").read_text()
    if budget == "200kB":
        (row,) = solve_budgets(replace(asked, options=SolveOptions(time_limit_s=3, gap=0.5)), [budget])
        assert not isinstance(row, PoetcError) and row["peak_bytes"] == peak


def test_a_schedule_without_streams_is_told_with_the_least_ram_of_streams(model: Path) -> None:
    """And one with them has the least of all kernels, not of its own."""
    least = solve(request(model, 1, "least")).summary["budget_bytes"]
    roomy = solve(request(model, 1, "1MB", time_limit_s=20)).summary
    assert roomy["streamed_min_budget_bytes"] == least < roomy["min_budget_bytes"]
    assert f"({format_enough(least)} with streamed operands)" in solve_text(roomy)
    tight = solve(request(model, 1, "60kB", time_limit_s=20)).summary
    assert tight["streamed_operators"] and tight["min_budget_bytes"] == least


def test_parts_in_threads_stream_each_in_its_own_step(model: Path) -> None:
    """A step of parts has slices of the batch, which that of the whole has not."""
    asked = request(model, "auto", "90kB")
    asked = replace(asked, model=replace(asked.model, device="rpi4"))
    found = solve(replace(asked, smallest=False))
    assert found.summary["streamed_operators"] and verify(found.problem, found.schedule).peak_bytes <= 90_000


def test_a_limit_on_writing_is_named(model: Path) -> None:
    """The message has the bytes that a step writes at least."""
    with pytest.raises((InfeasibleError, LimitError), match=r"; --max-written must be at least \d+ bytes"):
        solve(replace(request(model, 1), max_written="100B"))


def test_no_state_streams_where_it_has_to_be_in_ram(model: Path) -> None:
    with pytest.raises((InfeasibleError, LimitError), match="no schedule"):
        solve(replace(request(model, 1), state="ram"))
