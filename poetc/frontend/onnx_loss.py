"""Losses that stand in the model itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator
from poetc.graph import Attribute


@onnx_operator("NegativeLogLikelihoodLoss")
def nll_loss(c: Importer, n: Node) -> str:
    x, target = _operands(c, n)
    return _picked(c, n, c.tensor(x), target)


@onnx_operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(c: Importer, n: Node) -> Sequence[str]:
    """Training computes the mean over all samples anyway; every other form is spelled out."""
    x, target = _operands(c, n)
    mean = n.get_str("reduction", "mean") == "mean" and not n.has_input(2)
    if mean and not n.has_output(1):
        attributes: dict[str, Attribute] = {"axis": 1}
        if n.has("ignore_index"):
            attributes["ignore_index"] = n.get_int("ignore_index")
        return [c.emit1("CrossEntropy", [x, target], attributes)]
    log_probabilities = c.emit1("LogSoftmax", [x], {"axis": 1})
    return [_picked(c, n, log_probabilities, target), log_probabilities]


def _operands(c: Importer, n: Node) -> tuple[Value, Value]:
    x, target = c.input(n, 0), c.input(n, 1)
    if len(x.shape) < 2 or target.shape != (x.shape[0], *x.shape[2:]):
        raise Malformed(f"scores {list(x.shape)} and labels {list(target.shape)} do not fit")
    if target.dtype.kind not in "iu":
        raise Malformed(f"the labels are {target.dtype}, not integers")
    if not -(2**31) < n.get_int("ignore_index", 0) < 2**31:
        raise Unsupported("an ignore_index that does not fit in 32 bits")
    return x, target


def _picked(c: Importer, n: Node, x: str, target: Value) -> str:
    """-x[target] · weight[target], and its sum, or its sum over that of the weights."""
    shape = target.shape
    labels, ignored, counts = c.tensor(target), "", ""
    if n.has("ignore_index"):
        ignored = c.emit1("Equal", [labels, c.constant(np.array(n.get_int("ignore_index"), np.int64))])
        labels = c.emit1("Where", [ignored, c.constant(np.array(0, np.int64)), labels])
    loss = c.emit1("GatherElements", [x, c.reshape(labels, (shape[0], 1, *shape[1:]))], {"axis": 1})
    loss = c.affine(c.reshape(loss, shape), -1.0)
    if n.has_input(2):
        weight = c.input(n, 2)
        if weight.shape != (c.shape(x)[1],):
            raise Malformed(f"the class weights have shape {list(weight.shape)}")
        counts = c.emit1("Gather", [weight, labels], {"axis": 0})
        if ignored:
            counts = c.emit1("Where", [ignored, c.constant(np.array(0.0, np.float32)), counts])
    elif ignored:
        counts = c.emit1("Cast", [c.emit1("Not", [ignored])], {"to": "f32"})
    if counts:
        loss = c.emit1("Mul", [loss, counts])
    everything: dict[str, Attribute] = {"axes": tuple(range(len(shape))), "keepdims": False}
    match n.get_str("reduction", "mean"):
        case "none":
            return loss
        case "sum":
            return c.emit1("ReduceSum", [loss], everything)
        case "mean" if not counts:
            return c.emit1("ReduceMean", [loss], everything)
        case "mean":
            return c.emit1("Div", [c.emit1("ReduceSum", [part], everything) for part in (loss, counts)])
        case other:
            raise Malformed(f"reduction {other!r} is unknown")
