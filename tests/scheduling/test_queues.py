"""Several processors: timelines, RAM and energy worked out by hand, and the refusals of the checker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poetc.errors import UsageError
from poetc.scheduling import (
    Action,
    BankSpec,
    Compute,
    Elsewhere,
    Free,
    OperatorSpec,
    PageOut,
    Paging,
    Problem,
    ProcessorSpec,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    Status,
    TensorSpec,
    Trace,
    pack,
    problem_from_json,
    problem_to_json,
    schedule_from_json,
    schedule_to_json,
    validate_problem,
    verify,
    verify_parts,
    verify_plan,
)

PROCESSORS = (
    ProcessorSpec(name="main", active_uw=2_000_000, idle_uw=1_000_000),
    ProcessorSpec(name="m4", active_uw=3_000_000, idle_uw=500_000, hand_over_ns=7, flush_ps_per_byte=500),
)


def fork() -> Problem:
    """b and c read a, d reads b and c; 100 ns each on the first processor, 60 ns on the other, which cannot run d."""
    reads = ((), (0,), (0,), (1, 2))
    operators = tuple(
        OperatorSpec(
            name="abcd"[k],
            inputs=reads[k],
            outputs=(k,),
            time_ns=100,
            energy_pj=200,
            workspace_bytes=32,
            elsewhere=(Elsewhere(processor=1, time_ns=60, energy_pj=180),) if k < 3 else (),
        )
        for k in range(4)
    )
    tensors = tuple(TensorSpec(name=f"t{k}", size_bytes=16, final="ram" if k == 3 else "") for k in range(4))
    return Problem(name="fork", operators=operators, tensors=tensors, budget_bytes=2**20, processors=PROCESSORS)


def replayed(problem: Problem, actions: tuple[Action, ...]) -> Trace:
    """The trace; the packer and the checker of plans find the peak as well."""
    trace = verify_parts([(problem, actions)])
    proof = Proof(status=Status.FEASIBLE, objective=trace.energy_pj, bound=0, scope=Scope())
    schedule = Schedule(solver="test", actions=actions, proof=proof)
    plan = pack(problem, schedule)
    verify(problem, schedule)
    verify_plan(problem, schedule, plan)
    assert plan.max_live_bytes == trace.peak_bytes
    return trace


def test_two_branches_side_by_side() -> None:
    actions = (Compute(0), Compute(1), Compute(2, processor=1), Compute(3), Free(0), Free(1), Free(2))
    trace = replayed(fork(), actions)
    # c begins when a is over and takes 60 ns, 7 for the hand-over and 8 for 16 bytes; d takes 15 more as well.
    assert trace.busy_ns == (315, 75)
    assert trace.time_ns == 315
    assert (trace.hand_overs, trace.hand_over_ns) == (2, 30)
    hand_overs_pj = 15 * 3000 + 15 * 2000
    assert trace.idle_pj == (315 - 75) * 500
    assert trace.energy_pj == 3 * 200 + 180 + hand_overs_pj + trace.idle_pj
    # The work of both adds up to more than the time, and nobody waits for the store.
    assert replayed(replace(fork(), paging=Paging.DMA), actions).stall_ns == 0


def test_workspace_of_an_action_in_flight_counts() -> None:
    actions = (Compute(0), Compute(1), Compute(2, processor=1), Compute(3), Free(0), Free(1), Free(2))
    # Beside c, b is still at work: three tensors and two workspaces. d has waited for both. The second
    # Free waits for d.
    assert replayed(fork(), actions).ram_bytes == (48, 64, 112, 96, 96, 80, 32)
    fenced = (Compute(0), Compute(1), Compute(2, processor=1, fence=True), *actions[3:])
    trace = replayed(fork(), fenced)
    assert trace.ram_bytes[2] == 80
    assert trace.time_ns == 200 + 75 + 115


def test_no_action_behind_a_free_begins_before_the_last_reader_is_done() -> None:
    late = (Compute(0), Compute(1, processor=1), Compute(2), Free(0), Compute(3), Free(1), Free(2))
    assert replayed(fork(), late).time_ns == 200 + 115
    problem = fork()
    lonely = OperatorSpec(name="e", inputs=(), outputs=(4,), time_ns=10, energy_pj=1)
    problem = replace(
        problem,
        operators=(*problem.operators, lonely),
        tensors=(*problem.tensors, TensorSpec(name="t4", size_bytes=16, final="ram")),
    )
    start = (Compute(0), Compute(1), Compute(2, processor=1))
    end = (Compute(3), Free(1), Free(2))
    # e depends on nothing, but stands behind the end of b and c.
    freed = replayed(problem, (*start, Free(0), Compute(4, processor=0), *end))
    assert freed.time_ns == 200 + 10 + 115
    on_m4 = replace(lonely, elsewhere=(Elsewhere(processor=1, time_ns=10, energy_pj=1),))
    problem = replace(problem, operators=(*problem.operators[:4], on_m4))
    behind = replayed(problem, (*start, Free(0), Compute(4, processor=1), *end))
    ahead = replayed(problem, (*start, Compute(4, processor=1), Free(0), *end))
    assert (behind.busy_ns, ahead.busy_ns) == ((315, 85), (315, 85))
    assert behind.time_ns == ahead.time_ns == 315


def test_a_processor_runs_no_more_than_one_action_ahead() -> None:
    """However long the list of actions, at most the last action of another processor is in flight."""
    operators = tuple(
        OperatorSpec(
            name=f"o{k}",
            inputs=(),
            outputs=(k,),
            time_ns=100,
            energy_pj=1,
            elsewhere=(Elsewhere(processor=1, time_ns=10, energy_pj=1),),
        )
        for k in range(4)
    )
    tensors = tuple(TensorSpec(name=f"t{k}", size_bytes=16, final="ram") for k in range(4))
    problem = Problem(name="p", operators=operators, tensors=tensors, budget_bytes=64, processors=PROCESSORS)
    trace = replayed(problem, (Compute(0), Compute(1), Compute(2, processor=1), Compute(3, processor=1)))
    assert trace.time_ns == 200  # o2 waits for o0
    assert trace.busy_ns == (200, 20)
    late = replayed(problem, (Compute(0), Compute(1), Compute(2, processor=1), Compute(3, processor=0)))
    assert late.time_ns == 300


def test_transfers_belong_to_the_first_processor() -> None:
    problem = replace(fork(), paging=Paging.SYNC)
    slow = replace(problem.tensors[0], page_out_ns=1000)
    problem = replace(problem, tensors=(slow, *problem.tensors[1:]))
    actions = (Compute(0), PageOut(0), Compute(1, processor=1), Compute(2), Compute(3), Free(0), Free(1), Free(2))
    trace = replayed(problem, actions)
    assert trace.time_ns == 100 + 1000 + 100 + 100 + 15
    assert trace.busy_ns == (1315, 75)


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (Compute(3, processor=1), "'d' on processor 'm4', which cannot run it"),
        (Compute(3, processor=2), "'d' on processor 2, which does not exist"),
        (Compute(3, processor=-1), "'d' on processor -1, which does not exist"),
    ],
)
def test_refusals(action: Compute, complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        replayed(fork(), (Compute(0), Compute(1), Compute(2), action, Free(0), Free(1), Free(2)))


def test_one_processor_exists_where_none_is_named() -> None:
    with pytest.raises(ScheduleError, match="processor 1, which does not exist"):
        replayed(replace(fork(), processors=()), (Compute(0, processor=1),))


def test_documents() -> None:
    problem = fork()
    validate_problem(problem)
    assert problem_from_json(problem_to_json(problem)) == problem
    assert b"elsewhere" not in problem_to_json(replace(problem, operators=problem.operators[3:], processors=()))
    actions = (Compute(0), Compute(1, processor=1, fence=True), Compute(2), Compute(3), Free(0), Free(1), Free(2))
    proof = Proof(status=Status.FEASIBLE, objective=1, bound=0, scope=Scope())
    schedule = Schedule(solver="test", actions=actions, proof=proof)
    assert schedule_from_json(schedule_to_json(schedule)) == schedule


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"processors": PROCESSORS[:1]}, r"\$.processors: there is one; leave it out"),
        ({"processors": (PROCESSORS[0], PROCESSORS[0])}, "'main' is the name of"),
        ({"processors": ()}, r"\$.operators\[0\].elsewhere\[0\].processor: processor 1, must ascend"),
        ({"processors": (PROCESSORS[0], replace(PROCESSORS[1], idle_uw=-1))}, r"\$.processors\[1\].idle_uw: -1 is neg"),
        (
            {"processors": (PROCESSORS[0], replace(PROCESSORS[1], active_uw=1))},
            r"\[1\].idle_uw: 500000 is more than acti",
        ),
        ({"banks": (BankSpec(name="a", budget_bytes=64),)}, r"\$.banks: tensors are placed in banks for one processor"),
    ],
)
def test_problems_that_are_none(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        validate_problem(replace(fork(), **changes))  # type: ignore[arg-type]
