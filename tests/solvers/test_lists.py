"""Lists of actions side by side: where operators run, and which operand is overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from poetc.errors import InfeasibleError
from poetc.planning import Planner, Solution, reductions
from poetc.scheduling import (
    Compute,
    Elsewhere,
    InPlace,
    Objective,
    PageIn,
    Paging,
    Problem,
    ProcessorSpec,
    SolveOptions,
    Trace,
    complete,
    keep_all_decisions,
    keep_all_peak_bytes,
    verify_parts,
    verify_plan,
    without_moves,
)
from poetc.solvers import race_of_lists, solve
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.processors import (
    as_ready,
    heft,
    placed,
    shortest_ns,
    side_by_side,
)
from poetc.solvers.processors.side_by_side import RULES, _List, estimate_in_ram
from tests.support.problems import ProblemBuilder, training_problem


def equal(problem: Problem, times_ns: Sequence[int], count: int, hand_over_ns: int = 0) -> Problem:
    """On equal processors."""
    own = ProcessorSpec(name="core0", active_uw=3_000_000, idle_uw=900_000, hand_over_ns=hand_over_ns)
    operators = []
    for operator, ns in zip(problem.operators, times_ns, strict=True):
        elsewhere = tuple(Elsewhere(processor=p, time_ns=ns, energy_pj=3000 * ns) for p in range(1, count))
        operators.append(replace(operator, time_ns=ns, energy_pj=3000 * ns, elsewhere=elsewhere))
    processors = tuple(replace(own, name=f"core{p}") for p in range(count))
    return replace(problem, operators=tuple(operators), processors=processors, budget_bytes=2**30)


def listed_ns(problem: Problem, placement: Sequence[int], budget_bytes: int = 2**30) -> int:
    plain = placed(problem, (0,) * len(problem.operators))
    actions = complete(plain, keep_all_decisions(plain))
    listed = side_by_side(replace(problem, budget_bytes=budget_bytes), actions, tuple(placement))
    assert listed is not None
    return listed[1].time_ns


@pytest.mark.parametrize("seed", range(12))
def test_the_chain_of_a_step_never_waits_for_gradients_of_weights(seed: int) -> None:
    random = Random(seed)
    plain = training_problem(random, 12)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 4)
    assert listed_ns(problem, as_ready(problem)) == shortest_ns(problem) <= listed_ns(problem, heft(problem))


def test_a_processor_with_transfers_runs_only_operators_that_no_other_runs() -> None:
    plain = training_problem(Random(1), 6)
    problem = equal(plain, [40] * len(plain.operators), 3)
    assert 0 in as_ready(problem)
    assert 0 not in as_ready(problem, first=1)
    bound = replace(problem.operators[0], elsewhere=())
    placement = as_ready(replace(problem, operators=(bound, *problem.operators[1:])), first=1)
    assert placement.index(0) == 0 and placement.count(0) == 1


def test_an_operand_is_overwritten_only_where_ram_is_short() -> None:
    """The others that read it, on other processors, would have to end first."""
    b = ProblemBuilder(Random(0), paging=False)
    gradient = b.tensor("g", 4, initial="ram")
    for k in range(4):
        b.operator(f"weights{k}", (gradient,), (b.tensor(f"w{k}", 1, final="ram"),))
        before, gradient = gradient, b.tensor(f"g{k}", 4, final="ram" if k == 3 else "")
        in_place = (InPlace(input=before, output=gradient),) if k else ()
        b.operator(f"chain{k}", (before,), (gradient,), in_place=in_place)
    problem = equal(b.problem("chain"), [100, 50] * 4, 3)
    placement = as_ready(problem)
    roomy_ns = listed_ns(problem, placement)
    assert roomy_ns == shortest_ns(problem) == 250
    plain = placed(problem, (0,) * len(problem.operators))
    assert listed_ns(problem, placement, keep_all_peak_bytes(plain)) > roomy_ns


@pytest.mark.parametrize("seed", range(8))
def test_actions_overtake_only_those_that_still_fit_behind_them(seed: int) -> None:
    """So every rule has a list in the RAM that the actions take in turn."""
    random = Random(seed)
    plain = training_problem(random, 12, scale=8)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 4)
    operators = tuple(replace(o, workspace_bytes=0, low_workspace=()) for o in problem.operators)
    problem = replace(problem, operators=operators, paging=Paging.NONE)
    alone = placed(problem, (0,) * len(problem.operators))
    tight = replace(alone, budget_bytes=keep_all_peak_bytes(alone) * 7 // 10)
    actions = solve(tight, "poetc", SolveOptions(time_limit_s=1.0)).actions
    assert sum(isinstance(s, Compute) for s in actions) > len(problem.operators)
    peak_bytes = verify_parts([(tight, actions)]).peak_bytes
    in_turn_ns = verify_parts([(tight, actions)]).time_ns
    problem = replace(problem, budget_bytes=peak_bytes)
    for rule in RULES:
        listed = _List(problem, actions, as_ready(problem), *rule).run()
        assert listed is not None
        trace = verify_parts([(problem, listed)])
        assert trace.peak_bytes <= peak_bytes and trace.time_ns < in_turn_ns
    in_turn_alone = side_by_side(problem, actions, as_ready(problem), peak_bytes // 2)
    ahead = side_by_side(problem, actions, as_ready(problem), peak_bytes)
    assert in_turn_alone is not None and ahead is not None
    assert max(ahead[1].time_ns, in_turn_alone[1].time_ns) < in_turn_ns


def test_an_execution_goes_to_any_processor_that_costs_the_same() -> None:
    plain = training_problem(Random(3), 12)
    problem = equal(plain, [40] * len(plain.operators), 4)
    main = (0,) * len(problem.operators)
    assert listed_ns(problem, main) == listed_ns(problem, as_ready(problem)) == shortest_ns(problem)


def priced_lists(seed: int) -> tuple[list[tuple[_List, Trace]], Trace]:
    """The lists of all rules, as the checker prices them, and the one that is taken."""
    random = Random(seed)
    plain = training_problem(random, 8, scale=8, paging=seed % 2 == 0)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 3, hand_over_ns=20)
    operators = tuple(replace(o, workspace_bytes=0, low_workspace=()) for o in problem.operators)
    problem = replace(problem, operators=operators)
    alone = placed(problem, (0,) * len(operators))
    tight = replace(alone, budget_bytes=keep_all_peak_bytes(alone) * 6 // 10)
    actions = without_moves(tight, solve(tight, "poetc", SolveOptions(time_limit_s=60, work_limit_s=0.3))).actions
    assert any(isinstance(s, PageIn) for s in actions) == (seed % 2 == 0)
    problem = replace(problem, budget_bytes=tight.budget_bytes)
    lists = []
    for rule in RULES:
        listing = _List(problem, actions, as_ready(problem), *rule)
        listed = listing.run()
        assert listed is not None
        lists.append((listing, verify_parts([(problem, listed)])))
    taken = side_by_side(problem, actions, as_ready(problem))
    assert taken is not None
    return lists, taken[1]


@pytest.mark.parametrize("seed", [18, 30])
def test_a_list_knows_its_end_where_tensors_are_paged(seed: int) -> None:
    """The processor that computed a tensor hands it over after a page-in, too."""
    lists, _ = priced_lists(seed)
    assert [listing.finish_ns for listing, _ in lists] == [trace.time_ns for _, trace in lists]


@pytest.mark.parametrize("seed", [19, 58])
def test_the_cheapest_list_is_taken(seed: int) -> None:
    """It is not always the one that ends first: hand-overs cost energy."""
    lists, taken = priced_lists(seed)
    assert taken.energy_pj <= min(trace.energy_pj for _, trace in lists)


def test_a_plan_leaves_the_ram_that_operators_take_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(0)
    plain = training_problem(random, 12, scale=8)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 4)
    once = placed(problem, (0,) * len(problem.operators))
    problem = replace(problem, budget_bytes=keep_all_peak_bytes(once) * 9 // 10)
    solved = Planner.solve

    def least_budget() -> int:
        budgets: list[int] = []

        def recorded(planner: Planner, asked: Problem) -> Solution:
            budgets.append(asked.budget_bytes)
            return solved(planner, asked)

        monkeypatch.setattr(Planner, "solve", recorded)
        options = SolveOptions(time_limit_s=2, work_limit_s=0.05)
        Planner(options=options, reductions=reductions("ram")).solve(problem)
        return min(budgets)

    with_room = least_budget()
    monkeypatch.setattr("poetc.planning.processors.ASIDES", (0.0,))
    assert with_room < least_budget() == problem.budget_bytes


def test_a_plan_gets_all_of_the_budget_where_less_is_too_little() -> None:
    """So the smallest budget that works is enough, and a message names the budget that was asked for."""
    random = Random(1)
    plain = training_problem(random, 5, scale=8)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 4)
    operators = tuple(replace(o, workspace_bytes=0, low_workspace=()) for o in problem.operators)
    problem = replace(problem, operators=operators, paging=Paging.NONE)
    chain = Planner(options=SolveOptions(time_limit_s=20, work_limit_s=0.2), reductions=reductions("ram"))
    smallest_bytes = 3152
    with pytest.raises(InfeasibleError, match=r"fits in 3151 bytes .* known to work is 3152 bytes"):
        chain.solve(replace(problem, budget_bytes=smallest_bytes - 1))
    best = chain.solve(replace(problem, budget_bytes=smallest_bytes))
    verify_plan(best.problem, best.schedule, best.plan)
    assert best.problem.base_bytes + best.plan.arena_bytes <= smallest_bytes


def paged(seed: int) -> Problem:
    """On four equal processors, of which the first one waits for transfers, with less than half of the RAM."""
    random = Random(seed)
    plain = training_problem(random, 8, scale=8, paging=True)
    problem = equal(plain, [random.randint(20, 60) for _ in plain.operators], 4)
    page = {"page_in_ns": 40, "page_in_pj": 40_000, "page_out_ns": 80, "page_out_pj": 80_000}
    operators = tuple(replace(o, workspace_bytes=0, low_workspace=()) for o in problem.operators)
    tensors = tuple(replace(t, **page) for t in problem.tensors)
    problem = replace(problem, operators=operators, tensors=tensors, paging=Paging.SYNC)
    alone = placed(problem, (0,) * len(operators))
    return replace(problem, budget_bytes=45 * keep_all_peak_bytes(alone) // 100)


def test_a_race_of_lists_takes_actions_that_hide_transfers() -> None:
    """Its lists cost less than those of a race for the least cost in turn, and no more than its estimates."""
    raced = in_turn = 0
    for seed in (1, 4, 7):
        problem = paged(seed)
        own = tuple(range(len(problem.operators)))
        alone = replace(placed(problem, (0,) * len(own)), deadline_ns=None)
        race = Race(alone, 0, math.inf)
        race.run(60, -math.inf)
        assert race.incumbent is not None
        actions = race_of_lists(problem, (own, own), 0, 0.3, math.inf)
        assert actions is not None
        placement = as_ready(problem, first=1)
        estimated, listed = estimate_in_ram(problem, actions, placement), side_by_side(problem, actions, placement)
        known = side_by_side(problem, race.schedule().actions, placement)
        assert estimated is not None and listed is not None and known is not None
        assert listed[1].energy_pj <= estimated[1]
        raced, in_turn = raced + listed[1].energy_pj, in_turn + known[1].energy_pj
    assert raced < 0.97 * in_turn


def test_a_race_of_lists_ends_where_nothing_fits_and_for_time_alone() -> None:
    problem = paged(1)
    own = tuple(range(len(problem.operators)))
    assert race_of_lists(replace(problem, budget_bytes=100), (own,), 0, 0.05, math.inf) is None
    assert race_of_lists(replace(problem, objective=Objective.TIME), (own,), 0, 0.05, math.inf) is None
