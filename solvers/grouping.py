"""Operators grouped into layers: a formulation that grows with the square of the operators answers real networks.

The graphs of POET's and Checkmate's papers have a node a layer, where a training step here has several operators. A
group runs its operators one after another. To the solver it is one operator. It reads all that they read from outside,
and makes all that others read; tensors that stay inside are workspace. The solver's schedule of groups is then written
out operator by operator, and checked as any other.

A layer is a contraction with the reductions of its result, or a run of operators between two such. Level 2 joins the
two. No group crosses the loss. Updates of running statistics, which the forward pass makes, come after it in a
group of their own. A layer that holds one could not be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetc.scheduling import (
    Completer,
    Compute,
    Decision,
    InPlace,
    OperatorSpec,
    Problem,
    Repetition,
    Schedule,
    first_executions,
    settled,
)
from poetc.solvers.dependences import Dependences
from poetc.solvers.interface import bound_beside
from poetc.solvers.kinds import is_contraction, is_reduction
from poetc.solvers.model import Model

Groups = tuple[tuple[int, ...], ...]
LEVELS = (1, 2)


def layers(problem: Problem, level: int = 1) -> Groups:
    """The operators by layer, in an order in which they can run."""
    operators = problem.operators
    cut = next((v for v, op in enumerate(operators) if op.phase == "backward"), len(operators))
    late = _late_updates(problem, cut)
    groups: list[list[int]] = []
    joinable = False
    for v in (v for v in range(cut) if v not in late):
        heavy = _is_heavy(operators[v])
        apart = level == 1 and bool(groups) and _is_heavy(operators[groups[-1][0]])
        joins = joinable and not heavy and operators[v].recomputable and operators[v].phase != "loss"
        if joins and (not apart or is_reduction(operators[v].kind)):
            groups[-1].append(v)
        else:
            groups.append([v])
        joinable = operators[v].recomputable and operators[v].phase != "loss"
    groups += [sorted(late)] if late else []
    joinable = False
    for v in range(cut, len(operators)):
        starts = _is_heavy(operators[v]) and (level == 1 or _is_heavy_before(operators, groups[-1] if joinable else []))
        if joinable and not starts:
            groups[-1].append(v)
        else:
            groups.append([v])
        joinable = True
    return tuple(tuple(group) for group in groups)


def _is_heavy(operator: OperatorSpec) -> bool:
    """Whether it is a contraction, or the gradient of one."""
    return is_contraction(operator.kind.lower().partition("grad")[0])


def _is_heavy_before(operators: Sequence[OperatorSpec], group: Sequence[int]) -> bool:
    """Whether a group has both gradients of a contraction, or none of a layer yet."""
    return sum(_is_heavy(operators[v]) for v in group) != 1


def _late_updates(problem: Problem, cut: int) -> set[int]:
    """Updates of the forward pass that nothing before the backward pass waits for."""
    late: set[int] = set()
    after = Dependences(Model(problem)).after
    for v in reversed(range(cut)):
        once = problem.operators[v].phase == "update" and not problem.operators[v].recomputable
        if once and all(u >= cut or u in late for u in after[v]):
            late.add(v)
    return late


class Grouped:
    """A problem with an operator a group, and the way back. `tensors`: their numbers in the original problem."""

    def __init__(self, problem: Problem, groups: Groups) -> None:
        self.original, self.groups = problem, groups
        model = Model(problem)
        group_of = {v: g for g, group in enumerate(groups) for v in group}
        inside = [
            model.producer[t] >= 0
            and problem.tensors[t].final == ""
            and all(group_of[u] == group_of[model.producer[t]] for u in model.consumers[t])
            for t in range(model.n_tensors)
        ]
        self.tensors = [t for t in range(model.n_tensors) if not inside[t]]
        number = {t: i for i, t in enumerate(self.tensors)}
        operators = tuple(self._joined(model, group, inside, number) for group in groups)
        self.problem = replace(problem, operators=operators, tensors=tuple(problem.tensors[t] for t in self.tensors))

    def _joined(
        self, model: Model, group: Sequence[int], inside: Sequence[bool], number: dict[int, int]
    ) -> OperatorSpec:
        members = [model.problem.operators[v] for v in group]
        results = [t for v in group for t in model.outputs[v]]
        read = [t for t in dict.fromkeys(t for v in group for t in model.inputs[v]) if t not in set(results)]
        outputs = [t for t in results if not inside[t]]
        taken, overwritten = self._overwritten(model, group, read, outputs)
        phases = [op.phase for op in members]
        first = next((p for p in ("loss", "backward", "forward") if p in phases), phases[0])
        heavy = next((op for op in members if _is_heavy(op)), members[0])
        in_place = [InPlace(input=number[i], output=number[o], required=True) for i, o in overwritten]
        if len(group) == 1:
            in_place += [
                InPlace(input=number[i], output=number[o])
                for i, o, required in model.pairs[group[0]]
                if not required and i in number and o in number
            ]
        return OperatorSpec(
            name=members[0].name if len(members) == 1 else f"{members[0].name} ... {members[-1].name}",
            kind=heavy.kind,
            phase=first,
            inputs=tuple(number[t] for t in read),
            outputs=tuple(number[t] for t in outputs),
            time_ns=sum(op.time_ns for op in members),
            energy_pj=sum(op.energy_pj for op in members),
            workspace_bytes=_workspace_bytes(model, group, inside, taken, sum(model.size[t] for t in outputs)),
            recomputable=all(op.recomputable for op in members),
            in_place=tuple(in_place),
        )

    @staticmethod
    def _overwritten(
        model: Model, group: Sequence[int], read: Sequence[int], outputs: Sequence[int]
    ) -> tuple[set[int], list[tuple[int, int]]]:
        """The tensors that take over bytes from outside, and the pairs of first and last version."""
        source: dict[int, int] = {t: t for t in read}
        taken: set[int] = set()
        for v in group:
            for i, o, required in model.pairs[v]:
                if required and i in source:
                    source[o] = source[i]
                    taken.add(o)
        return taken, [(source[o], o) for o in outputs if o in taken]

    def expanded(self, schedule: Schedule) -> Schedule:
        """The schedule of the original problem: the same actions, every group written out."""
        codes: list[Decision] = []
        for decision in settled(self.problem, schedule.actions):
            if isinstance(decision, Compute):
                codes += [Compute(v) for v in self.groups[decision.operator]]
            else:
                codes.append(replace(decision, tensor=self.tensors[decision.tensor]))
        completion = Completer(self.original).run(codes)
        cost = self.original.objective.cost(completion.energy_pj, completion.time_ns)
        proof = schedule.proof
        proof = replace(proof, objective=cost, bound=bound_beside(proof.bound, cost, proof.method))
        if proof.scope.repetition is not Repetition.ANY:
            scope = replace(proof.scope, order=first_executions(completion.actions), repetition=Repetition.LAYERS)
            proof = replace(proof, scope=scope, method=f"{proof.method}; {len(self.groups)} layers")
        log = (f"{len(self.original.operators)} operators in {len(self.groups)} layers", *schedule.log)
        return replace(schedule, actions=completion.actions, proof=proof, log=log)


def _workspace_bytes(
    model: Model, group: Sequence[int], inside: Sequence[bool], taken: set[int], output_bytes: int
) -> int:
    """The most RAM while the group runs, beyond its inputs and `output_bytes` for readers outside."""
    last = {t: v for v in group for t in model.inputs[v]}
    live = most = 0
    for v in group:
        results = [t for t in model.outputs[v] if t not in taken]
        live += sum(model.size[t] for t in results)
        most = max(most, live + model.workspace[v])
        live -= sum(model.size[t] for t in results if inside[t] and t not in last)
        live -= sum(model.size[t] for t in model.inputs[v] if inside[t] and t not in taken and last[t] == v)
    # A version of state that the group makes and overwrites again has no bytes of its own.
    own = output_bytes - sum(model.size[t] for t in taken if not inside[t])
    return max(0, most - own)
