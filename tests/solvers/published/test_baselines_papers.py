"""Each published method on its paper's own setting."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from random import Random

import pytest

from poetc.errors import InfeasibleError
from poetc.scheduling import Compute, PageOut, Paging, Problem, Schedule, SolveOptions, Trace, verify
from poetc.solvers import solve
from poetc.solvers.published import _baseline, _chain, _lower_sets, _training
from poetc.solvers.published.melon import pool_bytes
from poetc.solvers.published.revolve import INFO, codes_for, forward_steps
from tests.solvers.cases import poet_like
from tests.solvers.chains import UNIT, chain
from tests.support.oracle import optimum
from tests.support.problems import training_problem, with_budget
from tests.support.ram import order_free_bound_bytes

OPTIONS = SolveOptions(time_limit_s=20)


def run(problem: Problem, solver: str) -> tuple[Schedule, Trace]:
    schedule = solve(problem, solver, OPTIONS)
    return schedule, verify(problem, schedule)


@functools.cache
def least_forward_steps(steps: int, checkpoints: int) -> int:
    """Griewank's recursion, by brute force."""
    if steps == 1:
        return 0
    if checkpoints == 1:
        return steps * (steps - 1) // 2
    return min(
        j + least_forward_steps(steps - j, checkpoints - 1) + least_forward_steps(j, checkpoints)
        for j in range(1, steps)
    )


def test_revolve_closed_form_is_the_recursion() -> None:
    for steps, checkpoints in itertools.product(range(1, 40), range(1, 8)):
        assert forward_steps(steps, checkpoints) == least_forward_steps(steps, checkpoints)


@pytest.mark.parametrize(("steps", "checkpoints"), [(4, 2), (10, 3), (20, 3), (35, 4), (56, 5), (30, 1)])
def test_revolve_takes_the_optimal_number_of_forward_steps(steps: int, checkpoints: int) -> None:
    problem = chain(steps)
    baseline = _baseline.Baseline(INFO, problem, OPTIONS, None)
    codes = codes_for(_chain.chain_of(baseline.model, "revolve"), checkpoints)
    assert baseline.offer(codes, "")
    forward = sum(1 for code in codes if code < steps)
    # The paper counts the last step, which is recorded for the loss, with its adjoint.
    assert forward == least_forward_steps(steps, checkpoints) + 1
    # Live at once: the checkpoints, a step's result, and two gradients.
    assert baseline.peak_bytes(codes) <= (checkpoints + 3) * UNIT


def test_revolve_uses_as_many_checkpoints_as_fit() -> None:
    costs = []
    for units in (4, 5, 6, 8, 12, 25):
        _, trace = run(chain(20, budget_units=units), "revolve")
        costs.append(trace.recomputes)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0
    with pytest.raises(InfeasibleError, match="revolve: it needs"):
        solve(chain(20, budget_units=2), "revolve", OPTIONS)


@pytest.mark.parametrize("steps", [16, 36, 64, 100])
def test_chen_takes_memory_of_two_square_roots(steps: int) -> None:
    problem = chain(steps)
    _, trace = run(problem, "chen")
    assert trace.peak_bytes <= (2 * math.isqrt(steps) + 4) * UNIT
    assert trace.recomputes <= steps  # one more forward pass at the most
    assert max(trace.executions) == 2


def test_chen_greedy_keeps_all_where_it_fits_and_less_where_not() -> None:
    assert run(chain(36), "chen_greedy")[1].recomputes == 0
    _, trace = run(chain(36, budget_units=16), "chen_greedy")
    assert 0 < trace.recomputes <= 36


def heterogeneous(seed: int, steps: int, budget_units: int) -> Problem:
    random = Random(seed)
    sizes = [random.randint(1, 4) for _ in range(steps)]
    costs = [random.randint(1, 9) for _ in range(steps)]
    return chain(steps, sizes=sizes, costs=costs, budget_units=budget_units)


Strategy = tuple[str, int, "Strategy | None", "Strategy | None"]  # "record", "last" or "checkpoint", with its parts


def persistent(first: int, last: int) -> list[Strategy]:
    """Every way of undoing blocks first ... last that holds a checkpoint until it was used for the last time."""
    if first == last:
        return [("last", first, None, None)]
    ways: list[Strategy] = [("record", first, way, None) for way in persistent(first + 1, last)]
    for j in range(first + 1, last + 1):
        for behind, before in itertools.product(persistent(j, last), persistent(first, j - 1)):
            ways.append(("checkpoint", j, behind, before))
    return ways


def spell(tape: _chain.ChainTape, way: Strategy, first: int) -> None:
    kind, j, behind, before = way
    if kind == "checkpoint":
        assert behind is not None
        assert before is not None
        for k in range(first, j):
            tape.advance(k)
            if k > first:
                tape.drop_boundary(k - 1)
        spell(tape, behind, j)
        tape.drop_boundary(j - 1)
        spell(tape, before, first)
        return
    if kind == "record" or first == len(tape.chain.blocks) - 1:
        tape.record(first)
    if behind is not None:
        spell(tape, behind, first + 1)
    tape.backward(first)


@pytest.mark.parametrize("seed", range(3))
def test_rotor_is_optimal_among_persistent_schedules(seed: int) -> None:
    """Against all of them, replayed exactly: optimal where activations have one size, whatever the steps cost, and near
    it where they differ (the program's count of memory is coarser than the replay); never below the true optimum.
    """
    compared = 0
    for units, same_size in itertools.product((5, 6, 7, 8, 10, 12, 14), (True, False)):
        problem = heterogeneous(seed, 5, units)
        if same_size:
            problem = chain(5, costs=[o.energy_pj for o in problem.operators[:5]], budget_units=units)
        every = _baseline.Baseline(INFO, problem, OPTIONS, None)
        parts = _chain.chain_of(every.model, "test")
        for way in persistent(0, len(parts.blocks) - 1):
            tape = _chain.ChainTape(parts)
            spell(tape, way, 0)
            every.offer(tape.tape.finish(), "")
        if every.best is None:
            with pytest.raises(InfeasibleError):
                solve(problem, "rotor", OPTIONS)
            continue
        compared += 1
        schedule, _ = run(problem, "rotor")
        if same_size:
            assert schedule.proof.objective == every.best_cost, units
        else:
            assert every.best_cost <= schedule.proof.objective <= 1.1 * every.best_cost, units
        best = optimum(problem)
        assert best is not None
        assert best.cost <= schedule.proof.objective
    assert compared >= 4


def test_rotor_never_needs_more_than_revolve_or_chen() -> None:
    for seed in range(4):
        problem = heterogeneous(seed, 24, 22)
        ours = run(problem, "rotor")[0].proof.objective
        for other in ("revolve", "chen", "chen_greedy", "gpipe"):
            try:
                assert ours <= run(problem, other)[0].proof.objective
            except InfeasibleError:
                continue


def test_pofo_offloads_where_the_link_is_cheap_and_recomputes_where_not() -> None:
    cheap, trace = run(chain(20, costs=[50] * 20, budget_units=9, page=(1, 1)), "pofo")
    assert trace.page_outs > 0
    dear, trace = run(chain(20, costs=[50] * 20, budget_units=9, page=(900, 900)), "pofo")
    assert trace.page_outs == 0
    assert trace.recomputes > 0
    assert cheap.proof.objective < dear.proof.objective


@pytest.mark.parametrize("seed", range(3))
def test_checkmate_equals_ours_without_paging(seed: int) -> None:
    for fraction in (0.3, 0.6):
        problem = without_paging(poet_like(seed, 5), fraction)
        schedule, _ = run(problem, "checkmate")
        ours, _ = run(problem, "poetc")
        assert schedule.proof.objective == ours.proof.objective == schedule.proof.bound
        best = optimum(problem)
        assert best is not None
        assert best.cost == ours.proof.objective


def without_paging(problem: Problem, fraction: float) -> Problem:
    from poetc.scheduling import keep_all_peak_bytes

    low, high = order_free_bound_bytes(problem), keep_all_peak_bytes(problem)
    return dataclasses.replace(
        problem,
        budget_bytes=int(low + (high - low) * fraction),
        paging=Paging.NONE,
    )


def test_checkmate_rounding_is_between_the_optimum_and_twice_the_work() -> None:
    found = 0
    for seed in range(4):
        problem = without_paging(poet_like(seed, 5), 0.6)
        best, _ = run(problem, "checkmate")
        try:
            rounded, _ = run(problem, "checkmate_lp")
        except InfeasibleError:
            continue
        found += 1
        assert best.proof.objective <= rounded.proof.objective <= 2 * problem.compute_once_pj
    assert found >= 2


def test_moccasin_is_checkmate_with_few_intervals() -> None:
    for seed in range(3):
        problem = without_paging(poet_like(seed, 5), 0.4)
        free, _ = run(problem, "checkmate")
        try:
            few, trace = run(problem, "moccasin")
        except InfeasibleError:
            continue
        assert max(trace.executions) <= 2
        assert few.proof.objective >= free.proof.objective
        if max(verify(problem, free).executions) <= 2:
            assert few.proof.objective == free.proof.objective


def test_kusumoto_counts_lower_sets() -> None:
    problem = chain(6)
    baseline = _baseline.Baseline(INFO, problem, OPTIONS, None)
    graph = _lower_sets.forward_graph(baseline.model, _training.split(baseline.model, "test"))
    # What the loss depends on is a chain of six steps; x6 feeds the loss alone.
    assert len(_lower_sets.all_lower_sets(graph, 100, "test")) == len(graph.operators) + 1
    assert _lower_sets.ancestor_closures(graph) == [(1 << k + 1) - 1 for k in range(len(graph.operators))]


def test_kusumoto_exact_is_the_best_choice_of_checkpoints() -> None:
    """Of all sets of checkpoints on a chain, each recomputing a segment once."""
    for seed, units in itertools.product(range(3), (10, 12, 14)):
        problem = heterogeneous(seed, 7, units)
        baseline = _baseline.Baseline(INFO, problem, OPTIONS, None)
        parts = _training.split(baseline.model, "test")
        for kept in range(1 << 7):
            checkpoints = {k + 1 for k in range(7) if kept >> k & 1}
            tail = {t for t in parts.forward_tensors if t > max(checkpoints, default=0)}
            baseline.offer(_training.run_static(baseline.model, parts, checkpoints | tail), "")
        if baseline.best is None:
            continue
        for solver in ("kusumoto", "kusumoto_approx"):
            try:
                found, _ = run(problem, solver)
            except InfeasibleError:
                continue  # its count of memory, two copies of a segment, is coarser than the replay
            assert found.proof.objective >= baseline.best_cost


@pytest.mark.parametrize("steps", [16, 64])
def test_dtr_on_a_chain_takes_linear_work_with_two_square_roots(steps: int) -> None:
    """Theorem 3.1: with memory of the order of sqrt n, of the order of n operators are recomputed."""
    problem = chain(steps, budget_units=2 * math.isqrt(steps) + 4)
    for solver in ("dtr", "dtr_eq"):
        _, trace = run(problem, solver)
        assert 0 < trace.recomputes <= 3 * steps


def test_dtr_does_nothing_where_everything_fits() -> None:
    for solver in ("dtr", "dtr_eq", "dtr_local", "melon", "capuchin", "superneurons"):
        assert run(chain(16), solver)[1].recomputes == 0


def test_vdnn_offloads_feature_maps_and_recomputes_nothing() -> None:
    problem = chain(16, budget_units=9, page=(1, 1))
    for solver in ("vdnn", "vdnn_all", "swapadvisor"):
        schedule, trace = run(problem, solver)
        assert trace.recomputes == 0
        assert trace.page_outs > 0
        written = [s.tensor for s in schedule.actions if isinstance(s, PageOut)]
        assert len(written) == len(set(written))


def test_capuchin_swaps_what_has_time_to_hide_and_recomputes_the_rest() -> None:
    slow = chain(16, budget_units=9, page=(1, 1))
    assert run(slow, "capuchin")[1].page_outs > 0
    tensors = tuple(dataclasses.replace(t, page_in_ns=10_000, page_out_ns=10_000) for t in slow.tensors)
    _, trace = run(dataclasses.replace(slow, tensors=tensors), "capuchin")
    assert trace.page_outs == 0  # no pause is long enough
    assert trace.recomputes > 0


def test_capuchin_takes_the_cheaper_way_for_each_tensor_where_nothing_hides() -> None:
    """One operator's output is dear to make again and cheap to move; the others are the other way round."""
    problem = chain(16, budget_units=9, page=(1, 1))
    dear = next(o for o in problem.operators if o.phase == "forward" and o.name == "f15")
    operators = tuple(dataclasses.replace(o, time_ns=o.time_ns * 500) if o is dear else o for o in problem.operators)
    tensors = tuple(
        dataclasses.replace(t, page_in_ns=k, page_out_ns=k)
        for t, k in zip(problem.tensors, ((1, 40)[i not in dear.outputs] for i in range(99)), strict=False)
    )
    schedule, trace = run(dataclasses.replace(problem, operators=operators, tensors=tensors), "capuchin")
    written = {s.tensor for s in schedule.actions if isinstance(s, PageOut)}
    assert written <= set(dear.outputs)
    assert trace.executions[problem.operators.index(dear)] == 1
    assert trace.recomputes > 0


def test_online_methods_keep_what_evicted_tensors_can_be_made_from() -> None:
    """Updates overwrite weights in the step, so that a dead tensor may be the only source of an evicted one."""
    solved = 0
    for seed in range(0, 40, 2):
        problem = training_problem(Random(seed), 2 + seed % 6)
        for share in (0.45, 0.7):
            for solver in ("dtr", "dtr_eq", "dtr_local", "melon", "sage"):
                try:
                    solve(with_budget(problem, share), solver, SolveOptions(time_limit_s=10))
                    solved += 1
                except InfeasibleError as error:
                    assert "cannot be made again" not in str(error), (seed, share, solver)
    assert solved >= 40


def test_melon_is_judged_by_live_bytes() -> None:
    """As every method here is: its pool may end above the budget."""
    found = 0
    for seed in range(40):
        problem = with_budget(training_problem(Random(seed), 2 + seed % 6), 0.6)
        try:
            schedule = solve(problem, "melon", SolveOptions(time_limit_s=10))
        except InfeasibleError as error:
            assert "pool" not in str(error)
            continue
        said = re.search(r"its pool ends at (\d+)", schedule.proof.method)
        assert said is not None
        found += int(said[1]) > problem.budget_bytes >= verify(problem, schedule).peak_bytes
    assert found > 0


def test_swapadvisor_reorders_within_the_dependences() -> None:
    problem = chain(10, budget_units=7, page=(1, 1))
    schedule, _ = run(problem, "swapadvisor")
    order = [s.operator for s in schedule.actions if isinstance(s, Compute)]
    assert sorted(order) == list(range(len(problem.operators)))


def test_melon_pool_places_longest_lifetimes_first() -> None:
    assert pool_bytes([(0, 4, 10), (0, 2, 6), (2, 4, 6)]) == 16
    # A long-lived one beside two that share the room above it.
    assert pool_bytes([(0, 10, 1), (0, 5, 4), (5, 10, 3), (4, 6, 2)]) == 7


def test_gpipe_stores_boundaries_alone() -> None:
    _, trace = run(chain(16, budget_units=12), "gpipe")
    assert 0 < trace.recomputes <= 16
    assert max(trace.executions) == 2


def test_sage_inlines_cheap_cones() -> None:
    problem = chain(8, reads_output=True)
    kinds = ("Conv", "Relu")
    operators = tuple(
        dataclasses.replace(o, kind=kinds[k % 2]) if o.phase == "forward" else o
        for k, o in enumerate(problem.operators)
    )
    _, trace = run(dataclasses.replace(problem, operators=operators), "sage")
    again = [k for k, n in enumerate(trace.executions) if n > 1]
    assert again
    assert all(k % 2 for k in again)  # no convolution
