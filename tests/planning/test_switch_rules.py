"""A budget that changes in mid-step, under ours and the published rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from poetc.commands.compare import run_switches
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.errors import UsageError
from poetc.events import silent
from poetc.planning.switch_rules import Change, SwitchRow, compare_rules
from poetc.scheduling import SolveOptions, keep_all_peak_bytes, problem_to_json, verify_parts
from poetc.solvers.published import sage
from tests.support.problems import training_problem

OPTIONS = SolveOptions(time_limit_s=2, work_limit_s=0.3)


@pytest.mark.long
def test_every_rule_goes_on_under_the_new_budget() -> None:
    problem = training_problem(Random(3), 6)
    peak = keep_all_peak_bytes(problem)
    for before, after in ((peak, int(0.7 * peak)), (int(0.7 * peak), peak)):
        change = Change(before_bytes=before, after_bytes=after, share=0.5)
        rows = {row.rule: row for row in compare_rules(problem, (change,), OPTIONS)}
        assert set(rows) == {"poetc", "melon", "sage", "restart"}
        ours = rows["poetc"]
        assert ours.status == "switched" and ours.cost is not None and ours.redone is not None, ours
        assert ours.least_redone is not None and ours.least_redone <= ours.redone
        for row in rows.values():
            assert row.cost is not None or row.reason
            assert row.cost is None or ours.cost <= row.cost, (row, ours)


def check_never_dearer(seed: int, asked: tuple[tuple[float, float, float], ...]) -> list[SwitchRow]:
    """The rows of poetc, after each was compared with the other rules' rows."""
    random = Random(seed)
    problem = training_problem(random, random.randint(2, 5), paging=seed % 3 == 2)
    peak = keep_all_peak_bytes(problem)
    changes = tuple(
        Change(before_bytes=int(before * peak), after_bytes=int(after * peak), share=share)
        for before, after, share in asked
    )
    rows = list(compare_rules(problem, changes, SolveOptions(time_limit_s=0.2, work_limit_s=0.05)))
    assert len(rows) == 4 * len(changes)
    found = [row for row in rows if row.rule == "poetc"]
    for ours in found:
        others = [row for row in rows if row.change == ours.change and row.rule != "poetc"]
        costs = {row.rule: row.cost for row in others if row.cost is not None}
        if ours.cost is None:
            assert not costs and ours.reason and ours.by == "poetc", (seed, ours)
            continue
        assert ours.cost <= min(costs.values(), default=ours.cost), (seed, ours, costs)
        assert ours.cost == (ours.own_cost if ours.by == "poetc" else costs[ours.by]), (seed, ours, costs)
        assert ours.own_cost is None or ours.cost <= ours.own_cost, (seed, ours)
    return found


def test_poetc_takes_the_cheapest_run_and_names_its_rule() -> None:
    """Melon's plans of this step are cheaper than those that ours finds in so little time."""
    check_never_dearer(12, ((0.8, 1, 0.5),))


@pytest.mark.long
def test_no_published_rule_is_cheaper_on_random_steps() -> None:
    changes = ((1, 0.8, 0.25), (0.8, 1, 0.5), (0.9, 0.75, 0.75))
    rows = [row for seed in range(13) for row in check_never_dearer(seed, (changes[seed % 3],))]
    assert sum(row.cost is not None for row in rows) >= len(rows) // 2, rows


def test_sage_evicts_when_the_budget_shrinks() -> None:
    problem = training_problem(Random(3), 6)
    peak = keep_all_peak_bytes(problem)
    large, small = replace(problem, budget_bytes=peak), replace(problem, budget_bytes=int(0.85 * peak))
    position = len(problem.operators) // 4
    steps, at = sage.change_budget(large, small.budget_bytes, position, OPTIONS)
    verify_parts(((large, steps[:at]), (small, steps[at:])))
    unchanged, _ = sage.change_budget(large, peak, position, OPTIONS)
    assert len(steps) > len(unchanged)


@pytest.mark.parametrize("text", ["9kB", "9kB:8kB", "9kB:8kB@50", "9kB:8kB@0%", "9kB:9kB@50%", "x:y@5%"])
def test_a_change_that_is_none(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 2)))
    request = SolveRequest(model=ModelRequest(source=path))
    with pytest.raises(UsageError, match="--switch"):
        run_switches(request, [text], silent)
