"""Tensors in several banks of RAM, beside the cheapest of all schedules by brute force."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError, UnsupportedProblemError
from poetc.planning import Planner, Solution
from poetc.planning.chain import reductions
from poetc.scheduling import (
    BankSpec,
    Compute,
    InPlace,
    Move,
    OperatorSpec,
    Paging,
    PlanError,
    Problem,
    ScheduleError,
    TensorSpec,
    Variant,
    keep_all,
    pack,
    trace_of,
    verify,
    verify_plan,
)
from poetc.scheduling.schedule import SolveOptions
from poetc.solvers.banks import place_in_banks, placement_bound, relaxed
from tests.support.banks import banked, cheapest


def solved(problem: Problem) -> Solution:
    return Planner(options=SolveOptions(time_limit_s=2.0, work_limit_s=0.5), reductions=reductions()).solve(problem)


def agree(seeds: Iterable[int], operators: int, banks: int, *, late: float | None = None) -> tuple[int, int]:
    """Problems that were solved, and those of them that were solved to optimality.

    `late`: the deadline, in times of computing everything once in the cheapest bank.
    """
    found = optimal = 0
    for seed in seeds:
        problem = banked(Random(seed), operators, banks)
        if late is not None:
            problem = replace(problem, deadline_ns=int(problem.compute_once_ns * late))
        least = cheapest(problem)
        try:
            solution = solved(problem)
        except InfeasibleError:
            assert least is None, f"seed {seed}"
            continue
        except LimitError:
            continue
        assert least is not None, f"seed {seed}"
        verify(solution.problem, solution.schedule)
        verify_plan(solution.problem, solution.schedule, solution.plan)
        assert solution.proof.bound <= least <= solution.cost, f"seed {seed}"
        assert solution.choices["banks"] == solution.schedule.banks
        assert all(
            use.arena_bytes + (problem.base_bytes if b == 0 else 0) <= problem.banks[b].budget_bytes
            for b, use in enumerate(solution.plan.banks)
        )
        found += 1
        optimal += solution.cost == least
    return found, optimal


def test_agrees_with_brute_force() -> None:
    found, optimal = agree(range(6), 3, 2)
    assert found >= 4 and optimal >= found - 1


@pytest.mark.long
def test_agrees_with_brute_force_on_larger_problems() -> None:
    found, optimal = agree(range(100, 160), 4, 2)
    assert found >= 15 and optimal >= 0.7 * found


def test_agrees_with_brute_force_where_a_deadline_counts() -> None:
    """In the last three problems, everything once needs more RAM than all banks have."""
    found, optimal = agree((42, 43, 49, 51, 53), 3, 2, late=1.5)
    assert found == 5 and optimal >= 4
    assert agree((52, 58, 76), 4, 2, late=1.5)[0] >= 1


def test_a_faster_kernel_keeps_the_deadline() -> None:
    """The schedule was for the slow kernel, which is late even in the cheapest bank."""
    fast = OperatorSpec(name="a", inputs=(), outputs=(0,), time_ns=10, energy_pj=10, workspace_bytes=16)
    slow = Variant(workspace_bytes=0, time_ns=100, energy_pj=11)
    banks = (BankSpec(name="near", budget_bytes=32), BankSpec(name="far", budget_bytes=32, read_ps_per_byte=1000))
    problem = Problem(
        name="late",
        budget_bytes=64,
        deadline_ns=50,
        tensors=(TensorSpec(name="a", size_bytes=16),),
        operators=(replace(fast, workspace_bytes=0, time_ns=100, energy_pj=11),),
        banks=banks,
    )
    schedule = keep_all(replace(problem, banks=(), deadline_ns=None))
    placed = place_in_banks(problem, schedule, (32, 32), time_limit_s=5.0, kernels=[(fast, slow)])
    assert placed is not None and placed.kernels == (0,)
    assert place_in_banks(problem, schedule, (32, 32), time_limit_s=5.0) is None


@pytest.mark.parametrize("paging", [Paging.NONE, Paging.SYNC])
def test_no_bound_of_placement_is_above_the_cheapest_schedule(paging: Paging) -> None:
    """Brute force knows no paging: it adds ways, so that the bound may only fall with it."""
    compared = raised = tight = 0
    for seed in range(200, 320):
        problem = banked(Random(seed), 3, 3 if seed % 4 == 0 else 2)
        least = cheapest(problem)
        if least is None:
            continue
        bound = placement_bound(replace(problem, paging=paging), time_limit_s=5.0).least
        assert bound <= least, f"seed {seed}"
        compared += 1
        raised += bound > relaxed(problem).compute_once_pj
        tight += bound == least
    assert compared >= 30 and raised >= 0.6 * compared
    assert tight >= 8 or paging is not Paging.NONE


def test_the_bound_of_placement_knows_that_a_tensor_waits() -> None:
    """A tensor waits while another is read, and the cheap bank does not hold all three operands."""
    names = ("a", "b", "c", "d")
    tensors = tuple(TensorSpec(name=n, size_bytes=64 if n in "ab" else 16) for n in names)
    operators = (
        OperatorSpec(name="a", inputs=(), outputs=(0,), time_ns=1, energy_pj=1000, recomputable=False),
        OperatorSpec(name="b", inputs=(0,), outputs=(1,), time_ns=1, energy_pj=1000, recomputable=False),
        OperatorSpec(name="c", inputs=(1,), outputs=(2,), time_ns=1, energy_pj=1000, recomputable=False),
        OperatorSpec(name="d", inputs=(0, 2), outputs=(3,), time_ns=1, energy_pj=1000, recomputable=False),
    )
    banks = (
        BankSpec(name="near", budget_bytes=128),
        BankSpec(name="far", budget_bytes=128, read_fj_per_byte=1000, write_fj_per_byte=1000),
    )
    problem = Problem(name="waits", budget_bytes=256, tensors=tensors, operators=operators, banks=banks)
    assert relaxed(problem).compute_once_pj == 4000 == problem.compute_once_pj
    # While c reads b, 16 of the 144 bytes of a, b and c are in the far bank: a whole tensor is written and read there.
    assert placement_bound(problem, time_limit_s=5.0).least == 4032 == cheapest(problem)


def test_the_bound_of_placement_where_computing_is_free() -> None:
    tensors = (TensorSpec(name="a", size_bytes=16), TensorSpec(name="b", size_bytes=16))
    operators = (
        OperatorSpec(name="a", inputs=(), outputs=(0,), time_ns=1, energy_pj=0),
        OperatorSpec(name="b", inputs=(0,), outputs=(1,), time_ns=1, energy_pj=0),
    )
    banks = (BankSpec(name="near", budget_bytes=16), BankSpec(name="far", budget_bytes=16, read_fj_per_byte=1000))
    problem = Problem(name="free", budget_bytes=32, tensors=tensors, operators=operators, banks=banks)
    assert cheapest(problem) == 0 == placement_bound(problem, time_limit_s=5.0).least


def test_a_single_bank_leaves_nothing_to_the_bound() -> None:
    """What is read, what is written, and a workspace that is both; a smaller workspace adds less."""
    tensors = (TensorSpec(name="a", size_bytes=10), TensorSpec(name="b", size_bytes=20))
    slower = Variant(workspace_bytes=0, time_ns=1, energy_pj=1100)
    operators = (
        OperatorSpec(name="a", inputs=(), outputs=(0,), time_ns=1, energy_pj=1000),
        OperatorSpec(
            name="b",
            inputs=(0,),
            outputs=(1,),
            time_ns=1,
            energy_pj=1000,
            workspace_bytes=5,
            in_place=(InPlace(output=1, input=0),),
            low_workspace=(slower,),
        ),
    )
    far = BankSpec(name="far", budget_bytes=128, read_fj_per_byte=2000, write_fj_per_byte=3000)
    problem = Problem(name="far", budget_bytes=128, tensors=tensors, operators=operators, banks=(far,))
    first, second = relaxed(problem).operators
    assert first.energy_pj == 1000 + 10 * 3
    assert second.energy_pj == 1000 + 10 * 2 + 20 * 3 + 5 * (2 + 3)
    assert second.low_workspace[0].energy_pj == 1100 + 10 * 2 + 20 * 3
    dear = replace(problem, banks=(replace(far, read_fj_per_byte=2000 * 100, write_fj_per_byte=3000 * 100),))
    without = 1100 + 100 * (10 * 2 + 20 * 3)  # below the cost of the kernel with a workspace
    second = relaxed(dear).operators[1]
    assert second.energy_pj == second.low_workspace[0].energy_pj == without


def test_placement_of_a_schedule_is_the_cheapest() -> None:
    """Beside every way to put whole tensors and workspaces into two banks."""
    compared = 0
    for seed in range(40):
        problem = banked(Random(seed), 3)
        plain = replace(problem, banks=(), budget_bytes=2**40)
        schedule = keep_all(plain)
        rooms = [b.budget_bytes - (problem.base_bytes if k == 0 else 0) for k, b in enumerate(problem.banks)]
        found = place_in_banks(problem, schedule, rooms, time_limit_s=5.0, copies=False)
        tensors, operators = range(len(problem.tensors)), range(len(problem.operators))
        least = None
        for choice in itertools.product((0, 1), repeat=len(tensors) + len(operators)):
            trial = replace(schedule, banks=choice[: len(tensors)], workspace_banks=choice[len(tensors) :])
            try:
                cost = trace_of(problem, trial).energy_pj
            except ScheduleError:
                continue
            least = cost if least is None else min(least, cost)
        assert (found is None) == (least is None), f"seed {seed}"
        if found is not None and least is not None:
            chosen = replace(schedule, actions=found.actions, banks=found.banks, workspace_banks=found.workspace_banks)
            cost, rounding = trace_of(problem, chosen).energy_pj, len(schedule.actions)
            assert least <= cost <= least + rounding, f"seed {seed}"
            compared += 1
        if compared == 4:
            return
    raise AssertionError("too few problems")


def test_progress_names_no_bound_for_less_ram() -> None:
    """A bound for less RAM than the budget may be above the answer."""
    lines: list[str] = []
    options = SolveOptions(time_limit_s=2.0, work_limit_s=0.5)
    Planner(options=options, reductions=reductions(), progress=lines.append).solve(banked(Random(3), 9, 2))
    less = next(n for n, line in enumerate(lines) if line.startswith("solving for"))
    assert any("bound" in line for line in lines[:less])
    assert not any("bound" in line or "at least" in line for line in lines[less:])


def test_a_smaller_batch_is_advised_where_it_helps() -> None:
    """State has its size whatever the batch."""
    problem = banked(Random(0), 3)
    largest = max(problem.tensors, key=lambda t: t.size_bytes)
    banks = tuple(replace(b, budget_bytes=largest.size_bytes - 1) for b in problem.banks)
    for place in ("ram", ""):
        tensors = tuple(replace(t, final=place if t is largest else t.final) for t in problem.tensors)
        asked = replace(problem, banks=banks, budget_bytes=sum(b.budget_bytes for b in banks), tensors=tensors)
        with pytest.raises(InfeasibleError) as refused:
            Planner(options=SolveOptions(time_limit_s=1.0), reductions=reductions()).solve(asked)
        assert ("smaller batch" in str(refused.value)) == (place == "")


def test_solvers_refuse_banks() -> None:
    with pytest.raises(UnsupportedProblemError, match=r"several banks of RAM \(bank0, bank1\)"):
        solvers.solve(banked(Random(0), 2), "poetc")


def test_a_tensor_that_fits_in_no_bank() -> None:
    problem = banked(Random(0), 3)
    largest = max(t.size_bytes for t in problem.tensors)
    small = tuple(replace(b, budget_bytes=largest - 16) for b in problem.banks)
    with pytest.raises(InfeasibleError, match="which fit in no bank: the largest budget is that of bank0"):
        solved(replace(problem, base_bytes=0, banks=small, budget_bytes=2 * (largest - 16)))


def test_a_search_that_is_late_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first schedule has no place in the banks and the time is over, no smaller one is looked for."""
    monkeypatch.setattr("poetc.planning.banks.place_in_banks", lambda *_, **__: None)
    problem = banked(Random(0), 3)
    lines: list[str] = []
    planner = Planner(
        options=SolveOptions(time_limit_s=2.0, work_limit_s=0.5), reductions=reductions(), progress=lines.append
    )
    with pytest.raises(LimitError, match="not found a place"):
        replace(planner, started=time.monotonic() - 100).solve(problem)
    assert not any("in all banks" in line for line in lines)


def test_the_page_buffer_of_a_schedule_that_only_pages_out() -> None:
    """It is in the first bank, where an output of the store then has no room beside it."""
    tensor = TensorSpec(name="out", size_bytes=64, final="store", page_out_ns=1, page_out_pj=1)
    operator = OperatorSpec(name="make", inputs=(), outputs=(0,), time_ns=1, energy_pj=1)
    banks = (
        BankSpec(name="near", budget_bytes=112),
        BankSpec(name="far", budget_bytes=64, read_fj_per_byte=1000, write_fj_per_byte=1000),
    )
    problem = Problem(
        name="pages-out",
        budget_bytes=176,
        page_buffer_bytes=64,
        paging=Paging.SYNC,
        tensors=(tensor,),
        operators=(operator,),
        banks=banks,
    )
    solution = solved(problem)
    assert solution.schedule.banks == (1,)
    verify_plan(solution.problem, solution.schedule, solution.plan)


def test_checker_counts_each_bank() -> None:
    problem = next(p for seed in itertools.count() if (p := banked(Random(seed), 3)) and cheapest(p) is not None)
    schedule = solved(problem).schedule
    verify(problem, schedule)
    with pytest.raises(ScheduleError, match="banks has 0 entries"):
        verify(problem, replace(schedule, banks=()))
    with pytest.raises(ScheduleError, match="workspace_banks names bank 7"):
        verify(problem, replace(schedule, workspace_banks=(7,) * len(problem.operators)))
    peaks = trace_of(problem, schedule).bank_peaks
    full = max(range(2), key=lambda b: peaks[b])
    banks = tuple(replace(b, budget_bytes=peaks[full] - 16) if k == full else b for k, b in enumerate(problem.banks))
    with pytest.raises(ScheduleError, match=f"bank 'bank{full}' needs {peaks[full]} bytes"):
        verify(replace(problem, banks=banks), schedule)


def test_checker_of_plans_counts_each_bank() -> None:
    problem = next(p for seed in itertools.count() if (p := banked(Random(seed), 3)) and cheapest(p) is not None)
    schedule = solved(problem).schedule
    plan = pack(problem, schedule)
    verify_plan(problem, schedule, plan)
    first, *others = plan.allocations
    used = max(range(2), key=lambda b: plan.banks[b].arena_bytes)
    longer = tuple(replace(b, arena_bytes=b.arena_bytes + 16 * (k == used)) for k, b in enumerate(plan.banks))
    smaller = tuple(replace(b, budget_bytes=b.budget_bytes * (k != used)) for k, b in enumerate(problem.banks))
    for changed, wrong, says in (
        (problem, replace(plan, banks=()), "the plan has 0 banks, the problem has 2"),
        (problem, replace(plan, banks=longer), f"bank bank{used}: ends at .*, arena_bytes is "),
        (replace(problem, banks=smaller), plan, f"bank bank{used}: needs .* bytes, more than its budget"),
        (problem, replace(plan, allocations=(replace(first, tensors=((99, 0),)), *others)), "allocation 0 is of a ten"),
        (problem, replace(plan, allocations=(replace(first, operator=99), *others)), "allocation 0 is of an operator"),
    ):
        with pytest.raises(PlanError, match=says):
            verify_plan(changed, schedule, wrong)


def test_a_move_to_a_bank_that_is_not_there() -> None:
    problem = next(p for seed in itertools.count() if (p := banked(Random(seed), 3)) and cheapest(p) is not None)
    schedule = solved(problem).schedule
    at = next(k for k, s in enumerate(schedule.actions) if isinstance(s, Compute)) + 1
    made = problem.operators[schedule.actions[at - 1].operator].outputs[0]  # type: ignore[union-attr]
    problem = replace(problem, tensors=tuple(replace(t, move_ns=1) for t in problem.tensors))
    for bank, says in ((7, "to bank 7, which does not exist"), (schedule.banks[made], "where it is already")):
        actions = (*schedule.actions[:at], Move(made, bank), *schedule.actions[at:])
        with pytest.raises(ScheduleError, match=says):
            verify(problem, replace(schedule, actions=actions))
