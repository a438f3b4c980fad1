"""Training steps of one model with several numbers of micro-batches: where one of them may take over from another.

A tensor has one name in two such steps only if it is the same quantity in both. It is given, a version of state, a
partial sum over the same rows, or the result of the same operators on such tensors. A sum is added up from other parts
in each step, so its bits are not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from poetc.graph import Operator, Role, TrainingGraph, materialize
from poetc.training._micro import renamed

_SUM = ".sum over "


def partial_sum(quantity: str, done: int, count: int) -> str:
    """The name of a sum over the first `done` of `count` parts of the batch: the same for the same share."""
    share = Fraction(done, count)
    return f"{quantity}{_SUM}{share.numerator}/{share.denominator}"


def is_partial_sum(name: str) -> bool:
    return _SUM in name


def with_names(graph: TrainingGraph, names: Mapping[str, str]) -> TrainingGraph:
    """The same step with other names for some tensors."""
    with_new_names = renamed(graph, names)
    assert isinstance(with_new_names, TrainingGraph)
    return replace(
        with_new_names,
        loss=names.get(graph.loss, graph.loss),
        gradients={parameter: names.get(t, t) for parameter, t in graph.gradients.items()},
        updates={state: names.get(t, t) for state, t in graph.updates.items()},
    )


def share_of(name: str) -> str:
    """The share of the batch that a partial sum is over, as in 1/2; "" for another tensor."""
    return name.partition(_SUM)[2]


def continued(first: TrainingGraph, then: TrainingGraph, share: str) -> TrainingGraph:
    """The step that adds up a share of the batch as `first` does, and the rest as `then` does."""

    def needed(graph: TrainingGraph, wanted: set[str]) -> list[Operator]:
        recomputed = []
        for op in reversed(graph.operators):
            if any(t in wanted and t not in present for t in op.outputs):
                wanted.update(op.inputs)
                recomputed.append(op)
        return recomputed[::-1]

    present = {t for op in then.operators for t in (*op.inputs, *op.outputs) if share_of(t) == share}
    rest = needed(then, {*then.outputs, *then.updates.values()})
    wanted, present = present & {t for op in rest for t in op.inputs}, set()
    before = needed(first, wanted)
    results = {t for op in before for t in op.outputs}
    after = [replace(op, name=f"{op.name}, then") for op in rest if results.isdisjoint(op.outputs)]
    return replace(
        then,
        operators=(*before, *after),
        tensors={**first.tensors, **then.tensors},
        values={**first.values, **then.values},
        gradients={},
    )


def with_own_names(graphs: Mapping[int, TrainingGraph]) -> dict[int, TrainingGraph]:
    """The steps by number of parts, each with names of its own for tensors that are another quantity in another step.

    `graphs` were built with `names_sums`.
    """
    known: dict[str, str] = {}
    named: dict[int, TrainingGraph] = {}
    for count, graph in graphs.items():
        meanings = _meanings(graph)
        names = {
            name: f"{name}~of {count}" for name, meaning in meanings.items() if known.get(name, meaning) != meaning
        }
        named[count] = with_names(graph, names)
        for name, meaning in meanings.items():
            known.setdefault(names.get(name, name), meaning)
    return named


def _meanings(graph: TrainingGraph) -> dict[str, str]:
    """A digest of each tensor's quantity."""
    named = {*graph.updates, *graph.updates.values(), *graph.inputs, graph.target}
    meaning: dict[str, str] = {}
    for name, tensor in graph.tensors.items():
        if name in named or is_partial_sum(name):
            meaning[name] = _digest(name, tensor.type)
        elif tensor.role is Role.CONSTANT and name in graph.values:
            data = materialize(graph.values[name], tensor.type).tobytes()
            meaning[name] = _digest(tensor.type, hashlib.sha256(data).hexdigest())
    for op in graph.operators:
        recipe = op.kind, sorted(op.attributes.items()), *(meaning.get(t, t) for t in op.inputs)
        for index, name in enumerate(op.outputs):
            meaning.setdefault(name, _digest(index, graph.tensors[name].type, *recipe))
    return meaning


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
