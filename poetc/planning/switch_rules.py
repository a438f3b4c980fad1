"""A budget that changes in mid-step, under every published rule and ours: one problem, one checker, one bound.

- poetc: the cheapest run found. Its own is the cheapest switch between two of our plans that share their order
  (`poetc.planning.switching`). Where a run of another rule, from its first operator on, costs less, that one is taken.
- melon: the plans of `melon`. Tensors that the new plan holds at the same operator are kept, and the others are made
  again (MobiSys 2022, section 3.4). Its code does so for a smaller budget only.
- sage: one run of `sage`. After the change the next allocation that does not fit evicts (MobiSys 2022, section 5).
- restart: our plan for the new budget from its beginning; the operators that have run are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.errors import PoetcError, UsageError
from poetc.planning.bundle import Bundle, solve_bundle
from poetc.planning.chain import reductions
from poetc.planning.planner import Planner
from poetc.planning.solution import Solution
from poetc.planning.switching import Switching, action_cost
from poetc.scheduling import (
    Move,
    Problem,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    SolveOptions,
    Status,
    pack,
    verify_parts,
)
from poetc.solvers.published import sage

RULES = ("poetc", "melon", "sage", "restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From one budget to another, once a share of the step's operators has run."""

    before_bytes: int
    after_bytes: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """One rule at one change.

    `cost`: of the whole step, in the unit of the objective; `rest`: of its part behind the change. `redone`: the part
    of `rest` that brings the new plan to this place, as a share of running the new plan up to there.
    `least_redone`: no continuation in the order of the new plan has a smaller share. `status`: switched, kept (one
    plan serves both budgets), stayed (a larger plan is taken with the next step), or failed, where `reason` says why.
    `by`: the rule whose run this is, with its plans; another one than `rule` for poetc alone, which takes the cheapest.
    `own_cost`: of poetc's run between its own plans, if there is one.
    """

    rule: str
    change: Change
    status: str
    seconds: float
    cost: int | None = None
    rest: int | None = None
    redone: float | None = None
    least_redone: float | None = None
    reason: str = ""
    by: str = ""
    own_cost: int | None = None


def compare_rules(
    problem: Problem,
    changes: tuple[Change, ...],
    options: SolveOptions,
    state: str = "ram",
    on_rule: Callable[[str], None] = lambda text: None,
) -> Iterator[SwitchRow]:
    """A row for each change and rule. State has one place in all of them: that of the smaller budget."""
    for change in changes:
        smaller = replace(problem, budget_bytes=min(change.before_bytes, change.after_bytes))
        for choice in reductions(state):
            smaller = choice.usual(smaller)
        before, after = (replace(smaller, budget_bytes=b) for b in (change.before_bytes, change.after_bytes))
        position = min(len(problem.operators) - 1, max(1, round(change.share * len(problem.operators))))
        ours: Bundle | None = None
        rows: list[SwitchRow] = []
        for rule in RULES:
            on_rule(f"{rule}, {change.before_bytes:,} to {change.after_bytes:,} bytes at {change.share:.0%}")
            started = time.monotonic()
            try:
                if rule == "sage":
                    row = _sage(before, after, position, change, options)
                elif rule == "melon":
                    row = _row_of_plans(rule, _melon(before, after, options), position, change, behind=1)
                else:
                    if ours is None:
                        budgets = (change.before_bytes, change.after_bytes)
                        ours = solve_bundle(smaller, budgets, Planner(options=options))
                    row = _row_of_plans(rule, ours, position, change)
            except (PoetcError, ScheduleError) as error:
                row = SwitchRow(rule=rule, change=change, status="failed", seconds=0.0, reason=str(error))
            rows.append(replace(row, seconds=round(time.monotonic() - started, 3), by=rule))
        yield _cheapest(rows)
        yield from rows[1:]


def _cheapest(rows: Sequence[SwitchRow]) -> SwitchRow:
    """The row of poetc, the first of `rows`: its own run, or the run of another rule that costs less."""
    priced = [row for row in rows if row.cost is not None]
    best = min(priced, key=lambda row: row.cost or 0, default=rows[0])  # the first of several that cost the same
    return replace(best, rule=rows[0].rule, own_cost=rows[0].cost, seconds=round(sum(row.seconds for row in rows), 3))


def _melon(before: Problem, after: Problem, options: SolveOptions) -> Bundle:
    budgets = sorted((before, after), key=lambda p: -p.budget_bytes)
    return Bundle(solutions=tuple(_solution(p, solvers.solve(p, "melon", options)) for p in budgets))


def _row_of_plans(rule: str, bundle: Bundle, position: int, change: Change, **joins: int) -> SwitchRow:
    """The row of a rule that makes all its plans in advance: it switches at the first chance from `position` on."""
    if len(bundle.solutions) == 1:
        cost = bundle.smallest.cost
        return SwitchRow(rule=rule, change=change, status="kept", seconds=0.0, cost=cost, redone=0.0, least_redone=0.0)
    switching = Switching(bundle, **joins)
    source = 0 if change.before_bytes > change.after_bytes else 1
    target = 1 - source
    line, new = switching.lines[source], switching.lines[target]
    for at in switching.points(source):
        here = line.points[at]
        if here.begun < position:
            continue
        if rule == "restart":
            if here.updates:
                break
            rest = new.rest[0]
        else:
            switch = switching.switch(source, target, at)
            if switch is None:
                continue
            rest = switch.rest
        left = new.rest[new.first_behind(here.begun)]
        done = max(1, new.rest[0] - left)
        return SwitchRow(
            rule=rule,
            change=change,
            status="switched",
            seconds=0.0,
            cost=line.rest[0] - line.rest[at] + rest,
            rest=rest,
            redone=(rest - left) / done,
            least_redone=min(rest - left, switching.bound(source, target, at) - left) / done,
        )
    if rule != "restart" and target < source:
        return SwitchRow(rule=rule, change=change, status="stayed", seconds=0.0, cost=line.rest[0])
    why = "an update would run twice" if rule == "restart" else "no later point of the step has a switch"
    raise UsageError(f"{rule}: {why}")


def _sage(before: Problem, after: Problem, position: int, change: Change, options: SolveOptions) -> SwitchRow:
    """Its tensors above the new limit move below it, each once: that is the least that compaction costs."""
    actions, at = sage.change_budget(before, after.budget_bytes, position, options)
    verify_parts(((before, actions[:at]), (after, actions[at:])))
    costs = [action_cost(before, action) for action in actions]
    proof = Proof(status=Status.FEASIBLE, objective=sum(costs), bound=0, scope=Scope(), method="sage")
    run = Switching(
        Bundle(solutions=(_solution(before, Schedule(solver="sage", actions=actions, proof=proof)),))
    ).lines[0]
    limit = after.budget_bytes - after.base_bytes
    above = [t for t, (offset, size) in run.points[at].resident.items() if offset + size > limit]
    alone = Switching(Bundle(solutions=(_solution(after, solvers.solve(after, "sage", options)),))).lines[0]
    left = alone.rest[alone.first_behind(position)]
    rest = run.rest[at] + sum(action_cost(after, Move(t)) for t in above)
    return SwitchRow(
        rule="sage",
        change=change,
        status="switched",
        seconds=0.0,
        cost=run.rest[0] - run.rest[at] + rest,
        rest=rest,
        redone=(rest - left) / max(1, alone.rest[0] - left),
    )


def _solution(problem: Problem, schedule: Schedule) -> Solution:
    return Solution(problem=problem, schedule=schedule, plan=pack(problem, schedule))
