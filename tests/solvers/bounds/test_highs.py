"""HiGHS under the number of threads that is asked for."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import highspy
import pytest

from poetc.scheduling import SolveOptions, schedule_to_json, verify
from poetc.solvers import highs, solve
from poetc.solvers.highs import INFINITY, ROOM, Mip
from poetc.solvers.poetc.beside import BackgroundTask
from tests.support.problems import training_problem, with_budget


def knapsack() -> Mip:
    random, mip = Random(1), Mip()
    items = [mip.column(-random.randint(5, 40)) for _ in range(30)]
    for _ in range(10):
        mip.row(items, [random.randint(1, 30) for _ in items], upper=120)
    return mip


def hard() -> Mip:
    """HiGHS takes minutes for it."""
    random, mip = Random(1), Mip()
    items = [mip.column(-random.randint(500, 540)) for _ in range(90)]
    for _ in range(20):
        mip.row(items, [random.randint(100, 130) for _ in items], upper=4_000)
    return mip


def test_the_number_of_threads_may_change() -> None:
    """In one thread of ours, and beside another one that solves."""

    def optima(numbers: tuple[int, ...]) -> list[float]:
        answers = [knapsack().solve(time_limit_s=20, threads=number) for number in numbers]
        assert all(answer.optimal for answer in answers)
        return [answer.objective for answer in answers]

    beside = BackgroundTask(lambda stop: optima((2, 1, 3))).start()
    assert {*optima((1, 2, 1, 3)), *beside.result()} == {knapsack().solve(time_limit_s=20).objective}


@pytest.mark.parametrize("stop", [None, threading.Event()], ids=["alone", "that another thread may stop"])
def test_ctrl_c_is_not_lost_in_a_callback(stop: threading.Event | None) -> None:
    """HiGHS swallows what a callback raises."""
    mip = hard()
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            mip.solve(time_limit_s=20, gap=0.0, stop=stop)
    finally:
        timer.cancel()
    assert signal.getsignal(signal.SIGINT) is before


def test_standard_output_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """It belongs to the answer of `--json`. HiGHS 1.16 prints there when it is made, whatever its options say."""
    knapsack().solve(time_limit_s=20)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


def test_what_the_lp_proves_stays_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HiGHS is interrupted before it has come as far again."""
    monkeypatch.setattr(highs, "MANY_ENTRIES", 0)
    mip = knapsack()
    mip.optional.append(range(0))
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


def test_a_mip_with_long_rows_is_solved_near_its_lp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is below the optimum, its solution within the gap above its bound, and an impossible one stays so."""
    taken = 0
    for seed in range(60):
        random, mip = Random(seed), Mip()
        items = [mip.column(-random.randint(5, 40)) for _ in range(25)]
        for _ in range(1 + seed % 2):
            mip.row(items, [random.randint(1, 30) for _ in items], upper=90)
        if seed % 6 == 0:
            mip.row(items[:2], [1.0, 1.0], lower=3.0)
        gap, cutoff = random.choice((1e-3, 0.05)), random.choice((None, 0.0, -600.0))
        best = mip.solve(time_limit_s=20)
        with monkeypatch.context() as patch:
            patch.setattr(highs, "LONG_ROW", 2)
            near = mip._near_lp(20.0, gap, cutoff, threads=1, seed=0)
            answer = mip.solve(time_limit_s=20, gap=gap, cutoff=cutoff)
        if answer.infeasible:
            assert best.infeasible or (cutoff is not None and best.objective >= cutoff), seed
            continue
        assert not best.infeasible
        assert answer.bound <= best.objective + 1e-4 and answer.objective >= best.objective - 1e-4, seed
        if answer.values is not None:
            assert answer.objective - answer.bound <= gap * abs(answer.objective) + 1e-6, seed
        taken += near is not None and near.values is not None
    assert taken >= 5


def test_a_mip_that_does_not_come_back_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS's presolve may loop for hours past its limit. What the LP proved still holds."""
    monkeypatch.setattr(highs, "MANY_ENTRIES", 0)
    monkeypatch.setattr(highs, "GRACE_S", 0.05)
    mip, over = knapsack(), threading.Event()
    mip.optional.append(range(0))
    lp = mip.solve(time_limit_s=20, relax=True).objective
    run = highspy.Highs.run
    monkeypatch.setattr(highspy.Highs, "run", lambda s: run(s) if s.getLp().integrality_ == [] else over.wait(20))
    answer = mip.solve(time_limit_s=0.1)
    over.set()
    assert (answer.values, answer.optimal, answer.infeasible) == (None, False, False)
    assert answer.bound == pytest.approx(lp, abs=1e-5)


@pytest.mark.parametrize("end", ["__main__.main()", "main()"], ids=["command", "script"])
def test_a_mip_left_behind_leaves_the_exit_code_alone(end: str) -> None:
    """The thread asks for Python's lock again while the process ends, for which C++ aborts it."""
    script = (
        "import sys; from poetc import __main__, cli; from poetc.solvers import highs;"
        "from tests.solvers.bounds.test_highs import hard; quiet = highs.quiet_solver\n"
        "def endless(*arguments):\n"
        "    solver = quiet(*arguments)\n"
        "    solver.setOptionValue('time_limit', 1e20)\n"
        "    return solver\n"
        "def main():\n"
        "    print(hard().solve(time_limit_s=0.1).optimal, flush=True)\n"
        "    sys.exit(3)\n"
        "highs.GRACE_S, highs.quiet_solver, cli.main = 0.1, endless, main\n"
        f"{end}"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "False\n", "")


def test_a_mip_that_does_not_look_up_is_left_soon_after_it_should_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "STOP_S", 0.05)
    over, stop = threading.Event(), threading.Event()

    def hangs(solver: highspy.Highs) -> None:
        stop.set()
        over.wait(60)

    monkeypatch.setattr(highspy.Highs, "run", hangs)
    answer = knapsack().solve(time_limit_s=1000, stop=stop)
    over.set()
    assert (answer.values, answer.optimal) == (None, False)


def test_an_error_of_highs_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(solver: highspy.Highs) -> None:
        raise MemoryError

    monkeypatch.setattr(highspy.Highs, "run", fails)
    with pytest.raises(MemoryError):
        knapsack().solve(time_limit_s=20)


def test_a_solve_takes_more_threads() -> None:
    problem = with_budget(training_problem(Random(1), 2, paging=True, scale=4), 0.5)
    # Windows take one thread all the same, between relaxations that take two.
    one, two = (solve(problem, "poetc", SolveOptions(time_limit_s=20, threads=n)) for n in (1, 2))
    assert verify(problem, two).energy_pj == two.proof.objective == one.proof.objective
    assert two.proof == one.proof


def test_settings_that_change_with_cores_or_versions_are_pinned() -> None:
    """Version 1.16 runs MIPs in parallel, as many ways as there are cores, unless it is told."""
    for threads, parallel in ((1, "off"), (3, "on")):
        solver = highs.quiet_solver(5, threads, 7)
        values = {name: solver.getOptionValue(name) for name in highs.pinned(threads, 7)}
        found = {name: value[1] if isinstance(value, tuple) else value for name, value in values.items()}
        assert found == highs.pinned(threads, 7)
        assert (found["parallel"], found["threads"], found["simplex_max_concurrency"]) == (parallel, threads, threads)


def test_the_version_is_in_the_tested_range() -> None:
    """pyproject.toml names the same range."""
    own = tuple(int(part) for part in highspy.Highs().version().split(".")[:2])
    least, below = highs.TESTED_VERSIONS
    assert least <= own < below
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    assert f'"highspy>={least[0]}.{least[1]},<{below[0]}.{below[1]}"' in text


def test_an_option_that_highs_lacks_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "pinned", lambda threads, seed: {"no_such_option": 1})
    with pytest.raises(RuntimeError, match="has no option 'no_such_option'"):
        highs.quiet_solver(5, 1, 0)


@functools.cache
def solved_here() -> str:
    problem = with_budget(training_problem(Random(2), 4, paging=True), 0.5)
    return schedule_to_json(solve(problem, "poetc", SolveOptions(time_limit_s=60, work_limit_s=0.2))).decode()


@pytest.mark.parametrize("cores", [1, 2])
def test_answers_do_not_move_with_the_cores_of_the_process(cores: int) -> None:
    script = (
        "import os, sys; os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:int(sys.argv[1])]));"
        "from random import Random; from tests.support.problems import training_problem, with_budget;"
        "from poetc.scheduling import SolveOptions, schedule_to_json; from poetc.solvers import solve;"
        "p = with_budget(training_problem(Random(2), 4, paging=True), 0.5);"
        "print(schedule_to_json(solve(p, 'poetc', SolveOptions(time_limit_s=60, work_limit_s=0.2))).decode())"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script, str(cores)], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == solved_here().strip()


def test_rows_of_bytes_have_both_sides() -> None:
    """The presolve of HiGHS strengthens rows with one side alone; one with tiny coefficients beside large ones hung."""
    mip = Mip()
    columns = [mip.column(1.0) for _ in range(2)]
    row = mip.within(columns, [1.0, 3.0], room=2.0)
    assert (mip.row_lower[row], mip.row_upper[row]) == (0.0, ROOM)
    row = mip.within(columns, [1.0, -3.0], room=2.0)  # here 0 would be a limit
    assert (mip.row_lower[row], mip.row_upper[row]) == (-INFINITY, ROOM)
