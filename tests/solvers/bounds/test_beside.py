"""A second process beside the search for schedules: its result, its errors, its end. Who is faster changes nothing."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from poetc.scheduling import SolveOptions
from poetc.solvers import EngineOptions, WarmStart, solve
from poetc.solvers.highs import Mip
from poetc.solvers.model import Model
from poetc.solvers.poetc import engine
from poetc.solvers.poetc.beside import BackgroundTask
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ladder import Ladder
from poetc.solvers.poetc.options import Ladders
from poetc.solvers.poetc.settings import ENGINE, LADDER
from tests.support.problems import training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=600.0, fixed_order=True)


def test_a_result_and_an_error_arrive_where_they_are_waited_for() -> None:
    usual_s = sys.getswitchinterval()
    assert BackgroundTask(lambda stop: 7).start().result() == 7

    def fail(stop: threading.Event) -> int:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        BackgroundTask(fail).start().result()
    assert sys.getswitchinterval() == usual_s


def test_cancel_ends_a_mip() -> None:
    """One that takes HiGHS minutes: a knapsack in 40 equal rows of many sizes."""
    random, mip = Random(1), Mip()
    columns = [mip.column(-random.uniform(1, 2)) for _ in range(300)]
    for _ in range(40):
        mip.row(columns, [random.uniform(0, 1) for _ in columns], upper=75.0)
    began = threading.Event()

    def task(stop: threading.Event) -> bool:
        began.set()
        return mip.solve(time_limit_s=600.0, stop=stop).optimal

    beside = BackgroundTask(task).start()
    assert began.wait(60.0)
    beside.cancel()
    assert beside.result() is False


def test_cancel_waits_for_the_end_after_a_signal() -> None:
    """A thread left inside HiGHS when Python ends aborts the process."""
    ended = threading.Event()

    def task(stop: threading.Event) -> None:
        stop.wait(60.0)
        time.sleep(0.2)
        ended.set()

    usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
    beside = BackgroundTask(task).start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            beside.result()
    finally:
        signal.signal(signal.SIGALRM, usual)
        beside.cancel()
    assert ended.is_set()


class Waiting(BackgroundTask[object]):
    """Does the task when its result is asked for."""

    def __init__(self, task: Callable[[threading.Event], object]) -> None:
        self.task = task

    def start(self) -> BackgroundTask[object]:
        return self

    def result(self) -> object:
        return self.task(threading.Event())

    def cancel(self) -> None:
        pass


class AtOnce(Waiting):
    """Does the task before anything else."""

    def __init__(self, task: Callable[[threading.Event], object]) -> None:
        self.value = task(threading.Event())

    def result(self) -> object:
        return self.value


@pytest.mark.parametrize("layers", [pytest.param(4, id="small"), pytest.param(40, id="large", marks=pytest.mark.long)])
def test_who_is_faster_changes_nothing(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_budget(training_problem(Random(5), layers, paging=True), 0.6)
    assert (len(problem.operators) > ENGINE.small_operators) == (layers == 40)
    monkeypatch.setattr(engine, "ENGINE", replace(ENGINE, refinements=2))
    options = SolveOptions(time_limit_s=600.0, work_limit_s=1.0, gap=1e-4, fixed_order=True)
    expected = solve(problem, "poetc", options)
    for other in (Waiting, AtOnce):
        monkeypatch.setattr(engine, "BackgroundTask", other)
        assert solve(problem, "poetc", options) == expected


def test_without_a_thread_the_task_is_done_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    beside = BackgroundTask(lambda stop: 7).start()
    assert beside.result() == 7
    beside.cancel()


def test_relaxations_go_on_for_as_much_work_as_they_are_given() -> None:
    """Each begins with the bound and the cuts that the last one left; nothing above what is proven is claimed."""
    problem = with_budget(training_problem(Random(5), 12, paging=True), 0.5)
    options = SolveOptions(time_limit_s=600.0, fixed_order=True)
    optimum = solve(problem, "poetc", replace(options, gap=0.0, work_limit_s=20.0)).proof.objective

    def climbed(work_s: float) -> list[Relaxation]:
        solver = engine._Solve(problem, options, None)
        solver.relaxing.ladder.cuts = {solver.model.cut}
        rungs = solver.relaxing.climbing(work_s)()
        return [rung.solved.relaxation for rung in rungs if rung.solved.relaxation is not None]

    one, more = climbed(0.0), climbed(2.0)
    assert len(one) == 1 and more[0] == one[0]
    assert len(more) > 2 and len(more[-1].cuts) > len(more[0].cuts)
    assert more[0].bound < max(relaxation.bound for relaxation in more) <= optimum


def test_relaxations_go_on_where_an_earlier_solve_of_the_problem_ended() -> None:
    problem = with_budget(training_problem(Random(5), 12, paging=True), 0.5)
    other = replace(problem, budget_bytes=problem.budget_bytes + 16)
    ladders: Ladders = {}
    options = EngineOptions(time_limit_s=600.0, fixed_order=True, warm_start=WarmStart(ladders=ladders))
    first = engine._Solve(problem, options, None)
    first.run()
    cuts = first.relaxing.ladder.cuts
    assert len(cuts) > 1
    asked: list[tuple[int, ...]] = []
    second = engine._Solve(problem, options, None)
    task = second.relaxing.task

    def recorded(cuts: tuple[int, ...], **given: Any) -> Any:
        asked.append(cuts)
        return task(cuts, **given)

    second.relaxing.task = recorded  # type: ignore[method-assign]
    second.run()
    assert asked[1] == tuple(sorted(cuts)), "behind the cut at the loss, whose plan guides races"
    assert not engine._Solve(other, options, None).relaxing.ladder.cuts


def test_a_small_problem_has_all_of_the_gap_asked_of_its_relaxations() -> None:
    """Where nothing as dear as the best schedule is left out, there is a plan, which shows the next cuts."""
    small, large = (
        engine._Solve(with_budget(training_problem(Random(5), layers, paging=True), 0.5), OPTIONS, None)
        for layers in (12, 40)
    )
    assert (small.small, large.small) == (True, False)
    assert small.relaxing.ladder.aim(100.0, 200.0, 0.0) == 200.0
    assert large.relaxing.ladder.aim(100.0, 200.0, 0.0) == 100.0 + LADDER.reach * 100.0


def test_what_is_asked_of_the_next_relaxation() -> None:
    """A part of the gap; less where that took too long; all of it where it is small, or was asked for."""
    ladder = Ladder(Model(with_budget(training_problem(Random(5), 12, paging=True), 0.5)))
    assert ladder.aim(100.0, 200.0, 0.0) == 100.0 + LADDER.reach * 100.0
    assert ladder.aim(100.0, 200.0, 0.5) == 101.0
    assert ladder.aim(199.9, 200.0, 0.0) == 200.0
    assert ladder.aim(100.0, math.inf, 0.0) == math.inf
    unsolved = Relaxation((3,), 110.0, False, False, (), frozenset())
    assert ladder.climb(unsolved, 110.0, [], followed=False) and ladder.reach == LADDER.reach
    while ladder.reach > LADDER.least_reach:
        assert ladder.climb(unsolved, 120.0, [], followed=False) and ladder.effort == 1
    assert ladder.climb(unsolved, 120.0, [(999_999, 5)], followed=False) and ladder.cuts == {5}
    assert ladder.climb(unsolved, 120.0, [], followed=False) and ladder.effort == 4
    ladder.slack = 0.0
    assert not ladder.climb(replace(unsolved, exact=True), 120.0, [], followed=True)
