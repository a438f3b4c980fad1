"""Keep-all: compute everything once, in the problem's order, every tensor in RAM until its last use.

The reference for budgets.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.scheduling._completion import Completer, Decision
from poetc.scheduling._recent import for_recent
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import Compute, PageIn, PageOut, Proof, Schedule, Status
from poetc.scheduling.scope import Scope


def keep_all_decisions(problem: Problem) -> tuple[Decision, ...]:
    """Every operator once.

    A tensor that starts on the store is paged in before its first use; one that must end there is paged out when made.
    """
    decisions: list[Decision] = []
    waiting = {t for t, tensor in enumerate(problem.tensors) if tensor.initial == "store"}
    to_store = {t for t, tensor in enumerate(problem.tensors) if tensor.final == "store" and tensor.initial != "store"}
    to_store -= problem.written_by_operators
    decisions += [PageOut(t) for t in sorted(to_store) if problem.tensors[t].initial == "ram"]
    for index, operator in enumerate(problem.operators):
        for t in operator.inputs:
            if t in waiting:
                waiting.remove(t)
                decisions.append(PageIn(t))
        decisions.append(Compute(index))
        decisions += [PageOut(t) for t in operator.outputs if t in to_store]
    decisions += [PageIn(t) for t in sorted(waiting) if problem.tensors[t].final == "ram"]
    return tuple(decisions)


def keep_all(problem: Problem) -> Schedule:
    """The keep-all schedule, whatever the budget and the deadline.

    Every schedule computes each operator, reads each tensor that starts on the store and writes each that must end
    there, at least once. So where keep-all fits nothing costs less.
    """
    completion = Completer(problem).run(keep_all_decisions(problem))
    cost = problem.objective.cost(completion.energy_pj, completion.time_ns)
    proof = Proof(
        status=Status.OPTIMAL,
        objective=cost,
        bound=cost,
        scope=Scope(),
        method="every operator once",
    )
    return Schedule(solver="keep_all", actions=completion.actions, proof=proof)


@for_recent
def keep_all_peak_bytes(problem: Problem) -> int:
    """The RAM that keep-all needs. A budget in per cent refers to it."""
    plain = replace(problem, paging=Paging.SYNC) if problem.paging is Paging.DMA else problem  # nothing issued ahead
    return Completer(plain).run(keep_all_decisions(problem)).peak_bytes
