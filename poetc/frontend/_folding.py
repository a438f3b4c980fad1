"""Evaluates one ONNX node on known values. The numerics are onnx's own reference evaluator; here it is guarded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from poetc.errors import UsageError
from poetc.frontend._reading import LARGEST_FOLDED_BYTES, one_line
from poetc.graph import Array

# Random or stateful: their value is not a constant even when their inputs are.
NOT_FOLDABLE = frozenset(
    {
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "Dropout",
    }
)
_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Where", "Equal", "And", "Or", "Less", "Greater", "Max", "Min"}
)


class FoldingError(Exception):
    """The node cannot be evaluated; the text says why."""


def fold(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """The outputs of `node` on `inputs` (None: an optional input left out).

    FoldingError when it cannot be evaluated, UsageError when the result would be huge.
    """
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise FoldingError("holds a subgraph")
    _check_output_size(node, inputs)
    own = _OWN.get(node.op_type)
    if own is not None:
        try:
            return [own(node, *(i for i in inputs if i is not None))]
        except (ValueError, IndexError, TypeError) as error:
            raise FoldingError(one_line(error)) from None
    feeds = {name: value for name, value in zip(node.input, inputs, strict=True) if name and value is not None}
    names = [o for o in node.output if o]
    graph = helper.make_graph(
        [node],
        "fold",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in names],
    )
    reason = ""
    # Where the header understates or overstates the operator set, the node still reads as one of these.
    for version in dict.fromkeys((opset, 13, 9, 21)):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:
            # Whatever the evaluator stumbles over is a defect of the node: it is given no code of ours to run.
            reason = reason or one_line(error)
            continue
        if any(not isinstance(r, (np.ndarray, np.generic)) for r in results):
            raise FoldingError("its result is not a tensor")
        return [np.asarray(r) for r in results]
    raise FoldingError(reason)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def _gather_elements(node: onnx.NodeProto, x: Array, indices: Array) -> Array:
    """The reference evaluator fails where an axis has length 1."""
    return np.take_along_axis(x, indices.astype(np.int64), axis=_attribute(node, "axis", 0))


def _dequantize(node: onnx.NodeProto, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """(x - zero) · scale: for the whole tensor, along an axis or by blocks. The reference lacks older versions."""
    axis = _attribute(node, "axis", 1)
    block = _attribute(node, "block_size", 0)
    if block:
        length = range(x.shape[axis])
        repeated = [np.repeat(v, block, axis).take(length, axis) for v in (scale, zero) if v is not None]
    else:
        shape = [1] * x.ndim
        if scale.size > 1:
            shape[axis] = scale.size
        repeated = [v.reshape(shape) for v in (scale, zero) if v is not None]
    centred = x.astype(np.float32) - (repeated[1].astype(np.float32) if len(repeated) > 1 else np.float32(0))
    return np.asarray((centred * repeated[0].astype(np.float32)).astype(np.float32))


_OWN: dict[str, Callable[..., Array]] = {"GatherElements": _gather_elements, "DequantizeLinear": _dequantize}


def _check_output_size(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> None:
    """Refuse before memory is asked for: these nodes make large results from small inputs."""
    elements: float = 0
    known = [i for i in inputs if i is not None]
    if node.op_type == "Range" and len(known) == 3:
        start, limit, step = (float(np.asarray(v).reshape(-1)[0]) if np.size(v) else 0.0 for v in known)
        elements = abs((limit - start) / step) if step else math.inf
    elif node.op_type == "ConstantOfShape" and known:
        elements = float(np.prod(np.asarray(known[0], np.float64)))
    elif node.op_type in ("Expand", "Tile", "Resize", "Upsample", "OneHot", "Pad") and len(known) > 1:
        sizes = [np.abs(np.asarray(v, np.float64)) for v in known[1:] if np.asarray(v).dtype.kind in "iuf"]
        grown = float(np.prod([float(np.prod(np.maximum(s, 1))) for s in sizes])) if node.op_type != "Pad" else 1.0
        if node.op_type == "Pad":
            before = np.asarray(known[1], np.float64).reshape(-1)
            rank = known[0].ndim
            if before.size == 2 * rank:
                grown = float(np.prod(np.maximum(np.array(known[0].shape) + before[:rank] + before[rank:], 0)))
                grown /= max(known[0].size, 1)
        elements = max(known[0].size, 1) * grown
    else:
        shape = np.broadcast_shapes(*(k.shape for k in known)) if _broadcasts(node.op_type, known) else ()
        elements = math.prod(shape)
    if not elements * 4 <= LARGEST_FOLDED_BYTES:
        raise UsageError(f"node {node.name or node.output[0]!r} ({node.op_type}) makes an impossibly large constant")


def _broadcasts(op_type: str, known: Sequence[Array]) -> bool:
    if op_type not in _BROADCASTING:
        return False
    try:
        np.broadcast_shapes(*(k.shape for k in known))
    except ValueError:
        return False
    return True
