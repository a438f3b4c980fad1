"""Encodings of saved tensors as a choice: where they pay, and what is claimed of them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from poetc.commands.encodings import encoded_step, encodings_of, offers_of
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.planning import Planner, Solution, reductions
from poetc.planning import saved as saved_tensors
from poetc.planning.alternatives import _Comparison
from poetc.planning.saved import EncodingSpace, Saved
from poetc.planning.streaming import first_cost
from poetc.planning.ways import ALONE, CoreUsage
from poetc.scheduling import Paging, Problem, SolveOptions, keep_all_peak_bytes, verify
from poetc.scheduling.scope import ANY
from poetc.solvers import MinimumBudget
from poetc.training import TrainingOptions
from tests.commands.trained import DIGITS
from tests.passes.test_encoding import pooled, step_of

OPTIONS = SolveOptions(time_limit_s=60, work_limit_s=0.2, gap=0.1)
PROFILE = load_profile("stm32f746")


@pytest.fixture(scope="module")
def offer() -> EncodingSpace:
    step = step_of(pooled())
    problem = build_problem(step, PROFILE, budget_bytes=10**6)
    (found,) = offers_of(step, PROFILE, problem, None)
    return found


def solved(offer: EncodingSpace, budget_bytes: int, offered: bool = True) -> tuple[Problem, Solution]:
    problem = replace(offer.exact, budget_bytes=budget_bytes)
    planner = Planner(options=OPTIONS, reductions=reductions("ram", offers=[offer] if offered else ()))
    return problem, planner.solve(problem)


def test_nothing_is_encoded_where_keep_all_fits(offer: EncodingSpace) -> None:
    problem, found = solved(offer, keep_all_peak_bytes(offer.exact))
    assert found.choices["saved"] == ()
    assert found.cost == problem.compute_once_pj
    assert found.proof.scope.choice("saved") is ANY


@pytest.mark.long
def test_encodings_that_pay_are_chosen_and_the_bound_says_for_which_it_holds(offer: EncodingSpace) -> None:
    budget = keep_all_peak_bytes(offer.exact) * 9 // 10
    problem, found = solved(offer, budget)
    plain = solved(offer, budget, offered=False)[1]
    assert found.choices["saved"]
    assert found.cost < plain.cost
    fixed = Saved([offer]).fix(problem, found.choices["saved"])
    assert [op.name for op in found.problem.operators] == [op.name for op in fixed.operators]
    assert verify(found.problem, found.schedule).energy_pj == found.cost
    assert found.proof.scope.choice("saved") == found.choices["saved"]
    assert plain.proof.scope.choice("saved") is None


def test_a_schedule_with_encodings_is_kept_for_the_problem_without(offer: EncodingSpace) -> None:
    problem, solution = solved(offer, keep_all_peak_bytes(offer.exact) * 9 // 10)
    assert solution.choices["saved"]
    planner = Planner(options=OPTIONS)
    planner.keep_shown(problem, solution, "a stage", 0)
    assert planner.best.packed_cost(problem) == solution.cost


def test_other_encodings_have_another_bound(offer: EncodingSpace) -> None:
    _, found = solved(offer, keep_all_peak_bytes(offer.exact) * 9 // 10)
    assert not found.proof.scope.choices_cover(found.scope.with_choice("saved", ()))


@pytest.mark.long
def test_a_bound_is_carried_to_other_ways_with_the_same_encodings(offer: EncodingSpace) -> None:
    """So a way that costs a little more is not solved for, and the bound for all ways is that of the cheapest one."""

    def cheaper(problem: Problem) -> Problem:
        operators = (replace(o, energy_pj=o.energy_pj * 98 // 100, time_ns=o.time_ns // 2) for o in problem.operators)
        return replace(problem, operators=tuple(replace(o, low_workspace=()) for o in operators))

    def plain(problem: Problem) -> Problem:
        return replace(problem, operators=tuple(replace(o, low_workspace=()) for o in problem.operators))

    budget = keep_all_peak_bytes(plain(offer.exact)) * 9 // 10
    ways = {ALONE: plain(offer.exact), 4: cheaper(offer.exact)}
    offers = [
        replace(offer, exact=ways[way], build=lambda choice, priced=priced: priced(offer.build(choice)), _problems={})
        for way, priced in ((ALONE, plain), (4, cheaper))
    ]
    planner = Planner(options=replace(OPTIONS, gap=0.015), reductions=reductions("ram", offers=offers, ways=[ways]))
    found = planner.solve(replace(ways[ALONE], budget_bytes=budget))
    assert found.choices["saved"] and found.choices["threads"] == 4
    alone = found.ways[0]
    assert (alone.count, alone.outcome) == (ALONE, "not cheaper with the same encodings")
    assert found.proof.gap() <= 0.015
    assert found.proof.scope.choice("saved") == found.choices["saved"]


def test_a_way_tries_all_encodings_and_the_others_have_the_cheapest(
    offer: EncodingSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way tried all of them anew, so that none had time for its own schedule."""

    def plain(problem: Problem) -> Problem:
        return replace(problem, operators=tuple(replace(o, low_workspace=()) for o in problem.operators))

    def threads(problem: Problem) -> Problem:
        operators = (replace(o, time_ns=o.time_ns // 2) for o in plain(problem).operators)
        return replace(problem, operators=tuple(operators))

    ways = {ALONE: plain(offer.exact), 4: threads(offer.exact)}
    offers = [
        replace(offer, exact=ways[way], build=lambda choice, priced=priced: priced(offer.build(choice)), _problems={})
        for way, priced in ((ALONE, plain), (4, threads))
    ]
    tried, solved = list[Problem](), list[object]()
    cheapest, with_known = Saved.cheapest, Saved.solved_with

    def all_tried(saved: Saved, problem: Problem, planner: Planner) -> Solution:
        tried.append(problem)
        return cheapest(saved, problem, planner)

    def known(saved: Saved, problem: Problem, choice: tuple[int, ...], planner: Planner) -> Solution:
        solved.append(choice)
        return with_known(saved, problem, choice, planner)

    monkeypatch.setattr(Saved, "cheapest", all_tried)
    monkeypatch.setattr(Saved, "solved_with", known)
    planner = Planner(options=OPTIONS, reductions=reductions("ram", offers=offers, ways=[ways]))
    problem = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) * 9 // 10)
    usage = planner.reductions[0]
    assert isinstance(usage, CoreUsage)
    alone, other = (usage._solved(problem, way, planner, 0.5) for way in (ALONE, 4))
    assert len(tried) == 1 and solved == [alone.choices["saved"]] == [other.choices["saved"]] != [()]


def test_the_encodings_with_the_cheapest_first_schedule_come_first(offer: EncodingSpace) -> None:
    """The first option may take most of the first round."""
    problem = replace(offer.exact, budget_bytes=keep_all_peak_bytes(offer.exact) * 6 // 10)
    saved = Saved([offer])
    planner = Planner(options=OPTIONS, reductions=reductions("ram", offers=[offer]))
    costs = [first_cost(saved.fix(problem, choice), planner) for choice in saved.ranked(problem, planner)]
    assert costs == sorted(costs) and len(set(costs)) > 1
    assert next(iter(saved.propose(problem, None))) != next(iter(saved.ranked(problem, planner)))


@pytest.mark.parametrize(("operators_per_s", "tried"), [(math.inf, True), (0.0, False)])
def test_a_large_problem_has_the_encodings_of_the_cheapest_first_schedule(
    offer: EncodingSpace, operators_per_s: float, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option took a fifth of a short limit, and the one with the cheapest first schedule was the answer."""
    seen, solve_for = list[object](), _Comparison._try

    def spy(self: _Comparison, choice: object, seconds: float, work_share: float) -> None:
        seen.append(choice)
        solve_for(self, choice, seconds, work_share)

    monkeypatch.setattr(_Comparison, "_try", spy)
    monkeypatch.setattr(Saved, "operators_per_s", operators_per_s)
    problem, found = solved(offer, keep_all_peak_bytes(offer.exact) * 9 // 10)
    assert (len(set(seen) & {(), *offer.proposals}) > 1) == tried
    first = next(iter(Saved([offer]).ranked(problem, Planner(options=OPTIONS, reductions=reductions("ram")))))
    assert seen[0] == first and (tried or found.choices["saved"] in (seen[0], seen[-1]))


def test_the_least_ram_is_that_of_some_encodings(offer: EncodingSpace) -> None:
    problem = replace(offer.exact, budget_bytes=1)
    with_offer, without = (
        Planner(options=OPTIONS, reductions=reductions("ram", offers=found)) for found in ([offer], ())
    )
    assert with_offer.lower_bound_bytes(problem) <= without.lower_bound_bytes(problem)
    search = with_offer.search_ram(problem, 2.0, time.monotonic() + 2.0)
    smallest = search.result.ram_bytes
    assert smallest is not None
    assert smallest <= (without.search_ram(problem, 2.0).result.ram_bytes or 0)
    least = with_offer.least_ram_solution(replace(problem, budget_bytes=smallest), search.as_budget())
    assert least.choices["saved"] is not None
    verify(replace(least.problem, budget_bytes=smallest), least.schedule)


def test_bounds_of_all_encodings_wait_for_the_search_for_the_least_ram(offer: EncodingSpace) -> None:
    calls: list[int] = []

    class Counting(Saved):
        def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
            calls.append(problem.budget_bytes)
            return super().lower_bound_bytes(problem, inner)

    chain = tuple(Counting(r.offers) if isinstance(r, Saved) else r for r in reductions("ram", offers=[offer]))
    search = Planner(options=OPTIONS, reductions=chain).search_ram(offer.exact, 2.0)
    assert not calls
    assert search.result.bound_bytes <= (search.result.ram_bytes or 0)
    assert len(calls) == 1


def test_the_least_ram_within_a_deadline_is_without_encodings_that_take_longer(offer: EncodingSpace) -> None:
    """Keep-all without encodings is in time, so that it is no proof when one with encodings is late."""
    saved, once_ns = Saved([offer]), offer.exact.compute_once_ns
    assert saved.frugal(offer.exact).compute_once_ns > 1.05 * once_ns  # looked for without a deadline before
    planner = Planner(options=OPTIONS, reductions=reductions("ram", offers=[offer]))
    for share in (1.0, 1.05):
        problem = replace(offer.exact, deadline_ns=int(share * once_ns))
        found = planner.search_ram(problem, 2.0).result
        assert found.ram_bytes is not None and found.ram_bytes <= keep_all_peak_bytes(problem)
    long, short = (saved.frugal(replace(offer.exact, deadline_ns=ns)) for ns in (2 * once_ns, once_ns // 2))
    assert long.operators == saved.frugal(offer.exact).operators
    assert short.operators == offer.exact.operators


def test_other_solvers_and_switched_off_leave_all_as_it_is(offer: EncodingSpace) -> None:
    step = step_of(pooled(), saved="off")
    assert encodings_of(step) == ()
    assert offers_of(step, PROFILE, offer.exact, None) == ()
    assert encoded_step(step, ()) is step
    problem = replace(offer.exact, budget_bytes=10**6)
    planner = Planner(options=OPTIONS, solver="dtr", reductions=reductions("ram", offers=[offer]))
    assert planner.solve(problem).choices["saved"] == ()


@pytest.mark.long
def test_lossy_encodings_that_are_allowed_do_not_raise_the_least_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them the least keep-all is needed, but their decoders need room: fewer of them need less.

    Counted work ends the search for the least RAM of each proposal, so that a busy machine has the same answer.
    """
    least, limits, search = {}, list[dict[str, float]](), saved_tensors.solvers.min_budget

    def recorded(problem: Problem, **given: float) -> MinimumBudget:
        limits.append(given)
        return search(problem, **{**given, "time_limit_s": 60.0})  # type: ignore[arg-type]

    monkeypatch.setattr(saved_tensors.solvers, "min_budget", recorded)
    for saved in ("exact", "int8"):
        model = ModelRequest(source=DIGITS, batch=16, device="stm32f746", training=TrainingOptions(saved=saved))
        step = training_graph(model)[1]
        problem = build_problem(step, PROFILE, budget_bytes=10**6, paging=Paging.NONE)
        offers = offers_of(step, PROFILE, problem, Paging.NONE)
        planner = Planner(options=OPTIONS, reductions=reductions("ram", offers=offers))
        least[saved] = planner.search_ram(problem, 60.0).result.ram_bytes
    assert least["int8"] <= least["exact"]
    of_proposals = [given for given in limits if given["work_limit_s"] < math.inf]
    assert len(of_proposals) > 2
    assert all(given["time_limit_s"] >= 10 * given["work_limit_s"] > 0 for given in of_proposals)
