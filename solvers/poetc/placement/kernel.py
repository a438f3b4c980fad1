"""The kernel of the operator beside which the most is in RAM: one with less workspace leaves room for other tensors."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from poetc.scheduling import Problem, Variant, keep_all_peak_bytes, movable_state
from poetc.solvers.poetc.bounds.ladder import fullest_operator
from poetc.solvers.poetc.placement.relaxation import OpenPlacement, open_model


def kernel_of_fullest(problem: Problem, *, time_limit_s: float) -> tuple[int, int]:
    """An operator, and the number of the kernel with which a step probably costs least; 0 is the fastest.

    By the LP with a cut at that operator, for each kernel. All others run their fastest.
    """
    stop_at = time.monotonic() + time_limit_s
    plain = replace(problem, operators=tuple(replace(o, low_workspace=()) for o in problem.operators))
    at = fullest_operator(open_model(plain))
    operator = problem.operators[at]
    if not operator.low_workspace or problem.banks or keep_all_peak_bytes(plain) <= problem.budget_bytes:
        return at, 0
    own = Variant(workspace_bytes=operator.workspace_bytes, time_ns=operator.time_ns, energy_pj=operator.energy_pj)
    fastest = problem.objective.cost(operator.energy_pj, operator.time_ns)
    best, least = 0, math.inf
    for number, kernel in enumerate((own, *operator.low_workspace)):
        more = problem.objective.cost(kernel.energy_pj, kernel.time_ns) - fastest
        if number and more >= least:
            break
        operators = list(plain.operators)
        operators[at] = replace(operators[at], workspace_bytes=kernel.workspace_bytes)
        cut = OpenPlacement(open_model(replace(plain, operators=tuple(operators))), (at,), movable_state(plain))
        relaxation = cut.solve(time_limit_s=stop_at - time.monotonic(), relax=True)
        if time.monotonic() >= stop_at:
            return at, 0
        if relaxation.exact and not relaxation.infeasible:
            rest = relaxation.bound + more
            if rest < least:
                best, least = number, rest
    return at, best
