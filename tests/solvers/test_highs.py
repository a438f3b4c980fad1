"""HiGHS under the number of threads that is asked for."""

from __future__ import annotations

import ctypes
from random import Random

import highspy
import pytest

from poetc.scheduling import SolveOptions, verify
from poetc.solvers import highs, solve
from poetc.solvers.highs import Mip
from poetc.solvers.poetc.beside import Beside
from tests.support.problems import training_problem, with_budget


def knapsack() -> Mip:
    random, mip = Random(1), Mip()
    items = [mip.column(-random.randint(5, 40)) for _ in range(30)]
    for _ in range(10):
        mip.row(items, [random.randint(1, 30) for _ in items], upper=120)
    return mip


def test_the_number_of_threads_may_change() -> None:
    """In one thread of ours, and beside another one that solves."""

    def optima(numbers: tuple[int, ...]) -> list[float]:
        answers = [knapsack().solve(time_limit_s=20, threads=number) for number in numbers]
        assert all(answer.optimal for answer in answers)
        return [answer.objective for answer in answers]

    beside = Beside(lambda stop: optima((2, 1, 3))).start()
    assert {*optima((1, 2, 1, 3)), *beside.result()} == {knapsack().solve(time_limit_s=20).objective}


def test_standard_output_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """It belongs to the answer of `--json`. HiGHS 1.16 prints there when it is made, whatever its options say."""
    knapsack().solve(time_limit_s=20)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


def test_what_the_lp_proves_stays_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HiGHS is interrupted before it has come as far again."""
    monkeypatch.setattr(highs, "MANY_ENTRIES", 0)
    mip = knapsack()
    mip.implied.append(range(0))
    lp, best = (mip.solve(time_limit_s=20, relax=relax).objective for relax in (True, False))
    solved: list[bool] = []
    run = highs.quiet_solver

    def stopped(time_limit_s: float, threads: int, seed: int) -> highspy.Highs:
        solver = run(time_limit_s, threads, seed)
        if solved:
            solver.setOptionValue("time_limit", 0.0)
        solved.append(True)
        return solver

    monkeypatch.setattr(highs, "quiet_solver", stopped)
    answer = mip.solve(time_limit_s=20)
    assert len(solved) == 2 and not answer.optimal
    assert answer.bound == pytest.approx(lp, abs=1e-5) and answer.bound <= best


def test_a_solve_takes_more_threads() -> None:
    problem = with_budget(training_problem(Random(1), 3, paging=True, scale=4), 0.5)
    # Windows take one thread all the same, between relaxations that take two.
    one, two = (solve(problem, "poetc", SolveOptions(time_limit_s=20, threads=n)) for n in (1, 2))
    assert verify(problem, two).energy_pj == two.proof.objective == one.proof.objective
    assert two.proof == one.proof
