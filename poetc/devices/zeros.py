"""How many zeros there are among the elements of a tensor.

A library that multiplies and adds floats for a processor without an FPU is done soon where a number is zero. The number
of zeros depends on weights and data: a ReLU's outputs, dead units, batch norms of one sample, whose gradients vanish.
So the step is computed once in numpy: with the weights that the model has, on inputs that are made up.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from math import prod

import numpy as np

from poetc.graph import Array, DType, Graph, Operator, TrainingGraph, materialize
from poetc.ops import Use, bind, sample, spec, view_roots

MOST_MACS = 1 << 31  # some seconds in numpy, minutes on such a processor
_DIGITS = 2  # of a share: further ones may depend on the order in which numpy adds


def zero_shares(graph: Graph) -> dict[str, float]:
    """By tensor, those without zeros left out. Nothing beyond MOST_MACS, nor where made-up indices miss their table."""
    bounds = {op.name: bind(op, graph.tensors) for op in graph.operators}
    if sum(spec(op.kind).work(bounds[op.name]).macs for op in graph.operators) > MOST_MACS:
        return {}
    arrays: dict[str, Array] = {}
    shares: dict[str, float] = {}

    def keep(name: str, array: Array) -> None:
        arrays[name] = array
        if graph.tensors[name].type.dtype is DType.F32 and array.size:
            shares[name] = round(1 - int(np.count_nonzero(array)) / array.size, _DIGITS)

    for name, value in graph.values.items():
        keep(name, np.asarray(materialize(value, graph.tensors[name].type)))
    for name, array in _inputs(graph).items():
        keep(name, array)
    left = Counter(t for op in graph.operators for t in op.inputs)
    with np.errstate(all="ignore"), contextlib.suppress(IndexError):
        for op in graph.operators:
            results = spec(op.kind).evaluate(bounds[op.name], [arrays[t] for t in op.inputs])
            for name, result in zip(op.outputs, results, strict=True):
                keep(name, np.asarray(result, graph.tensors[name].type.dtype.numpy))
            left.subtract(op.inputs)
            for name in {*op.inputs, *op.outputs}:
                if not left[name]:
                    del arrays[name]
        return {name: share for name, share in shares.items() if share > 0}
    return {}


def zero_factors(op: Operator, shares: dict[str, float]) -> float:
    """The share of an operator's products and sums with a factor or a term that is zero."""
    return 1 - prod(1 - shares.get(t, 0.0) for t in op.inputs)


def _inputs(graph: Graph) -> dict[str, Array]:
    roots = view_roots(graph)
    uses = [
        Use(op.kind, op.attributes, [roots[t] for t in op.inputs], op.outputs, graph.tensors[op.inputs[0]].type)
        for op in graph.operators
        if op.inputs and not spec(op.kind).is_view
    ]
    target = (graph.target,) if isinstance(graph, TrainingGraph) and graph.target else ()
    return sample({name: graph.tensors[name].type for name in (*graph.inputs, *target)}, uses, seed=0)
