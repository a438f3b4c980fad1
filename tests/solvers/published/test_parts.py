"""Methods that page and recompute see a forward and a backward pass in each part of a batch."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from poetc.commands.requests import ModelRequest, training_graph, with_any_weights
from poetc.devices import build_problem, load_profile
from poetc.scheduling import Problem, SolveOptions, keep_all_peak_bytes, verify
from poetc.solvers import solve
from poetc.solvers.model import Model
from poetc.solvers.published._training import split
from poetc.training import TrainingOptions

DIGITS = Path(__file__).resolve().parents[3] / "demo" / "digits.onnx"


@functools.cache
def step(parts: int, batch: int = 16) -> Problem:
    request = ModelRequest(
        source=DIGITS, device="stm32f746", batch=batch, training=TrainingOptions(micro_batches=parts, optimizer="sgd")
    )
    graph = training_graph(with_any_weights(request))[1]
    return build_problem(graph, load_profile(request.device), budget_bytes=0)


def test_each_part_has_a_forward_pass() -> None:
    model = Model(step(2))
    one, both = split(model, "test"), split(model, "test", every_part=True)
    (first, second) = sorted(set(both.turn.values()))
    assert one.cut == both.cut == first
    operators = model.problem.operators
    assert operators[first].phase == operators[second].phase == "backward"
    assert operators[second - 1].phase == "loss"
    assert not any(operators[v].phase == "backward" for v in both.forward)
    assert sum(op.phase == "loss" for op in operators) == sum(operators[v].phase == "loss" for v in both.forward)
    assert set(one.forward_tensors) < set(both.forward_tensors)
    assert all(both.last_forward_use[t] < both.turn[t] for t in both.forward_tensors)


def test_a_whole_batch_has_one_forward_pass() -> None:
    model = Model(step(1))
    assert split(model, "test") == split(model, "test", every_part=True)


@pytest.mark.parametrize("solver", ["vdnn", "vdnn_all", "capuchin", "superneurons"])
def test_nine_tenths_are_enough_for_two_parts(solver: str) -> None:
    """Before, tensors of the second part stayed in RAM, and none of these had a schedule here."""
    whole = step(2)
    problem = replace(whole, budget_bytes=keep_all_peak_bytes(whole) * 9 // 10)
    schedule = solve(problem, solver, SolveOptions(time_limit_s=60))
    assert verify(problem, schedule).peak_bytes <= problem.budget_bytes
