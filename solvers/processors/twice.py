"""Schedules in which some operators run on two processors, each for its own readers.

An operator that is executed again elsewhere saves a hand-over. The solutions of the bounds that count hand-overs say
which ones are. One of these bounds has an order, too. Otherwise all that one processor does without the others comes
first, and then the others make its tensors anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.scheduling import Action, Compute, Objective, Problem, Trace, complete
from poetc.solvers.processors.bounds import critical_path_ns
from poetc.solvers.processors.copies import Execution, one_copy_each
from poetc.solvers.processors.hand_overs import runs_of_least
from poetc.solvers.processors.placing import makers_of
from poetc.solvers.processors.side_by_side import side_by_side


def repeated_elsewhere(problem: Problem, bounded: Problem) -> Iterator[tuple[tuple[Action, ...], Trace]]:
    """Lists of actions that fit the RAM, without paging.

    `bounded`: the problem with all its kernels, whose bounds have been asked for before.
    """
    orders: dict[tuple[Execution, ...], None] = {}
    for objective in (problem.objective, Objective.ENERGY):  # that of the energy may be the shorter one as well
        asked = replace(bounded, objective=objective)
        path_ns = critical_path_ns(asked)
        copies = one_copy_each(asked, path_ns)
        if copies is not None:
            orders[copies.plan] = None
        runs = runs_of_least(asked, path_ns)
        if any(len(own) > 1 for own in runs):
            orders |= dict.fromkeys(_one_processor_first(problem, runs))
    plain = replace(problem, processors=(), deadline_ns=None)
    for order in orders:
        where = iter([p for _, p in order])
        actions = [
            replace(action, processor=next(where)) if isinstance(action, Compute) else action
            for action in complete(plain, [Compute(k) for k, _ in order])
        ]
        # An order that overwrites a tensor before it is read has no list.
        listed = side_by_side(problem, actions, None) if order else None
        if listed is not None:
            yield listed


def _one_processor_first(problem: Problem, runs: tuple[frozenset[int], ...]) -> Iterator[tuple[Execution, ...]]:
    """`runs`: by operator, its processors."""
    makers = makers_of(problem)
    for first in range(len(problem.processors)):
        begun: dict[int, int] = {}
        for k, operator in enumerate(problem.operators):
            if first in runs[k] and all(makers[t] < 0 or makers[t] in begun for t in operator.inputs):
                begun[k] = first
        rest = [(k, p) for k, own in enumerate(runs) for p in sorted(own) if begun.get(k) != p]
        yield (*begun.items(), *rest)
