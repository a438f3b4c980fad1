"""Norms that are put back where the outputs of layers hardly spread, as in a network that nobody has trained.

There the scale of a norm that begins with the spread of its layer is small, and it takes many steps to grow. A ReLU
scales with its input, and so do pools. Behind them the next weight can have the scale instead. The norm begins with 1,
and weight · scale computes the same. A common factor of such a weight goes, where a norm follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from itertools import repeat

import numpy as np

from poetc.graph import Array, Graph, Operator, Role
from poetc.ops.reduce import axes_of

SPREAD = 0.1  # of a layer's outputs; below it, their norm begins with a scale of 1
_SCALING = ("Relu", "MaxPool", "AveragePool", "ReduceMean", "Reshape", "Dropout")

Statistics = Mapping[str, tuple[Array, Array]]  # mean and variance of the input of a norm, by that input, in float64


def first_values(
    graph: Graph, statistics: Statistics, trained: Collection[str], epsilon: float, value: Callable[[str], Array]
) -> dict[str, Array]:
    """The first numbers of the norms in `graph` that have `statistics`, and the weights that take over a scale.

    The graph computes the same with them as with `value`, the numbers of a parameter as they are. Weights that are not
    `trained` stay.
    """
    readers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)

    def takes_scale(tensor: str) -> bool:
        """Whether all that reads a tensor can be given it divided by a number a channel."""
        return tensor not in graph.outputs and tensor in readers and all(map(takes_it, readers[tensor], repeat(tensor)))

    def takes_it(op: Operator, tensor: str) -> bool:
        if op.kind in _SCALING and _keeps_channels(graph, op):
            return takes_scale(op.outputs[0])
        own = op.inputs[1:3]  # weight and bias
        alone = all(t in trained and len(readers[t]) == 1 for t in own)
        return alone and _axis(graph, op, tensor) is not None

    result: dict[str, Array] = {}
    factors: dict[str, Array] = {}  # by which a tensor is to be multiplied, a number a channel
    divided: dict[str, float] = {}  # of the input of a norm: by how much it is smaller than in the file
    for op in graph.operators:
        first = op.inputs[0] if op.inputs else ""
        if op.kind == "BatchNormApply" and first in statistics:
            whole = divided.get(first, 1.0)
            mean, variance = statistics[first][0] / whole, (statistics[first][1] / whole**2).astype(np.float32)
            scale, shift = np.sqrt(variance.astype(np.float64) + epsilon), mean
            if math.sqrt(float(statistics[first][1].mean())) < SPREAD and takes_scale(op.outputs[0]):
                factors[op.outputs[0]] = whole * scale
                scale, shift = np.ones_like(scale), mean / scale
            else:
                scale, shift = whole * scale, whole * mean
            vectors = (np.asarray(a, np.float32) for a in (mean, variance, scale, shift))
            result |= dict(zip(op.inputs[1:], vectors, strict=True))
        elif first in factors and op.kind in _SCALING:
            factors[op.outputs[0]] = factors[first]
        elif first in factors:
            factor, axis = factors[first], _axis(graph, op, first)
            assert axis is not None
            common = math.sqrt(float(np.square(factor).mean())) if op.outputs[0] in statistics else 1.0
            weight = value(op.inputs[1]).astype(np.float64)
            along = [-1 if k == axis else 1 for k in range(weight.ndim)]
            result[op.inputs[1]] = np.asarray(weight * (factor / common).reshape(along), np.float32)
            for bias in op.inputs[2:3]:
                result[bias] = np.asarray(value(bias).astype(np.float64) / common, np.float32)
            divided[op.outputs[0]] = common
    return result


def _keeps_channels(graph: Graph, op: Operator) -> bool:
    """Whether the channels of the result are those of the input, along axis 1."""
    before, after = (graph.tensors[t].shape for t in (op.inputs[0], op.outputs[0]))
    if op.kind == "ReduceMean" and not {0, 1}.isdisjoint(axes_of(op, len(before))):
        return False  # the next axis may be as long
    return len(after) > 1 and before[:2] == after[:2]


def _axis(graph: Graph, op: Operator, tensor: str) -> int | None:
    """The axis of a layer's weight that lies along the channels of its input; None where it is no such layer."""
    if op.kind not in ("Conv", "MatMul") or len(op.inputs) < 2 or tensor in op.inputs[1:]:
        return None
    weight, channels = graph.tensors[op.inputs[1]], graph.tensors[tensor].shape[1]
    if weight.role is not Role.PARAMETER or op.attributes.get("alpha", 1.0) != 1.0 or op.attributes.get("trans_a"):
        return None
    if op.kind == "MatMul":
        axis = 1 if op.attributes.get("trans_b") else 0
        fits = len(weight.shape) == len(graph.tensors[tensor].shape) == 2
    else:
        group = op.attributes.get("group", 1)
        axis = 1 if group == 1 else 0
        fits = group in (1, channels)
    return axis if fits and weight.shape[axis] == channels else None
