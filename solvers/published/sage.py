"""Sage: inline cheap tensors, then evict at run time (Gim, Ko, MobiSys 2022, sections 4 and 5).

State selection decides on each tensor of the forward pass that the backward pass reads. Such a tensor has a cone of
operators that makes it from stored tensors. It is stored if the cone holds a contraction or a reduction, or if its
operators times its inputs exceed 5. Else it is inlined, which here means recomputed for each of its backward readers.
On out-of-memory the unlocked recomputable tensor of the least (t + 1) / (size + 1) is evicted, and the step goes on.
There t is its operator's time in microseconds. The cones are searched on the Problem's operators, after the graph's own
fusion; Sage's gradient accumulation changes the graph (see `gpipe`).
"""

from __future__ import annotations

from poetc.errors import InfeasibleError
from poetc.scheduling import Action, Free, Problem, Schedule, SolveOptions, complete
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.kinds import is_contraction, is_reduction
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, Irretrievable
from poetc.solvers.published._online import Online, Rules, capacity_of
from poetc.solvers.published._settings import SAGE
from poetc.solvers.published._training import Split, split

INFO = SolverInfo(
    name="sage",
    title="Cheap cones inlined, the rest evicted on demand",
    citation="I. Gim and J. Ko, Memory-efficient DNN Training on Mobile Devices, MobiSys 2022",
    notes="No gradient accumulation. Recomputation only.",
)


def _score(run: Online, t: int) -> float:
    return (run.model.op_ns[run.model.producer[t]] / 1000 + 1) / (run.model.size[t] + 1)


def inlined(model: Model, parts: Split) -> dict[int, set[int]]:
    """For each forward tensor that is not stored for the backward pass, the stored tensors that it is made from."""
    chosen: dict[int, set[int]] = {}
    for v in range(parts.cut):
        for t in model.outputs[v]:
            if t not in parts.optional or model.problem.operators[v].phase == "loss":
                continue
            if not any(u >= parts.cut for u in model.consumers[t]):
                continue
            operators: set[int] = set()
            inputs: set[int] = set()
            stack = [v]
            while stack:
                u = stack.pop()
                if u in operators:
                    continue
                operators.add(u)
                for i in model.inputs[u]:
                    if i in chosen:
                        stack.append(model.producer[i])
                    else:
                        inputs.add(i)
            kinds = [model.problem.operators[u].kind for u in operators]
            heavy = any(is_contraction(k) or is_reduction(k) for k in kinds)
            if not heavy and len(operators) * len(inputs) <= SAGE.cone:
                chosen[t] = inputs
    return chosen


def _rules(model: Model, change: tuple[int, int] | None = None) -> Rules:
    parts = split(model, INFO.name)
    given_up = inlined(model, parts)
    also_reads: dict[int, set[int]] = {}
    for t, inputs in given_up.items():
        for u in model.consumers[t]:
            if u >= parts.cut:
                also_reads.setdefault(u, set()).update(inputs - set(model.inputs[u]))
    after_cut = [(v, given_up) for v in range(parts.cut - 1, model.n_ops)]
    return Rules(score=_score, give_up=after_cut, also_reads=also_reads, change=change)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises InfeasibleError, LimitError (thrashing)."""
    baseline = Baseline(INFO, problem, options, progress)
    rules = _rules(baseline.model)
    run = Online(baseline, capacity_of(baseline, paging=False), rules)
    try:
        inlined_tensors = len(rules.give_up[0][1]) if rules.give_up else 0
        baseline.offer(run.run(), f"{inlined_tensors} tensors inlined")
    except Irretrievable as error:
        baseline.refusal = baseline.refusal or str(error)
    return baseline.finish()


def change_budget(
    problem: Problem, budget_bytes: int, position: int, options: SolveOptions
) -> tuple[tuple[Action, ...], int]:
    """A step under a budget that changes before the operator at `position`, and the number of actions before that.

    Sage's rule is reactive: when the budget shrinks, the next allocation evicts. Raises InfeasibleError, LimitError.
    """
    baseline = Baseline(INFO, problem, options, None)
    capacity = capacity_of(baseline, paging=False)
    after = capacity + budget_bytes - problem.budget_bytes
    run = Online(baseline, capacity, _rules(baseline.model, (position, after)))
    try:
        codes = run.run()
    except Irretrievable as error:
        raise InfeasibleError(str(error)) from error
    actions = complete(problem, baseline.model.decisions(codes))
    decisions = [i for i, action in enumerate(actions) if not isinstance(action, Free)]
    return actions, decisions[run.changed_at]
