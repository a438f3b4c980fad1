"""Bytes that are saved for backward: the quality of a graph as one number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poetc.graph import Graph, Phase
from poetc.ops import bind, spec
from poetc.scheduling.problem import OperatorSpec, Problem

NEAR_FREE = 0.1  # of the energy of a step, all that is made again together


@dataclass(frozen=True, slots=True)
class NearFree:
    """Bytes saved for backward if near-free operators run again, and the energy that these take."""

    saved_bytes: int
    energy_pj: int


def saved_tensors(problem: Problem) -> frozenset[int]:
    """Tensors that the forward pass makes and the backward pass reads."""
    of_forward = {t for op in problem.operators if op.phase == Phase.FORWARD.value for t in op.outputs}
    read = {t for op in problem.operators if op.phase == Phase.BACKWARD.value for t in op.inputs}
    return frozenset(of_forward & read)


def saved_bytes(problem: Problem) -> int:
    """Bytes kept from forward to backward when nothing is computed twice."""
    return _bytes(problem, saved_tensors(problem))


def saved_near_free(problem: Problem, graph: Graph, share: float = NEAR_FREE) -> NearFree:
    """The fewest bytes that must be saved if operators without multiply-accumulates may run again.

    Normalisations, activations, sums and copies may be redone, convolutions and matrix products never. A saved tensor
    is dropped if such operators make it from tensors still kept, from state and inputs. Each has a chain of its own,
    and all chains together take at most `share` of the energy of a step. Greedy, most bytes per energy first, so a
    solver can only do better. `problem` was built from `graph`.
    """
    heavy = {op.name for op in graph.operators if spec(op.kind).work(bind(op, graph.tensors)).macs > 0}
    forward = [op for op in problem.operators if op.phase == Phase.FORWARD.value and op.recomputable]
    maker = {t: op for op in forward if op.name not in heavy for t in op.outputs}
    initial = {t for t, tensor in enumerate(problem.tensors) if tensor.initial}
    limit_pj = int(share * problem.compute_once_pj)

    def chain(tensor: int, kept: set[int]) -> list[OperatorSpec] | None:
        """Operators that make `tensor` again; None if one of them would be heavy or all too dear."""
        needed: dict[str, OperatorSpec] = {}
        stack, total_pj = [tensor], 0
        while stack:
            t = stack.pop()
            op = maker.get(t)
            if op is None:
                return None
            if op.name in needed:
                continue
            needed[op.name] = op
            total_pj += op.energy_pj
            if total_pj > limit_pj:
                return None
            stack.extend(i for i in op.inputs if i not in kept and i not in initial)
        return list(needed.values())

    kept = set(saved_tensors(problem))
    dropped: dict[int, list[OperatorSpec]] = {}
    first = {t: chain(t, kept - {t}) for t in kept}
    candidates = [(_energy(ops) / max(problem.tensors[t].size_bytes, 1), t) for t, ops in first.items() if ops]
    for _, tensor in sorted(candidates):
        left = kept - {tensor}
        chains: dict[int, list[OperatorSpec]] = {}
        for t in (tensor, *dropped):
            reads_it = t == tensor or any(tensor in op.inputs for op in dropped[t])
            ops = chain(t, left) if reads_it else dropped[t]
            if ops is None:
                break
            chains[t] = ops
        else:
            if sum(map(_energy, chains.values())) <= limit_pj:
                dropped, kept = chains, left
    return NearFree(_bytes(problem, kept), sum(map(_energy, dropped.values())))


def _energy(operators: Iterable[OperatorSpec]) -> int:
    return sum(op.energy_pj for op in operators)


def _bytes(problem: Problem, tensors: Iterable[int]) -> int:
    return sum(problem.tensors[t].size_bytes for t in tensors)
