"""From computations and transfers, in order, to a whole schedule: early frees, and in-place wherever it helps.

A residency of a tensor begins where an operator makes it or a page-in brings it, or with the step, if it starts in RAM.
It ends right after its last use before the next beginning. Uses are reading, being paged out and having to be in RAM at
the end. Both follow from one backward sweep over the actions, so a recomputed multi-output operator needs no rule of
its own. An output that nobody reads any more is freed at once, and an older copy was freed after its own last use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poetc.scheduling._transfers import hide_transfers, overlapped_ns, ram_of_actions_bytes
from poetc.scheduling.problem import OperatorSpec, Paging, Problem
from poetc.scheduling.schedule import Action, Compute, Free, PageIn, PageOut

# The decisions of a solver. Frees, and moves within RAM, follow from them.
Decision = Compute | PageIn | PageOut


@dataclass(frozen=True, slots=True)
class Completion:
    """A completed action sequence and its cost. Whether it is a valid schedule is for `verify` to say."""

    actions: tuple[Action, ...]
    peak_bytes: int  # as the Problem counts RAM: base and, if anything is paged, the page buffer included
    energy_pj: int
    time_ns: int


def complete(problem: Problem, decisions: Sequence[Decision]) -> tuple[Action, ...]:
    """The actions of the schedule that executes `decisions` in this order with the lowest RAM at every action.

    Their `in_place` is chosen here.

    An allowed in-place pair is used where the input's residency ends with the operator and both have the same size; a
    required one always. Where transfers overlap compute, page-ins are issued ahead and frees put off within the budget,
    to hide the transfers. To complete many sequences of one problem, keep a `Completer`.
    """
    return Completer(problem).run(decisions).actions


class Completer:
    """`complete` for many action sequences of one problem: parts of the problem alone are prepared once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._sizes = [t.size_bytes for t in problem.tensors]
        self._inputs = [tuple(dict.fromkeys(o.inputs)) for o in problem.operators]
        self._outputs = [o.outputs for o in problem.operators]
        self._required = [tuple((p.input, p.output) for p in o.in_place if p.required) for o in problem.operators]
        self._optional = [self._optional_pairs(o) for o in problem.operators]
        self._extra = [o.workspace_bytes + sum(self._sizes[t] for t in o.outputs) for o in problem.operators]
        self._costs = [(o.energy_pj, o.time_ns) for o in problem.operators]
        self._out_costs = [(t.page_out_pj, t.page_out_ns) for t in problem.tensors]
        self._in_costs = [(t.page_in_pj, t.page_in_ns) for t in problem.tensors]
        self._final = [t.final == "ram" for t in problem.tensors]
        self._initial = [i for i, t in enumerate(problem.tensors) if t.initial == "ram"]
        # Actions are immutable: one object each, shared by all schedules made here.
        self._frees = [Free(t) for t in range(len(problem.tensors))]
        self._computes: list[dict[tuple[tuple[int, int], ...], Compute]] = [{} for _ in problem.operators]

    def run(self, decisions: Sequence[Decision]) -> Completion:
        """Complete one sequence. O(operands of the executed operators)."""
        sizes, inputs, outputs = self._sizes, self._inputs, self._outputs
        required, optional, extra, frees = self._required, self._optional, self._extra, self._frees
        needed = self._final.copy()  # is there a later use of the copy that is resident at this point of the sweep?
        live = sum(sizes[t] for t, final in enumerate(needed) if final)
        peak = energy = time = 0
        pages = False
        actions: list[Action] = []  # backwards
        emit = actions.append
        for decision in reversed(decisions):
            if type(decision) is Compute:
                k = decision.operator
                for t in outputs[k]:
                    if needed[t]:
                        needed[t] = False
                        live -= sizes[t]
                    else:
                        emit(frees[t])
                dying = [t for t in inputs[k] if not needed[t]]
                pairs = required[k]
                if optional[k] and dying:
                    pairs = choose_pairs(pairs, [p for p in optional[k] if not needed[p[0]]], sizes)
                overlap = 0
                if pairs:
                    consumed = [i for i, _ in pairs]
                    for _, o in pairs:
                        overlap += sizes[o]
                    for t in dying:
                        needed[t] = True
                        live += sizes[t]
                        if t not in consumed:
                            emit(frees[t])
                else:
                    for t in dying:
                        needed[t] = True
                        live += sizes[t]
                        emit(frees[t])
                during = live + extra[k] - overlap
                cost = self._costs[k]
                cached = self._computes[k].get(pairs)
                if cached is None:
                    cached = self._computes[k][pairs] = Compute(k, pairs)
                emit(cached)
            else:
                assert not isinstance(decision, Compute)
                t = decision.tensor
                pages = True
                if not needed[t]:
                    emit(frees[t])
                if type(decision) is PageOut:
                    cost = self._out_costs[t]
                    if not needed[t]:
                        needed[t] = True
                        live += sizes[t]
                    during = live
                else:
                    cost = self._in_costs[t]
                    if needed[t]:
                        needed[t] = False
                        live -= sizes[t]
                    during = live + sizes[t]
                emit(decision)
            peak = max(peak, during)
            energy += cost[0]
            time += cost[1]
        for t in self._initial:
            if not needed[t]:
                live += sizes[t]
                emit(frees[t])
        fixed = self._problem.base_bytes + (self._problem.page_buffer_bytes if pages else 0)
        result = tuple(reversed(actions))
        if pages and self._problem.paging is Paging.DMA:
            result = hide_transfers(self._problem, result)
            return Completion(
                result,
                max(ram_of_actions_bytes(self._problem, result), default=live) + fixed,
                energy,
                overlapped_ns(self._problem, result),
            )
        return Completion(result, max(peak, live) + fixed, energy, time)

    def _optional_pairs(self, operator: OperatorSpec) -> tuple[tuple[int, int], ...]:
        # A smaller output would hold on to all the bytes of its input: only pairs of one size never cost anything.
        taken = {t for p in operator.in_place if p.required for t in (p.input, p.output)}
        return tuple(
            (p.input, p.output)
            for p in operator.in_place
            if self._sizes[p.input] == self._sizes[p.output] and p.input not in taken and p.output not in taken
        )


def choose_pairs(
    required: tuple[tuple[int, int], ...], allowed: Iterable[tuple[int, int]], sizes: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """`required` and, of the `allowed` pairs, a matching that overlaps the most bytes.

    Each input and output is in one pair at most.

    The weight of a pair is the size of its output, so adding outputs by decreasing size along augmenting paths is
    exact.
    """
    choices: dict[int, list[int]] = {}
    for i, o in allowed:
        choices.setdefault(o, []).append(i)
    if not choices:
        return required
    if len(choices) == 1:
        ((o, partners),) = choices.items()
        return (*required, (partners[0], o))
    matched: dict[int, int] = {}  # input -> output

    def augment(output: int, visited: set[int]) -> bool:
        for i in choices[output]:
            if i not in visited:
                visited.add(i)
                if i not in matched or augment(matched[i], visited):
                    matched[i] = output
                    return True
        return False

    for o in sorted(choices, key=lambda o: (-sizes[o], o)):
        augment(o, set())
    return (*required, *sorted(matched.items()))
