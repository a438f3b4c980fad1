"""The largest batch that each solver fits into a budget, and what a sample costs then.

    python -m bench.largest_batches MODEL --device NAME --budgets 5500MB,3800MB --solvers keep_all,melon,poetc

Batches are tried in steps of GRAIN, which a binary search over their number takes: a schedule of a batch is asked of
each solver with a limit of time. State is in RAM. Prints one JSON object. A batch is proven too large where poetc's
bound on the RAM of any schedule without streamed operands exceeds the budget. With `--batches 192,256` these alone are
tried for the least time, and the answer has the ratio of times for each solver and batch, or null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench._command import main
from poetc.commands.requests import ModelRequest, SolveRequest, training_graph, with_any_weights
from poetc.devices import build_problem, load_profile, parse_size
from poetc.errors import PoetcError
from poetc.scheduling import Objective, Problem, SolveOptions, verify
from poetc.solvers import solve

GRAIN = 16
MOST = 1024
LIMIT_S, GAP = 3.0, 0.01
OF_TIMES_S, GAP_OF_TIMES = 10.0, 0.002  # where times are compared
BOUND_S = 3.0


@dataclass
class _Network:
    model: ModelRequest
    objective: Objective = Objective.ENERGY
    options: SolveOptions = field(default_factory=lambda: SolveOptions(time_limit_s=LIMIT_S, gap=GAP))
    problems: dict[int, Problem] = field(default_factory=dict)

    def problem(self, batch: int, budget: int) -> Problem:
        if batch not in self.problems:
            step = training_graph(replace(with_any_weights(self.model), batch=batch))[1]
            self.problems[batch] = build_problem(step, load_profile(self.model.device), budget_bytes=0)
        return replace(self.problems[batch], budget_bytes=budget, objective=self.objective)

    def slower(self, batch: int, budget: int, solver: str) -> float | None:
        """Time of the solver's schedule over that without recomputing or paging; None where it finds none."""
        problem = self.problem(batch, budget)
        try:
            schedule = solve(problem, solver, self.options)
        except PoetcError:
            return None
        return verify(problem, schedule).time_ns / problem.compute_once_ns

    def may_fit(self, batch: int, budget: int) -> bool:
        planner = SolveRequest(model=self.model).planner(BOUND_S)
        return planner.lower_bound_bytes(self.problem(batch, budget)) <= budget


def last(holds: Callable[[int], bool], guess: int) -> int:
    """The last multiple of GRAIN up to MOST for which `holds`, near `guess`; 0 where it holds for none."""
    low, high, step = 0, MOST // GRAIN + 1, 1
    at = min(max(guess // GRAIN, 1), high - 1)
    while high - low > 1:
        if holds(at * GRAIN):
            low, at = at, at + step
        else:
            high, at = at, at - step
        step *= 2
        at = min(max(at, low + 1), high - 1)
        if high <= MOST // GRAIN and low:
            at = (low + high) // 2
    return low * GRAIN


def of_budget(network: _Network, budget: int, solvers: list[str]) -> dict[str, Any]:
    """By solver: its batch, and the ratio of times. A batch from which on none fits."""
    found: dict[str, Any] = {}
    guess = GRAIN
    for solver in solvers:
        ratios: dict[int, float | None] = {}

        def fits(batch: int, solver: str = solver, ratios: dict[int, float | None] = ratios) -> bool:
            ratios[batch] = network.slower(batch, budget, solver)
            return ratios[batch] is not None

        batch = last(fits, guess)
        guess = max(guess, batch)
        found[solver] = {"batch": batch, "slower": ratios.get(batch)}
    fitting = last(lambda batch: network.may_fit(batch, budget), guess)
    return {"solvers": found, "too_large": fitting + GRAIN}


def of_batches(network: _Network, budget: int, solvers: list[str], batches: list[int]) -> dict[str, Any]:
    """By solver: the ratio of times of each batch, or None. A larger batch is not tried where one was too large."""
    found: dict[str, Any] = {}
    for solver in solvers:
        ratios: list[float | None] = []
        for batch in batches:
            fits = not ratios or ratios[-1] is not None
            ratios.append(network.slower(batch, budget, solver) if fits else None)
        found[solver] = ratios
    return {"batches": batches, "slower": found}


def answer(network: _Network, budgets: list[str], solvers: list[str]) -> dict[str, Any]:
    sizes = {text: parse_size(text, option="--budgets") for text in budgets}
    return {"grain": GRAIN, "budgets": {text: of_budget(network, size, solvers) for text, size in sizes.items()}}


def run(model: Path, *, device: str, budgets: str, solvers: str, batches: str = "") -> None:
    network = _Network(ModelRequest(source=model, device=device))
    if batches:
        network.objective = Objective.TIME
        network.options = SolveOptions(time_limit_s=OF_TIMES_S, gap=GAP_OF_TIMES)
    names, limits = solvers.split(","), budgets.split(",")
    if batches:
        tried = sorted(map(int, batches.split(",")))
        of = {b: of_batches(network, parse_size(b, option="--budgets"), names, tried) for b in limits}
        print(json.dumps({"budgets": of}))
    else:
        print(json.dumps(answer(network, limits, names)))


if __name__ == "__main__":
    main(run)
