"""Evaluates one ONNX node on known values. The numerics are onnx's own reference evaluator; here it is guarded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from poetc.errors import UnsupportedModelError
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
_LARGEST_SHAPE = 1024  # elements of an input that may be a shape, so that inference needs its numbers


class FoldingError(Exception):
    """The node cannot be evaluated; the text says why."""


def _versions(opset: int) -> Sequence[int]:
    """Where the header understates or overstates the operator set, the node still reads as one of these."""
    return list(dict.fromkeys((opset, 13, 9, 21)))


def fold(
    node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int, room_bytes: int = LARGEST_FOLDED_BYTES
) -> list[Array]:
    """The outputs of `node` on `inputs` (None: an optional input left out).

    FoldingError when it cannot be evaluated, UnsupportedModelError when the results would take more than `room_bytes`.
    """
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise FoldingError("holds a subgraph")
    most_bytes = max(0, min(room_bytes, LARGEST_FOLDED_BYTES))
    if (size_bytes := _output_bytes(node, inputs, opset)) > most_bytes:
        name = node.name or next(iter(node.output), "?")
        raise UnsupportedModelError(
            f"node {name!r} ({node.op_type}) makes a constant of {size_bytes:,} bytes, where {most_bytes:,} are left"
            " for all that is computed at import"
        )
    own = _OWN.get(node.op_type)
    if own is not None:
        try:
            with np.errstate(all="ignore"):  # numbers that are not finite are an error later, which names the tensor
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
    from onnx.reference import ReferenceEvaluator  # 12 MB, and most models fold nothing that needs it

    reason = ""
    for version in _versions(opset):
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
        if scale.size != 1:
            if not -x.ndim <= axis < x.ndim or scale.size != x.shape[axis]:
                raise FoldingError(f"{scale.size} scales along axis {axis} of a tensor {list(x.shape)}")
            shape[axis] = scale.size
        repeated = [v.reshape(shape) for v in (scale, zero) if v is not None]
    centred = x.astype(np.float32) - (repeated[1].astype(np.float32) if len(repeated) > 1 else np.float32(0))
    return np.asarray((centred * repeated[0].astype(np.float32)).astype(np.float32))


_OWN: dict[str, Callable[..., Array]] = {"GatherElements": _gather_elements, "DequantizeLinear": _dequantize}


def _output_bytes(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> int:
    """Size of the outputs by ONNX's shape inference, known before memory is allocated; 0 where it is unknown."""
    known = {name: v for name, v in zip(node.input, inputs, strict=True) if name and v is not None}
    for version in _versions(opset):
        try:
            types = {n: helper.make_tensor_type_proto(_element_type(v), v.shape) for n, v in known.items()}
            data = {n: numpy_helper.from_array(v) for n, v in known.items() if _may_be_shape(v)}
            schema, imports = onnx.defs.get_schema(node.op_type, version), [helper.make_opsetid("", version)]
            inferred = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
        except Exception:
            continue  # inference is C++ and says no in many ways; the evaluator will say why
        # Lengths that depend on the data (NonZero, Compress) are at most as many as there are elements.
        most = max((v.size for v in known.values()), default=1)
        return sum(_bytes(made_type.tensor_type, most) for made_type in inferred.values())
    try:  # element types that the standard does not allow there, but numpy does
        return 8 * math.prod(np.broadcast_shapes(*(v.shape for v in known.values())))
    except ValueError:
        return 0


def _bytes(type: onnx.TypeProto.Tensor, unknown_length: int) -> int:
    itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(type.elem_type)).itemsize if type.elem_type else 8
    return itemsize * math.prod(d.dim_value if d.HasField("dim_value") else unknown_length for d in type.shape.dim)


def _element_type(value: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _may_be_shape(value: Array) -> bool:
    return value.size <= _LARGEST_SHAPE and value.dtype.kind in "iuf"
