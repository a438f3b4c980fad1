"""Checkmate's LP with two-phase rounding: an answer of its own (`checkmate_lp`), and the start of the MILPs.

Gurobi, with which the papers solve, finds first solutions by itself. HiGHS finds none of a network's in minutes. So
the MILPs begin with the rounded LP of Checkmate's paper.
"""

from __future__ import annotations

import time
from dataclasses import replace

from poetc.errors import InfeasibleError, LimitError, UnsupportedProblemError
from poetc.scheduling import Problem, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._baseline import Baseline
from poetc.solvers.published._stages import StageModel, Values, build

THRESHOLD = 0.5  # S is rounded up from here on, as in the paper
# Shares of the budget that the LP is given, in turn: rounding adds to the RAM. The paper takes the first.
ALLOWANCES = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
START_SHARE = 0.3  # of the time limit of a MILP, at most, for the LP that it begins with
LEAST_S = 0.1  # time limit of an LP that starts when time is nearly up


def rounded(stages: StageModel, values: Values) -> list[int]:
    """Operators and evictions of Checkmate's rounding: S is cut at a threshold, and R is the least that S needs."""
    model, n = stages.model, stages.n

    def is_held(t: int, i: int) -> bool:
        linear, constant = stages.held(t, i)
        return constant + sum(value * float(values[column]) for column, value in linear) > THRESHOLD

    codes: list[int] = []
    for t in range(n):
        needed = {i for i in stages.free_tensors if is_held(t + 1, i) and model.producer[i] != t}
        needed.update(stages.inputs[t])
        executed = []
        for k in range(t - 1, -1, -1):
            if any(i in needed and not is_held(t, i) for i in stages.outputs[k]):
                executed.append(k)
                needed.update(stages.inputs[k])
        codes += [*reversed(executed), t]
    return codes


def offer_rounded(
    info: SolverInfo,
    kind: type[StageModel],
    problem: Problem,
    options: SolveOptions,
    progress: Progress | None,
) -> tuple[Baseline, list[int] | None]:
    """The first rounded LP that fits. Raises UnsupportedProblemError, InfeasibleError, LimitError."""
    stop_at = time.monotonic() + options.time_limit_s
    for allowance in ALLOWANCES:
        baseline, stages = build(info, kind, problem, options, progress, allowance)
        answer = stages.mip.solve(
            time_limit_s=max(LEAST_S, stop_at - time.monotonic()), relax=True, threads=options.threads
        )
        if answer.infeasible:
            baseline.refusal = baseline.refusal or f"its LP has no solution for {allowance:.0%} of the budget"
            break
        if answer.values is None:
            raise LimitError(f"{info.name}: the LP took longer than {options.time_limit_s:g} s; allow more time")
        codes = rounded(stages, answer.values)
        if baseline.offer(codes, f"LP for {allowance:.0%} of the budget"):
            return baseline, codes
    return baseline, None


def start_of(info: SolverInfo, kind: type[StageModel], problem: Problem, options: SolveOptions) -> list[int] | None:
    """The rounded LP as a start for a MILP; None where there is none within its share of the time."""
    part = replace(options, time_limit_s=START_SHARE * options.time_limit_s)
    try:
        return offer_rounded(info, kind, problem, part, None)[1]
    except (InfeasibleError, LimitError, UnsupportedProblemError):
        return None
