"""Plans of other micro-batches in one bundle: one takes over from the other where the same rows are done."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import pytest

from poetc.commands.requests import ModelRequest, SolveRequest, limits, problem_of, training_graph
from poetc.devices import load_profile
from poetc.graph import TrainingGraph
from poetc.planning import Bundle, Solution, Switching
from poetc.program import Interpreter, Program, lower, lower_bundle, sample_inputs
from poetc.scheduling import Compute, Free, ScheduleError, all_in_ram, joined, keep_all, pack, verify_parts
from poetc.training import TrainingOptions, continued, is_partial_sum, share_of, with_own_names
from tests.cli.conftest import MODEL

DEVICE = "stm32f746"


@functools.cache
def graphs() -> dict[int, TrainingGraph]:
    model = ModelRequest(source=MODEL, batch=8, device=DEVICE, training=TrainingOptions(batch_norm="frozen"))
    built = {
        n: training_graph(replace(model, training=replace(model.training, micro_batches=n)), names_sums=True)[1]
        for n in (2, 4)
    }
    return with_own_names(built)


@functools.cache
def switching() -> Switching:
    """Keep-all plans of 2 and of 4 micro-batches, the sums of the second in the places of the first."""
    request = SolveRequest(model=ModelRequest(source=MODEL, batch=8, device=DEVICE), budget="100%")
    found = []
    for step in graphs().values():
        problem = all_in_ram(limits(request, problem_of(request, step, load_profile(DEVICE))))
        schedule = keep_all(problem)
        found.append(
            Solution(problem=problem, schedule=schedule, plan=pack(problem, schedule, stop_at=time.monotonic()))
        )
    return Switching(Bundle(solutions=tuple(found)))


def test_steps_share_state_inputs_and_sums_over_the_same_rows() -> None:
    made = [{t for op in g.operators for t in op.outputs} for g in graphs().values()]
    shared = made[0] & made[1]
    sums = {t for t in shared if is_partial_sum(t)}
    assert {share_of(t) for t in sums} == {"1/2"}
    assert "loss.sum over 1/2" in sums
    updated = set(graphs()[2].updates.values())
    assert shared == sums | updated
    assert len(sums) > len(updated)


def test_a_plan_goes_over_where_rows_are_done_and_runs_them_once() -> None:
    s = switching()
    two, four = s.lines
    starts = [p.action for p in four.starts_of_parts]
    assert len(starts) == 4  # before each part
    half = two.starts_of_parts[1].action
    for at, join in ((half, starts[2]), (half + 1, starts[2])):
        found = s.switch(0, 1, at)
        assert found is not None and found.join == join
        assert found.bound <= found.rest
    again = {action.operator for action in four.actions[starts[2] :] if isinstance(action, Compute)}
    assert again.isdisjoint(four.order[: four.points[starts[2]].begun])
    assert s.switch(0, 1, len(two.actions) - 1) is None  # parameters have been updated


def test_the_checker_refuses_a_run_that_lost_a_sum() -> None:
    s = switching()
    two, four = s.lines
    x = s.switch(0, 1, two.starts_of_parts[1].action)
    assert x is not None
    here = two.points[x.at].resident
    rest = x.transition.actions, four.actions[x.join :]
    verify_parts(joined(two.problem, two.actions[: x.at], here, four.problem, *rest))
    lost = next(t for t in here if is_partial_sum(two.problem.tensors[t].name))
    before = (*two.actions[: x.at], Free(lost))
    with pytest.raises(ScheduleError, match="sum over 1/2"):
        verify_parts(joined(two.problem, before, here.keys() - {lost}, four.problem, *rest))


def bits(program: Program, step: TrainingGraph) -> tuple[float, dict[str, bytes]]:
    interpreter = Interpreter(program, {**graphs()[2].values, **graphs()[4].values, **step.values})
    loss = interpreter.run(sample_inputs(program, 3))
    return loss, {b.name: interpreter.state(b.name).tobytes() for b in program.state}


def test_a_batch_is_finished_in_smaller_parts_with_the_bits_of_those_parts() -> None:
    s, (two, four) = switching(), graphs().values()
    x = s.switch(0, 1, s.lines[0].starts_of_parts[1].action + 1)
    assert x is not None
    plans = [(line.problem, line.solution.schedule, line.solution.plan) for line in s.lines]
    bundle = lower_bundle([two, four], plans, [x])
    assert len(bundle.switches) == 1
    assert bundle.parts == (0, 1)
    assert bundle.share(1, bundle.switches[0].join) == "1/2"
    mixed = continued(two, four, "1/2")
    request = SolveRequest(model=ModelRequest(source=MODEL, batch=8, device=DEVICE), budget="100%")
    problem = all_in_ram(limits(request, problem_of(request, mixed, load_profile(DEVICE))))
    schedule = keep_all(problem)
    expected = bits(lower(mixed, problem, schedule, pack(problem, schedule, stop_at=time.monotonic())), mixed)
    assert bits(bundle.switched(bundle.switches[0]), four) == expected
    assert expected != bits(bundle.programs[0], two)  # another order of sums
    assert expected[0] == pytest.approx(bits(bundle.programs[0], two)[0], rel=1e-5)


def test_a_bound_covers_the_latest_start_even_if_no_transition_to_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    s = switching()
    at = s.lines[0].starts_of_parts[1].action
    found = s.switch(0, 1, at)
    assert found is not None
    transition = Switching._transition

    def fails(self: Switching, a: Any, b: Any, here: Any, there: Any) -> Any:
        return None if there.action >= found.join else transition(self, a, b, here, there)

    monkeypatch.setattr(Switching, "_transition", fails)
    earlier = s.switch(0, 1, at)
    assert earlier is not None and earlier.join < found.join
    assert earlier.rest > found.rest
    assert earlier.bound <= found.rest  # which a run can reach
