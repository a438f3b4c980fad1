"""Nested checkpoints: plans of the dynamic program and what comes of them, where evictions alone find nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from poetc.scheduling import Completer, Problem, Proof, Schedule, Scope, SolveOptions, Status, verify
from poetc.solvers import Event, solve
from poetc.solvers.dependences import Dependences
from poetc.solvers.model import Model
from poetc.solvers.poetc import candidates
from poetc.solvers.poetc.orders.low_traffic import low_traffic_order
from poetc.solvers.poetc.orders.reordering import reordered
from poetc.solvers.poetc.search.nested import Program, nest, segments_of
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import NESTED
from tests.solvers.test_orders import stacked
from tests.support.problems import with_budget


def recurrent(steps: int, layers: int, share: float) -> Problem:
    """Stacked recurrent layers that go step by step together."""
    problem = stacked(steps, layers, 0)
    dependences = Dependences(model := Model(problem))
    return with_budget(reordered(problem, low_traffic_order(model, dependences.before, dependences.after)), share)


def program_of(model: Model, memory: float) -> Program:
    chain = segments_of(model, NESTED.most_segments[0])
    assert chain is not None
    return Program(model, chain, -(-model.capacity // NESTED.slots), int(memory * NESTED.slots))


def test_segments_are_steps() -> None:
    model = Model(recurrent(24, 2, 0.1))
    chain = segments_of(model, NESTED.most_segments[0])
    assert chain is not None and len(chain.starts) >= 24
    # The two layers' states are handed on, and no gates.
    assert all(len(handed) <= 2 for handed in chain.handed)
    assert sorted(v for backward in chain.backward for v in backward) == list(range(model.cut, model.n_ops))
    few = segments_of(model, 12)
    assert few is not None and len(few.starts) == 12


def test_with_room_for_everything_every_operator_comes_once() -> None:
    model = Model(recurrent(16, 2, 1.0))
    program = program_of(model, 1.5)
    codes = program.codes(program.slots)
    assert codes == list(range(model.n_ops))


def test_less_memory_costs_more_and_counts_what_the_sequence_does() -> None:
    model = Model(recurrent(16, 2, 0.1))
    program = program_of(model, 3)
    assert program.least is not None
    costs = [float(program.cost[0, -1, slots]) for slots in range(program.least, program.slots + 1)]
    assert costs == sorted(costs, reverse=True) and costs[0] > 1.2 * costs[-1]
    backward = sum(model.op_cost[model.cut :])
    for slots in (program.least, (program.least + program.slots) // 2, program.slots):
        codes = program.codes(slots)
        first = list(dict.fromkeys(codes))
        assert first == list(range(model.n_ops))
        forward = model.cost(codes) - backward
        # The last segment's first run is a part of the program; operators that nothing wants then are not.
        assert (
            program.cost[0, -1, slots] <= forward <= program.cost[0, -1, slots] + sum(model.op_cost[: model.cut]) / 10
        )


def test_it_finds_what_evictions_do_not() -> None:
    problem = recurrent(32, 2, 0.04)
    race = Race(problem, 0, math.inf)
    race.run(3, 0.0)
    assert race.incumbent is None
    assert nest(race, 0.0) > 0.0
    assert race.incumbent is not None and race.incumbent.cost < 1.8 * problem.compute_once_pj
    actions = Completer(problem).run(race.model.decisions(race.incumbent.codes)).actions
    proof = Proof(status=Status.FEASIBLE, objective=race.incumbent.cost, bound=0, scope=Scope())
    trace = verify(problem, Schedule(solver="test", actions=actions, proof=proof))
    assert trace.peak_bytes <= problem.budget_bytes
    again = Race(problem, 0, math.inf)
    nest(again, 0.0)
    assert again.incumbent is not None and again.incumbent.codes == race.incumbent.codes


def test_nothing_is_done_where_little_is_made_again() -> None:
    race = Race(recurrent(16, 1, 0.6), 0, math.inf)
    race.run(3, 0.0)
    assert race.incumbent is not None
    before = race.incumbent.codes
    assert nest(race, 0.0) == 0.0 and race.incumbent.codes is before


def test_poetc_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):
        pass

    def stop(event: Event) -> None:
        if event.stage == "nested checkpoints":
            assert event.objective is not None
            raise Reached
        assert event.objective is None and event.stage != "flattened"

    monkeypatch.setattr(Race, "run", lambda self, count, target: None)  # which takes long here
    monkeypatch.setattr(candidates, "published", lambda *_, **__: None)
    with pytest.raises(Reached):
        solve(recurrent(36, 2, 0.05), options=SolveOptions(time_limit_s=60, fixed_order=True), progress=stop)


@pytest.mark.parametrize("cell", [10, 31])
@pytest.mark.long_but("10")
def test_what_may_be_executed_once_only_is_not_repeated(cell: int) -> None:
    problem = recurrent(32, 2, 0.05)
    operators = list(problem.operators)
    operators[cell] = replace(operators[cell], recomputable=False)
    problem = replace(problem, operators=tuple(operators))
    race = Race(problem, 0, math.inf)
    nest(race, 0.0)
    codes = program_of(race.model, 1.5).codes(NESTED.slots)
    assert codes.count(cell) == 1
    if race.incumbent is not None:
        assert race.incumbent.codes.count(cell) == 1
    assert not race.offer([*codes, cell], "twice")
