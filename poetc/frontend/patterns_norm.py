"""Normalisation that exporters spell out. See `patterns.py`."""

from __future__ import annotations

import math

from poetc.frontend._rewriter import Rewriter
from poetc.frontend.patterns import bias_operands, ints, number, power
from poetc.graph import Attribute, DType, Fill, Operator, TensorType


def _mean_over_trailing(r: Rewriter, tensor: str) -> tuple[str, int] | None:
    """(x, axis) where tensor = mean of x over its axes from `axis` on, kept."""
    op = r.producer(tensor, "ReduceMean")
    if op is None or not op.attributes.get("keepdims"):
        return None
    axes, rank = ints(op.attributes, "axes"), len(r.type(op.inputs[0]).shape)
    return (op.inputs[0], axes[0]) if axes == tuple(range(axes[0], rank)) else None


def _deviation(r: Rewriter, tensor: str) -> tuple[str, int, float] | None:
    """(d, axis, epsilon) where tensor = sqrt(mean(d²) + epsilon)."""
    root = r.producer(tensor, "Sqrt")
    shifted = r.producer(root.inputs[0], "Affine") if root is not None else None
    if shifted is None or number(shifted.attributes, "alpha", 1.0) != 1.0:
        return None
    mean = _mean_over_trailing(r, shifted.inputs[0])
    if mean is None:
        return None
    squared, axis = mean
    d, n = power(r, squared)
    return (d, axis, number(shifted.attributes, "beta")) if n == 2 else None


def _normalized(r: Rewriter, op: Operator) -> tuple[str, int, float] | None:
    """(d, axis, epsilon) where op computes d / sqrt(mean(d²) + epsilon)."""
    if op.kind == "Div":
        deviation = _deviation(r, op.inputs[1])
        return deviation if deviation is not None and deviation[0] == op.inputs[0] else None
    for left, right in (op.inputs, op.inputs[::-1]):
        inverse = r.producer(right, "Reciprocal")
        deviation = _deviation(r, inverse.inputs[0]) if inverse is not None else None
        if deviation is not None and deviation[0] == left:
            return deviation
    return None


def _same_difference(r: Rewriter, a: str, b: str) -> bool:
    """Some exporters compute x - mean(x) twice."""
    one, two = r.producer(a, "Sub"), r.producer(b, "Sub")
    return a == b or (one is not None and two is not None and one.inputs == two.inputs)


def layer_norm(r: Rewriter, op: Operator) -> bool:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon) over trailing axes, and its RMS form without the mean."""
    normalized = _normalized(r, op)
    if normalized is None and op.kind == "Div":
        twice = _deviation(r, op.inputs[1])
        normalized = twice if twice is not None and _same_difference(r, twice[0], op.inputs[0]) else None
    if normalized is None:
        return False
    d, axis, epsilon = normalized
    kind, x = "RmsNorm", d
    difference = r.producer(d, "Sub")
    if difference is not None and _mean_over_trailing(r, difference.inputs[1]) == (difference.inputs[0], axis):
        kind, x = "LayerNorm", difference.inputs[0]
    shape = r.type(x).shape[axis:]
    ones = r.constant(f"{op.outputs[0]}.ones", Fill("ones"), TensorType(shape, DType.F32))
    return r.replace(op, kind, [x, ones], {"axis": axis, "epsilon": epsilon})


def norm_scale(r: Rewriter, op: Operator) -> bool:
    """A factor right behind a norm that has none is its scale."""
    for y, scale in (op.inputs, op.inputs[::-1]):
        norm = r.producer(y, "LayerNorm") or r.producer(y, "RmsNorm")
        if norm is None or len(norm.inputs) != 2 or not r.only_use(y) or not r.is_leaf(scale):
            continue
        # Ones that a pattern made: a scale of the file that starts so is a parameter of its own.
        if norm.inputs[1] not in r.computed or r.type(scale).shape != r.type(norm.inputs[1]).shape:
            continue
        return r.replace(op, norm.kind, [norm.inputs[0], scale], norm.attributes)
    return False


def norm_bias(r: Rewriter, op: Operator) -> bool:
    """A summand right behind a layer norm without one is its bias."""
    operands = bias_operands(r, op, "LayerNorm")
    if operands is None or r.type(operands[1]).shape != r.type(operands[0].inputs[1]).shape:
        return False
    norm, bias = operands
    return r.replace(op, "LayerNorm", [*norm.inputs, bias], norm.attributes)


def _channel_vector(r: Rewriter, tensor: str, x: TensorType) -> bool:
    """A known [C, 1, 1] next to x[N, C, ...]."""
    shape = r.type(tensor).shape
    spatial = len(x.shape) - 2
    if not r.is_leaf(tensor) or spatial < 1 or len(shape) < spatial + 1 or x.shape[1] == 1:
        return False
    return shape[-spatial - 1 :] == (x.shape[1],) + (1,) * spatial and math.prod(shape) == x.shape[1]


def batch_norm(r: Rewriter, op: Operator) -> bool:
    """(x - mean) / sqrt(var + epsilon) · scale + bias per channel, written out as Keras converters do."""
    for scaled, bias in (op.inputs, op.inputs[::-1]):
        parts = _batch_norm_parts(r, scaled)
        x_type = r.type(op.outputs[0])
        if parts is None or not _channel_vector(r, bias, x_type) or not r.only_use(scaled):
            continue
        x, mean, var, scale, epsilon = parts
        channels = (x_type.shape[1],)
        vectors = [r.insert(op, "Reshape", [t], {"shape": channels}) for t in (mean, var, scale, bias)]
        attributes: dict[str, Attribute] = {"epsilon": epsilon, "momentum": 0.9, "training": False}
        return r.replace(op, "BatchNormApply", [x, *vectors], attributes)
    return False


def _batch_norm_parts(r: Rewriter, tensor: str) -> tuple[str, str, str, str, float] | None:
    product = r.producer(tensor, "Mul")
    if product is None:
        return None
    x_type = r.type(tensor)
    for normal, scale in (product.inputs, product.inputs[::-1]):
        if not _channel_vector(r, scale, x_type):
            continue
        maker = r.producer(normal)
        if maker is None or maker.kind not in ("Div", "Mul"):
            continue
        for centred, spread in (maker.inputs, maker.inputs[::-1])[: 1 if maker.kind == "Div" else 2]:
            if maker.kind == "Mul":
                inverse = r.producer(spread, "Reciprocal")
                spread = inverse.inputs[0] if inverse is not None else ""
            root = r.producer(spread, "Sqrt")
            shifted = r.producer(root.inputs[0], "Affine") if root is not None else None
            difference = r.producer(centred, "Sub")
            if shifted is None or difference is None or number(shifted.attributes, "alpha", 1.0) != 1.0:
                continue
            x, mean = difference.inputs
            var = shifted.inputs[0]
            if {r.root(mean), r.root(var)} & r.declared:
                continue  # trained, so no statistics
            if _channel_vector(r, mean, x_type) and _channel_vector(r, var, x_type):
                return x, mean, var, scale, number(shifted.attributes, "beta")
    return None


# --- group norm ---


def _filled(r: Rewriter, tensor: str, number: float) -> bool:
    """A constant with the same number everywhere. A parameter that starts so is none: it is trained."""
    if r.root(tensor) in r.parameters:
        return False
    held = r.held(tensor)
    if isinstance(held, Fill):
        return held.kind == {0.0: "zeros", 1.0: "ones"}.get(number)
    return held is not None and bool((held == number).all())


def group_norm(r: Rewriter, op: Operator) -> bool:
    """Instance norm over x seen as [N, groups, rest], seen as x again: a group norm with neither scale nor bias yet."""
    norm = r.producer(op.inputs[0], "GroupNorm")
    view = r.producer(norm.inputs[0], "Reshape") if norm is not None else None
    if norm is None or view is None or not r.only_use(op.inputs[0]):
        return False
    shape, seen = r.type(op.outputs[0]).shape, r.type(norm.inputs[0]).shape
    groups = seen[1]
    if len(shape) < 3 or shape[0] != seen[0] or shape[1] % groups or norm.attributes.get("groups") != groups:
        return False
    if not _filled(r, norm.inputs[1], 1.0) or not _filled(r, norm.inputs[2], 0.0):
        return False
    x = view.inputs[0]
    if r.type(x).shape != shape:
        x = r.insert(op, "Reshape", [x], {"shape": shape})
    channels = TensorType((shape[1],), DType.F32)
    scale, bias = (r.constant(f"{op.outputs[0]}.{kind}", Fill(kind), channels) for kind in ("ones", "zeros"))
    return r.replace(op, "GroupNorm", [x, scale, bias], norm.attributes)


def group_norm_affine(r: Rewriter, op: Operator) -> bool:
    """A factor or summand per channel right behind a group norm that has none."""
    slot, neutral = (1, 1.0) if op.kind == "Mul" else (2, 0.0)
    for y, vector in (op.inputs, op.inputs[::-1]):
        norm = r.producer(y, "GroupNorm")
        if norm is None or not r.only_use(y) or not _channel_vector(r, vector, r.type(y)):
            continue
        # A scale behind a bias would scale that too.
        if not _filled(r, norm.inputs[slot], neutral) or (slot == 1 and not _filled(r, norm.inputs[2], 0.0)):
            continue
        inputs = list(norm.inputs)
        inputs[slot] = r.insert(op, "Reshape", [vector], {"shape": (r.type(y).shape[1],)})
        return r.replace(op, "GroupNorm", inputs, norm.attributes)
    return False
