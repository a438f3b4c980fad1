"""Quantised models become float models: integers between operators give way to the real numbers that they stand for.

A quantised tensor keeps its name and holds scale · (q - zero) instead of q, without rounding. An exporter leaves out a
ReLU where the integers cannot stand for less than 0. That range is a ReLU, which the float model needs again.
Weights stay integers behind `DequantizeLinear`, of which the importer makes f32 parameters.
`_quantized_forms` has the float form of each operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import _folding
from poetc.frontend._names import free_name
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._reading import external_location, is_external, one_line, read_tensor
from poetc.frontend._values import constant
from poetc.graph import Array

# The widest constant whose numbers are asked for: a scale for each channel.
_MOST_ELEMENTS = 2**20
_RELU6 = 6.0
STANDARD = ("", "ai.onnx")
DOMAINS = (*STANDARD, "com.microsoft")

# Operators that pass real numbers on as they pass on the integers that stand for them.
CARRIERS = frozenset(
    {
        "Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
        "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice",
        "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample", "Where",
    }
)  # fmt: skip
# Their results are not the tensor's numbers: its shape, or places in it.
_READERS = frozenset({"Shape", "Size", "ArgMax", "ArgMin"})
_MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
_UP_TO_ONE = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})


@dataclass(frozen=True, slots=True)
class Quantization:
    """The integers q of a tensor stand for scale · (q - zero). One number each, or one for each index along an axis.

    `lowest` and `highest` are those of the integer type, None for another type.
    """

    scale: Array
    zero: Array
    lowest: int | None = None
    highest: int | None = None

    @property
    def is_scalar(self) -> bool:
        return self.scale.size == 1 and self.zero.size == 1

    def is_same(self, other: Quantization) -> bool:
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)

    def real(self, q: float) -> float:
        """The number that the integer stands for. Only of one scale for the whole tensor."""
        return float(self.scale) * (q - float(self.zero))


# Operators whose weight alone is quantised, and its place among their inputs.
CODES = {"MatMulNBits": 1, "GatherBlockQuantized": 0}
INTEGERS = ".integers"  # behind the name of a weight: its codes, one number each

Form = Callable[["Floats", Node], None]
FORMS: dict[str, Form] = {}
FLOAT_TOO: set[str] = set()  # those that float models have as well


def form(*names: str, of_floats_too: bool = False) -> Callable[[Form], Form]:
    """Registers the float form of operators, of the default domain or of com.microsoft."""

    def add(function: Form) -> Form:
        FORMS.update(dict.fromkeys(names, function))
        FLOAT_TOO.update(names if of_floats_too else ())
        return function

    return add


class Floats:
    """A graph that is rewritten node by node, in the file's order."""

    def __init__(self, model: onnx.ModelProto, folder: Path, moved: Collection[str] | None = None) -> None:
        """`moved`: the stored integers that change; None: all of them. Codes of others are left to their operators."""
        self.moved = None if moved is None else {name.split(INTEGERS)[0] for name in moved}
        self.graph, self.folder = model.graph, folder
        self.opset = next((o.version for o in model.opset_import if o.domain in STANDARD), 13)
        if all(o.domain not in STANDARD for o in model.opset_import):
            model.opset_import.add(domain="", version=self.opset)
        self.source = [Node(n) for n in model.graph.node]
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.makers = {o: n for n in self.source for o in n.outputs if o}
        self.readers: dict[str, list[Node]] = {}
        for n in self.source:
            for i in dict.fromkeys(n.inputs):
                self.readers.setdefault(i, []).append(n)
        self.inputs = {i.name for i in model.graph.input}
        self.outputs = {o.name for o in model.graph.output}
        self.names = {*self.makers, *self.initializers, *self.inputs, *(n.proto.name for n in self.source)}
        self.nodes: list[onnx.NodeProto] = []
        self.fixed = set(self.initializers)  # tensors that do not depend on the model's inputs
        self.numbers: dict[str, Array | None] = {}
        self.quantized: dict[str, Quantization] = {}  # tensors that held integers and hold real numbers now
        self.upper: dict[str, float] = {}  # bounds of tensors that are never negative
        self.skipped: set[int] = set()  # nodes that a form of another took in
        self.weights: dict[tuple[object, ...], str] = {}  # real numbers of stored weights
        self.dropped = self.bounded = 0

    def run(self) -> list[str]:
        inputs = [i for i in self.graph.input if i.name not in self.initializers]
        notes = [self._widen(i) for i in inputs if i.type.tensor_type.elem_type == TensorProto.INT8]
        for n in self.source:
            if id(n) in self.skipped:
                continue
            try:
                self._one(n)
            except Unsupported as reason:
                raise UnsupportedModelError(f"1 node cannot be trained:\n  {n.label}: {reason}") from None
            except Malformed as reason:
                raise UsageError(f"{n.label}: {reason}") from None
            except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
                # A form met a node that the ONNX rules exclude; the file is at fault, and the node is known.
                raise UsageError(f"{n.label} is malformed: {type(error).__name__} {one_line(error)}") from None
        for output in self.graph.output:
            if output.name in self.quantized:
                output.type.tensor_type.elem_type = TensorProto.FLOAT
                notes.append(f"output {output.name!r} holds real numbers instead of their integers")
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        del self.graph.value_info[:]  # types of before
        self._drop_unread()
        if self.dropped:
            bounds = f"; {self.bounded} of them keep the ReLU that their range stands for" if self.bounded else ""
            notes.insert(
                0, f"{self.dropped} quantised activations train as float numbers, which are not rounded{bounds}"
            )
        return notes

    def _drop_unread(self) -> None:
        """Leave out scales and zero points that nobody reads any more."""
        read = {i for n in self.nodes for i in n.input} | self.outputs
        kept = [t for t in self.graph.initializer if t.name in read or t.name not in self.readers]
        if len(kept) < len(self.graph.initializer):
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)

    def _widen(self, info: onnx.ValueInfoProto) -> str:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
        return f"input {info.name!r} takes the same integers as float numbers"

    def _one(self, n: Node) -> None:
        of_domain = n.proto.domain in DOMAINS
        if self.moved is not None and n.op in CODES and self._stored_in(n.inputs[CODES[n.op]]) not in self.moved:
            self.keep(n)
            return
        if of_domain and n.op in FORMS:
            FORMS[n.op](self, n)
            return
        read = [i for i in n.inputs if i in self.quantized]
        if read and of_domain and n.op in CARRIERS:
            self._carry(n, read[0])
            return
        if read and n.op not in _READERS:
            raise Unsupported("the float form of this operator on quantised numbers")
        if n.op == "Gather" and n.inputs[0] in self.fixed and n.inputs[1] not in self.fixed and self._gather(n):
            return
        self.keep(n)

    def _stored_in(self, name: str) -> str:
        """The initializer that holds the codes, perhaps seen through a Reshape."""
        maker = self.makers.get(name)
        return maker.inputs[0] if maker is not None and maker.op == "Reshape" else name

    def _gather(self, n: Node) -> bool:
        """Rows of a constant table of integers, as the operator behind them reads them; False if none does."""
        if n.inputs[0] not in self.initializers or not self._is_byte(n.inputs[0]):
            return False
        output, seen = n.outputs[0], {n.outputs[0]}
        queue = [output]
        while queue:
            tensor = queue.pop(0)
            for reader in self.readers.get(tensor, []):
                place = reader.inputs.index(tensor)
                if reader.op == "DequantizeLinear" or reader.op.startswith("QLinear"):
                    names = [reader.inputs[k] if reader.has_input(k) else "" for k in (place + 1, place + 2)]
                    table = self._weights(n.inputs[0], names[0], names[1], None)
                    self.emit("Gather", [table, n.inputs[1]], output, axis=n.get_int("axis"))
                    self.quantized[output] = self.quantization(*names)
                    return True
                if reader.op in CARRIERS:
                    queue += [o for o in reader.outputs if o not in seen]
                    seen.update(reader.outputs)
        return False

    def _carry(self, n: Node, first: str) -> None:
        """The quantised inputs of one operator, in the scale of the first."""
        held = self.quantized[first]
        inputs = []
        for i in n.inputs:
            constant = i in self.initializers and i not in self.quantized and self._is_byte(i)
            inputs.append(self.real(i, held) if i in self.quantized or constant else i)
        self.keep(n, inputs)
        for o in n.outputs:
            self.quantized[o] = held

    def _is_byte(self, name: str) -> bool:
        return self.initializers[name].data_type in (TensorProto.INT8, TensorProto.UINT8)

    # --- the new graph ---

    def fresh(self, name: str) -> str:
        free = free_name(name, self.names)
        self.names.add(free)
        return free

    def add(self, array: Any, name: str) -> str:
        """A new initializer."""
        name = self.fresh(name)
        tensor = numpy_helper.from_array(np.asarray(array), name)
        self.graph.initializer.append(tensor)
        self.initializers[name] = tensor
        self.fixed.add(name)
        self.numbers[name] = np.asarray(array)
        return name

    def emit(self, op: str, inputs: Sequence[str], output: str = "", domain: str = "", **attributes: Any) -> str:
        """A new node; the name of its output, `output` if given."""
        output = output or self.fresh(f"{inputs[0]}.{op.lower()}")
        present = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(op, list(inputs), [output], self.fresh(f"{output}.{op}"), domain=domain, **present)
        self.keep(Node(node))
        return output

    def keep(self, n: Node, inputs: Sequence[str] = ()) -> None:
        """The node as it is, or with other inputs."""
        if inputs and tuple(inputs) != n.inputs:
            del n.proto.input[:]
            n.proto.input.extend(inputs)
            n.inputs = tuple(inputs)
        self.nodes.append(n.proto)
        if all(i in self.fixed for i in n.inputs if i) and n.op not in _folding.NOT_FOLDABLE:
            self.fixed.update(n.outputs)
        bound = self._bound(n)
        if bound is not None:
            self.upper.update(dict.fromkeys(n.outputs, bound))

    def _bound(self, n: Node) -> float | None:
        """The largest number of a result that is never negative; None where it may be negative."""
        if n.op in _UP_TO_ONE:
            return 1.0
        if n.op == "Relu":
            return math.inf
        if n.op == "Clip":
            bounds = [self.number(n.inputs[k]) if n.has_input(k) else None for k in (1, 2)]
            low = n.get_float("min", -math.inf) if bounds[0] is None else bounds[0]
            high = n.get_float("max", math.inf) if bounds[1] is None else bounds[1]
            return high if low >= 0 else None
        read = [self.upper.get(i) for i in n.inputs[: None if n.op in ("Concat", "Add", "Mul") else 1]]
        if not read or any(r is None for r in read):
            return None
        known = [r for r in read if r is not None]
        if n.op in CARRIERS or n.op in _MEANS:
            return max(known)
        return {"Add": sum(known), "Mul": math.prod(known)}.get(n.op)

    # --- constants ---

    def number(self, name: str) -> float | None:
        """The number of a constant of one element, else None."""
        array = self.array(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def array(self, name: str) -> Array | None:
        """The numbers of a small constant, computed where nodes make it; None of anything else."""
        if self.numbers.get(name) is None:
            self.numbers[name] = self._array(name)
        return self.numbers[name]

    def stored(self, name: str) -> Array | None:
        """The numbers of an initializer of any size, or of a Reshape of one; None of anything else."""
        tensor, maker = self.initializers.get(name), self.makers.get(name)
        if maker is not None and maker.op == "Reshape":
            held, shape = self.stored(maker.inputs[0]), self.array(maker.inputs[1])
            return None if held is None or shape is None else held.reshape([int(d) for d in shape])
        if tensor is None:
            return None
        array = read_tensor(tensor, self.folder)
        if array is None:  # seeded numbers stand for no codes
            raise Unsupported(
                f"its weights ({name!r}) lie in {external_location(tensor)!r}, which is absent; put that file there, or"
                " take the model in floats with --frozen int4 or int8"
            )
        return array

    def factor(self, name: str) -> Array | None:
        """The numbers of a constant, or of a product of two, whose node may come later in the file."""
        n = self.makers.get(name)
        if n is None or n.op != "Mul" or len(n.inputs) != 2:
            return self.array(name)
        a, b = (self.array(i) for i in n.inputs)
        return None if a is None or b is None else np.asarray(a * b)

    def rank(self, n: Node) -> int:
        """The number of axes of a layer's image."""
        for i in n.inputs:
            if i in self.initializers and len(self.initializers[i].dims) > 2:
                return len(self.initializers[i].dims)
        return len(n.get_ints("kernel_shape") or (1, 1)) + 2

    def _array(self, name: str) -> Array | None:
        if name in self.initializers:
            tensor = self.initializers[name]
            small = math.prod(tensor.dims) <= _MOST_ELEMENTS
            return read_tensor(tensor, self.folder) if small or not is_external(tensor) else None
        n = self.makers.get(name)
        if n is None or name not in self.fixed:
            return None
        if n.op == "Constant":
            if not n.proto.attribute:
                raise Malformed(f"the Constant {name!r} holds no number")
            held = constant(n).array
            return held if isinstance(held, np.ndarray) else None
        read = [self.array(i) if i else None for i in n.inputs]
        if any(i and a is None for i, a in zip(n.inputs, read, strict=True)):
            return None
        try:
            folded = _folding.fold(n.proto, read, self.opset)
        except _folding.FoldingError:
            return None
        return dict(zip((o for o in n.outputs if o), folded, strict=True)).get(name)

    # --- quantised tensors ---

    def quantization(self, scale: str, zero: str, what: str = "the scale") -> Quantization:
        """Of a scale and a zero point by name; no name stands for 0. Unsupported unless they are constant."""
        s = self.array(scale)
        z = self.array(zero) if zero else np.zeros(1, np.uint8)
        if s is None or z is None:
            raise Unsupported(f"{what} that is computed from the model's inputs (it must be constant)")
        if not np.isfinite(np.asarray(s, np.float64)).all() or (np.asarray(s, np.float64) <= 0).any():
            raise Malformed(f"{what} {scale!r} is not above 0")
        lowest = highest = None
        if z.dtype.name.lstrip("u") in ("int8", "int16", "int4"):
            bits = int(z.dtype.name.lstrip("u")[3:])
            lowest = 0 if z.dtype.name.startswith("u") else -(2 ** (bits - 1))
            highest = lowest + 2**bits - 1
        s, z = (v.reshape(()) if v.size == 1 else v for v in (np.asarray(s), np.asarray(z)))
        return Quantization(s.astype(np.float32), z.astype(np.int64), lowest, highest)

    def real_input(self, n: Node, tensor: int, scale: int, zero: int, axis: int | None = None) -> str:
        """The real numbers of a quantised input of a node: its tensor, scale and zero point by their places.

        `axis`: of a constant with one scale for each index along it.
        """
        name, names = n.inputs[tensor], [n.inputs[k] if n.has_input(k) else "" for k in (scale, zero)]
        if not name or not names[0]:
            raise Malformed(f"input {tensor if not name else scale} is missing")
        if name in self.fixed and name not in self.quantized:
            return self._weights(name, names[0], names[1], axis)
        return self.real(name, self.quantization(*names))

    def _weights(self, name: str, scale: str, zero: str, axis: int | None) -> str:
        """A constant stays integers behind a DequantizeLinear."""
        s = self.array(scale)
        if s is None:
            raise Unsupported("the scale that is computed from the model's inputs (it must be constant)")
        key = (name, s.tobytes(), zero and np.asarray(self.array(zero)).tobytes(), axis)
        if key not in self.weights:
            self.weights[key] = self._dequantized(name, scale, s, zero, axis)
        return self.weights[key]

    def _dequantized(self, name: str, scale: str, s: Array, zero: str, axis: int | None) -> str:
        attributes: dict[str, Any] = {}
        if s.size > 1:
            if axis is None:
                raise Unsupported("one scale for each channel")
            attributes["axis"] = axis
            if s.ndim > 1:  # a row or a column of scales
                scale = self.add(s.reshape(-1), f"{scale}.flat")
                z = self.array(zero) if zero else None
                zero = zero if z is None or z.size == 1 else self.add(z.reshape(-1), f"{zero}.flat")
            z = self.array(zero) if zero else None
            if z is not None and z.size == 1:
                zero = self.add(np.full(s.size, z.reshape(-1)[0], z.dtype), f"{zero}.each")
        elif s.ndim:
            scale = self.add(s.reshape(()), f"{scale}.one")
            z = self.array(zero) if zero else None
            zero = zero if z is None or not z.ndim else self.add(z.reshape(()), f"{zero}.one")
        output = self.fresh(f"{name}.float")
        return self.emit("DequantizeLinear", [name, scale, *([zero] if zero else [])], output, **attributes)

    def real(self, name: str, wanted: Quantization) -> str:
        """The real numbers of a tensor whose integers are read with this scale."""
        if name in self.initializers and name not in self.quantized:
            scale = self.add(wanted.scale, f"{name}.scale")
            zero = self.add(wanted.zero.astype(self._dtype(name)), f"{name}.zero")
            return self._weights(name, scale, zero, None)
        held = self.quantized.get(name)
        if held is None:
            numbers = (wanted.scale, wanted.zero.astype(np.int32))
            return self.emit("DequantizeLinear", [name, *(self.add(a, f"{name}.{k}") for k, a in enumerate(numbers))])
        if held.is_same(wanted):
            return name
        if not wanted.is_scalar or not held.is_scalar:
            raise Unsupported("one scale for each channel of an activation, which another operator reads differently")
        # The same integers, which stand for other numbers here.
        factor = float(wanted.scale) / float(held.scale)
        return self.affine(name, factor, float(wanted.scale) * (float(held.zero) - float(wanted.zero)))

    def _dtype(self, name: str) -> np.dtype[np.generic]:
        dtype: np.dtype[np.generic] = np.dtype(helper.tensor_dtype_to_np_dtype(self.initializers[name].data_type))
        return dtype

    def affine(self, x: str, factor: float, summand: float, output: str = "") -> str:
        """factor · x + summand."""
        one = np.float32
        if summand and factor != 1.0:
            x = self.emit("Mul", [x, self.add(one(factor), f"{x}.factor")])
            return self.emit("Add", [x, self.add(one(summand), f"{x}.summand")], output)
        if summand:
            return self.emit("Add", [x, self.add(one(summand), f"{x}.summand")], output)
        if factor != 1.0:
            return self.emit("Mul", [x, self.add(one(factor), f"{x}.factor")], output)
        return self.emit("Identity", [x], output) if output else x

    def bind(self, x: str, output: str, held: Quantization) -> None:
        """`output` held x as integers: now it is x itself, within the bounds that stand for an activation."""
        self.quantized[output] = held
        self.dropped += 1
        low = held.real(held.lowest) if held.is_scalar and held.lowest is not None else -1.0
        high = held.real(held.highest) if held.is_scalar and held.highest is not None else math.inf
        upper = self.upper.get(x)
        if low != 0.0 or x in self.inputs:
            self.emit("Identity", [x], output)
            return
        six = abs(high - _RELU6) <= float(held.scale) / 2
        if upper is not None and (not six or upper <= high + 1e-3):
            self.emit("Identity", [x], output)
            return
        self.bounded += 1
        if six:
            self.clip(x, 0.0, _RELU6, output)
        else:
            self.emit("Relu", [x], output)

    def clip(self, x: str, low: float | None, high: float | None, output: str) -> str:
        """x between two bounds, None for none."""
        if self.opset < 11:
            return self.emit("Clip", [x], output, min=low, max=high)
        bounds = [self.add(np.float32(b), f"{output}.bound") if b is not None else "" for b in (low, high)]
        return self.emit("Clip", [x, *bounds], output)
