"""A budget that changes in mid-step, under ours and the published rules.

    python -m bench.elastic changes MODEL [--batch N] [--device D] --switch BEFORE:AFTER@SHARE% ...
    python -m bench.elastic trace NETWORK [--batch N] [--device D] --budgets SIZE,SIZE... [--steps N] [--seed N]

`changes` prints the rows of `poetc compare --switch` as a table. `trace` trains while the budget changes at random: by
an exponential law, once in EVERY steps on average, to another of the budgets. It counts the modelled time of so many
steps for ours, Melon's rule, starting the step again, and staying at the smallest budget. NETWORK is one of
demo/boards/networks.py. docs/results/changing-budget.md has the tables.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.integers import network
from poetc import solvers
from poetc.commands.compare import CompareRequest, run_switches
from poetc.commands.requests import ModelRequest, SolveRequest, limits, read_problem
from poetc.devices import format_bytes, format_ns, parse_size
from poetc.errors import PoetcError
from poetc.planning import Solution, Switching, solve_bundle
from poetc.planning.bundle import Bundle
from poetc.planning.switching import step_time_ns
from poetc.scheduling import SolveOptions, keep_all_peak_bytes, pack
from poetc.training import TrainingOptions

EVERY = 1.7  # steps between two changes, on average


def changes(arguments: argparse.Namespace) -> None:
    request = CompareRequest(
        model=ModelRequest(
            source=arguments.model,
            batch=arguments.batch,
            device=arguments.device,
            training=TrainingOptions(random_weights=1),
        ),
        budgets=(),
        paging=False,
        options=SolveOptions(time_limit_s=arguments.time_limit),
    )
    print("| change | rule | step, mJ | done again | at least |\n|---|---|---|---|---|")
    for row in run_switches(request, arguments.switch, lambda text: None):
        change = f"{format_bytes(row.change.before_bytes)} to {format_bytes(row.change.after_bytes)}"
        cells = [f"{change} at {row.change.share:.0%}", row.rule + ("" if row.by == row.rule else f" by {row.by}")]
        cells += (
            ["" if row.cost is None else f"{row.cost / 1e9:,.2f}", row.reason or row.status, ""]
            if row.cost is None or row.redone is None
            else [
                f"{row.cost / 1e9:,.2f}",
                f"{row.redone:.2%}",
                "" if row.least_redone is None else f"{row.least_redone:.2%}",
            ]
        )
        print("| " + " | ".join(cells) + " |", flush=True)


class Rule:
    """A run of training steps under a budget that changes: its modelled time, and how long requests waited."""

    def __init__(self, bundle: Bundle, *, behind: int | None = None, restarts: bool = False) -> None:
        self.switching = Switching(bundle) if behind is None else Switching(bundle, behind)
        self.restarts = restarts
        self.times = [[step_time_ns(line.problem, s) for s in line.steps] for line in self.switching.lines]
        self.ends = [[0, *itertools.accumulate(times)] for times in self.times]

    def run(self, trace: Sequence[tuple[float, int]], steps: int) -> tuple[float, float, int]:
        """Time in ns, the longest wait of a smaller budget in ns, and the number of switches in mid-step."""
        now = longest = 0.0
        plan, at, done, switched = 0, 0, 0, 0
        requests = list(trace)
        asked: tuple[float, int] | None = None
        while done < steps:
            while requests and requests[0][0] <= now:
                asked = requests.pop(0)
            line = self.switching.lines[plan]
            if asked is not None and asked[1] != plan:
                target = asked[1]
                switch = None
                if at == 0:
                    moved: tuple[int, int] | None = (0, 0)
                elif self.restarts:
                    moved = None if line.points[at].updates else (0, 0)
                else:
                    switch = self.switching.switch(plan, target, at) if at in self.points(plan) else None
                    moved = None if switch is None else (switch.join, switch.time_ns)
                if moved is not None:
                    switched += at > 0
                    now += moved[1]
                    if target > plan:  # nobody waits for a larger one
                        longest = max(longest, now - asked[0])
                    plan, at = target, moved[0]
                    asked = None
                    continue
            now += self.times[plan][at]
            at += 1
            if at == len(self.times[plan]):
                at, done = 0, done + 1
        return now, longest, switched

    def points(self, plan: int) -> frozenset[int]:
        return frozenset(self.switching.points(plan))


def trace(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = network(arguments.network, Path(folder))
        request = SolveRequest(
            model=ModelRequest(source=source, batch=arguments.batch, device=arguments.device),
            budget="100%",
            paging=False,
            options=SolveOptions(time_limit_s=arguments.time_limit),
        )
        _, _, _, problem = read_problem(request)
        problem = limits(request, problem)
    peak = keep_all_peak_bytes(problem)
    budgets = [parse_size(text, of=peak, option="--budgets") for text in arguments.budgets.split(",")]
    ours = solve_bundle(problem, budgets, request.planner(arguments.time_limit))
    plain = [replace(ours.smallest.problem, budget_bytes=s.problem.budget_bytes) for s in ours.solutions]
    rules = {"poetc": Rule(ours), "restart": Rule(ours, restarts=True)}
    try:
        schedules = [(p, solvers.solve(p, "melon", request.options)) for p in plain]
        melon = Bundle(solutions=tuple(Solution(problem=p, schedule=s, plan=pack(p, s)) for p, s in schedules))
        rules["melon"] = Rule(melon, behind=1)
    except PoetcError as error:
        print(error)
    random, requests, now = Random(arguments.seed), [], 0.0
    largest_ns = rules["poetc"].ends[0][-1]
    plan = 0
    while now < 3 * arguments.steps * largest_ns:
        now += random.expovariate(1 / (EVERY * largest_ns))
        plan = random.choice([k for k in range(len(plain)) if k != plan])
        requests.append((now, plan))
    smallest_ns = arguments.steps * rules["poetc"].ends[-1][-1]
    print(
        f"{problem.name}, batch {arguments.batch}, {arguments.device}: "
        + ", ".join(
            f"{format_bytes(s.problem.budget_bytes)}: {format_ns(e[-1])}"
            for s, e in zip(ours.solutions, rules["poetc"].ends, strict=True)
        )
    )
    print("| rule | steps a second | over the smallest plan | switches in mid-step | longest wait |")
    print("|---|---|---|---|---|")
    print(f"| smallest plan | {arguments.steps / smallest_ns * 1e9:.3f} | 1.000 x | 0 | |")
    for name, rule in rules.items():
        time_ns, longest, switched = rule.run(requests, arguments.steps)
        speed = arguments.steps / time_ns * 1e9
        print(f"| {name} | {speed:.3f} | {smallest_ns / time_ns:.3f} x | {switched} | {format_ns(round(longest))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("changes", "trace"):
        part = parts.add_parser(name)
        part.add_argument("model" if name == "changes" else "network", type=Path if name == "changes" else str)
        part.add_argument("--batch", type=int, default=8)
        part.add_argument("--device", default="stm32f746")
        part.add_argument("--time-limit", type=float, default=20.0)
        if name == "changes":
            part.add_argument("--switch", action="append", required=True)
        else:
            part.add_argument("--budgets", required=True)
            part.add_argument("--steps", type=int, default=200)
            part.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    (changes if arguments.part == "changes" else trace)(arguments)


if __name__ == "__main__":
    main()
