"""MILPs by another program and in files: the same optima as HiGHS, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import highspy
import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.scheduling import Paging, SolveOptions
from poetc.solvers import solve
from poetc.solvers.highs import Mip, quiet_solver
from poetc.solvers.milp import available, elsewhere, to_pulp
from tests.solvers.cases import poet_like
from tests.support.problems import with_budget


def knapsack(seed: int) -> Mip:
    """Rows of every form: a limit, a range, an equation, and a continuous column without an upper end."""
    random = Random(seed)
    mip = Mip(offset=3.0)
    items = [mip.column(-random.randint(1, 30)) for _ in range(12)]
    slack = mip.column(2.5, upper=np.inf, integer=False)
    mip.row([*items, slack], [*(random.randint(1, 9) for _ in items), -1.0], upper=20.0)
    mip.row(items, [1.0] * len(items), lower=2.0, upper=7.0)
    mip.row([items[0], items[1]], [1.0, 1.0], lower=1.0, upper=1.0)
    return mip


@pytest.mark.parametrize("seed", range(3))
def test_another_program_and_the_file_have_the_same_optimum(seed: int, tmp_path: Path) -> None:
    mip = knapsack(seed)
    best = mip.solve(time_limit_s=10)
    for name in ("model.mps", "model.lp"):
        with elsewhere("cbc", tmp_path / name) as handled:
            other = mip.solve(time_limit_s=10)
            cut_off = mip.solve(time_limit_s=10, cutoff=best.objective - 1)
        assert handled is not None and handled.count == 2
        assert other.optimal and other.objective == pytest.approx(best.objective, abs=1e-5)
        assert other.bound == pytest.approx(best.objective, abs=1e-4) and other.bound <= best.objective
        assert cut_off.bound <= best.objective - 1, "a bound above the cutoff claims what nobody asked for"
        for written in (name, name.replace(".", "-2.")):
            reader = quiet_solver(10, 1, 0)
            assert reader.readModel(str(tmp_path / written)) == highspy.HighsStatus.kOk
            reader.run()
            assert reader.getInfo().objective_function_value == pytest.approx(best.objective, abs=1e-5)
    assert len(to_pulp(mip)[1]) == mip.columns


def test_an_infeasible_milp_is_said_to_be() -> None:
    mip = knapsack(0)
    mip.row([0, 1], [1.0, 1.0], lower=2.0)
    with elsewhere("cbc"):
        answer = mip.solve(time_limit_s=10)
    assert answer.infeasible and answer.values is None


@pytest.mark.parametrize("solver", ["poetc", "poet", "checkmate", "moccasin"])
def test_every_formulation_can_be_handed_over(solver: str, tmp_path: Path) -> None:
    """The optima of HiGHS, on a problem of seven operators without paging."""
    problem = with_budget(replace(poet_like(1, layers=3), paging=Paging.NONE), 0.5)
    options = SolveOptions(time_limit_s=60, fixed_order=True)
    best = solve(problem, solver, options).proof
    with elsewhere("cbc", tmp_path / "model.mps") as handled:
        other = solve(problem, solver, options).proof
    assert handled is not None
    assert (other.objective, other.bound) == (best.objective, pytest.approx(best.bound, rel=1e-6))
    assert handled.count == len(list(tmp_path.iterdir())) >= (solver != "poetc")


def test_bad_names_are_refused(tmp_path: Path) -> None:
    assert {"highs", "cbc"} <= set(available())
    for solver, file, message in (
        ("nothing", None, r"--milp-solver nothing: PuLP finds no such solver here; it finds highs, cbc"),
        ("highs", tmp_path / "model.txt", r"model.txt: its name must end in .mps or .lp"),
    ):
        with pytest.raises(UsageError, match=message), elsewhere(solver, file):
            pass


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), elsewhere("highs", tmp_path / "absent" / "model.mps"):
        pass
