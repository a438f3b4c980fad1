"""Placements of operators on processors: rules, and moves of single operators, the best by simulation first."""

from __future__ import annotations

import time

from poetc.scheduling import Problem, SolveOptions, complete, keep_all_decisions
from poetc.solvers.processors import (
    Placement,
    as_ready,
    context_switches,
    estimate,
    heft,
    improved,
    one_at_a_time,
    placed,
    weight_gradients,
)

MIP_SHARE = 0.05  # for the placement with one processor at a time
CUT_SHARE = 0.3  # the same for two processors: a minimum cut, which ends long before that unless the machine is busy
TRIES_SHARE = 0.1  # of the work limit, for simulations of placements near the best one
TRY_S = 0.0003  # of work, an operator
PATIENCE = 3  # times that share of the time, on the clock


def ranked(problem: Problem, options: SolveOptions, stop_at: float) -> list[Placement]:
    """Placements, the best by simulation of everything once first: one near the best rule, then the rules."""
    main = (0,) * len(problem.operators)
    share = CUT_SHARE if len(problem.processors) == 2 else MIP_SHARE
    alone, _ = one_at_a_time(problem, share * options.time_limit_s)
    proposed = (as_ready(problem), heft(problem), context_switches(problem), weight_gradients(problem))
    rules = list(dict.fromkeys((main, alone, *proposed)))
    plain = placed(problem, main)
    actions = complete(plain, keep_all_decisions(plain))

    def cost(placement: Placement) -> tuple[int, int]:
        return estimate(problem, actions, placement)

    rules.sort(key=cost)
    tries = int(TRIES_SHARE * options.work_limit_s / (TRY_S * len(problem.operators)))
    until = min(stop_at, time.monotonic() + PATIENCE * TRIES_SHARE * options.time_limit_s)
    return list(dict.fromkeys((improved(rules[0], problem, cost, tries, until), *rules)))
