"""Normalisation: batch, layer, group, instance, RMS, local response, mean-variance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Attribute


@onnx_operator("BatchNormalization")
def batch_norm(c: Importer, n: Node) -> Sequence[str | Value]:
    """Whether statistics come from the batch is decided when the training step is built, not by the file.

    Only statistics that the file computes from its inputs are no state: they stay as they are.
    """
    x, scale, bias, mean, var = (c.input(n, k) for k in range(5))
    if n.get_int("spatial", 1) != 1:
        raise Unsupported("spatial = 0")
    if len(x.shape) < 2:
        raise Malformed(f"normalises shape {list(x.shape)}")
    attributes = {"epsilon": n.get_float("epsilon", 1e-5), "momentum": n.get_float("momentum", 0.9), "training": False}
    if not (mean.known and var.known):
        y = _with_own_statistics(c, n, (x, scale, bias, mean, var))
        return [y, mean, var, mean, var]
    y = c.emit1("BatchNormApply", [x, mean, var, scale, bias], attributes)
    # Exports in training mode also return the running statistics: those are state here.
    return [y, mean, var, mean, var]


def _with_own_statistics(c: Importer, n: Node, inputs: Sequence[Value]) -> str:
    """A batch norm whose mean or variance is computed in the graph: gradients flow back through both."""
    x, scale, bias, mean, var = inputs
    epsilon = n.get_float("epsilon", 1e-5)
    if n.get_int("training_mode", 0):  # whatever was computed: the node takes those of its batch
        attributes = {"epsilon": epsilon, "momentum": n.get_float("momentum", 0.9), "training": True}
        return c.emit1("BatchNormApply", [x, *c.emit("BatchNormStats", [x]), scale, bias], attributes)
    channels = (x.shape[1], *(1 for _ in x.shape[2:]))
    deviation = c.emit1("Sqrt", [c.affine(var, 1.0, epsilon)])
    centred = c.emit1("Sub", [x, c.reshape(mean, channels)])
    normalised = c.emit1("Div", [centred, c.reshape(deviation, channels)])
    return c.emit1("Add", [c.emit1("Mul", [normalised, c.reshape(scale, channels)]), c.reshape(bias, channels)])


def over_trailing(c: Importer, value: Value, shape: Sequence[int], what: str) -> str:
    """A scale or bias in the shape of the normalised axes."""
    shape = tuple(shape)
    if value.elements == math.prod(shape):
        return c.reshape(value, shape)
    if np.broadcast_shapes(value.shape, shape) != shape:
        raise Malformed(f"the {what} has shape {list(value.shape)}, not {list(shape)}")
    return c.emit1("Expand", [value], {"shape": shape})


@onnx_operator("LayerNormalization")
def layer_norm(c: Importer, n: Node) -> Sequence[str]:
    x, scale, bias = c.input(n, 0), c.input(n, 1), c.optional(n, 2)
    axis = normalize_axis(n.get_int("axis", -1), len(x.shape))
    trailing = x.shape[axis:]
    inputs = [c.tensor(x), over_trailing(c, scale, trailing, "scale")]
    if bias is not None:
        inputs.append(over_trailing(c, bias, trailing, "bias"))
    y = c.emit("LayerNorm", inputs, {"axis": axis, "epsilon": n.get_float("epsilon", 1e-5)})
    if not n.has_output(1) and not n.has_output(2):
        return [y[0]]
    # The kernel's mean and deviation are there for its own gradient: none flows back through them.
    over: dict[str, Attribute] = {"axes": tuple(range(axis, len(x.shape))), "keepdims": True}
    mean = c.emit1("ReduceMean", [x], over)
    centred = c.emit1("Sub", [x, mean])
    variance = c.emit1("ReduceMean", [c.emit1("Mul", [centred, centred])], over)
    deviation = c.emit1("Sqrt", [c.affine(variance, 1.0, n.get_float("epsilon", 1e-5))])
    return [y[0], mean, c.emit1("Reciprocal", [deviation])]


@onnx_operator("RMSNormalization")
def rms_norm(c: Importer, n: Node) -> str:
    x, scale = c.input(n, 0), c.input(n, 1)
    axis = normalize_axis(n.get_int("axis", -1), len(x.shape))
    weight = over_trailing(c, scale, x.shape[axis:], "scale")
    return c.emit1("RmsNorm", [c.tensor(x), weight], {"axis": axis, "epsilon": n.get_float("epsilon", 1e-5)})


@onnx_operator("InstanceNormalization")
def instance_norm(c: Importer, n: Node) -> str:
    x, scale, bias = (c.input(n, k) for k in range(3))
    return c.emit1("GroupNorm", [x, scale, bias], {"groups": x.shape[1], "epsilon": n.get_float("epsilon", 1e-5)})


@onnx_operator("GroupNormalization")
def group_norm(c: Importer, n: Node) -> str:
    x, scale, bias = (c.input(n, k) for k in range(3))
    groups = n.get_int("num_groups")
    if groups < 1 or len(x.shape) < 2 or x.shape[1] % groups:
        raise Malformed(f"{groups} groups do not divide shape {list(x.shape)}")
    channels = x.shape[1]
    affine = [_by_channel(c, v, groups, channels) for v in (scale, bias)]
    return c.emit1("GroupNorm", [c.tensor(x), *affine], {"groups": groups, "epsilon": n.get_float("epsilon", 1e-5)})


def _by_channel(c: Importer, value: Value, groups: int, channels: int) -> str:
    """Up to operator set 20 scale and bias are one number a group."""
    if value.shape == (channels,):
        return c.tensor(value)
    if value.shape != (groups,):
        raise Malformed(f"scale or bias of shape {list(value.shape)}")
    spread = c.emit1("Expand", [c.reshape(value, [groups, 1])], {"shape": (groups, channels // groups)})
    return c.reshape(spread, [channels])


@onnx_operator("LRN")
def local_response(c: Importer, n: Node) -> str:
    attributes = {
        "size": n.get_int("size"),
        "alpha": n.get_float("alpha", 1e-4),
        "beta": n.get_float("beta", 0.75),
        "bias": n.get_float("bias", 1.0),
    }
    return c.emit1("Lrn", [c.input(n, 0)], attributes)


@onnx_operator("MeanVarianceNormalization")
def mean_variance(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axes = tuple(sorted(normalize_axis(a, len(x.shape)) for a in n.get_ints("axes") or (0, 2, 3)))
    over: dict[str, Attribute] = {"axes": axes, "keepdims": True}
    centred = c.emit1("Sub", [x, c.emit1("ReduceMean", [x], over)])
    variance = c.emit1("ReduceMean", [c.emit1("Mul", [centred, centred])], over)
    return c.emit1("Div", [centred, c.affine(c.emit1("Sqrt", [variance]), 1.0, 1e-9)])
