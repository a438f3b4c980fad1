"""Sage: inline cheap tensors, then evict at run time (Gim, Ko, MobiSys 2022, sections 4 and 5).

State selection decides on each tensor of the forward pass that the backward pass reads. Such a tensor has a cone of
operators that makes it from stored tensors. It is stored if the cone holds a contraction or a reduction, or if its
operators times its inputs exceed 5. Else it is inlined, which here means recomputed for each of its backward readers.
On out-of-memory the unlocked recomputable tensor of the least (t + 1) / (size + 1) is evicted, and the step goes on.
There t is its operator's time in microseconds. The cones are searched on the Problem's operators, after the graph's own
fusion. Sage's gradient accumulation changes the graph (see `gpipe`). There each micro-batch has its own cones. Sums of
gradients and losses stay: by that score they would go first, and all micro-batches would be recomputed.
"""

from __future__ import annotations

from bisect import bisect_right

from poetc.errors import InfeasibleError
from poetc.scheduling import Action, Free, Problem, SolveOptions, complete
from poetc.solvers.interface import SolverInfo
from poetc.solvers.kinds import is_contraction, is_reduction
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, Irretrievable, method
from poetc.solvers.published._online import Online, Rules
from poetc.solvers.published._training import Split, split

INFO = SolverInfo(
    name="sage",
    title="Cheap cones inlined, the rest evicted on demand",
    citation="I. Gim and J. Ko, Memory-efficient DNN Training on Mobile Devices, MobiSys 2022",
    notes="Recomputation only. Sums of micro-batches stay in RAM.",
    read="sections 4 and 5",
    differs="inlining on the fused graph; accumulation is `--micro-batches`, whose sums stay",
    checked="no convolution is inlined",
)

CONE = 5  # operators times inputs of a cone that is still inlined: it runs again for each reader


def _score(run: Online, t: int) -> float:
    return (run.model.op_ns[run.model.producer[t]] / 1000 + 1) / (run.model.size[t] + 1)


def inlined(model: Model, parts: Split) -> dict[int, set[int]]:
    """For each forward tensor that is not stored for the backward pass, the stored tensors that it is made from."""
    chosen: dict[int, set[int]] = {}
    for v in parts.forward:
        for t in model.outputs[v]:
            if t not in parts.optional or model.problem.operators[v].phase == "loss":
                continue
            if not any(u >= parts.turn[t] for u in model.consumers[t]):
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
            if not heavy and len(operators) * len(inputs) <= CONE:
                chosen[t] = inputs
    return chosen


def sums(model: Model, parts: Split) -> set[int]:
    """The tensors that a micro-batch leaves for the next: sums of gradients and of the loss."""
    turns = sorted(set(parts.turn.values()))
    forward = set(parts.forward)
    part = [0] * model.n_ops  # by operator: a forward pass belongs to the part whose backward pass comes next
    for v in range(model.n_ops):
        part[v] = bisect_right(turns, v) - (0 if v in forward else 1)
    adds = (v for v, op in enumerate(model.problem.operators) if op.phase in ("loss", "backward"))
    return {t for v in adds for t in model.outputs[v] if any(part[u] > part[v] for u in model.consumers[t])}


def rules_for(model: Model, change: tuple[int, int] | None = None) -> Rules:
    parts = split(model, INFO.name, every_part=True)
    given_up = inlined(model, parts)
    also_reads: dict[int, set[int]] = {}
    for t, inputs in given_up.items():
        for u in model.consumers[t]:
            if u >= parts.turn[t]:
                also_reads.setdefault(u, set()).update(inputs - set(model.inputs[u]))
    of_part: dict[int, set[int]] = {turn: set() for turn in sorted(set(parts.turn.values()))}
    for t in given_up:
        of_part[parts.turn[t]].add(t)
    ends = [*of_part, model.n_ops + 1][1:]
    after = [(v, of_part[b]) for b, end in zip(of_part, ends, strict=True) for v in range(b - 1, end - 1)]
    held = sums(model, parts)
    return Rules(score=_score, is_fixed=True, held=held, give_up=after, also_reads=also_reads, change=change)


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises InfeasibleError, LimitError (thrashing)."""
    rules = rules_for(baseline.model)
    run = Online(baseline, baseline.model.capacity, rules)
    try:
        inlined_tensors = len(set().union(*(tensors for _, tensors in rules.give_up)))
        baseline.offer(run.run(), f"{inlined_tensors} tensors inlined")
    except Irretrievable as error:
        baseline.refusal = baseline.refusal or str(error)


def change_budget(
    problem: Problem, budget_bytes: int, position: int, options: SolveOptions
) -> tuple[tuple[Action, ...], int]:
    """A step under a budget that changes before the operator at `position`, and the number of actions before that.

    Sage's rule is reactive: when the budget shrinks, the next allocation evicts. Raises InfeasibleError, LimitError.
    """
    baseline = Baseline(INFO, problem, options, None)
    capacity = baseline.model.capacity
    after = capacity + budget_bytes - problem.budget_bytes
    run = Online(baseline, capacity, rules_for(baseline.model, (position, after)))
    try:
        codes = run.run()
    except Irretrievable as error:
        raise InfeasibleError(str(error)) from error
    actions = complete(problem, baseline.model.decisions(codes))
    decisions = [i for i, action in enumerate(actions) if not isinstance(action, Free)]
    return actions, decisions[run.changed_at]
