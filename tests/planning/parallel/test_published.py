"""A published method is about schedules of its own class, whichever way of using cores is taken."""

from random import Random

import pytest

from poetc.planning import Planner, reductions
from poetc.planning.ways import ALONE
from poetc.scheduling import SolveOptions
from poetc.scheduling.scope import Repetition
from tests.planning.parallel.test_ways import several, ways_of
from tests.support.problems import random_dag, with_budget


@pytest.mark.parametrize(("solver", "repetition"), [("poet", Repetition.POET), ("poetc", Repetition.ANY)])
def test_its_bound_names_the_class(solver: str, repetition: Repetition) -> None:
    """The bound of this problem for the class of POET is above the cost of a schedule outside of it."""
    random = Random(165)
    problem = several(random, random_dag(random, random.randint(4, 7), paging=random.random() < 0.6), 0)
    ways = ways_of(problem)
    ways.pop(1)
    low = with_budget(ways[ALONE], random.choice((0, 0.05, 0.1, 0.2, 0.3, 0.5)))
    options = SolveOptions(time_limit_s=60, work_limit_s=0.3, seed=165, gap=1e-9, fixed_order=random.random() < 0.5)
    solution = Planner(options=options, solver=solver, reductions=reductions("ram", ways=[ways])).solve(low)
    assert solution.proof.scope.repetition is repetition
