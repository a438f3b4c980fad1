"""Several processors: bounds and schedules against exhaustive search on tiny problems, and the published rules.

`python -m tests.solvers.test_processors COUNT` compares so many random problems.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from poetc.errors import InfeasibleError, UnsupportedProblemError
from poetc.planning import Planner, reductions
from poetc.scheduling import (
    Compute,
    Elsewhere,
    Free,
    Objective,
    Problem,
    ProcessorSpec,
    ScheduleError,
    SolveOptions,
    Step,
    complete,
    keep_all_actions,
    keep_all_peak_bytes,
    validate_problem,
    verify,
    verify_parts,
    verify_plan,
)
from poetc.solvers import solve
from poetc.solvers.processors import one_at_a_time, placed, relaxed, runs_on, shortest_ns, side_by_side
from tests.support.oracle import optimum
from tests.support.problems import random_dag, training_problem


def with_processors(random: Random, problem: Problem, count: int = 2) -> Problem:
    """With costs on other processors that are lower or higher, some of which cannot run everything."""
    processors = []
    for p in range(count):
        idle = random.choice((0, 100_000, 2_000_000))
        active = idle + random.choice((0, 500_000, 4_000_000))
        hand_over, flush = random.choice((0, 3, 30)), random.choice((0, 0, 500))
        processors.append(
            ProcessorSpec(name=f"p{p}", active_uw=active, idle_uw=idle, hand_over_ns=hand_over, flush_ps_per_byte=flush)
        )
    operators = []
    for operator in problem.operators:
        time_ns = random.randint(5, 100)
        elsewhere = []
        for p in range(1, count):
            if random.random() < 0.85:
                ns = random.randint(5, 100)
                elsewhere.append(Elsewhere(processor=p, time_ns=ns, energy_pj=ns * processors[p].active_uw // 1000 + 1))
        energy_pj = time_ns * processors[0].active_uw // 1000 + random.randint(1, 20)
        operators.append(replace(operator, time_ns=time_ns, energy_pj=energy_pj, elsewhere=tuple(elsewhere)))
    result = replace(
        problem,
        operators=tuple(operators),
        processors=tuple(processors),
        objective=random.choice(tuple(Objective)),
        budget_bytes=2**30,
    )
    validate_problem(result)
    return result


def placements(problem: Problem) -> Iterator[tuple[int, ...]]:
    options = [[p for p in range(len(problem.processors)) if runs_on(o, p)] for o in problem.operators]
    yield from itertools.product(*options)


def orders(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Orders of the operators that keep their dependences."""
    makers = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
    before = [{makers[t] for t in o.inputs if t in makers} for o in problem.operators]
    for k, o in enumerate(problem.operators):
        taken = {p.input for p in o.in_place if p.required}
        before[k] |= {j for j, other in enumerate(problem.operators) if j != k and taken & set(other.inputs)}
    for order in itertools.permutations(range(len(problem.operators))):
        place = {k: n for n, k in enumerate(order)}
        if all(place[b] < place[k] for k in order for b in before[k]):
            yield order


def least_cost(problem: Problem) -> int:
    """The least cost of all lists without Frees in which every operator runs once."""
    costs = []
    for order in orders(problem):
        for placement in placements(problem):
            steps = tuple(
                Compute(
                    k,
                    tuple((p.input, p.output) for p in problem.operators[k].in_place if p.required),
                    placement[k],
                )
                for k in order
            )
            trace = verify_parts([(problem, steps)])
            costs.append(problem.objective.cost(trace.energy_pj, trace.time_ns))
    return min(costs)


def least_in(problem: Problem) -> int | None:
    """The least cost in the budget, with Frees anywhere behind the last use; None where nothing fits."""
    costs = []
    for order in orders(problem):
        plain = tuple(s for s in complete(problem, [Compute(k) for k in order]))
        computes = [s for s in plain if isinstance(s, Compute)]
        earliest: dict[int, int] = {}
        seen = 0
        for step in plain:
            seen += isinstance(step, Compute)
            if isinstance(step, Free):
                earliest[step.tensor] = seen
        delays = itertools.product(*([*range(n, len(computes) + 1)] for n in earliest.values()))
        for delay in itertools.islice(delays, 60):
            at = dict(zip(earliest, delay, strict=True))
            for placement in placements(problem):
                steps: list[Step] = []
                for n, c in enumerate(computes):
                    steps += [Free(t) for t, when in at.items() if when == n]
                    steps.append(replace(c, processor=placement[c.operator]))
                steps += [Free(t) for t, when in at.items() if when == len(computes)]
                try:
                    trace = verify_parts([(problem, steps)])
                except ScheduleError:
                    continue
                costs.append(problem.objective.cost(trace.energy_pj, trace.time_ns))
    return min(costs, default=None)


def compare(seed: int) -> None:
    """One random problem: no bound is above the exhaustive optimum, and no schedule below it."""
    random = Random(seed)
    make = random_dag(random, random.randint(2, 4)) if random.random() < 0.8 else training_problem(random, 1)
    if len(make.operators) > 5:
        make = random_dag(random, 4)
    problem = with_processors(random, make, random.choice((2, 2, 3)))
    bound, least = relaxed(problem), least_cost(problem)
    assert bound.least <= least
    single = min(
        problem.objective.cost(q.compute_once_pj, q.compute_once_ns)
        for q in (placed(problem, p) for p in placements(problem))
    )
    placement, proven = one_at_a_time(problem, 10.0)
    alone = placed(problem, placement)
    # Energies of hand-overs and of idling are rounded up, an operator each.
    slack = 2 * len(problem.operators)
    assert proven <= single * (1 + 1e-6) + 1e-6
    if len(problem.processors) == 2:
        found = problem.objective.cost(alone.compute_once_pj, alone.compute_once_ns)
        assert single <= found <= single * (1 + 1e-6) + slack
    steps = complete(alone, keep_all_actions(alone))
    beside = side_by_side(problem, steps, placement)
    assert beside is not None
    assert problem.objective.cost(beside[1].energy_pj, beside[1].time_ns) >= least
    assert beside[1].time_ns <= alone.compute_once_ns  # side by side nothing takes longer
    assert shortest_ns(problem) <= least_cost(replace(problem, objective=Objective.TIME))
    if len(problem.operators) > 3:
        return
    tight = replace(problem, budget_bytes=keep_all_peak_bytes(replace(alone, budget_bytes=2**30)))
    within = least_in(tight)
    assert within is None or bound.least <= within
    if bound.problem is not None and within is not None:
        plain = optimum(replace(bound.problem, budget_bytes=tight.budget_bytes), fixed_order=False)
        assert plain is not None
        assert plain.cost <= within
    fitting = side_by_side(tight, steps, placement)
    assert fitting is not None


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_against_exhaustive_search(seed: int) -> None:
    compare(seed)


def trained() -> Problem:
    return with_processors(Random(3), training_problem(Random(3), 4))


@pytest.mark.parametrize("solver", ["heft", "mandheling", "weight_gradients"])
def test_published_rules(solver: str) -> None:
    problem = trained()
    schedule = solve(problem, solver)
    assert verify(problem, schedule).busy_ns[1] > 0 or solver == "mandheling"  # which may see no profit
    assert schedule.proof.bound <= schedule.proof.objective
    with pytest.raises(InfeasibleError, match="does not fit the budget"):
        solve(replace(problem, budget_bytes=64), solver)
    with pytest.raises(UnsupportedProblemError, match="the problem has one processor"):
        solve(training_problem(Random(0), 1), solver)


def planner(solver: str = "poetc") -> Planner:
    options = SolveOptions(time_limit_s=3.0, work_limit_s=3.0)
    return Planner(options=options, solver=solver, reductions=reductions("ram"))


def test_the_planner_is_no_worse_than_the_rules_and_obeys_the_budget() -> None:
    problem = trained()
    rules = [solve(problem, s).proof.objective for s in ("heft", "mandheling", "weight_gradients")]
    solution = planner().solve(problem)
    verify(solution.problem, solution.schedule)
    assert solution.cost <= min(rules)
    assert solution.choices.processors is not None
    tight = replace(problem, budget_bytes=640)
    assert tight.budget_bytes < keep_all_peak_bytes(placed(problem, (0,) * len(problem.operators)))
    solution = planner().solve(tight)
    trace = verify(solution.problem, solution.schedule)
    verify_plan(solution.problem, solution.schedule, solution.plan)
    assert trace.recomputes > 0
    assert solution.problem.base_bytes + solution.plan.arena_bytes <= tight.budget_bytes
    with pytest.raises(UnsupportedProblemError, match="melon: places operators on one processor alone"):
        planner("melon").solve(problem)


def test_a_deadline_that_only_two_processors_meet() -> None:
    problem = replace(trained(), objective=Objective.TIME)
    fastest = planner().solve(problem)
    alone = placed(problem, one_at_a_time(problem, 1.0)[0])
    assert fastest.cost < alone.compute_once_ns
    hurried = replace(problem, objective=Objective.ENERGY, deadline_ns=int(1.03 * fastest.cost))
    solution = planner().solve(hurried)
    assert verify(hurried, solution.schedule).time_ns < alone.compute_once_ns


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        compare(number)
    print(f"{sys.argv[1]} problems agree")
