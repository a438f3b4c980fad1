"""The search for an order: against the exhaustive optimum over all orders."""

from __future__ import annotations

import dataclasses
import math
from random import Random

import numpy as np
import pytest

from poetc.errors import InfeasibleError
from poetc.scheduling import (
    OperatorSpec,
    Paging,
    Problem,
    SolveOptions,
    Status,
    TensorSpec,
    keep_all_peak_bytes,
    verify,
)
from poetc.solvers import Work, solve
from poetc.solvers.dependences import Dependences
from poetc.solvers.model import Model
from poetc.solvers.poetc.orders.annealing import Draws, Moves, Overflow, anneal, tidied
from poetc.solvers.poetc.orders.best_order import best_order, cheapest_order, clear_order
from poetc.solvers.poetc.orders.low_traffic import low_traffic_order
from poetc.solvers.poetc.orders.reordering import reordered, restored
from poetc.solvers.poetc.search.race import at_once
from poetc.solvers.poetc.settings import ORDERS
from tests.support.oracle import optimum
from tests.support.problems import random_dag, training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=60)


def branches(count: int, budget_bytes: int) -> Problem:
    """Large tensors that shrink, all large ones made first: keep-all fits in two of them in another order only."""
    tensors = [TensorSpec(name="x", size_bytes=16, initial="ram", final="ram", pageable=False)]
    operators = []
    for k in range(2 * count + 1):
        size = 1600 if k < count else 16
        tensors.append(TensorSpec(name=f"t{k}", size_bytes=size, final="ram" if k == 2 * count else ""))
        inputs = (0,) if k < count else (k - count + 1,)
        if k == 2 * count:
            inputs = tuple(range(count + 1, 2 * count + 1))
        operators.append(
            OperatorSpec(
                name=f"op{k}", kind="op", phase="forward", inputs=inputs, outputs=(k + 1,), time_ns=9, energy_pj=9
            )
        )
    return Problem(
        name="branches",
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=budget_bytes,
        paging=Paging.NONE,
    )


def test_a_better_order_is_found_and_the_optimum_proven_for_all_schedules() -> None:
    problem = branches(5, 1600 + 16 * 8)
    assert keep_all_peak_bytes(problem) > 5 * 1600
    schedule = solve(problem, options=OPTIONS)
    assert schedule.proof.status is Status.OPTIMAL
    assert schedule.proof.objective == problem.compute_once_pj
    assert schedule.proof.scope.is_everything
    assert verify(problem, schedule).recomputes == 0
    try:
        kept = solve(problem, options=dataclasses.replace(OPTIONS, fixed_order=True)).proof.objective
    except InfeasibleError:
        return
    assert kept > problem.compute_once_pj


def test_never_above_the_fixed_order_nor_below_the_optimum_over_all_orders() -> None:
    least = better = solved = 0
    for seed in range(45):
        random = Random(seed)
        paging = seed % 3 == 0
        problem = random_dag(random, 6, paging=paging) if seed % 2 else training_problem(random, 1, paging=paging)
        problem = with_budget(problem, random.choice((0.1, 0.2, 0.4)))
        best, fixed = (optimum(problem, fixed_order=kept) for kept in (False, True))
        if best is None:
            continue
        try:
            schedule = solve(problem, options=OPTIONS)
        except InfeasibleError:
            assert fixed is None  # proven for the problem's order only, and it says so
            continue
        solved += 1
        cost = schedule.proof.objective
        assert verify(problem, schedule).energy_pj == cost
        assert best.cost <= cost, seed
        assert fixed is None or cost <= fixed.cost, seed
        least += cost == best.cost
        better += fixed is None or cost < fixed.cost
        if schedule.proof.scope.is_everything and schedule.proof.status is Status.OPTIMAL:
            assert cost == best.cost, seed
    assert solved > 12
    assert better >= 2
    assert least > 0.9 * solved


def test_the_overflow_is_what_keep_all_needs_above_the_capacity() -> None:
    for seed in range(20):
        problem = training_problem(Random(seed), 2)
        model = Model(problem)
        peak = keep_all_peak_bytes(problem) - problem.base_bytes
        order = np.arange(model.n_ops)
        assert Overflow(model, peak).of(order) == 0.0, seed
        assert Overflow(model, peak - 1).of(order) > 0.0, seed


def test_moves_lead_to_the_overflow_of_their_order() -> None:
    """Tensors that stay, that nothing reads or makes, and in-place pairs are among them; every other move is undone."""
    for seed in range(100):  # the last are so small that a move passes all operators
        random = Random(seed)
        problem = random_dag(random, random.randint(2, 12 if seed < 40 else 4), paging=seed % 3 == 0)
        # Any tensor may stay, and one of the start may have no reader.
        tensors = [
            dataclasses.replace(t, final="ram") if random.random() < 0.15 else t
            for t in (*problem.tensors, TensorSpec(name="unread", size_bytes=64, initial="ram"))
        ]
        model = Model(dataclasses.replace(problem, tensors=tuple(tensors)))
        overflow = Overflow(model, max(1, int(random.uniform(0.1, 0.9) * keep_all_peak_bytes(problem))))
        moves, dependences = Moves(model, overflow), Dependences(model)
        assert moves.value == overflow.of(np.arange(model.n_ops)), seed
        for k in range(40):
            v = random.randrange(model.n_ops)
            low = max((moves.position[u] for u in dependences.before[v]), default=-1) + 1
            high = min((moves.position[u] for u in dependences.after[v]), default=model.n_ops) - 1
            places = [at for at in range(low, high + 1) if at != moves.position[v]]
            if not places:
                continue
            order, value = list(moves.order), moves.value
            undo = moves.move(v, random.choice(places))
            assert moves.order != order
            assert moves.value == overflow.of(np.array(moves.order, dtype=np.intp)), (seed, k)
            if k % 2:
                undo()
                assert (moves.order, moves.value) == (order, value)


def test_draws_are_those_of_numpy() -> None:
    draws, numpy = Draws(7), np.random.Generator(np.random.PCG64(7))
    random = Random(7)
    for _ in range(3000):
        bound = random.choice((1, 2, random.randint(3, 100), 2**32 - 1 - random.randrange(2**31)))
        assert draws.below(bound) == numpy.integers(bound)
        if random.random() < 0.5:
            assert draws.fraction() == numpy.random()


def test_what_makes_no_difference_to_keep_all_comes_early() -> None:
    """The gradient of a weight, whose operands are there anyway, is made as soon as they are."""
    earlier = 0
    for seed in range(20):
        problem = training_problem(Random(seed), 4)
        model = Model(problem)
        overflow = Overflow(model, int(0.6 * keep_all_peak_bytes(problem)))
        _, order = anneal(model, overflow.capacity, Draws(seed), moves=200, heat=0.2)
        tidy = tidied(model, overflow, order)
        assert tidy == tidied(model, overflow, order)
        assert sorted(tidy) == list(range(model.n_ops))
        position = {v: k for k, v in enumerate(tidy)}
        dependences = Dependences(model)
        assert all(position[u] < position[v] for v in tidy for u in dependences.before[v]), seed
        before, after = (overflow.with_mean(np.array(o, dtype=np.intp)) for o in (order, tidy))
        assert after[0] <= before[0] and after[1] <= before[1], seed
        earlier += after[1] < before[1]
        assert overflow.of(np.array(tidy, dtype=np.intp)) == after[0]
    assert earlier > 5


def test_the_same_seed_gives_the_same_order_and_a_schedule_of_it_is_one_of_the_problem() -> None:
    problem = branches(4, 2 * 1600 + 16 * 8)
    order = best_order(problem, OPTIONS, Work(math.inf))
    assert order is not None
    assert order == best_order(problem, OPTIONS, Work(math.inf))
    fixed = dataclasses.replace(OPTIONS, fixed_order=True)
    verify(problem, restored(solve(reordered(problem, order), options=fixed), order))


def test_the_cheapest_order_for_one_of_several_placements() -> None:
    """Under the problem's own order nothing fits but with more RAM; what a second problem adds is its own best."""
    problem = branches(4, 2 * 1600 + 16 * 8)
    order = best_order(problem, OPTIONS, Work(math.inf))
    assert order is not None
    back = tuple(order.index(v) for v in range(len(order)))
    good = reordered(problem, order)
    roomy = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem))
    for orders in ((None, order), (order, None)):
        assert cheapest_order([problem], orders, OPTIONS, Work(math.inf)) == order
        assert cheapest_order([good], [back if o else None for o in orders], OPTIONS, Work(math.inf)) is None
        assert cheapest_order([problem, roomy], orders, OPTIONS, Work(math.inf)) == orders[0]


def stacked(steps: int, layers: int, budget_bytes: int) -> Problem:
    """Recurrent layers, one after the other: cells hand on a small state and save large gates. Each layer's gradients
    of its gates are all made before they are summed up into a weight's.
    """
    tensors = [TensorSpec(name="lr", size_bytes=16, initial="ram", final="ram", pageable=False)]
    operators: list[OperatorSpec] = []

    def make(name: str, phase: str, inputs: tuple[int, ...], *sizes: int, energy: int = 10) -> tuple[int, ...]:
        made = tuple(range(len(tensors), len(tensors) + len(sizes)))
        tensors.extend(TensorSpec(name=f"{name}.{k}", size_bytes=size) for k, size in enumerate(sizes))
        operators.append(
            OperatorSpec(name=name, phase=phase, inputs=inputs, outputs=made, time_ns=energy, energy_pj=energy)
        )
        return made

    state = [[0] * steps for _ in range(layers)]
    gates = [[0] * steps for _ in range(layers)]
    for layer in range(layers):
        for t in range(steps):
            inputs = (0,) + ((state[layer][t - 1],) if t else ()) + ((state[layer - 1][t],) if layer else ())
            state[layer][t], gates[layer][t] = make(f"cell{layer},{t}", "forward", inputs, 64, 512)
    (loss,) = make("loss", "loss", (state[-1][-1],), 64)
    from_above = [0] * steps
    from_above[-1] = loss
    for layer in reversed(range(layers)):
        grads, after = [0] * steps, 0
        for t in reversed(range(steps)):
            inputs = tuple(g for g in (gates[layer][t], from_above[t], after) if g)
            grads[t], after, from_above[t] = make(f"grad{layer},{t}", "backward", inputs, 512, 64, 64)
        total = 0
        for t in reversed(range(steps)):
            before = (state[layer][t - 1],) if t else ()
            inputs = (grads[t], *before, *((total,) if total else ()))
            (total,) = make(f"sum{layer},{t}", "backward", inputs, 256)
        tensors[total] = dataclasses.replace(tensors[total], final="ram")
    return Problem(
        name="stacked",
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=budget_bytes,
        paging=Paging.NONE,
    )


@pytest.mark.long
def test_stacked_layers_go_step_by_step_together_so_that_runs_of_them_can_be_made_again() -> None:
    problem = stacked(24, 2, 0)
    model = Model(problem)
    dependences = Dependences(model)
    order = low_traffic_order(model, dependences.before, dependences.after)
    assert sorted(order) == list(range(model.n_ops))
    position = {v: k for k, v in enumerate(order)}
    assert all(position[u] < position[v] for v in range(model.n_ops) for u in dependences.before[v])
    names = [problem.operators[v].name for v in order]
    assert names[:4] == ["cell0,0", "cell1,0", "cell0,1", "cell1,1"]
    # A gradient of gates is summed up before the next one is made.
    assert names.index("sum1,23") < names.index("grad1,22") and names.index("sum0,23") < names.index("grad0,22")

    # Where little RAM is left, short races prefer it.
    tight = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem) * 25 // 100)
    assert best_order(tight, OPTIONS, Work(math.inf)) == order


def test_an_order_whose_first_schedule_costs_far_less_is_taken_without_more_races() -> None:
    problem = stacked(24, 2, 0)
    tight = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem) * 15 // 100)
    own = at_once(tight, OPTIONS)
    assert own is not None
    cost = own.proof.objective
    clear = clear_order(tight, cost, OPTIONS)
    assert clear is not None
    order, schedule = clear
    assert schedule.proof.objective <= (1 - ORDERS.clear) * cost
    verify(reordered(tight, order), schedule)
    assert clear_order(tight, schedule.proof.objective, OPTIONS) is None
    assert solve(tight, options=OPTIONS).proof.objective <= schedule.proof.objective
