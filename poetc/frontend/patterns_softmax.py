"""Guards that exporters put around softmax, for rows in which nothing may be looked at."""

from __future__ import annotations

import numpy as np

from poetc.frontend._rewriter import Rewriter
from poetc.graph import DType, Fill, Operator, TensorType


def guarded_softmax(r: Rewriter, op: Operator) -> bool:
    """Where(IsNaN(y), 0, y) of a softmax y: rows of -inf alone become zeros.

    The softmax of such a row is NaN, and so would its gradient be. Where a row may be one, it is softened before the
    softmax and put to zero behind it, so that all is finite. Where none can be, the guard is left out.
    """
    condition, zero, y = op.inputs
    is_nan, softmax = r.producer(condition, "Not"), r.producer(y, "Softmax")
    same = r.producer(is_nan.inputs[0], "Equal") if is_nan is not None else None
    if same is None or softmax is None or same.inputs != (y, y) or not _is_zero(r, zero):
        return False
    scores, axis = softmax.inputs[0], softmax.attributes.get("axis", -1)
    assert isinstance(axis, int)
    shape = r.type(scores).shape
    if r.type(op.outputs[0]).shape != shape:
        return False
    if not _may_be_hidden(r, scores, axis % len(shape) - len(shape)) and r.forward(op, y):
        return True
    least = r.constant(f"{op.outputs[0]}.least", np.array(-np.inf, np.float32), TensorType((), DType.F32))
    nothing = r.constant(f"{op.outputs[0]}.nothing", np.array(0, np.float32), TensorType((), DType.F32))
    top = r.insert(op, "ReduceMax", [scores], {"axes": (axis % len(shape),), "keepdims": True})
    seen = r.insert(op, "Greater", [top, least])
    kept = r.insert(op, "Where", [seen, scores, nothing])
    again = r.insert(op, "Softmax", [kept], softmax.attributes)
    return r.replace(op, "Where", [seen, again, nothing])


def _is_zero(r: Rewriter, tensor: str) -> bool:
    held = r.held(tensor)
    if isinstance(held, Fill):
        return held.kind == "zeros"
    return held is not None and not held.any()


def _may_be_hidden(r: Rewriter, scores: str, axis: int) -> bool:
    """Whether a row along `axis`, counted from the end, may be -inf throughout. Products are taken to be finite."""
    maker = r.producer(scores)
    while maker is not None and maker.kind in ("Affine", "Reshape"):
        maker = r.producer(maker.inputs[0])
    if maker is None or maker.kind != "Add":
        return maker is None or maker.kind != "MatMul"
    for mask, other in (maker.inputs, maker.inputs[::-1]):
        held = r.held(mask)
        if isinstance(held, np.ndarray) and held.shape == r.type(mask).shape and r.producer(other) is not None:
            hidden = np.isneginf(held)
            rows = hidden.all(axis=axis, keepdims=True) if held.ndim >= -axis else hidden
            return bool(rows.any()) or _may_be_hidden(r, other, axis)
    return True
