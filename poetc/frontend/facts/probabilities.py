"""Outputs that are probabilities: by the operators that make them, else by a run of the model on random inputs.

The loss of probabilities is taken from their logarithm. A Softmax or Sigmoid at the end is the simplest case; converted
pipelines clip, renormalise, square, slice or concatenate behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from poetc.frontend.facts._axes import int_of, makers, reshaped, tuple_of
from poetc.graph import Array, DType, Fact, Graph, Operator, materialize
from poetc.ops import bind, spec

DISTRIBUTION, PROBABILITY = "distribution", "probability"
TOLERANCE = 1e-4  # of the sum of a row
_LARGEST = 20_000_000  # elements that a run at import may compute
# The last operator of outputs that have no bounds.
_UNBOUNDED = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Relu", "LeakyRelu", "PRelu", "Gelu", "Tanh", "Neg", "Log", "LogSoftmax"}
    | {"BatchNormApply", "LayerNorm", "GroupNorm", "RmsNorm", "ReduceMean", "ReduceSum", "Lstm", "Gru", "Rnn"}
)
_MOVES = ("Reshape", "Transpose", "Slice", "Split", "Concat", "Affine", "Expand", "Tile")


@dataclass(frozen=True, slots=True)
class _Range:
    """Knowledge of a tensor's numbers: at least 0, within 0 and 1, of sum one along `axis`."""

    is_positive: bool = False
    is_unit: bool = False
    axis: int | None = None
    reason: str = ""


_NOTHING = _Range()


def find(graph: Graph) -> Iterator[Fact]:
    """A fact for each float output whose numbers are probabilities: the axis of a distribution, or each for itself."""
    ranges = _ranges(graph)
    asked = []
    for name in graph.outputs:
        known = ranges.get(name, _NOTHING)
        if graph.tensors[name].dtype is not DType.F32 or not graph.tensors[name].shape:
            continue
        if known.axis is not None:
            yield Fact(DISTRIBUTION, name, known.axis, known.reason, option="--loss")
        else:
            asked.append((name, known))
    shown = _probed(graph, [name for name, _ in asked])
    for name, known in asked:
        if name in shown:
            evidence = "each row of a run on random inputs is in [0, 1] and adds up to 1"
            yield Fact(DISTRIBUTION, name, shown[name], evidence, "likely", "--loss")
        elif known.is_unit and known.reason:
            yield Fact(PROBABILITY, name, "each number", known.reason, option="--loss")


def axis_of_sum_one(array: Array) -> int | None:
    """The axis along which the numbers of each row are in [0, 1] and add up to 1; None: there is none, or one row."""
    if array.ndim < 2 or not array.size or not np.isfinite(array).all():
        return None
    if float(array.min()) < -TOLERANCE or float(array.max()) > 1 + TOLERANCE:
        return None
    for axis in (array.ndim - 1, *range(1, array.ndim - 1)):
        if array.shape[axis] > 1 and float(np.abs(array.sum(axis=axis, dtype=np.float64) - 1).max()) <= TOLERANCE:
            return int(axis)
    return None


def of_batch(graph: Graph, name: str, inputs: Mapping[str, Array]) -> int | None:
    """The axis along which output `name` sums to 1 for a batch. None: there is none, or it cannot be computed here."""
    output = run(graph, needed(graph, [name]), inputs).get(name)
    return None if output is None else axis_of_sum_one(output)


def may_be(graph: Graph, name: str) -> bool:
    """Whether output `name` could be probabilities: it has rows, and does not come straight from a layer."""
    return len(graph.tensors[name].shape) > 1 and _may_be_bounded(graph, makers(graph), name)


# --- by the operators -------------------------------------------------------------------------------------------------


def _ranges(graph: Graph) -> dict[str, _Range]:
    made_by = makers(graph)
    ranges: dict[str, _Range] = {}
    for op in graph.operators:
        inputs = [ranges.get(t, _NOTHING) for t in op.inputs]
        known = _after(graph, made_by, op, inputs)
        if known != _NOTHING:
            ranges.update(dict.fromkeys(op.outputs, known))
    return ranges


def _after(graph: Graph, made_by: Mapping[str, Operator], op: Operator, inputs: list[_Range]) -> _Range:
    first = inputs[0] if inputs else _NOTHING
    shape = graph.tensors[op.outputs[0]].shape
    reason = first.reason
    match op.kind:
        case "Softmax":
            of_softmax = int_of(op, "axis", -1) % len(shape)
            return _Range(True, True, of_softmax, f"made by Softmax {op.source!r}")
        case "Sigmoid" | "HardSigmoid":
            return _Range(True, True, None, f"made by {op.kind} {op.source!r}")
        case "Relu" | "Exp" | "Abs" | "Softplus":
            return replace(first, is_positive=True) if first.is_unit and op.kind in ("Relu", "Abs") else _Range(True)
        case "Clip":
            low, high = float(str(op.attributes.get("min", -math.inf))), float(str(op.attributes.get("max", math.inf)))
            keeps = low * shape[first.axis] <= TOLERANCE and high >= 1 - TOLERANCE if first.axis is not None else False
            is_unit = first.is_unit and low <= 1 and high >= 0
            return _Range(low >= 0 or first.is_positive, is_unit, first.axis if keeps else None, reason)
        case "Reshape":
            before = graph.tensors[op.inputs[0]].shape
            return replace(first, axis=None if first.axis is None else reshaped(before, first.axis, shape))
        case "Transpose":
            return replace(first, axis=None if first.axis is None else tuple_of(op, "perm").index(first.axis))
        case "Slice":
            before = graph.tensors[op.inputs[0]].shape
            is_whole = first.axis is not None and before[first.axis] == shape[first.axis]
            return replace(first, axis=first.axis if is_whole else None)
        case "Affine":
            alpha, beta = float(str(op.attributes["alpha"])), float(str(op.attributes["beta"]))
            if alpha == 1 and 0 <= beta <= 1e-4:
                return replace(first, is_unit=first.is_unit and beta == 0, axis=first.axis if beta == 0 else None)
            ends = sorted((beta, alpha + beta))
            is_unit = first.is_unit and ends[0] >= 0 and ends[1] <= 1
            return _Range(is_unit, is_unit, None, reason)
        case "Mul":
            same = op.inputs[0] == op.inputs[1]
            both_unit = all(i.is_unit for i in inputs)
            return _Range(same or all(i.is_positive for i in inputs), both_unit, None, reason if both_unit else "")
        case "Concat":
            return _joined(made_by, op, inputs)
        case "Div":
            axis = _sum_axis(made_by, op, inputs, len(shape))
            return _NOTHING if axis is None else _Range(True, True, axis, f"divided by their sum in {op.source!r}")
    return _NOTHING


def _joined(made_by: Mapping[str, Operator], op: Operator, inputs: list[_Range]) -> _Range:
    if not all(i.is_unit for i in inputs):
        return _Range(all(i.is_positive for i in inputs))
    axis, reason = int_of(op, "axis", 0), inputs[0].reason
    if len(inputs) == 2 and _is_complement(made_by, *op.inputs):
        return _Range(True, True, axis, f"p beside 1 - p in {op.source!r}")
    shared = inputs[0].axis if len({i.axis for i in inputs}) == 1 and inputs[0].axis != axis else None
    return _Range(True, True, shared, reason)


def _is_complement(made_by: Mapping[str, Operator], a: str, b: str) -> bool:
    """Whether one of two tensors is 1 minus the other."""
    for x, y in ((a, b), (b, a)):
        op = made_by.get(x)
        if op is not None and op.kind == "Affine" and op.inputs[0] == y:
            return op.attributes["alpha"] == -1 and op.attributes["beta"] == 1
    return False


def _sum_axis(made_by: Mapping[str, Operator], op: Operator, inputs: list[_Range], rank: int) -> int | None:
    """The axis of x / Σ x where x is at least 0."""
    if not inputs[0].is_positive:
        return None
    below = made_by.get(op.inputs[1])
    while below is not None and below.kind in ("Reshape", "Expand", "Clip", "Affine"):
        below = made_by.get(below.inputs[0])
    if below is None or below.kind not in ("ReduceSum", "ReduceL1") or below.inputs[0] != op.inputs[0]:
        return None
    axes = tuple_of(below, "axes")
    return axes[0] % rank if len(axes) == 1 else None


# --- by a run ---------------------------------------------------------------------------------------------------------


def _probed(graph: Graph, names: list[str]) -> dict[str, int]:
    """The axis of sum one of those outputs that show one at random inputs, whatever the inputs."""
    names = [n for n in names if may_be(graph, n)]
    operators = needed(graph, names)
    if not operators:
        return {}
    random = np.random.default_rng(0)
    inputs = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        is_float = tensor.dtype is DType.F32
        inputs[name] = random.standard_normal(tensor.shape) if is_float else np.zeros(tensor.shape)
    outputs = run(graph, operators, inputs)
    axes = {}
    for name in names:
        array = outputs.get(name)
        axis = None if array is None else axis_of_sum_one(array)
        if array is not None and axis is not None and np.unique(np.round(array, 4)).size > 2:
            axes[name] = axis
    return axes


def needed(graph: Graph, names: list[str]) -> list[Operator]:
    """The operators that make `names`; none where they would compute too much."""
    needed, operators = set(names), []
    for op in reversed(graph.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            operators.append(op)
    elements = sum(graph.tensors[t].type.elements for op in operators for t in op.outputs)
    return operators[::-1] if elements <= _LARGEST else []


def _may_be_bounded(graph: Graph, made_by: Mapping[str, Operator], name: str) -> bool:
    op = made_by.get(name)
    while op is not None and (spec(op.kind).is_view or op.kind in _MOVES):
        op = made_by.get(op.inputs[0])
    if op is None or op.kind in _UNBOUNDED:
        return False
    if op.kind in ("Add", "Sub"):
        return all(t not in graph.values and _may_be_bounded(graph, made_by, t) for t in op.inputs)
    return True


def run(graph: Graph, operators: list[Operator], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors that `operators` make from `inputs`, by the reference numerics; none where one cannot be computed."""
    held = {n: np.asarray(a).astype(graph.tensors[n].dtype.numpy) for n, a in inputs.items() if n in graph.tensors}
    held |= {n: np.asarray(materialize(v, graph.tensors[n].type)) for n, v in graph.values.items()}
    with np.errstate(all="ignore"):
        for op in operators:
            try:
                results = spec(op.kind).evaluate(bind(op, graph.tensors), [held[t] for t in op.inputs])
            except (ValueError, IndexError, KeyError, TypeError, ArithmeticError):
                return {}  # such as an index that random inputs do not have
            for name, result in zip(op.outputs, results, strict=True):
                held[name] = np.asarray(result).astype(graph.tensors[name].dtype.numpy)
    return held
