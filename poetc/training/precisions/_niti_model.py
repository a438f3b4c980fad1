"""A float model in integers: i8 weights and activations, one exponent a tensor, after NITI (`poetc.ops._integers`).

The integer model takes the inputs and gives the outputs of the float one. A weight keeps its name; its exponent, which
never changes, is the constant NAME:exponent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from poetc.errors import UnsupportedModelError
from poetc.graph import Array, Attribute, DType, Fill, Graph, Operator, Phase, Role, TensorType, materialize
from poetc.ops import Builder, spec
from poetc.ops._integers import HISTORY, LARGEST, VALUE_BITS, Rescaling, SumTooLongError
from poetc.ops.integer_elements import MORE_BITS, upper_bits
from poetc.training._clipping import CLIPS

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

EXPONENT, SCALE = ":exponent", ":scale"  # suffixes of names
STORED = ":stored"  # of a weight: its 24 bits
_EXPONENT = TensorType((1,), DType.I32)
_LEAST_EXPONENT = -60
_UNKNOWN = (  # options
    *("optimizer", "weight_decay", "weight_decay_for", "lr_for"),
    *CLIPS,
    *("label_smoothing", "ignore_index", "class_weights", "micro_batches", "lora", "accumulate"),
)


class IntegerBuilder(Builder):
    """Gives every kind that rescales its rounding, and those of updates the learning rate."""

    def __init__(self, options: TrainingOptions) -> None:
        super().__init__()
        self.roundings = options.roundings()
        self.learning_rate = ""
        self.adapts = False  # whether products get a history
        self.histories: list[tuple[str, str]] = []  # each with the scale that it learns from
        self.scales: dict[str, list[str]] = {"activation": [], "error": [], "update": []}

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        hint: str = "",
        outputs: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        operator = spec(kind)
        if not isinstance(operator, Rescaling):
            return super().emit(kind, inputs, attributes, hint=hint, outputs=outputs)
        purpose = operator.purpose or ("error" if self.phase is Phase.BACKWARD else "activation")
        attributes = {**(attributes or {}), "rounding": self.roundings[purpose]}
        if purpose == "update":
            inputs = [*inputs, self.learning_rate]
        adapts = self.adapts and operator.may_adapt
        if adapts:
            name = self.fresh(f"{hint or (outputs[0] if outputs else kind)}:history")
            inputs = [*inputs, self.add_tensor(name, HISTORY, Role.OPTIMIZER_STATE, Fill("zeros"))]
            attributes["rescale"] = "interval"
        try:
            results = super().emit(kind, inputs, attributes, hint=hint, outputs=outputs)
        except SumTooLongError as error:
            where = f"node {self.source!r}" if self.source else kind
            raise UnsupportedModelError(f"--precision niti: {where}: {error}; or train in f32") from error
        self.scales[purpose].append(results[-1])
        if adapts:
            self.histories.append((inputs[-1], results[-1]))
        return results


def integer_model(graph: Graph, options: TrainingOptions) -> Graph:
    """`graph` with integer operators. UnsupportedModelError names a node that has no integer form, and the way out."""
    options.refuse(*_UNKNOWN, reason="has no integer form")
    return _Model(graph, options).build()


def file_values(original: Graph, graph: Graph, state: Mapping[str, Array]) -> dict[str, Array]:
    """The weights of the float model `original` from the i8 arrays of its integer model `graph`.

    Batch norms are unfolded again.
    """
    exponents = exponents_of(graph)
    values: dict[str, Array] = {}
    norms = _norms(original)
    for op in original.operators:
        if op.kind not in ("Conv", "MatMul"):
            continue
        norm = norms.get(op.outputs[0])
        factor, shift = _fold(original, op, norm)
        weight, bias = op.inputs[1], _bias_name(op, norm)
        if weight in state:
            shape = original.tensors[weight].shape
            w = _dequantized(state[weight], exponents[weight])
            if op.kind == "MatMul" and not op.attributes.get("trans_b"):
                w = w.reshape(shape[1], shape[0]).T
            elif norm is not None:
                before = materialize(original.values[weight], original.tensors[weight].type)
                safe = np.where(factor == 0, 1, factor).reshape(-1, 1, 1, 1)
                w = np.where(factor.reshape(-1, 1, 1, 1) == 0, before, w.reshape(shape) / safe)
            values[weight] = np.ascontiguousarray(w.reshape(shape), np.float32)
        if bias and bias in state:
            b = _dequantized(state[bias], exponents[bias])
            values[bias] = (b - shift if norm is not None else b).astype(np.float32)
    return values


def numbers_of(w: Array, stored: Array, exponent: int) -> Array:
    """The numbers of a weight of 24 bits, of f32, which holds them all. Where `stored` does not give w, w counts."""
    whole = np.where(upper_bits(stored) == w, stored, w.astype(np.int32) << MORE_BITS)
    return np.ldexp(whole.astype(np.float64), exponent - MORE_BITS).astype(np.float32)


def codes_of(numbers: Array, exponent: int) -> tuple[Array, Array]:
    """The nearest weight of 24 bits, as w of i8 and `stored` of i32; numbers beyond its range are clipped."""
    most = LARGEST << MORE_BITS
    stored = np.clip(np.rint(np.ldexp(numbers.astype(np.float64), MORE_BITS - exponent)), -most, most).astype(np.int32)
    return upper_bits(stored).astype(np.int8), stored


def _dequantized(q: Array, exponent: int) -> Array:
    return np.ldexp(q.astype(np.float64), exponent)


def _norms(graph: Graph) -> dict[str, Operator]:
    """Batch norms by the output of the convolution that they alone read."""
    readers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)
    return {
        op.outputs[0]: readers[op.outputs[0]][0]
        for op in graph.operators
        if op.kind == "Conv"
        and op.outputs[0] not in graph.outputs
        and [r.kind for r in readers.get(op.outputs[0], ())] == ["BatchNormApply"]
        and all(t in graph.values for t in readers[op.outputs[0]][0].inputs[1:])
    }


def _fold(graph: Graph, op: Operator, norm: Operator | None) -> tuple[Any, Any]:
    """The factors on the weight of each output, and the summands on the shift of the norm, in doubles."""

    def value(name: str) -> Any:
        return materialize(graph.values[name], graph.tensors[name].type).astype(np.float64)

    if norm is None:
        return 1.0, 0.0
    _, mean, var, scale, _ = norm.inputs
    epsilon = float(norm.attributes.get("epsilon", 1e-5))  # type: ignore[arg-type]
    factor = value(scale) / np.sqrt(value(var) + epsilon)
    bias = value(op.inputs[2]) if len(op.inputs) > 2 else 0.0
    return factor, (bias - value(mean)) * factor


def _bias_name(op: Operator, norm: Operator | None) -> str:
    if norm is not None:
        return norm.inputs[4]
    return op.inputs[2] if len(op.inputs) > 2 else ""


class _Model:
    def __init__(self, graph: Graph, options: TrainingOptions) -> None:
        self.graph, self.options = graph, options
        self.b = IntegerBuilder(options)
        self.norms = _norms(graph)
        self.pairs: dict[str, tuple[str, str]] = {}  # float tensor -> its values and scale
        self.blame: dict[str, Operator] = {}  # float tensor that integers were turned into -> the operator to name
        self.notes = list(graph.notes)

    def build(self) -> Graph:
        b, graph = self.b, self.graph
        self._declare()
        for op in graph.operators:
            b.source = op.source
            if op.kind == "BatchNormApply" and op.inputs[0] in self.norms:
                continue  # its convolution has it
            emit = _FORMS.get(op.kind)
            inputs = [t for t in op.inputs if not self._is_stored(t)]
            if inputs and not any(t in self.pairs or t in self.blame for t in inputs) and not self._has_weights(op):
                self._declare_constants(op)
                b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)  # before the first layer
            elif emit is None or not emit(self, op):
                self._floating(op)
        outputs = tuple(self._float(name) for name in graph.outputs)
        if not any(self.graph.tensors[t].role is Role.PARAMETER for t in self.b.tensors if t in self.graph.tensors):
            raise UnsupportedModelError(f"{graph.name}: --precision niti found no convolution or dense layer to train")
        used = {t for op in b.operators for t in (*op.inputs, *op.outputs)} | set(graph.inputs)
        return Graph(
            name=graph.name,
            tensors={n: t for n, t in b.tensors.items() if n in used},
            operators=tuple(b.operators),
            inputs=graph.inputs,
            outputs=outputs,
            values={n: v for n, v in b.values.items() if n in used},
            notes=tuple(self.notes),
            origins={n: o for n, o in graph.origins.items() if n in used},
        )

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _declare(self) -> None:
        """Inputs and float constants keep their names; outputs and weights have theirs reserved."""
        layers = {t for op in self.graph.operators if op.kind in ("Conv", "MatMul") for t in op.inputs[1:]}
        layers |= {t for norm in self.norms.values() for t in norm.inputs[1:]}
        for name, tensor in self.graph.tensors.items():
            if tensor.role is Role.INPUT or (self._is_stored(name) and name not in layers):
                self.b.add_tensor(name, tensor.type, tensor.role, self.graph.values.get(name))
            elif name in self.graph.outputs:
                self.b.fresh(name)

    def _declare_constants(self, op: Operator) -> None:
        """Those of a product that stays in floats, such as a Fourier transform."""
        for name in op.inputs:
            if self._is_stored(name) and name not in self.b.tensors:
                self.b.add_tensor(name, self.graph.tensors[name].type, Role.CONSTANT, self.graph.values.get(name))

    def _is_stored(self, name: str) -> bool:
        return self.graph.tensors[name].role not in (Role.INPUT, Role.ACTIVATION)

    def _has_weights(self, op: Operator) -> bool:
        return any(self.graph.tensors[t].role is Role.PARAMETER for t in op.inputs)

    def _name(self, tensor: str) -> str:
        return f"{tensor}:q" if tensor in self.graph.outputs else tensor

    def _emit(self, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute], tensor: str) -> None:
        """Emit an operator whose first output stands for the float `tensor` and whose last is its scale."""
        name = self._name(tensor)
        outputs = self.b.emit(kind, inputs, attributes, outputs=[name, f"{name}{SCALE}"])
        self.pairs[tensor] = outputs[0], outputs[1]

    def _pair(self, tensor: str, reader: Operator) -> tuple[str, str]:
        """Values and scale of an activation. UnsupportedModelError for one that left the integers before."""
        if tensor in self.pairs:
            return self.pairs[tensor]
        if tensor in self.blame:
            raise self._refused(self.blame[tensor], f"and {_node(reader)} follows it")
        hint = f"{tensor}:q"
        outputs = self.b.emit("Quantize", [tensor], outputs=[self.b.fresh(hint), self.b.fresh(f"{hint}{SCALE}")])
        self.pairs[tensor] = outputs[0], outputs[1]
        return self.pairs[tensor]

    def _float(self, tensor: str) -> str:
        """An activation as floats."""
        if (tensor in self.pairs and tensor not in self.b.tensors) or self._is_integer(tensor):
            name = tensor if tensor not in self.b.tensors else self.b.fresh(f"{tensor}:float")
            if name in self.blame:
                return name
            self.b.emit("Dequantize", self.pairs[tensor], outputs=[name])
            self.blame[name] = Operator(name, "Dequantize", (), ())
            return name
        return tensor

    def _is_integer(self, tensor: str) -> bool:
        return tensor in self.b.tensors and self.b.type(tensor).dtype is DType.I8

    def _floating(self, op: Operator) -> None:
        """An operator behind the last layer, in floats."""
        if self._has_weights(op):
            raise self._refused(op, "and it has weights")
        self._declare_constants(op)
        inputs = [t if self._is_stored(t) else self._float(t) for t in op.inputs]
        self.b.emit(op.kind, inputs, op.attributes, outputs=op.outputs)
        self.blame.update(dict.fromkeys(op.outputs, op))

    def _refused(self, op: Operator, why: str) -> UnsupportedModelError:
        ways = {
            "BatchNormApply": "put it directly behind a convolution, so that it can be folded",
            "ConvTranspose": "use Resize and Conv in its place",
        }
        way = ways.get(op.kind, "use Relu, Clip(0, c), Conv, Gemm, MaxPool, AveragePool, Concat or Add in its place")
        return UnsupportedModelError(
            f"{self.graph.name}: --precision niti: {_node(op)} has no integer form, {why}; {way}, or train in f32"
        )

    # --- weights ------------------------------------------------------------------------------------------------------

    def weights(self, op: Operator, outputs: int) -> list[str]:
        """Weight and bias of a layer as pairs; the weight as [outputs, inputs, kernel...]."""
        name, norm = op.inputs[1], self.norms.get(op.outputs[0])
        bias = _bias_name(op, norm)
        tensor = self.graph.tensors[name]
        for parameter in (name, bias):
            if parameter and not self._is_stored(parameter):
                of_one_axis = " (a convolution along one axis takes part as one of images of height 1)"
                raise self._refused(
                    op, f"since its weight {parameter!r} is computed{of_one_axis if op.kind == 'Conv' else ''}"
                )
            if parameter in self.b.tensors:
                raise self._refused(op, f"since it shares its weight {parameter!r} with another layer")
        values = materialize(self.graph.values[name], tensor.type).astype(np.float64)
        if op.kind == "MatMul":
            values = (values if op.attributes.get("trans_b") else values.T).reshape(outputs, -1, 1, 1)
        factor, shift = _fold(self.graph, op, norm)
        values = values * np.reshape(factor, (-1, 1, 1, 1))
        shape = values.shape
        if self.options.niti_weights == "xavier":
            fan = (shape[0] + shape[1]) * math.prod(shape[2:])
            limit = math.sqrt(6 / fan)
            drawn = Fill("uniform", -limit, limit, f"niti:{name}")
            floats = materialize(drawn, TensorType(shape)).astype(np.float64)
            q, e = _drawn(floats)
        else:
            q, e = quantized_weight(values)
        pairs = [*self._weight(name, q, e, tensor.role)]
        if bias:
            role = self.graph.tensors[bias].role
            numbers = materialize(self.graph.values[bias], self.graph.tensors[bias].type).astype(np.float64) + shift
            if self.options.niti_weights == "xavier":
                numbers = np.zeros(outputs)
            pairs += self._weight(bias, *quantized_weight(numbers, least=e), role)
        return pairs

    def _weight(self, name: str, q: Array, exponent: int, role: Role) -> tuple[str, str]:
        self.b.add_tensor(name, TensorType(q.shape, DType.I8), role, q)
        value = np.array([exponent], np.int32)
        return name, self.b.add_tensor(f"{name}{EXPONENT}", _EXPONENT, Role.CONSTANT, value)


def quantized_weight(values: Array, least: int = _LEAST_EXPONENT) -> tuple[Array, int]:
    """Weights as i8 and their exponent, which is ceil(log2 max) - 7 and at least `least`; halves go to even."""
    largest = float(np.abs(values).max(initial=0))
    mantissa, power = math.frexp(largest)
    exponent = max(least, power - (mantissa == 0.5) - VALUE_BITS if largest else least)
    q = np.clip(np.rint(np.ldexp(values, -exponent)), -LARGEST, LARGEST)
    return q.astype(np.int8), exponent


def _drawn(values: Array) -> tuple[Array, int]:
    """NITI's: q = round(127 · W / max|W|), e = ceil(log2 max|W|) - 7."""
    largest = float(np.abs(values).max())
    return np.rint(LARGEST * values / largest).astype(np.int8), math.ceil(math.log2(largest)) - VALUE_BITS


def _node(op: Operator) -> str:
    return f"{op.kind} node {(op.source or op.name)!r}"


# --- forms: each emits an operator in integers, or returns False where it has no integer form -----------------------


def _conv(m: _Model, op: Operator) -> bool:
    x, scale = m._pair(op.inputs[0], op)
    norm = m.norms.get(op.outputs[0])
    outputs = m.graph.tensors[op.outputs[0]].shape[1]
    tensor = norm.outputs[0] if norm is not None else op.outputs[0]
    m._emit("IntegerConv", [x, scale, *m.weights(op, outputs)], op.attributes, tensor)
    return True


def _dense(m: _Model, op: Operator) -> bool:
    """A dense layer, as a convolution of 1 x 1 images."""
    shapes = [m.graph.tensors[t].shape for t in (*op.inputs[:2], op.outputs[0])]
    if m._is_stored(op.inputs[0]) or not m._is_stored(op.inputs[1]) or len(shapes[1]) != 2:
        raise m._refused(op, "since it is no layer with one matrix of weights")
    if op.attributes.get("trans_a") or op.attributes.get("alpha", 1.0) != 1.0:
        raise m._refused(op, "since it transposes or scales its input")
    x, scale = m._pair(op.inputs[0], op)
    rows, terms, outputs = math.prod(shapes[0][:-1]), shapes[0][-1], shapes[2][-1]
    name = m._name(op.outputs[0])
    image = m.b.emit1("Reshape", [x], {"shape": (rows, terms, 1, 1)}, hint=f"{x}:rows")
    y, scale = m.b.emit(
        "IntegerConv",
        [image, scale, *m.weights(op, outputs)],
        outputs=[m.b.fresh(f"{name}:rows"), m.b.fresh(f"{name}{SCALE}")],
    )
    m.b.emit("Reshape", [y], {"shape": shapes[2]}, outputs=[name])
    m.pairs[op.outputs[0]] = name, scale
    return True


def _relu(m: _Model, op: Operator) -> bool:
    limit = 0.0
    if op.kind == "Clip":
        low, high = (float(op.attributes[k]) for k in ("min", "max"))  # type: ignore[arg-type]
        if low != 0 or not high > 0:
            return False
        limit = high if high < 1e30 else 0.0
    return _same_scale(m, op, "IntegerRelu", {"limit": limit}, has_scale=True)


def _same_scale(
    m: _Model, op: Operator, kind: str, attributes: Mapping[str, Attribute], *, has_scale: bool = False
) -> bool:
    x, scale = m._pair(op.inputs[0], op)
    name = m._name(op.outputs[0])
    outputs = [name, *(m.b.fresh(f"{name}:{i}") for i in range(1, len(op.outputs)))]
    m.b.emit(kind, [x, scale] if has_scale else [x], attributes, outputs=outputs)
    m.pairs[op.outputs[0]] = name, scale
    return True


def _view(m: _Model, op: Operator) -> bool:
    return _same_scale(m, op, op.kind, op.attributes)


def _dropout(m: _Model, op: Operator) -> bool:
    """A dropout of the integers, and a copy of their exponent: training scales both."""
    x, scale = m._pair(op.inputs[0], op)
    name = m._name(op.outputs[0])
    m.b.emit(op.kind, [x], op.attributes, outputs=[name])
    m.b.emit("Reshape", [scale], {"shape": m.b.type(scale).shape}, outputs=[f"{name}{SCALE}"])
    m.pairs[op.outputs[0]] = name, f"{name}{SCALE}"
    return True


def _max_pool(m: _Model, op: Operator) -> bool:
    return _same_scale(m, op, "IntegerMaxPool", op.attributes)


def _average_pool(m: _Model, op: Operator) -> bool:
    m._emit("IntegerAveragePool", m._pair(op.inputs[0], op), op.attributes, op.outputs[0])
    return True


def _mean(m: _Model, op: Operator) -> bool:
    """The mean of whole planes: a pool of one window."""
    shape, axes = m.graph.tensors[op.inputs[0]].shape, op.attributes["axes"]
    assert isinstance(axes, tuple)
    if len(shape) != 4 or sorted(int(a) % 4 for a in axes) != [2, 3]:
        return False
    x, scale = m._pair(op.inputs[0], op)
    name = m._name(op.outputs[0])
    y, scale = m.b.emit(
        "IntegerAveragePool",
        [x, scale],
        {"kernel": shape[2:]},
        outputs=[m.b.fresh(f"{name}:pooled"), m.b.fresh(f"{name}{SCALE}")],
    )
    m.b.emit("Reshape", [y], {"shape": m.graph.tensors[op.outputs[0]].shape}, outputs=[name])
    m.pairs[op.outputs[0]] = name, scale
    return True


def _add(m: _Model, op: Operator) -> bool:
    shapes = {m.graph.tensors[t].shape for t in op.inputs}
    if any(m._is_stored(t) for t in op.inputs) or len(shapes) > 1:
        return False
    m._emit("IntegerAdd", [t for i in op.inputs for t in m._pair(i, op)], {}, op.outputs[0])
    return True


def _concat(m: _Model, op: Operator) -> bool:
    """The inputs under one exponent, then one behind the other."""
    if any(m._is_stored(t) for t in op.inputs):
        return False
    pairs = [m._pair(t, op) for t in op.inputs]
    name, scales = m._name(op.outputs[0]), [scale for _, scale in pairs]
    aligned = []
    for q, scale in pairs:
        outputs = [m.b.fresh(f"{name}:part"), m.b.fresh(f"{name}:part{SCALE}")]
        aligned.append(m.b.emit("IntegerAlign", [q, scale, *scales], outputs=outputs))
    m.b.emit("Concat", [q for q, _ in aligned], op.attributes, outputs=[name])
    m.pairs[op.outputs[0]] = name, aligned[0][1]
    return True


def _in_floats(m: _Model, op: Operator) -> bool:
    """An operator without an integer form, between floats that are made of integers and become such again."""
    name = m._name(op.outputs[0])
    x, y = (m.b.fresh(f"{t}:float") for t in (op.inputs[0], name))
    m.b.emit("Dequantize", m._pair(op.inputs[0], op), outputs=[x])
    m.b.emit(op.kind, [x], op.attributes, outputs=[y])
    m._emit("Quantize", [y], {}, op.outputs[0])
    return True


_FORMS = {
    "Concat": _concat,
    "Conv": _conv,
    "MatMul": _dense,
    "Relu": _relu,
    "Clip": _relu,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "ReduceMean": _mean,
    "Add": _add,
    "Reshape": _view,
    "DropoutSite": _dropout,
    "Lrn": _in_floats,
}


def exponents_of(graph: Graph) -> dict[str, int]:
    """The exponent of each weight of an integer model."""
    return {
        name.removesuffix(EXPONENT): int(materialize(value, graph.tensors[name].type)[0])
        for name, value in graph.values.items()
        if name.endswith(EXPONENT)
    }
