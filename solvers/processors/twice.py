"""Schedules in which some operators run on two processors, each for its own readers.

An operator that is executed again elsewhere saves a hand-over. The solution of the bound that counts hand-overs says
which ones are. All that one processor does without the others comes first, and then the others make its tensors anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.scheduling import Action, Compute, Objective, Problem, Trace, complete
from poetc.solvers.processors.bounds import critical_path_ns
from poetc.solvers.processors.hand_overs import runs_of_least
from poetc.solvers.processors.placing import makers_of
from poetc.solvers.processors.side_by_side import side_by_side


def repeated_elsewhere(problem: Problem) -> Iterator[tuple[tuple[Action, ...], Trace]]:
    """Lists of actions that fit the RAM, without paging."""
    choices: dict[tuple[frozenset[int], ...], None] = {}
    for objective in (problem.objective, Objective.ENERGY):  # that of the energy may be the shorter one as well
        asked = replace(problem, objective=objective)
        choices[runs_of_least(asked, critical_path_ns(asked))] = None
    for runs in choices:
        if any(len(own) > 1 for own in runs):
            yield from _listed(problem, runs)


def _listed(problem: Problem, runs: tuple[frozenset[int], ...]) -> Iterator[tuple[tuple[Action, ...], Trace]]:
    """`runs`: by operator, its processors. An order that overwrites a tensor before it is read has no list."""
    plain, makers = replace(problem, processors=(), deadline_ns=None), makers_of(problem)
    for first in range(len(problem.processors)):
        begun: dict[int, int] = {}
        for k, operator in enumerate(problem.operators):
            if first in runs[k] and all(makers[t] < 0 or makers[t] in begun for t in operator.inputs):
                begun[k] = first
        rest = [(k, p) for k, own in enumerate(runs) for p in sorted(own) if begun.get(k) != p]
        order = [*begun.items(), *rest]
        where = iter([p for _, p in order])
        actions = [
            replace(action, processor=next(where)) if isinstance(action, Compute) else action
            for action in complete(plain, [Compute(k) for k, _ in order])
        ]
        listed = side_by_side(problem, actions, None)
        if listed is not None:
            yield listed
