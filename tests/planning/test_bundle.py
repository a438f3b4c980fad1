"""Plans for several budgets, and switches between them: the checker replays every switch, the interpreter runs some."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from poetc.commands.requests import ModelRequest, SolveRequest, limits, read_problem
from poetc.graph import TrainingGraph
from poetc.planning import Switching, solve_bundle
from poetc.planning.safe_points import waits, within_flash
from poetc.planning.switching import action_cost
from poetc.program import Interpreter, Program, ProgramBundle, lower_bundle, sample_inputs
from poetc.scheduling import (
    Compute,
    ScheduleError,
    Switch,
    first_executions,
    keep_all_peak_bytes,
    state_chains,
    verify,
    verify_parts,
    verify_plan,
)
from poetc.scheduling.schedule import SolveOptions

SAID: list[str] = []  # the progress of `solved`
DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


@functools.cache
def solved() -> tuple[TrainingGraph, Switching, list[Switch], ProgramBundle]:
    request = SolveRequest(
        model=ModelRequest(source=DIGITS, batch=4, device="stm32f746"),
        options=SolveOptions(time_limit_s=60, work_limit_s=0.05, gap=0.2),
    )
    _, step, _, problem = read_problem(request)
    assert step is not None
    problem = limits(replace(request, budget="100%"), problem)
    peak = keep_all_peak_bytes(problem)
    switching = Switching(solve_bundle(problem, [peak, int(0.62 * peak)], request.planner(60, SAID.append)))
    switches = [s for pair in ((0, 1), (1, 0)) for s in switching.switches(*pair)]
    plans = [(s.problem, s.schedule, s.plan) for s in switching.bundle.solutions]
    return step, switching, switches, lower_bundle([step] * len(plans), plans, switches)


def test_progress_says_which_plan_it_is_about() -> None:
    large, small = (f"plan for {s.problem.budget_bytes:,} bytes" for s in solved()[1].bundle.solutions)
    assert SAID[0] == small and large in SAID
    first = SAID.index(large)
    assert 1 < first < len(SAID) - 1
    assert all(line.startswith(f"{small}: ") for line in SAID[1:first])
    assert all(line.startswith(f"{large}: ") for line in SAID[first + 1 :])


def test_plans_share_order_state_and_inputs() -> None:
    large, small = solved()[1].bundle.solutions
    assert large.plan.arena_bytes > small.plan.arena_bytes
    assert large.cost < small.cost
    assert first_executions(large.schedule.actions) == first_executions(small.schedule.actions)
    places = []
    for s in (large, small):
        verify(s.problem, s.schedule)
        verify_plan(s.problem, s.schedule, s.plan)
        assert s.problem.base_bytes + s.plan.arena_bytes <= s.problem.budget_bytes
        places.append(
            {t: a.offset_bytes for a in s.plan.allocations for t, first in a.tensors if first == a.start == 0}
        )
    assert places[0] == places[1]
    assert set(places[0]) >= {chain[0] for chain in state_chains(large.problem)}


def test_most_actions_have_a_switch_each_way() -> None:
    _, switching, switches, _ = solved()
    for source, target in ((0, 1), (1, 0)):
        own = [s for s in switches if (s.source, s.target) == (source, target)]
        assert len(own) >= 0.8 * len(switching.points(source))


def test_no_switch_costs_less_than_its_bound_or_more_than_starting_anew() -> None:
    _, switching, switches, _ = solved()
    for s in switches:
        assert s.bound <= s.rest
        target = switching.lines[s.target]
        cost = sum(action_cost(target.problem, action) for action in s.transition.actions) + target.rest[s.join]
        assert cost == s.rest
        # Melon's rule and starting the target anew are among what was compared.
        assert s.rest <= target.rest[0] * 1.0001


def test_the_checker_refuses_a_transition_without_one_of_its_actions() -> None:
    _, switching, switches, _ = solved()
    refused = 0
    needed = [s for s in switches if any(isinstance(t, Compute) for t in s.transition.actions)]
    assert needed
    for s in needed[:5]:
        actions = tuple(t for t in s.transition.actions if not isinstance(t, Compute))
        a, b = switching.lines[s.source], switching.lines[s.target]
        larger = max((a.problem, b.problem), key=lambda p: p.budget_bytes)
        parts = (a.problem, a.actions[: s.at]), (larger, actions), (b.problem, b.actions[s.join :])
        with pytest.raises(ScheduleError):
            verify_parts(parts)
        refused += 1
    assert refused


def state_of(program: Program, step: TrainingGraph) -> dict[str, bytes]:
    interpreter = Interpreter(program, step.values)
    interpreter.run(sample_inputs(program, 3))
    stored = {p.tensor for p in program.pages if p.image}
    return {name: interpreter.state(name).tobytes() for name in {b.name for b in program.state} | stored}


def test_a_switched_step_has_the_bits_of_an_undisturbed_one() -> None:
    step, _, _, bundle = solved()
    expected = state_of(bundle.programs[0], step)
    assert state_of(bundle.programs[1], step) == expected
    assert bundle.switches
    for switch in bundle.switches[:: max(1, len(bundle.switches) // 8)]:
        assert state_of(bundle.switched(switch), step) == expected


def test_less_flash_keeps_fewer_switches_and_longer_waits() -> None:
    _, switching, switches, _ = solved()

    def bytes_of(own: object) -> int:
        return 100 * len(own)  # type: ignore[arg-type]

    kept = within_flash(switching, switches, bytes_of, 1000)
    assert 0 < len(kept) <= 10
    for few, all_of_them in zip(waits(switching, kept), waits(switching, switches), strict=True):
        assert few.longest_ns >= all_of_them.longest_ns
        assert few.switches < all_of_them.switches
