"""How many zeros there are among the elements of a tensor, as far as the graph tells.

A library that multiplies and adds floats for a processor without an FPU is done soon where a factor is zero: after a
ReLU every other one is. Shares are guesses for data around zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from poetc.graph import Graph, Operator, Tensor
from poetc.ops import spec

_HALF = {"Relu", "HardSwish"}
_HALF_GRAD = {"ReluGrad", "ClipGrad", "HardSwishGrad", "HardSigmoidGrad"}
_SAME = {"Reshape", "Transpose", "Slice", "Split", "Concat", "Expand", "Tile", "Squeeze", "Unsqueeze", "Flatten"}
_SAME |= {"Neg", "Abs", "Sqrt", "Sign"}
_PRODUCT = {"Mul", "Where", "Mask", "MaskNot", "DropoutGrad", "LeakyReluGrad", "TanhGrad", "SigmoidGrad", "GeluGrad"}
_PRODUCT |= {"MaximumGrad", "SiluGrad", "EluGrad"}
_SPREAD = {"MaxPoolGrad", "SliceGrad", "Pad", "GatherGrad", "GatherElementsGrad", "GatherNDGrad"}


def zero_shares(graph: Graph) -> dict[str, float]:
    """By tensor, those without zeros left out."""
    shares: dict[str, float] = {}
    for op in graph.operators:
        share = _share(op, graph.tensors, [shares.get(t, 0.0) for t in op.inputs])
        if share > 0:
            shares |= dict.fromkeys(op.outputs, share)
    return shares


def zero_factors(op: Operator, shares: dict[str, float]) -> float:
    """The share of an operator's products and sums with a factor or a term that is zero."""
    return 1 - prod(1 - shares.get(t, 0.0) for t in op.inputs)


def _share(op: Operator, tensors: Mapping[str, Tensor], inputs: list[float]) -> float:
    if op.kind in _HALF or (op.kind == "Clip" and float(str(op.attributes.get("min", "-1"))) == 0.0):
        return 0.5 + inputs[0] / 2
    if op.attributes.get("activation") in ("Relu", "Clip", "HardSwish") and op.kind.endswith("Activation"):
        return 0.5
    if op.kind in _HALF_GRAD:
        return 1 - 0.5 * (1 - inputs[-1])
    if op.kind in _SAME or spec(op.kind).is_view:
        return sum(inputs) / max(1, len(inputs))
    if op.kind in _PRODUCT:
        return 1 - prod(1 - z for z in inputs)
    if op.kind in _SPREAD:
        moved = tensors[op.inputs[-1]].type.elements / max(1, tensors[op.outputs[0]].type.elements)
        return max(0.0, 1 - moved * (1 - inputs[-1]))
    if op.kind == "Dropout":
        ratio = op.attributes.get("ratio", 0.0)
        return 1 - (1 - inputs[0]) * (1 - (ratio if isinstance(ratio, float) else 0.0))
    if op.kind == "MaxPool":
        window = tensors[op.inputs[0]].type.elements / max(1, tensors[op.outputs[0]].type.elements)
        return float(inputs[0] ** window)
    if op.kind == "MatMul" and tensors[op.inputs[0]].type.elements * tensors[op.inputs[1]].type.elements == (
        tensors[op.outputs[0]].type.elements
    ):
        return 1 - prod(1 - z for z in inputs[:2])  # an outer product
    return 0.0
