"""Element by element: unary functions, arithmetic, comparisons, casts, clipping; and reductions and softmax."""

from __future__ import annotations

import math

import numpy as np

from poetc.frontend._importer import Importer, Value, our_dtype
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._reading import element_dtype, widened
from poetc.frontend._translations import onnx_operator
from poetc.graph import Attribute, DType

_FLOAT_MAX = 3.4028234663852886e38

_PLAIN = (
    "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign",
    "Floor", "Ceil", "Round", "Sin", "Cos", "Atan", "HardSwish", "Mish", "Not",
)  # fmt: skip


@onnx_operator(*_PLAIN)
def plain(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    if n.op != "Not" and not x.is_float and n.op not in ("Abs", "Neg", "Sign"):
        raise Unsupported(f"{n.op} of integers")
    return c.emit1(n.op, [x])


@onnx_operator("Identity")
def identity(c: Importer, n: Node) -> Value:
    return c.input(n, 0)


@onnx_operator("LeakyRelu", "Elu", "Celu")
def one_slope(c: Importer, n: Node) -> str:
    return c.emit1(n.op, [c.input(n, 0)], {"alpha": n.get_float("alpha", 0.01 if n.op == "LeakyRelu" else 1.0)})


@onnx_operator("Selu")
def selu(c: Importer, n: Node) -> str:
    alpha, gamma = n.get_float("alpha", 1.6732632423543772), n.get_float("gamma", 1.0507009873554805)
    return c.emit1("Selu", [c.input(n, 0)], {"alpha": alpha, "gamma": gamma})


@onnx_operator("HardSigmoid")
def hard_sigmoid(c: Importer, n: Node) -> str:
    return c.emit1(n.op, [c.input(n, 0)], {"alpha": n.get_float("alpha", 0.2), "beta": n.get_float("beta", 0.5)})


@onnx_operator("Gelu")
def gelu(c: Importer, n: Node) -> str:
    return c.emit1("Gelu", [c.input(n, 0)], {"approximate": n.get_str("approximate", "none")})


@onnx_operator("Swish")
def swish(c: Importer, n: Node) -> str:
    x, alpha = c.input(n, 0), n.get_float("alpha", 1.0)
    return c.affine(c.emit1("Silu", [c.affine(x, alpha)]), 1.0 / alpha) if alpha else c.affine(x, 0.5)


@onnx_operator("ThresholdedRelu")
def thresholded_relu(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    above = c.emit1("Greater", [x, c.constant(np.array(n.get_float("alpha", 1.0), np.float32))])
    return c.emit1("Where", [above, x, c.constant(np.array(0.0, np.float32))])


@onnx_operator("Tan")
def tangent(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    return c.emit1("Div", [c.emit1("Sin", [x]), c.emit1("Cos", [x])])


@onnx_operator("Sinh", "Cosh")
def hyperbolic(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    up, down = c.emit1("Exp", [x]), c.emit1("Exp", [c.emit1("Neg", [x])])
    return c.affine(c.emit1("Sub" if n.op == "Sinh" else "Add", [up, down]), 0.5)


@onnx_operator("PRelu")
def prelu(c: Importer, n: Node) -> str:
    return c.emit1("PRelu", [c.input(n, 0), c.input(n, 1)])


# --- arithmetic ---


def _scalar(c: Importer, value: Value, other: Value) -> float | None:
    """The number of a known scalar operand that leaves the other one's shape alone."""
    if not value.is_float or len(value.shape) > len(other.shape) or (other.known and not other.weight):
        return None
    number = None if _may_be_bias(c, value, other) else c.number(value)
    return number if number is not None and math.isfinite(number) else None


def _may_be_bias(c: Importer, value: Value, other: Value) -> bool:
    """A bias of a layer with one output channel looks like a scalar but is a weight."""
    if not value.shape or c.node.op != "Add" or not other.tensor:
        return False
    last = c.builder.operators[-1] if c.builder.operators else None
    return last is not None and last.outputs[0] == other.tensor and last.kind in ("MatMul", "Conv")


@onnx_operator("Add", "Sub", "Mul", "Div")
def arithmetic(c: Importer, n: Node) -> str | Value:
    x, y = c.input(n, 0), c.input(n, 1)
    right, left = _scalar(c, y, x), _scalar(c, x, y)
    if right is not None:
        if n.op in ("Add", "Sub"):
            return c.affine(x, 1.0, right if n.op == "Add" else -right)
        if n.op == "Mul" or right:
            return c.affine(x, right if n.op == "Mul" else 1.0 / right)
    elif left is not None:
        if n.op == "Mul":
            return c.affine(y, left)
        if n.op in ("Add", "Sub"):
            return c.affine(y, 1.0 if n.op == "Add" else -1.0, left)
        return c.affine(c.emit1("Reciprocal", [y]), left)
    if n.op == "Div" and not x.is_float:
        raise Unsupported("division of integers")
    if n.op == "Sub" and x.dtype.kind == "u":
        raise Unsupported("subtraction of unsigned integers (they wrap around)")
    return c.emit1(n.op, [x, y])


@onnx_operator("Mod")
def modulo(c: Importer, n: Node) -> str:
    x, y, fmod = c.input(n, 0), c.input(n, 1), n.get_int("fmod", 0)
    if fmod not in (0, 1):
        raise Malformed(f"attribute 'fmod' is {fmod}, not 0 or 1")
    if not x.is_float:
        if our_dtype(x.dtype) is not DType.I32:
            raise Unsupported("Mod of integers of 8 bits")
        return c.emit1("Mod", [x, y], {"fmod": bool(fmod)})
    # x - y · floor(x / y), with fmod towards zero: by it x has a gradient, and so has y.
    share = c.emit1("Div", [x, y])
    whole = c.emit1("Floor", [c.emit1("Abs", [share]) if fmod else share])
    if fmod:
        whole = c.emit1("Mul", [c.emit1("Sign", [share]), whole])
    return c.emit1("Sub", [x, c.emit1("Mul", [whole, y])])


@onnx_operator("Pow")
def power(c: Importer, n: Node) -> str:
    x, y = c.input(n, 0), c.input(n, 1)
    exponent = c.number(y)
    if exponent is None or len(y.shape) > len(x.shape):
        return c.emit1("Pow", [x, y if y.is_float else c.emit1("Cast", [y], {"to": "f32"})])
    name = c.tensor(x)
    if exponent == 2.0:
        return c.emit1("Mul", [name, name])
    if exponent in (1.0, 0.5, -1.0):
        return name if exponent == 1.0 else c.emit1("Sqrt" if exponent == 0.5 else "Reciprocal", [name])
    if exponent == -0.5:
        return c.emit1("Reciprocal", [c.emit1("Sqrt", [name])])
    return c.emit1("Power", [name], {"exponent": exponent})


@onnx_operator("Sum", "Mean", "Max", "Min")
def variadic(c: Importer, n: Node) -> str | Value:
    values = [c.input(n, k) for k in range(len(n.inputs))]
    if not values:
        raise Malformed("has no inputs")
    if len(values) == 1:
        return values[0]
    if n.op in ("Max", "Min") and len(values) == 2:
        for x, y in (values, values[::-1]):
            bound = _scalar(c, y, x)
            if bound is not None and n.op == "Max" and bound == 0.0:
                return c.emit1("Relu", [x])
            if bound is not None:
                low, high = (bound, _FLOAT_MAX) if n.op == "Max" else (-_FLOAT_MAX, bound)
                return c.emit1("Clip", [x], {"min": low, "max": high})
    kind = {"Sum": "Add", "Mean": "Add", "Max": "Maximum", "Min": "Minimum"}[n.op]
    total = c.tensor(values[0])
    for value in values[1:]:
        total = c.emit1(kind, [total, value])
    return c.affine(total, 1.0 / len(values)) if n.op == "Mean" else total


@onnx_operator("Clip")
def clip(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    bounds, limits = [], [c.optional(n, 1), c.optional(n, 2)]
    for value, name, default in zip(limits, ("min", "max"), (-_FLOAT_MAX, _FLOAT_MAX), strict=True):
        number = n.get_float(name, default) if value is None else c.number(value)
        if number is None:
            return _clip_by_tensors(c, x, *limits)
        bounds.append(min(max(number, -_FLOAT_MAX), _FLOAT_MAX))
    if bounds[0] == 0.0 and bounds[1] == _FLOAT_MAX:
        return c.emit1("Relu", [x])
    return c.emit1("Clip", [x], {"min": bounds[0], "max": bounds[1]})


def _clip_by_tensors(c: Importer, x: Value, low: Value | None, high: Value | None) -> str:
    """Bounds that are computed: beyond one, the gradient is the bound's."""
    y: str = c.tensor(x)
    for kind, bound in (("Maximum", low), ("Minimum", high)):
        if bound is not None and bound.elements != 1:
            raise Malformed(f"a bound of shape {list(bound.shape)}")
        y = c.emit1(kind, [y, c.reshape(bound, ())]) if bound is not None else y
    return y


@onnx_operator("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")
def comparison(c: Importer, n: Node) -> str:
    x, y = c.input(n, 0), c.input(n, 1)
    if x.dtype == y.dtype == np.uint8:
        return c.emit1(n.op, [c.emit1("Cast", [v], {"to": "i32"}) for v in (x, y)])
    return c.emit1(n.op, [x, y])


@onnx_operator("IsNaN")
def is_nan(c: Importer, n: Node) -> str:
    """The only numbers that do not equal themselves."""
    x = c.tensor(c.input(n, 0))
    return c.emit1("Not", [c.emit1("Equal", [x, x])])


@onnx_operator("IsInf")
def is_inf(c: Importer, n: Node) -> str:
    x = c.tensor(c.input(n, 0))
    negative, positive = n.get_int("detect_negative", 1), n.get_int("detect_positive", 1)
    if bool(negative) == bool(positive):
        x = c.emit1("Abs", [x])
    if not positive and not negative:
        return c.emit1("Less", [x, c.constant(np.array(0, np.float32))])  # nowhere
    limit = np.inf if positive else -np.inf
    return c.emit1("Equal", [x, c.constant(np.array(limit, np.float32))])


@onnx_operator("Where")
def where(c: Importer, n: Node) -> str | Value:
    condition, x, y = (c.input(n, k) for k in range(3))
    if condition.known and not condition.weight:
        # A mask that is all true (or all false) is a leftover of a trace.
        array = c.array(condition)
        shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
        if bool(array.all()) and x.shape == shape:
            return x
        if not bool(array.any()) and y.shape == shape:
            return y
    return c.emit1("Where", [condition, x, y])


_CAST_TO = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"})


@onnx_operator("Cast", "CastLike")
def cast(c: Importer, n: Node) -> str | Value:
    x = c.input(n, 0)
    to = c.input(n, 1).dtype if n.op == "CastLike" else element_dtype(n.get_int("to"), "the target of Cast")
    if x.known and not x.weight:
        return c.constant(widened(c.array(x).astype(to)))
    have, wanted = our_dtype(x.dtype), our_dtype(to)
    if to != x.dtype and to.name not in _CAST_TO:
        raise Unsupported(f"a cast to {to.name}")  # where numbers are rounded, or wrap around
    # Element types without a kind of their own compute in the next larger one that has.
    return x if wanted is have else c.emit1("Cast", [x], {"to": wanted.value})


# --- reductions and softmax ---

_IDENTITY_ON_ONE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
_REDUCTIONS = (*_IDENTITY_ON_ONE, "ReduceL1", "ReduceL2", "ReduceLogSumExp")


@onnx_operator(*_REDUCTIONS, "ReduceSumSquare", "ReduceLogSum")
def reduction(c: Importer, n: Node) -> str | Value:
    x = c.input(n, 0)
    axes_input = c.optional(n, 1)
    axes = n.get_ints("axes") if axes_input is None else c.ints(axes_input, "the axes")
    if not axes:
        axes = () if n.get_int("noop_with_empty_axes", 0) else tuple(range(len(x.shape)))
    axes = tuple(sorted({normalize_axis(a, len(x.shape)) for a in axes}))
    if not axes:
        return _of_each(c, n, x)
    attributes: dict[str, Attribute] = {"axes": axes, "keepdims": bool(n.get_int("keepdims", 1))}
    if n.op == "ReduceSumSquare":
        if not x.is_float:
            raise Unsupported("ReduceSumSquare of integers")
        name = c.tensor(x)
        return c.emit1("ReduceSum", [c.emit1("Mul", [name, name])], attributes)
    if n.op == "ReduceLogSum":
        return c.emit1("Log", [c.emit1("ReduceSum", [x], attributes)])
    if n.op in _IDENTITY_ON_ONE and all(x.shape[a] == 1 for a in axes):
        kept = [1 if k in axes else d for k, d in enumerate(x.shape) if attributes["keepdims"] or k not in axes]
        return c.reshape(x, kept)
    if not x.is_float:
        return _of_integers(c, n, x, axes, keepdims=bool(attributes["keepdims"]))
    return c.emit1(n.op, [x], attributes)


def _of_each(c: Importer, n: Node, x: Value) -> str | Value:
    """There is nothing to add up, but signs, squares and logarithms remain."""
    if n.op == "ReduceSumSquare":
        return c.emit1("Mul", [x, x])
    kind = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log"}.get(n.op)
    return x if kind is None else c.emit1(kind, [x])


_OF_TWO = {"ReduceSum": "Add", "ReduceMax": "Maximum", "ReduceMin": "Minimum", "ReduceProd": "Mul"}


def _of_integers(c: Importer, n: Node, x: Value, axes: tuple[int, ...], *, keepdims: bool) -> str:
    """Exact: along each axis the second half is joined to the first, until one element is left."""
    if n.op not in _OF_TWO:
        raise Unsupported(f"{n.op} of integers")
    if min((x.shape[a] for a in axes), default=0) < 1:
        raise Malformed(f"a reduction of shape {list(x.shape)}, which has no elements")
    y = c.tensor(x)
    if c.type(y).dtype is not DType.I32:
        y = c.emit1("Cast", [y], {"to": "i32"})
    for axis in axes:
        while (length := c.shape(y)[axis]) > 1:
            half = length // 2
            joined = c.emit1(_OF_TWO[n.op], [c.axis_slice(y, axis, k * half, half) for k in (0, 1)])
            rest = [c.axis_slice(y, axis, 2 * half, 1)] if length % 2 else []
            y = c.emit1("Concat", [joined, *rest], {"axis": axis}) if rest else joined
    kept = [1 if k in axes else d for k, d in enumerate(x.shape) if keepdims or k not in axes]
    return c.reshape(y, kept)


@onnx_operator("ArgMax", "ArgMin")
def arg_max(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    attributes: dict[str, Attribute] = {"axis": axis, "keepdims": bool(n.get_int("keepdims", 1))}
    if not n.get_int("select_last_index", 0):
        return c.emit1(n.op, [x], attributes)
    last = x.shape[axis] - 1  # the first from behind
    reversed_place = c.emit1(n.op, [c.axis_slice(x, axis, last, last + 1, -1)], attributes)
    return c.emit1("Sub", [c.constant(np.array(last, np.int64)), reversed_place])


@onnx_operator("TopK")
def top_k(c: Importer, n: Node) -> list[str]:
    """Which ones, and by these the values, whose gradient goes back to where they were."""
    x = c.input(n, 0)
    (k,) = c.ints(c.input(n, 1), "k") if n.has_input(1) else (n.get_int("k"),)
    axis = normalize_axis(n.get_int("axis", -1), len(x.shape))
    if not 0 < k <= x.shape[axis]:
        raise Malformed(f"asks for {k} of {x.shape[axis]} elements")
    at = c.emit1("TopK", [x], {"axis": axis, "k": k, "largest": bool(n.get_int("largest", 1))})
    return [c.emit1("GatherElements", [x, at], {"axis": axis}), at]


@onnx_operator("Softmax", "LogSoftmax")
def softmax(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    axis = normalize_axis(n.get_int("axis", -1 if c.opset >= 13 else 1), rank)
    if c.opset >= 13 or math.prod(x.shape[axis + 1 :]) == 1:
        return c.emit1(n.op, [x], {"axis": axis})
    # Before operator set 13 all axes from `axis` on are one.
    rows = c.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])
    return c.reshape(c.emit1(n.op, [rows], {"axis": 1}), x.shape)


@onnx_operator("CumSum")
def cumulative_sum(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    (axis,) = c.ints(c.input(n, 1), "the axis")
    if not x.is_float:
        return _integer_sums(c, n, x, normalize_axis(axis, len(x.shape)))
    flags = {"exclusive": bool(n.get_int("exclusive", 0)), "reverse": bool(n.get_int("reverse", 0))}
    return c.emit1("CumSum", [x], {"axis": normalize_axis(axis, len(x.shape)), **flags})


def _integer_sums(c: Importer, n: Node, x: Value, axis: int) -> str:
    """Exact sums of integers: each pass adds the tensor moved along the axis twice as far as the pass before."""
    if our_dtype(x.dtype) is not DType.I32 or n.get_int("exclusive", 0) or n.get_int("reverse", 0):
        raise Unsupported("sums of integers that are exclusive, reverse or of 8 bits")
    y, step, length = c.tensor(x), 1, x.shape[axis]
    c.room(*x.shape)
    while step < length:
        zeros = np.zeros([step if k == axis else d for k, d in enumerate(x.shape)], np.int64)
        moved = [c.tensor(c.constant(zeros)), c.axis_slice(y, axis, 0, length - step)]
        y = c.emit1("Add", [y, c.emit1("Concat", moved, {"axis": axis})])
        step *= 2
    return y


@onnx_operator("LpNormalization")
def lp_normalization(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axis, p = normalize_axis(n.get_int("axis", -1), len(x.shape)), n.get_int("p", 2)
    if p not in (1, 2):
        raise Malformed(f"p must be 1 or 2, not {p}")
    norm = c.emit1(f"ReduceL{p}", [x], {"axes": (axis,), "keepdims": True})
    # A zero vector stays one.
    return c.emit1("Div", [x, c.emit1("Clip", [norm], {"min": 1e-12, "max": _FLOAT_MAX})])
