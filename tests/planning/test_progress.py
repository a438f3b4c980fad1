"""Progress: the best schedule of all searches stays, and stages are named in plain words."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import poetc.solvers
from poetc.planning import Kernels, MicroBatches, Planner, StatePlacement
from poetc.scheduling import SolveOptions
from tests.support.problems import training_problem, with_budget

PICOJOULES = {"pJ": 1, "nJ": 1e3, "uJ": 1e6, "µJ": 1e6, "mJ": 1e9, "J": 1e12}


def best_of_lines(lines: list[str]) -> list[float]:
    found = [re.match(r"best ([\d.,]+) (\w+)", line) for line in lines]
    return [float(m[1].replace(",", "")) * PICOJOULES[m[2]] for m in found if m]


def test_the_best_schedule_of_all_searches_stays_in_the_line() -> None:
    """Two micro-batches, which cannot win, are searched after one."""
    whole = with_budget(training_problem(Random(2), 1), 0.6)
    dearer = tuple(replace(op, energy_pj=op.energy_pj * 21 // 20) for op in whole.operators)
    lines: list[str] = []
    chain = (MicroBatches({1: whole, 2: replace(whole, operators=dearer)}), Kernels(), StatePlacement("ram"))
    planner = Planner(options=SolveOptions(time_limit_s=20), reductions=chain, progress=lines.append)
    solution = planner.solve(whole)
    assert "2 micro-batches" in lines
    best = best_of_lines(lines)
    assert best and all(later <= earlier for earlier, later in pairwise(best))
    assert abs(best[-1] - solution.cost) <= 0.001 * solution.cost  # the answer, in four digits
    assert any("every schedule tried next costs at least" in line for line in lines)


def test_every_stage_of_the_engine_has_plain_words() -> None:
    from poetc.planning.progress import STAGES, stage_words

    said = set()
    for path in (Path(poetc.solvers.__file__).parent / "poetc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "say":
                said |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            if isinstance(node, ast.keyword) and node.arg == "stage" and isinstance(node.value, ast.Constant):
                said.add(node.value.value)
    assert len(said) > 8 and said <= set(STAGES)
    assert stage_words("5 cuts") == stage_words("race") == "improving the schedule"
    assert stage_words("POET's MILP") == "POET's MILP"
