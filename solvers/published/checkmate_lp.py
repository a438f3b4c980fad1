"""Checkmate's approximation: the LP relaxation with two-phase rounding (Jain et al., MLSys 2020, section 5).

The LP is solved for 90 % of the budget and S is rounded at 1/2. R is then the least that S asks for. It has the
operators of tensors that have to be in RAM at the next stage and are not now. The operands that these miss come with
them. If the result does not fit, the LP is solved for less.
"""

from __future__ import annotations

import time

from poetc.errors import LimitError
from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._settings import ROUNDED
from poetc.solvers.published._stages import StageModel, Values, build
from poetc.solvers.published.checkmate import Checkmate

INFO = SolverInfo(
    name="checkmate_lp",
    title="Checkmate's LP with two-phase rounding",
    citation="P. Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020",
    energy=True,
    notes="Up to 220 operators. Recomputation only, no optional in-place.",
)


def rounded(stages: StageModel, values: Values) -> list[int]:
    """The sequence of the rounded S and its least R."""
    model, n = stages.model, stages.n

    def is_held(t: int, i: int) -> bool:
        linear, constant = stages.held(t, i)
        return constant + sum(value * float(values[column]) for column, value in linear) > ROUNDED.threshold

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


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (too large, tensors on the store), InfeasibleError, LimitError."""
    for allowance in ROUNDED.allowances:
        baseline, stages = build(INFO, Checkmate, ROUNDED.most_operators, problem, options, progress, allowance)
        answer = stages.mip.solve(
            time_limit_s=max(ROUNDED.least_s, baseline.stop_at - time.monotonic()), relax=True, threads=options.threads
        )
        if answer.infeasible:
            baseline.refusal = baseline.refusal or f"its LP has no solution for {allowance:.0%} of the budget"
            break
        if answer.values is None:
            raise LimitError(f"{INFO.name}: the LP took longer than {options.time_limit_s:g} s; allow more time")
        if baseline.offer(rounded(stages, answer.values), f"LP for {allowance:.0%} of the budget"):
            break
    return baseline.finish()
