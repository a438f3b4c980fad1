"""A QDQ model as a graph on codes of 8 bits, for QAS (Lin et al. 2022): the result of `frontend.load(quantized=True)`.

A layer between DequantizeLinear and QuantizeLinear becomes one operator on codes. A rectifier between them becomes its
bounds. A weight keeps its name and becomes i8; its scales, one for each output, are the constant NAME:scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poetc.errors import UnsupportedModelError
from poetc.graph import Array, Attribute, DType, Graph, Operator, Role, TensorType, materialize
from poetc.ops import Builder
from poetc.ops._affine import HIGHEST, LOWEST, Codes
from poetc.ops.qlinear_layers import MOST_BIAS

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

SCALES = ":scale"  # suffix of the scales of a weight
_RECTIFIERS = ("Relu", "Clip")
_RELU6 = 6.0
_UNKNOWN = ("optimizer", "weight_decay", "weight_decay_for", "lora", "accumulate", "dropout", "new_head")  # options
_WHOLE = 1e-3  # how far a stored integer may be from its number over the scale


def quantized_model(graph: Graph, options: TrainingOptions) -> Graph:
    """`graph` on codes. UnsupportedModelError names a node that has no such form, and the way out."""
    options.refuse(*_UNKNOWN, reason="--precision qas has no form of it")
    return _Model(graph).build()


def real_values(graph: Graph, state: Mapping[str, Array]) -> dict[str, Array]:
    """The real numbers of trained codes, in the shapes of the file. `graph` is the one on codes, `state` by its names.

    A weight of a dense layer has the shape [outputs, inputs, 1, 1] here; `poetc export` gives it the file's.
    """
    values: dict[str, Array] = {}
    for op in graph.operators:
        if op.kind != "QLinearConv":
            continue
        scales = materialize(graph.values[op.inputs[2]], graph.tensors[op.inputs[2]].type).astype(np.float32)
        w, bias = op.inputs[1], op.inputs[3] if len(op.inputs) > 3 else ""
        if w in state:
            values[w] = state[w].astype(np.float32) * scales.reshape(-1, 1, 1, 1)
        if bias in state:
            unit = np.float32(op.attributes["x_scale"]) * scales  # type: ignore[arg-type]
            values[bias] = state[bias].astype(np.float32) * unit
    return values


def file_values(original: Graph, graph: Graph, state: Mapping[str, Array]) -> dict[str, Array]:
    """`real_values` in the shapes of `original`, the graph of the file."""
    values = real_values(graph, state)
    for op in original.operators:
        if op.kind == "MatMul" and op.inputs[1] in values:
            w = values[op.inputs[1]]
            shape = original.tensors[op.inputs[1]].shape
            values[op.inputs[1]] = np.ascontiguousarray(
                w.reshape(shape) if op.attributes.get("trans_b") else w.reshape(shape[1], shape[0]).T
            )
    return values


@dataclass(frozen=True, slots=True)
class _Coded:
    """A tensor of codes that stands for a float one."""

    tensor: str
    codes: Codes


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An operator whose result is not quantised yet, and the bounds of rectifiers behind it.

    `shape`: of the result, where it is another one than the operator's.
    """

    op: Operator
    low: float = -math.inf
    high: float = math.inf
    shape: tuple[int, ...] | None = None


class _Model:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, Builder()
        self.coded: dict[str, _Coded] = {}  # float tensor -> its codes
        self.of_codes: dict[str, _Coded] = {}  # output of a QuantizeLinear of the file -> codes
        self.waiting: dict[str, _Waiting] = {}
        self.floats: set[str] = set()  # float tensors that are made
        self.scales: dict[str, str] = {}  # weight -> its scales
        self.turned: dict[str, bool] = {}  # weight of a dense layer -> whether its codes are the matrix transposed
        self.units: dict[str, float] = {}  # bias -> the scale of the input that it was rounded for
        self.notes = list(graph.notes)

    def build(self) -> Graph:
        graph, b = self.graph, self.b
        layers = {t for op in graph.operators if op.kind in _FORMS for t in op.inputs[1:]}
        for name, tensor in graph.tensors.items():
            if tensor.role is Role.INPUT or (self._is_stored(name) and name not in layers):
                b.add_tensor(name, tensor.type, tensor.role, graph.values.get(name))
                if codes := self._input_codes(name):
                    self.of_codes[name] = _Coded(name, codes)
                else:
                    self.floats.add(name)
            elif name in graph.outputs:
                b.fresh(name)
        for op in graph.operators:
            b.source = op.source
            self._one(op)
        for output in graph.outputs:
            if output in self.of_codes:
                raise UnsupportedModelError(
                    f"{graph.name}: --precision qas: output {output!r} holds integers; let DequantizeLinear follow"
                )
            self._float(output, None)
        if not self.scales:
            raise UnsupportedModelError(f"{graph.name}: --precision qas found no quantised convolution or dense layer")
        used = {t for op in b.operators for t in (*op.inputs, *op.outputs)} | set(graph.inputs)
        return Graph(
            name=graph.name,
            tensors={n: t for n, t in b.tensors.items() if n in used},
            operators=tuple(b.operators),
            inputs=graph.inputs,
            outputs=graph.outputs,
            values={n: v for n, v in b.values.items() if n in used},
            notes=tuple(dict.fromkeys(self.notes)),
            origins={n: replace(o, scale=()) for n, o in graph.origins.items() if n in used},
        )

    def _input_codes(self, tensor: str) -> Codes | None:
        """The codes of an input that is given as integers, which DequantizeLinear reads; None for other tensors."""
        if self.graph.tensors[tensor].role is not Role.INPUT or self.graph.tensors[tensor].dtype is not DType.I8:
            return None
        readers = [op for op in self.graph.operators if tensor in op.inputs]
        return _codes(readers[0]) if readers and readers[0].kind == "DequantizeLinear" else None

    def _one(self, op: Operator) -> None:
        if op.kind == "QuantizeLinear":
            self._quantize(op)
        elif op.kind == "DequantizeLinear" and op.inputs[0] in self.of_codes:
            self._dequantize(op)
        elif read := next((t for t in op.inputs if self.graph.tensors[t].dtype is DType.I8), None):
            way = "put DequantizeLinear in front of it, and QuantizeLinear behind"
            raise self._refused(op, f"reads the integers {read!r} themselves", way)
        elif op.kind in _FORMS and op.inputs[0] in self.coded:
            bounds = _bounds(op) if op.kind in _RECTIFIERS else ()
            self.waiting[op.outputs[0]] = _Waiting(op, *bounds)
        elif op.kind in _RECTIFIERS and op.inputs[0] in self.waiting and self._readers(op.inputs[0]) == 1:
            before, (low, high) = self.waiting[op.inputs[0]], _bounds(op)
            self.waiting[op.outputs[0]] = replace(before, low=max(low, before.low), high=min(high, before.high))
        elif op.kind == "Reshape" and op.inputs[0] in self.waiting and self._readers(op.inputs[0]) == 1:
            self.waiting[op.outputs[0]] = replace(
                self.waiting[op.inputs[0]], shape=self.graph.tensors[op.outputs[0]].shape
            )
        elif op.kind in ("MaxPool", "Reshape", "DropoutSite") and op.inputs[0] in self.coded:
            self._carry(op)
        else:
            self._floating(op)

    def _readers(self, tensor: str) -> int:
        return sum(tensor in op.inputs for op in self.graph.operators) + (tensor in self.graph.outputs)

    def _dequantize(self, op: Operator) -> None:
        """The codes stand for the numbers that this node says, whatever made them."""
        coded, codes = self.of_codes[op.inputs[0]], _codes(op)
        if coded.tensor in self.floats and coded.codes != codes:
            raise self._refused(op, "has another scale than the QuantizeLinear before it")
        self.coded[op.outputs[0]] = _Coded(coded.tensor, codes)

    def _quantize(self, op: Operator) -> None:
        (x,), (y,) = op.inputs, op.outputs
        codes = _codes(op)
        if x in self.waiting:
            self.of_codes[y] = self._emitted(self.waiting[x], codes, y)
        elif x in self.coded and self.coded[x].codes == codes:
            self.of_codes[y] = self.coded[x]
        elif x in self.coded:
            held = self.coded[x]
            attributes = {**held.codes.attributes("x_"), **codes.attributes()}
            (tensor,) = self.b.emit("QLinearRescale", [held.tensor], attributes, outputs=[y])
            self.of_codes[y] = _Coded(tensor, codes)
        elif self._is_behind_the_last(y):
            self.notes.append("the numbers behind the last layer stay floats")
            self.of_codes[y] = _Coded(x, codes)
        else:
            (tensor,) = self.b.emit("QuantizeLinear", [self._float(x, op)], codes.attributes(), outputs=[y])
            self.of_codes[y] = _Coded(tensor, codes)

    def _is_behind_the_last(self, codes: str) -> bool:
        """Whether codes of floats (of a softmax) are read by no layer any more."""
        return {"DequantizeLinear", "QuantizeLinear", "Reshape"}.issuperset(self._kinds_behind(codes))

    def _emitted(self, waiting: _Waiting, codes: Codes, output: str) -> _Coded:
        """The operator on codes, with the bounds of its rectifiers as codes."""
        low, high = waiting.low, waiting.high
        ends = (codes.scale * (LOWEST - codes.zero), codes.scale * (HIGHEST - codes.zero))
        if ends[0] == 0 and self._may_be_negative(
            waiting.op
        ):  # an exporter leaves out a rectifier that the range of the codes stands for
            low = max(low, 0.0)
            high = min(high, _RELU6) if abs(ends[1] - _RELU6) <= codes.scale / 2 else high
        bounds: dict[str, Attribute] = {
            "low": LOWEST if low == -math.inf else codes.code(low),
            "high": HIGHEST if high == math.inf else codes.code(high),
            "stops_low": int(low > -math.inf),
            "stops_high": int(high < math.inf),
        }
        form, attributes = _FORMS[waiting.op.kind], {**codes.attributes(), **bounds}
        if waiting.shape is None:
            return _Coded(form(self, waiting.op, attributes, output), codes)
        flat = form(self, waiting.op, attributes, self.b.fresh(f"{output}:flat"))
        return _Coded(self.b.emit("Reshape", [flat], {"shape": waiting.shape}, outputs=[output])[0], codes)

    def _may_be_negative(self, op: Operator) -> bool:
        """Whether the exact result of an operator may stand below zero."""
        return op.kind in ("Conv", "MatMul") or any(
            self.coded[t].codes.zero != LOWEST for t in op.inputs if t in self.coded
        )

    def _carry(self, op: Operator) -> None:
        """An operator that passes codes on in their scale."""
        held, y = self.coded[op.inputs[0]], op.outputs[0]
        if op.kind == "MaxPool":
            outputs = [self.b.fresh(f"{y}:q"), self.b.fresh(f"{y}:where")]
            tensor = self.b.emit("QLinearMaxPool", [held.tensor], op.attributes, outputs=outputs)[0]
        else:
            shape = self.graph.tensors[y].shape
            tensor = self.b.emit1("Reshape", [held.tensor], {"shape": shape}, hint=f"{y}:q")
        self.coded[y] = _Coded(tensor, held.codes)

    def _floating(self, op: Operator) -> None:
        """An operator on floats in front of the first layer, or behind the last one."""
        if any(self.graph.tensors[t].role is Role.PARAMETER for t in op.inputs):
            raise self._refused(op, "has weights and stands apart from DequantizeLinear and QuantizeLinear")
        inputs = [t if self._is_stored(t) else self._float(t, op) for t in op.inputs]
        if self.scales and not {"Conv", "MatMul"}.isdisjoint(self._kinds_behind(*op.outputs)):  # a layer follows
            raise self._refused(op, "has no form on codes")
        self.b.emit(op.kind, inputs, op.attributes, outputs=op.outputs)
        self.floats.update(op.outputs)

    def _kinds_behind(self, *tensors: str) -> set[str]:
        """The kinds of all operators that depend on these tensors."""
        reached, kinds = set(tensors), set[str]()
        for op in self.graph.operators:
            if not reached.isdisjoint(op.inputs):
                kinds.add(op.kind)
                reached.update(op.outputs)
        return kinds

    def _float(self, tensor: str, reader: Operator | None) -> str:
        """A tensor as floats."""
        if tensor in self.floats:
            return tensor
        if tensor in self.waiting:
            op = self.waiting[tensor].op
            behind = f", and {_node(reader)} reads it" if reader is not None else ""
            raise self._refused(op, f"is not followed by QuantizeLinear{behind}", "quantise its result too")
        held = self.coded[tensor]
        if held.tensor in self.floats:  # codes that were never made
            name = self.b.emit("Reshape", [held.tensor], {"shape": self.graph.tensors[tensor].shape}, outputs=[tensor])
        else:
            name = self.b.emit("DequantizeLinear", [held.tensor], held.codes.attributes(), outputs=[tensor])
        self.floats.add(name[0])
        return name[0]

    def _is_stored(self, name: str) -> bool:
        return self.graph.tensors[name].role not in (Role.INPUT, Role.ACTIVATION)

    def _refused(self, op: Operator, why: str, way: str = "") -> UnsupportedModelError:
        ways = {"BatchNormApply": "fold batch norms before quantising (quant_pre_process does)"}
        way = way or ways.get(op.kind, "quantise Conv, Gemm, MatMul, Relu, Clip, Add and pools alone")
        return UnsupportedModelError(f"{self.graph.name}: --precision qas: {_node(op)} {why}; {way}, or train in f32")

    # --- weights ------------------------------------------------------------------------------------------------------

    def weights(self, op: Operator, outputs: int, x: Codes) -> list[str]:
        """The weight of a layer as [outputs, inputs, kernel...], its scales and its bias."""
        name, bias = op.inputs[1], op.inputs[2] if len(op.inputs) > 2 else ""
        for parameter in filter(None, (name, bias)):
            if not self._is_stored(parameter):
                raise self._refused(op, f"has a computed weight {parameter!r}")
        turned = op.kind == "MatMul" and not op.attributes.get("trans_b")
        if name not in self.scales:
            self.scales[name], self.turned[name] = self._weight(op, outputs), turned
        elif self.b.type(name).shape[0] != outputs or self.turned[name] != turned:
            raise self._refused(op, f"shares its weight {name!r} in another form")
        names = [name, self.scales[name]]
        if bias:
            if self.units.setdefault(bias, x.scale) != x.scale:
                raise self._refused(op, f"shares its bias {bias!r} with a layer of another scale")
            if bias not in self.b.tensors:
                self._bias(op, bias, self._values(self.scales[name]) * np.float32(x.scale))
            names.append(bias)
        return names

    def _values(self, name: str) -> Array:
        held = self.b.values.get(name, self.graph.values.get(name))
        type = self.b.type(name) if name in self.b.tensors else self.graph.tensors[name].type
        assert held is not None
        return materialize(held, type)

    def _weight(self, op: Operator, outputs: int) -> str:
        name, origin = op.inputs[1], self.graph.origins.get(op.inputs[1])
        if origin is None or not origin.scale:
            raise self._refused(op, f"has a float weight {name!r}", "quantise its weight too")
        values = self._values(name).astype(np.float64)
        if op.kind == "MatMul":
            values = (values if op.attributes.get("trans_b") else values.T).reshape(outputs, -1, 1, 1)
        stored = np.array(origin.scale, np.float32)
        if stored.size not in (1, outputs):
            raise self._refused(op, f"has {stored.size} scales for {outputs} outputs of {name!r}")
        if not (stored > 0).all() or not np.isfinite(stored).all():
            raise self._refused(op, f"has a scale of {name!r} that is not above 0", "quantise it again")
        scales = np.ascontiguousarray(np.broadcast_to(stored, (outputs,)), np.float32)
        over = values / scales.astype(np.float64).reshape(-1, 1, 1, 1)
        q = np.rint(over)
        if np.abs(over - q).max(initial=0) > _WHOLE:
            raise self._refused(op, f"has scales along another axis than the outputs of {name!r}")
        if q.min(initial=0) < LOWEST or q.max(initial=0) > HIGHEST:
            way = "quantise weights as QInt8, around 0"
            raise self._refused(op, f"has codes of {name!r} beyond {LOWEST} to {HIGHEST} around its zero point", way)
        role = self.graph.tensors[name].role
        self.b.add_tensor(name, TensorType(q.shape, DType.I8), role, q.astype(np.int8))
        return self.b.add_tensor(self.b.fresh(f"{name}{SCALES}"), TensorType((outputs,)), Role.CONSTANT, scales)

    def _bias(self, op: Operator, name: str, unit: Array) -> None:
        values, units = self._values(name).astype(np.float64), unit.astype(np.float64)
        if not (units > 0).all() or (np.abs(values) > MOST_BIAS * units).any():  # a product of scales may round to 0
            raise self._refused(op, f"has a bias {name!r} beyond 2^30 of its scale", "give its weight a larger scale")
        q = np.rint(values / units)
        type = TensorType(q.shape, DType.I32)
        self.b.add_tensor(name, type, self.graph.tensors[name].role, q.astype(np.int32))


def _node(op: Operator) -> str:
    return f"{op.kind} node {(op.source or op.name)!r}"


def _codes(op: Operator) -> Codes:
    return Codes(float(op.attributes["scale"]), int(op.attributes["zero"]))  # type: ignore[arg-type]


def _bounds(op: Operator) -> tuple[float, float]:
    if op.kind == "Relu":
        return 0.0, math.inf
    low, high = (float(op.attributes[k]) for k in ("min", "max"))  # type: ignore[arg-type]
    return low if low > -1e30 else -math.inf, high if high < 1e30 else math.inf


# --- forms: each emits an operator on codes whose result is `output` ------------------------------------------------


Form = Callable[[_Model, Operator, Mapping[str, Attribute], str], str]


def _conv(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    x = m.coded[op.inputs[0]]
    weights = m.weights(op, m.graph.tensors[op.outputs[0]].shape[1], x.codes)
    more = {**op.attributes, **x.codes.attributes("x_"), **attributes}
    return m.b.emit("QLinearConv", [x.tensor, *weights], more, outputs=[output])[0]


def _dense(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    """A dense layer, as a convolution of 1 x 1 images."""
    shapes = [m.graph.tensors[t].shape for t in (*op.inputs[:2], op.outputs[0])]
    if not m._is_stored(op.inputs[1]) or len(shapes[1]) != 2:
        raise m._refused(op, "is no layer with one matrix of weights")
    if op.attributes.get("trans_a") or op.attributes.get("alpha", 1.0) != 1.0:
        raise m._refused(op, "transposes or scales its input")
    x = m.coded[op.inputs[0]]
    rows, terms, outputs = math.prod(shapes[0][:-1]), shapes[0][-1], shapes[2][-1]
    image = m.b.emit1("Reshape", [x.tensor], {"shape": (rows, terms, 1, 1)}, hint=f"{x.tensor}:rows")
    more = {**x.codes.attributes("x_"), **attributes}
    y = m.b.emit1("QLinearConv", [image, *m.weights(op, outputs, x.codes)], more, hint=f"{output}:rows")
    return m.b.emit("Reshape", [y], {"shape": shapes[2]}, outputs=[output])[0]


def _add(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    shapes = {m.graph.tensors[t].shape for t in op.inputs}
    if any(t not in m.coded for t in op.inputs) or len(shapes) > 1:
        raise m._refused(op, "is no sum of two quantised activations of one shape")
    first, second = (m.coded[t] for t in op.inputs)
    more = {**first.codes.attributes("a_"), **second.codes.attributes("b_"), **attributes}
    return m.b.emit("QLinearAdd", [first.tensor, second.tensor], more, outputs=[output])[0]


def _average(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    x = m.coded[op.inputs[0]]
    more = {**op.attributes, **x.codes.attributes("x_"), **attributes}
    return m.b.emit("QLinearAveragePool", [x.tensor], more, outputs=[output])[0]


def _mean(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    """The mean of whole planes: a pool of one window."""
    shape, axes = m.graph.tensors[op.inputs[0]].shape, op.attributes["axes"]
    assert isinstance(axes, tuple)
    if len(shape) != 4 or sorted(int(a) % 4 for a in axes) != [2, 3]:
        raise m._refused(op, "takes a mean of other axes than height and width")
    x = m.coded[op.inputs[0]]
    more = {"kernel": shape[2:], **x.codes.attributes("x_"), **attributes}
    y = m.b.emit1("QLinearAveragePool", [x.tensor], more, hint=f"{output}:pooled")
    return m.b.emit("Reshape", [y], {"shape": m.graph.tensors[op.outputs[0]].shape}, outputs=[output])[0]


def _rectifier(m: _Model, op: Operator, attributes: Mapping[str, Attribute], output: str) -> str:
    x = m.coded[op.inputs[0]]
    more = {**x.codes.attributes("x_"), **attributes}
    return m.b.emit("QLinearRescale", [x.tensor], more, outputs=[output])[0]


_FORMS: dict[str, Form] = {
    "Conv": _conv,
    "MatMul": _dense,
    "Add": _add,
    "AveragePool": _average,
    "ReduceMean": _mean,
    "Relu": _rectifier,
    "Clip": _rectifier,
}
