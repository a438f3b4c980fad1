"""Operators side by side from a race that is judged by their lists, where RAM is short on equal processors."""

from __future__ import annotations

import time
from dataclasses import replace

from poetc import solvers
from poetc.planning.planner import Planner
from poetc.planning.processors import on_several
from poetc.planning.solution import Solution
from poetc.planning.state import state_fits
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import first_executions
from poetc.solvers.processors import are_equal

SHARE = 0.15  # of both limits, for the race
LIST_SHARE = 0.05  # of the time limit, for its list, which is packed
ROOM = 0.5  # of the keep-all peak: with more RAM plans in turn hide their few transfers


def raced_on_several(problem: Problem, in_turn: Solution, planner: Planner) -> Solution | None:
    """Other actions with the choices of `in_turn`, in its order or the own one; None if none fit.

    `planner` has the chain for `problem`. The bound of the result says nothing yet.
    """
    options, order = planner.options, first_executions(in_turn.schedule.actions)
    fixed = planner.fixed(problem, in_turn)
    list_s, race_s = LIST_SHARE * options.time_limit_s, SHARE * options.time_limit_s
    race_s = planner.within_s(race_s + list_s) - list_s
    if race_s <= 0 or not worth_racing(fixed):
        return None
    stop_at, work_s = time.monotonic() + race_s, SHARE * options.work_limit_s
    actions = solvers.race_of_lists(fixed, (order, tuple(sorted(order))), options.seed, work_s, stop_at)
    if actions is None:
        return None
    return on_several(problem, replace(in_turn, schedule=replace(in_turn.schedule, actions=actions)), planner)


def worth_racing(problem: Problem) -> bool:
    """Whether equal processors have so little RAM that lists decide about actions in turn.

    Where state is read again and again, a race finds nothing that costs less, and its time is missing elsewhere.
    """
    return are_equal(problem) and state_fits(problem) and problem.budget_bytes <= ROOM * keep_all_peak_bytes(problem)
