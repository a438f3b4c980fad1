"""Kernels with less workspace: what is claimed for any choice against the exhaustive optimum over all of them."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Planner, ram_bytes
from poetc.planning.kernels import KERNELS, Kernels, fastest, kernels_of, with_least_workspace
from poetc.planning.search_log import SearchLog
from poetc.scheduling import (
    ANY,
    Problem,
    ScheduleError,
    SolveOptions,
    Variant,
    keep_all_peak_bytes,
    validate_problem,
    verify,
    verify_plan,
)
from poetc.solvers import lower_bound_bytes, min_budget
from poetc.solvers.poetc.bounds.ladder import fullest_operator
from poetc.solvers.poetc.placement.relaxation import open_model
from tests.support.oracle import minimum_budget, optimum
from tests.support.planning import planner
from tests.support.problems import random_dag, training_problem

SEEDS = range(30)
OPTIONS = SolveOptions(time_limit_s=20.0, fixed_order=True)
CLOCK = "poetc.planning.kernels.time"
MOST_OPEN = 3  # operators with variants


@functools.cache
def case(seed: int) -> tuple[Problem, dict[tuple[int, ...], int | None]]:
    """A problem with variants whose budget is near the least that its kernels need, and the optimum of each choice."""
    random = Random(seed)
    small = random.random() < 0.5
    paging = random.random() < 0.4
    problem = training_problem(random, 1, paging=paging) if small else random_dag(random, 5, paging=paging)
    unit = problem.alignment_bytes
    operators = list(problem.operators)
    for k in sorted(random.sample(range(len(operators)), min(MOST_OPEN, len(operators)))):
        op = operators[k]
        most = max(problem.tensors[t].size_bytes for t in (*op.inputs, *op.outputs)) // unit * unit + 4 * unit
        found, ns, pj = list[Variant](), op.time_ns, op.energy_pj
        for share in sorted(random.sample((0.0, 0.25, 0.5, 0.75), random.choice((1, 1, 2))), reverse=True):
            ns, pj = ns + random.randint(0, ns), pj + random.randint(0, pj)
            found.append(Variant(workspace_bytes=int(most * share) // unit * unit, time_ns=ns, energy_pj=pj))
        operators[k] = replace(op, workspace_bytes=most, low_workspace=tuple(found))
    problem = replace(problem, operators=tuple(operators))
    low = lower_bound_bytes(KERNELS.relax(problem))
    high = keep_all_peak_bytes(problem)
    problem = replace(problem, budget_bytes=low + int((high - low) * random.choice((0.0, 0.02, 0.1, 0.2, 0.5))))
    if random.random() < 0.2:
        problem = replace(problem, deadline_ns=int(problem.compute_once_ns * random.uniform(1.05, 1.8)))
    validate_problem(problem)
    found_costs: dict[tuple[int, ...], int | None] = {}
    for choice in itertools.product(*(range(1 + len(op.low_workspace)) for op in problem.operators)):
        best = optimum(KERNELS.fix(problem, choice))
        found_costs[choice] = None if best is None else best.cost
    return problem, found_costs


def test_bounds_and_schedules_of_any_kernels() -> None:
    """What is proven holds for every choice, and what only low-workspace kernels make possible is found."""
    kinds = {"low": 0, "only low": 0, "mixed": 0, "optimal": 0, "unpacked": 0, "shown": 0}
    for seed in SEEDS:
        problem, costs = case(seed)
        possible = {choice: cost for choice, cost in costs.items() if cost is not None}
        fastest_kernels = (0,) * len(problem.operators)
        asked = planner("ram", "poetc", OPTIONS)
        asked.best.log = SearchLog()
        try:
            placed = asked.solve(problem)
        except InfeasibleError:
            assert not possible, seed
            continue
        except LimitError:
            assert problem.deadline_ns is not None or possible, seed
            kinds["unpacked"] += 1
            continue
        shown = [row.best for row in asked.best.log.rows if row.best is not None]
        assert min(shown, default=math.inf) >= min(possible.values()), seed  # even while kernels are relaxed
        kinds["shown"] += bool(shown) and "kernels left open" in placed.proof.method
        trace = verify(placed.problem, placed.schedule)
        verify_plan(placed.problem, placed.schedule, placed.plan)
        assert ram_bytes(placed.problem, placed.plan) <= problem.budget_bytes
        chosen = kernels_of(problem, placed.problem)
        cost = trace.energy_pj if problem.objective == "energy" else trace.time_ns
        own = costs[chosen]
        assert own is not None and own <= cost, seed
        proof = placed.schedule.proof
        if proof.scope.choice("kernels") is not ANY:
            own = proof.scope.choice("kernels") or fastest_kernels
            least = costs[own]
            assert least is not None and proof.bound <= least, seed
        else:
            assert proof.bound <= min(possible.values()), seed
            kinds["optimal"] += proof.scope.order is not ANY and proof.status.value == "optimal"
        kinds["low"] += chosen != fastest_kernels
        kinds["only low"] += costs[fastest_kernels] is None
        used = [n for n, op in zip(chosen, problem.operators, strict=True) if op.low_workspace]
        kinds["mixed"] += 0 in used and any(used)
    assert kinds["low"] >= 8 and kinds["only low"] >= 5 and kinds["mixed"] >= 3 and kinds["unpacked"] <= 3, kinds
    assert kinds["shown"] >= 5, kinds


@pytest.mark.long
def test_the_smallest_budget_counts_low_workspace_kernels() -> None:
    """No choice needs less than the bound, and what is found is less than with the fastest kernels."""
    less = 0
    for seed in SEEDS[:10]:
        problem = replace(case(seed)[0], deadline_ns=None)
        found = planner("ram").search_ram(problem, 1.0).result
        choices = (fastest(problem), with_least_workspace(problem))
        assert found.ram_bytes is not None
        assert found.bound_bytes <= min(minimum_budget(plain) or 0 for plain in choices), seed
        quick = min_budget(choices[0], time_limit_s=1.0).smallest_bytes
        assert quick is not None
        less += found.ram_bytes < quick
    assert less >= 4


def test_an_infeasible_budget_names_what_low_workspace_kernels_need() -> None:
    problem = next(p for p, _ in map(case, SEEDS) if p.deadline_ns is None)
    found = planner("ram").search_ram(problem, 1.0).result
    low = replace(problem, budget_bytes=planner("ram").lower_bound_bytes(problem) - 1)
    with pytest.raises(InfeasibleError, match=f"known to work is {found.ram_bytes} bytes"):
        planner("ram", "poetc", OPTIONS).solve(low)


def test_a_deadline_that_some_kernels_cannot_meet_is_not_infeasible() -> None:
    """The kernels with least workspace are too slow for it, others are not: nothing was found, nothing is proven."""
    problem, costs = case(1151)
    assert problem.deadline_ns is not None and with_least_workspace(problem).compute_once_ns > problem.deadline_ns
    assert any(cost is not None for cost in costs.values())
    with pytest.raises(LimitError, match=r"within the deadline of .* nor a proof that there is none; allow a longer"):
        planner("ram", "poetc", OPTIONS).solve(problem)


def test_numbers_that_no_variant_has_are_refused() -> None:
    problem = case(0)[0]
    chosen = tuple(len(op.low_workspace) for op in problem.operators)
    plain = KERNELS.fix(problem, chosen)
    assert kernels_of(problem, plain) == chosen
    k = next(k for k, op in enumerate(problem.operators) if op.low_workspace)
    for change in ({"workspace_bytes": plain.operators[k].workspace_bytes + 16}, {"time_ns": 0}, {"energy_pj": 0}):
        operators = (*plain.operators[:k], replace(plain.operators[k], **change), *plain.operators[k + 1 :])
        with pytest.raises(ScheduleError, match="which no kernel of it has"):
            kernels_of(problem, replace(plain, operators=operators))


def test_other_solvers_and_roomy_budgets_have_the_fastest_kernels() -> None:
    problem = replace(case(0)[0], deadline_ns=None)
    roomy = replace(problem, budget_bytes=2 * keep_all_peak_bytes(problem))
    for solver in ("poetc", "keep_all", "dtr"):
        placed = planner("ram", solver, OPTIONS).solve(roomy)
        assert placed.problem == fastest(roomy) and not any(op.low_workspace for op in placed.problem.operators)
    assert planner("ram", "poetc", OPTIONS).solve(roomy).proof.scope.is_everything
    plain = fastest(problem)
    assert fastest(plain) is plain
    with pytest.raises((InfeasibleError, LimitError)):
        planner("ram", "poetc", OPTIONS).solve(replace(plain, budget_bytes=1))


def test_the_fullest_operator_leaves_room_for_other_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that costs little more and needs no workspace, where a faster one fits as well."""
    problem = training_problem(Random(3), 6)
    at = fullest_operator(open_model(problem))
    room = 3 * max(t.size_bytes for t in problem.tensors)
    operator = problem.operators[at]
    slower = Variant(workspace_bytes=0, time_ns=operator.time_ns + 1, energy_pj=operator.energy_pj + 1)
    wide = replace(operator, workspace_bytes=room, low_workspace=(slower,))
    problem = replace(problem, operators=(*problem.operators[:at], wide, *problem.operators[at + 1 :]))
    budget = (lower_bound_bytes(fastest(problem)) * 5 + keep_all_peak_bytes(fastest(problem)) * 4) // 9
    problem = replace(problem, budget_bytes=budget)
    options = SolveOptions(time_limit_s=20.0, work_limit_s=0.2)
    found = planner(options=options).solve(problem)
    verify_plan(found.problem, found.schedule, found.plan)
    assert kernels_of(problem, found.problem)[at] == 1
    limits, kernel = list[float](), solvers.kernel_of_fullest

    def limited(problem: Problem, time_limit_s: float) -> tuple[int, int]:
        limits.append(time_limit_s)
        return kernel(problem, time_limit_s=time_limit_s)

    monkeypatch.setattr(solvers, "kernel_of_fullest", limited)
    short = planner(options=replace(options, time_limit_s=1.0, work_limit_s=0.05))
    first = short.solve(problem)
    assert kernels_of(problem, short.solve(problem).problem)[at] == kernels_of(problem, first.problem)[at] == 1
    assert len(limits) == 1 and limits[0] >= 0.4  # a second solve goes on with the problem of the first
    monkeypatch.setattr(solvers, "kernel_of_fullest", lambda problem, time_limit_s: (0, 0))
    assert found.cost < planner(options=options).solve(problem).cost


@pytest.mark.parametrize(("took_s", "asked"), [(0.0, 1), (10**6, 2)])
def test_a_kernel_of_the_fullest_that_the_clock_chose_is_chosen_anew(
    monkeypatch: pytest.MonkeyPatch, took_s: float, asked: int
) -> None:
    """With another one a second solve would begin with nothing, and a choice cut short may be 17 % dearer."""
    problem, clock, calls = case(0)[0], itertools.count(step=took_s), list[float]()

    def choose(_: Problem, time_limit_s: float) -> tuple[int, int]:
        calls.append(time_limit_s)
        return 0, 0

    monkeypatch.setattr(CLOCK, SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(solvers, "kernel_of_fullest", choose)
    kernels, inner = Kernels(), Planner(options=OPTIONS)
    for _ in range(2):
        kernels._roomy_at_fullest(problem, inner)
    assert len(calls) == asked
