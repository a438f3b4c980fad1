"""Transfers that overlap compute: timelines made by hand, two simulations that must agree, schedules that hide them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc.devices.streaming import streamed_problem
from poetc.errors import InfeasibleError, LimitError, UsageError
from poetc.scheduling import (
    Action,
    Completer,
    Compute,
    Free,
    Move,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    SolveOptions,
    Status,
    TensorSpec,
    Trace,
    keep_all_peak_bytes,
    settled,
    validate_problem,
    verify,
    verify_parts,
)
from poetc.scheduling._transfers import overlapped_ns, ram_of_actions_bytes
from poetc.solvers import solve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from tests.support.problems import random_dag, random_decisions, training_problem, with_budget


def checked(problem: Problem, actions: tuple[Action, ...]) -> Trace:
    energy = 0
    for s in actions:
        if isinstance(s, Compute):
            energy += problem.operators[s.operator].energy_pj
        elif isinstance(s, PageOut):
            energy += problem.tensors[s.tensor].page_out_pj
        elif isinstance(s, PageIn):
            energy += problem.tensors[s.tensor].page_in_pj
    proof = Proof(status=Status.FEASIBLE, objective=energy, bound=0, scope=Scope())
    return verify(problem, Schedule(solver="test", actions=actions, proof=proof))


def line(*, full_duplex: bool = False) -> Problem:
    """a = f(), b = g(), c = h(a), each 100 ns; a takes 60 ns out and 40 ns in, b 30 and 30."""
    tensors = (
        TensorSpec(name="a", size_bytes=16, page_out_ns=60, page_in_ns=40),
        TensorSpec(name="b", size_bytes=16, page_out_ns=30, page_in_ns=30),
        TensorSpec(name="c", size_bytes=16, final="ram"),
    )
    reads = ((), (), (0, 1))
    operators = tuple(
        OperatorSpec(name=n, inputs=reads[k], outputs=(k,), time_ns=100, energy_pj=1) for k, n in enumerate("fgh")
    )
    return Problem(
        name="line",
        tensors=tensors,
        operators=operators,
        budget_bytes=48,
        paging=Paging.DMA,
        dma_full_duplex=full_duplex,
    )


@pytest.mark.parametrize(
    "actions, time_ns",
    [
        # Out behind g, in behind nothing: h waits for the whole page-in.
        ((Compute(0), PageOut(0), Compute(1), Free(0), PageIn(0), Compute(2), Free(0), Free(1)), 200 + 40 + 100),
        # The Free stands before g: it waits for the page-out to be through.
        ((Compute(0), PageOut(0), Free(0), Compute(1), PageIn(0), Compute(2), Free(0), Free(1)), 100 + 60 + 100 + 140),
        # Issued before g, the page-in is hidden: out until 160, in until 200.
        ((Compute(0), PageOut(0), Free(0), PageIn(0), Compute(1), Compute(2), Free(0), Free(1)), 160 + 100 + 100),
        # The step is over when the last transfer is.
        ((Compute(0), Compute(1), Compute(2), PageOut(0), PageOut(1)), 300 + 60 + 30),
    ],
)
def test_timelines(actions: tuple[Action, ...], time_ns: int) -> None:
    trace = checked(line(), actions)
    assert trace.time_ns == time_ns == overlapped_ns(line(), actions)
    assert trace.stall_ns == time_ns - 300


def test_waiting_costs_its_power() -> None:
    """The processor waits at a Free for a page-out of 60 ns, at 50 µW: 3 pJ beside the operators' 3."""
    actions = (Compute(0), PageOut(0), Free(0), PageIn(0), Compute(1), Compute(2), Free(0), Free(1))
    trace = verify_parts([(replace(line(), idle_uw=50), actions)])
    assert (trace.stall_ns, trace.idle_pj, trace.energy_pj) == (60, 3, 6)
    assert verify_parts([(line(), actions)]).energy_pj == 3


def test_the_power_of_waiting_is_for_one_processor_with_overlap() -> None:
    for wrong in (replace(line(), paging=Paging.SYNC, idle_uw=1), replace(line(), idle_uw=-1)):
        with pytest.raises(UsageError, match="idle_uw"):
            validate_problem(wrong)


def test_an_operator_that_streams_has_the_bus_to_itself() -> None:
    """It begins when the page-out of a is through, and the page-out of b when it ends."""
    problem = line()
    streamed = replace(problem.operators[1], writes_store=(1,), cut="x", block=1)
    last = replace(problem.operators[2], inputs=(0,))
    problem = replace(problem, operators=(problem.operators[0], streamed, last))
    actions = (Compute(0), PageOut(0), Compute(1), PageOut(0), Compute(2))
    assert overlapped_ns(problem, actions) == 100 + 60 + 100 + 100
    assert verify_parts([(problem, actions)]).time_ns == 100 + 60 + 100 + 100


def test_an_operator_may_write_less_than_its_tensor() -> None:
    """Some rows of a table: the bytes that are not written count for less, in limits too, and never below none."""
    problem = line()
    only_stored = streamed_problem(problem, {1: replace(problem.operators[1], writes_store=(1,), cut="x", block=1)})
    problem, plain = only_stored, only_stored.operators[1]
    last = replace(problem.operators[2], inputs=(0,))
    size, actions = problem.tensors[1].footprint_bytes, (Compute(0), PageOut(0), Compute(1), Compute(2))

    def writing(rewritten_bytes: int, limit_bytes: int | None = None) -> Problem:
        streamed = replace(plain, rewritten_bytes=rewritten_bytes)
        operators = (problem.operators[0], streamed, last)
        return replace(problem, operators=operators, write_limit_bytes=limit_bytes)

    paged = problem.tensors[0].footprint_bytes
    for rewritten_bytes in (5, 0, 1 - size, -size):
        limit_bytes = paged + size + rewritten_bytes
        validate_problem(made := writing(rewritten_bytes, limit_bytes))
        assert verify_parts([(made, actions)]).written_bytes == limit_bytes
        with pytest.raises(ScheduleError, match="would be written to the store"):
            verify_parts([(writing(rewritten_bytes, limit_bytes - 1), actions)])
    with pytest.raises(UsageError, match=r"rewritten_bytes: it would write -1 bytes in all"):
        validate_problem(writing(-size - 1))


def test_one_bus_or_one_each_way() -> None:
    actions = (
        *(Compute(0), PageOut(0), Compute(1), Free(0)),  # a is out by 160, now 200
        *(PageOut(1), PageIn(0), Compute(2)),  # b leaves until 230; a comes until 270, or 240
    )
    assert checked(line(), actions).time_ns == 230 + 40 + 100
    assert checked(line(full_duplex=True), actions).time_ns == 200 + 40 + 100


def test_a_buffer_counts_from_the_issue_of_its_page_in_until_its_page_out_is_through() -> None:
    actions = (Compute(0), PageOut(0), Free(0), PageIn(0), Compute(1), Compute(2))
    assert checked(line(), actions).ram_bytes[3:5] == (16, 32)
    with pytest.raises(ScheduleError, match="needs 32 bytes"):
        checked(replace(line(), budget_bytes=31), actions)


def test_work_in_place_waits_until_its_input_has_left() -> None:
    from poetc.scheduling import InPlace

    problem = line()
    update = replace(problem.operators[2], in_place=(InPlace(input=0, output=2, required=True),))
    problem = replace(problem, operators=(*problem.operators[:2], update))
    actions = (Compute(0), Compute(1), PageOut(0), Compute(2, ((0, 2),)))
    assert checked(problem, actions).time_ns == 200 + 60 + 100 == overlapped_ns(problem, actions)


def test_both_simulations_agree_and_time_lies_between_its_bounds() -> None:
    paged = faster = 0
    for seed in range(300):
        random = Random(seed)
        problem = random_dag(random, random.randint(2, 8), paging=True)
        problem = replace(problem, paging=Paging.DMA, dma_full_duplex=seed % 2 == 0)
        decisions = random_decisions(random, problem, random.randint(0, 8))
        sync = replace(problem, paging=Paging.SYNC)
        plain = Completer(sync).run(decisions)
        problem = replace(problem, budget_bytes=plain.peak_bytes + random.choice((0, 16, 64, 1000)))
        completion = Completer(problem).run(decisions)
        trace = checked(problem, completion.actions)
        assert trace.time_ns == completion.time_ns == overlapped_ns(problem, completion.actions)
        assert trace.peak_bytes == completion.peak_bytes <= problem.budget_bytes
        fixed = trace.peak_bytes - max(ram_of_actions_bytes(problem, completion.actions))
        assert trace.ram_bytes == tuple(fixed + r for r in ram_of_actions_bytes(problem, completion.actions))
        assert trace.energy_pj == completion.energy_pj == plain.energy_pj
        compute = sum(problem.operators[s.operator].time_ns for s in completion.actions if isinstance(s, Compute))
        bus = [0, 0]
        for s in completion.actions:
            if isinstance(s, PageOut):
                bus[0] += problem.tensors[s.tensor].page_out_ns
            elif isinstance(s, PageIn):
                bus[1] += problem.tensors[s.tensor].page_in_ns
        least = max(compute, *bus) if problem.dma_full_duplex else max(compute, sum(bus))
        assert least <= trace.time_ns <= compute + sum(bus) == plain.time_ns
        assert trace.stall_ns == trace.time_ns - compute
        paged += sum(bus) > 0
        faster += trace.time_ns < plain.time_ns
    assert paged > 100
    assert faster > paged // 2


def test_a_move_waits_for_the_transfers_of_its_tensor() -> None:
    problem = line()
    problem = replace(problem, tensors=(replace(problem.tensors[0], move_ns=7), *problem.tensors[1:]))
    leaving = (Compute(0), PageOut(0), Move(0), Compute(1), Compute(2))
    assert checked(problem, leaving).time_ns == 100 + 60 + 7 + 200 == overlapped_ns(problem, leaving)
    coming = (Compute(0), PageOut(0), Free(0), PageIn(0), Move(0), Compute(1), Compute(2))
    assert checked(problem, coming).time_ns == 100 + 60 + 40 + 7 + 200 == overlapped_ns(problem, coming)


def test_page_ins_are_issued_ahead_and_frees_put_off_as_far_as_ram_allows() -> None:
    """A chain that pages one tensor over three operators: with room to spare nothing waits, without it all does."""
    tensors = tuple(TensorSpec(name=f"t{k}", size_bytes=16, page_out_ns=90, page_in_ns=90) for k in range(6))
    tensors = (*tensors[:5], replace(tensors[5], final="ram"))
    reads = ((), (0,), (1,), (2,), (3,), (0, 4))
    operators = tuple(
        OperatorSpec(name=f"o{k}", inputs=r, outputs=(k,), time_ns=100, energy_pj=1) for k, r in enumerate(reads)
    )
    problem = Problem(name="chain", tensors=tensors, operators=operators, budget_bytes=48, paging=Paging.DMA)
    decisions = (Compute(0), PageOut(0), *map(Compute, (1, 2, 3, 4)), PageIn(0), Compute(5))
    assert Completer(problem).run(decisions).time_ns == 600, "out behind o1, in behind o4"
    tight = Completer(replace(problem, budget_bytes=32)).run(decisions)
    assert (tight.peak_bytes, tight.time_ns) == (48, 690), "over the budget nothing is moved: the page-in is not hidden"


OPTIONS = SolveOptions(time_limit_s=60)


def slow_store(seed: int) -> Problem:
    """Three layers whose operators are dear to repeat, a store whose transfers take about as long as an operator."""
    random = Random(seed)
    problem = with_budget(training_problem(random, 3, paging=True, skips=0), random.choice((0.5, 0.8)))
    operators = tuple(replace(o, energy_pj=o.energy_pj * 9) for o in problem.operators)
    tensors = tuple(replace(t, page_out_ns=t.page_out_ns * 4, page_in_ns=t.page_in_ns * 4) for t in problem.tensors)
    deadline = int(problem.compute_once_ns * random.choice((1.05, 1.15)))
    return replace(problem, operators=operators, tensors=tensors, deadline_ns=deadline)


def cost_of(problem: Problem) -> int | None:
    try:
        schedule = solve(problem, options=SolveOptions(time_limit_s=60, gap=0.01))
    except (InfeasibleError, LimitError):
        return None
    trace = verify(problem, schedule)
    assert problem.deadline_ns is not None and trace.time_ns <= problem.deadline_ns
    return trace.energy_pj


@pytest.mark.long
def test_bounds_hold_and_the_solver_meets_deadlines_that_synchronous_transfers_miss() -> None:
    better = 0
    for seed in (1, 3, 4, 6, 9, 10, 13):
        problem = slow_store(seed)
        dma = replace(problem, paging=Paging.DMA, dma_full_duplex=seed % 2 == 0)
        cost, sync = cost_of(dma), cost_of(problem)
        if cost is None:
            continue
        better += sync is None or cost < sync
        model = Model(dma)
        for cuts in ((model.cut,), range(model.n_ops)):
            relaxation = CutModel(model, cuts, between=True).solve(time_limit_s=10, max_nodes=50)
            assert not relaxation.infeasible and relaxation.bound <= cost, seed
    assert better > 3


def test_the_row_for_the_bus_refuses_what_no_overlap_can_hide() -> None:
    """Compute would fit the deadline twice, the transfers do not fit once."""
    tensors = (
        TensorSpec(name="w", size_bytes=16, initial="store", page_in_ns=500),
        TensorSpec(name="y", size_bytes=16, final="ram"),
        TensorSpec(name="z", size_bytes=16, final="ram"),
    )
    operators = (
        OperatorSpec(name="f", inputs=(), outputs=(1,), time_ns=100, energy_pj=1),
        OperatorSpec(name="g", inputs=(0,), outputs=(2,), time_ns=100, energy_pj=1),
    )
    problem = Problem(
        name="bus", tensors=tensors, operators=operators, budget_bytes=64, deadline_ns=450, paging=Paging.DMA
    )
    model = Model(problem)
    assert CutModel(model, (1,)).solve(time_limit_s=5).infeasible
    assert not CutModel(Model(replace(problem, deadline_ns=600)), (1,)).solve(time_limit_s=5).infeasible
    with pytest.raises(InfeasibleError):
        solve(problem, options=OPTIONS)
    assert (
        verify(replace(problem, deadline_ns=600), solve(replace(problem, deadline_ns=600), options=OPTIONS)).time_ns
        == 600
    )


def test_keep_all_peak_is_that_of_synchronous_transfers() -> None:
    for seed in range(20):
        problem = random_dag(Random(seed), 5, paging=True)
        assert keep_all_peak_bytes(replace(problem, paging=Paging.DMA)) == keep_all_peak_bytes(problem)


def test_what_was_issued_ahead_can_be_taken_back() -> None:
    """The actions without their head start, completed for synchronous transfers, need no more RAM than before."""
    moved = 0
    for seed in range(100):
        random = Random(seed)
        problem = replace(random_dag(random, random.randint(2, 8), paging=True), paging=Paging.DMA)
        decisions = random_decisions(random, problem, random.randint(0, 8))
        sync = replace(problem, paging=Paging.SYNC)
        plain = Completer(sync).run(decisions)
        ahead = Completer(replace(problem, budget_bytes=plain.peak_bytes + 64)).run(decisions)
        again = Completer(sync).run(settled(problem, ahead.actions))
        assert again.energy_pj <= plain.energy_pj
        assert again.peak_bytes <= plain.peak_bytes, seed
        moved += ahead.actions != plain.actions
    assert moved > 20
