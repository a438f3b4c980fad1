"""The checker on banks of RAM and on runs in parts, by hand: numbers that no two terms share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poetc.scheduling import (
    Action,
    BankSpec,
    Compute,
    Free,
    OperatorSpec,
    PageIn,
    Problem,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    Status,
    TensorSpec,
    verify,
    verify_parts,
)

NEAR = BankSpec(name="near", budget_bytes=64)
FAR = BankSpec(
    name="far",
    budget_bytes=128,
    address=0x1000,
    read_ps_per_byte=2000,
    write_ps_per_byte=3000,
    read_fj_per_byte=4000,
    write_fj_per_byte=5000,
)
PROBLEM = Problem(
    name="banked",
    operators=(OperatorSpec(name="f", inputs=(0,), outputs=(1,), time_ns=5, energy_pj=7, workspace_bytes=48),),
    tensors=(
        TensorSpec(name="x", size_bytes=32, initial="ram"),
        TensorSpec(name="y", size_bytes=16, final="ram"),
    ),
    budget_bytes=192,
    banks=(NEAR, FAR),
)


def scheduled(objective: int, banks: tuple[int, ...], workspace: int) -> Schedule:
    proof = Proof(status=Status.FEASIBLE, objective=objective, bound=0, scope=Scope())
    actions: tuple[Action, ...] = (Compute(0), Free(0))
    return Schedule(solver="hand", actions=actions, proof=proof, banks=banks, workspace_banks=(workspace,))


def test_every_byte_of_a_dear_bank_is_paid_once_read_and_once_written() -> None:
    """x: 32 bytes read; workspace: 48 bytes read and written. y lies in the cheap bank."""
    trace = verify(PROBLEM, scheduled(7 + 560, (1, 0), 1))
    assert (trace.bank_ns, trace.bank_pj) == (32 * 2 + 48 * 5, 32 * 4 + 48 * 9) == (304, 560)
    assert (trace.time_ns, trace.energy_pj) == (5 + 304, 7 + 560)
    assert trace.bank_peaks == (16, 80)


def test_writes_are_paid_apart_from_reads() -> None:
    trace = verify(PROBLEM, scheduled(7 + 80 + 432, (0, 1), 1))
    assert (trace.bank_ns, trace.bank_pj) == (16 * 3 + 48 * 5, 16 * 5 + 48 * 9)


def test_a_page_in_writes_its_bytes_and_reads_none() -> None:
    """x comes from the store into the dear bank: 32 bytes written there, then 32 read by f."""
    x = replace(PROBLEM.tensors[0], initial="store", page_in_ns=11, page_in_pj=13)
    problem = replace(PROBLEM, tensors=(x, PROBLEM.tensors[1]))
    paged = replace(scheduled(7 + 13 + 160 + 128, (1, 0), 0), actions=(PageIn(0), Compute(0), Free(0)))
    trace = verify(problem, paged)
    assert (trace.bank_ns, trace.bank_pj) == (32 * 3 + 32 * 2, 32 * 5 + 32 * 4)
    assert trace.time_ns == 5 + 11 + trace.bank_ns


def test_each_bank_has_its_own_limit() -> None:
    with pytest.raises(ScheduleError, match="bank 'near' needs 80 bytes, its budget is 64") as raised:
        verify(PROBLEM, scheduled(0, (0, 1), 0))
    assert raised.value.action == 0


@pytest.mark.parametrize("banks", [(), (0,), (0, 2), (0, 0, 0)])
def test_a_schedule_names_a_bank_for_each_tensor(banks: tuple[int, ...]) -> None:
    with pytest.raises(ScheduleError):
        verify(PROBLEM, scheduled(7, banks, 1))


def test_parts_are_one_run_and_have_to_end_as_a_step_does() -> None:
    plain = replace(PROBLEM, banks=())
    dearer = replace(plain, operators=(replace(plain.operators[0], energy_pj=11, time_ns=13),))
    trace = verify_parts([(plain, (Compute(0), Free(1))), (dearer, (Compute(0), Free(0)))])
    assert (trace.energy_pj, trace.time_ns, trace.executions) == (18, 18, (2,))
    assert trace.page_ins == trace.page_outs == 0
    with pytest.raises(ScheduleError, match="never executes 'f'"):
        verify_parts([(plain, ())])
    with pytest.raises(ScheduleError, match="ends without 'y' in RAM"):
        verify_parts([(plain, (Compute(0), Free(1)))])


def test_the_error_tells_the_action() -> None:
    error = ScheduleError(3, "no", ("x",))
    assert str(error) == "schedule refused at action 3: no" and (error.action, error.reason) == (3, "no")
    assert str(ScheduleError(None, "no", ())) == "schedule refused: no"
