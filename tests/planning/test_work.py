"""What ends a search is counted work, as long as the time limit is not reached: the clock may run as it likes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from poetc.planning import Kernels, MicroBatches, Planner, StatePlacement, arena, smallest_ram, solve_curve
from poetc.planning.chain import reductions
from poetc.scheduling import MemoryPlan, Problem, Schedule, SolveOptions, keep_all, keep_all_peak_bytes, verify
from poetc.solvers import Work, best_order, min_budget
from poetc.solvers.poetc import engine
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.relaxing import Relaxing, Solved
from poetc.solvers.poetc.search.eviction import Policy, Simulation, Stuck
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import ENGINE, SMALLEST_BUDGET, WORK
from tests.support.banks import banked
from tests.support.planning import planner
from tests.support.problems import training_problem, with_budget

LIMIT_S = 30.0
OPTIONS = SolveOptions(time_limit_s=LIMIT_S, gap=0.01, work_limit_s=0.7)


class Machine:
    """A clock of which all time passes in one stretch of its readings, as if what is done there took so long."""

    def __init__(self) -> None:
        self.readings, self.slow, self.seconds = 0, range(0), 0.0

    def monotonic(self) -> float:
        self.readings += 1
        passed = min(len(self.slow), max(0, self.readings - self.slow.start))
        return 1000.0 + self.seconds * passed / max(1, len(self.slow))


def test_choosing_an_order_counts_against_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether another order is chosen or not."""
    clock, limits_s = [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def choosing(*_: object) -> None:
        clock[0] += 7.0

    class Solve:
        def __init__(self, problem: Problem, options: SolveOptions, progress: object, **_: object) -> None:
            limits_s.append(options.time_limit_s)

        def run(self) -> Schedule:
            return keep_all(tight(1))

    monkeypatch.setattr(engine, "best_order", choosing)
    monkeypatch.setattr(engine, "_Solve", Solve)
    engine.solve(tight(1), OPTIONS)
    assert limits_s == [LIMIT_S - 7.0]


def test_a_run_is_given_up_when_time_is_up_unless_it_is_the_first() -> None:
    race = Race(tight(1, 20), 0, stop_at=0.0)
    assert race.give_up_at == math.inf
    codes = Simulation(race.model, race.model.capacity_for(True), Policy(), paging=True, stop_at=race.give_up_at).run()
    assert codes is not None and race.offer(codes, "first")
    with pytest.raises(Stuck):
        Simulation(race.model, race.model.capacity_for(True), Policy(), paging=True, stop_at=race.give_up_at).run()


def tight(seed: int, layers: int = 4) -> Problem:
    return with_budget(training_problem(Random(seed), layers, paging=True), 0.6)


def solve(state: str) -> Callable[[], object]:
    def solved() -> object:
        problem = tight(1)
        search = planner(state, options=OPTIONS).search_ram(problem, 0.1 * LIMIT_S, time.monotonic() + LIMIT_S)
        return planner(state, options=OPTIONS).knowing(search).solve(problem), search.result

    return solved


def sweep() -> object:
    problem = tight(5)
    budgets = [keep_all_peak_bytes(problem) * percent // 100 for percent in (75, 60)]
    points = solve_curve(problem, budgets, planner("ram", options=OPTIONS))
    return [replace(point, seconds=0.0) for point in points]


def split() -> object:
    problems = {1: tight(3), 2: tight(4)}
    chain = (MicroBatches(problems), Kernels(), StatePlacement("ram"))
    return Planner(options=OPTIONS, reductions=chain).solve(problems[1])


def in_banks() -> object:
    return Planner(options=OPTIONS, reductions=reductions()).solve(banked(Random(7), 9))


@pytest.mark.parametrize(
    ("command", "share"),
    [(solve("auto"), 0.28), (solve("ram"), 0.45), (sweep, 0.42), (split, 0.08), (in_banks, 0.7)],
    ids=["auto", "ram", "sweep", "split", "banks"],
)
@pytest.mark.long_but("auto", "split", "banks")
def test_slow_machines_give_the_same_answers(
    command: Callable[[], object], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedules, plans, proofs, logs and smallest budgets."""
    machine = Machine()
    monkeypatch.setattr(time, "monotonic", machine.monotonic)
    fast = command()
    count = machine.readings
    for part in range(2):
        machine.slow = range(count * part // 4, count * (part + 1) // 4)
        machine.readings, machine.seconds = 0, share * LIMIT_S
        assert command() == fast, part


def test_work_ends_a_search_though_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight(1, 12)
    found, keep_all = min_budget(problem).smallest_bytes, keep_all_peak_bytes(problem)
    assert found is not None and found < keep_all
    monkeypatch.setattr(
        "poetc.solvers.poetc.search.smallest_budget.SMALLEST_BUDGET", replace(SMALLEST_BUDGET, work_s=0.0)
    )
    assert min_budget(problem).smallest_bytes == keep_all
    work = Work(0.2)
    best_order(problem, OPTIONS, work)
    assert 0.1 < work.spent_s < 0.4


def test_a_quick_solve_counts_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is a schedule, the runs before the first relaxation are part of its work, too."""
    runs, one = [0], Race._one

    def counted(race: Race) -> None:
        one(race)
        runs[0] = max(runs[0], race.runs)

    monkeypatch.setattr(Race, "_one", counted)
    problem, found = tight(1), []
    for is_quick in (False, True):
        runs[0] = 0
        work_s = 19.5 * len(problem.operators) * WORK.run_s
        options = SolveOptions(time_limit_s=600.0, work_limit_s=work_s, fixed_order=True, is_quick=is_quick)
        engine.solve(problem, options)
        found.append(runs[0])
    assert found[1] <= 20 < found[0]


def test_a_quick_solve_of_a_large_problem_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relaxation of a language model takes longer than the rest of `poetc analyze`."""
    relaxed, efforts = list[str](), list[float]()
    take, packing = Relaxing.take, arena.pack

    def taken(own: Relaxing, solved: Solved, name: str) -> Relaxation | None:
        relaxed.append(name)
        return take(own, solved, name)

    def pack(problem: Problem, schedule: Schedule, **options: float) -> MemoryPlan:
        efforts.append(options["effort"])
        return packing(problem, schedule, **options)

    monkeypatch.setattr(Relaxing, "take", taken)
    monkeypatch.setattr(arena, "pack", pack)
    problem = tight(1, 60)
    assert len(problem.operators) > ENGINE.small_operators
    costs = []
    for is_quick in (True, False):
        options = SolveOptions(time_limit_s=600.0, work_limit_s=0.5, gap=0.02, is_quick=is_quick)
        solution = planner(options=options).solve(problem)
        trace = verify(solution.problem, solution.schedule)
        costs.append(trace.energy_pj)
        assert trace.peak_bytes <= problem.budget_bytes
        assert bool(relaxed) is not is_quick
        assert (1.0 in efforts) is not is_quick
        efforts.clear()
    assert costs[1] <= costs[0] < 1.05 * costs[1]


def test_a_search_for_the_least_ram_packs_in_counted_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends at the same schedule however late it is, as long as the clock leaves time."""
    efforts, packing = list[float](), smallest_ram.pack

    def pack(problem: Problem, schedule: Schedule, *, stop_at: float, effort: float) -> MemoryPlan:
        efforts.append(effort)
        return packing(problem, schedule, stop_at=stop_at, effort=effort)

    monkeypatch.setattr(smallest_ram, "pack", pack)
    whole, part = (smallest_ram.find_smallest_ram(tight(1), 600.0, work) for work in (math.inf, 0.3))
    assert efforts[0] == 1.0 and 0 < efforts[1] < 0.1
    assert part.ram_bytes is not None and whole.ram_bytes is not None
    assert part.bound_bytes == whole.bound_bytes and part.ram_bytes >= whole.ram_bytes
