"""The import of one model: the facts on every ONNX value, and the growing graph. The translations' context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import _folding
from poetc.frontend._node import Malformed, Node, Unsupported, require_number
from poetc.frontend._reading import LARGEST_FOLDED_BYTES, check_size, is_float, widened
from poetc.graph import Array, Attribute, Coded, DType, Fill, Origin, Role, TensorType, materialize
from poetc.ops import Builder, spec


@dataclass(slots=True, eq=False)
class Value:
    """The facts on one ONNX value. Either it depends on the graph's inputs and has a `tensor`, or it can be known.

    `weight`: made of a float tensor that may turn out to be trained, so operators on it are emitted besides being
    foldable. It may be of any element type. `node`: evaluates to `array` on demand. `sequence`: the members, where the
    value is a sequence of tensors.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    array: Array | Fill | Coded | None = None
    tensor: str = ""
    weight: bool = False
    in_file: bool = False  # its numbers stand in the file, rather than being computed here
    node: Node | None = None
    sequence: list[Value] = field(default_factory=list)
    is_sequence: bool = False  # which may be empty
    origin: Origin | None = None  # where the file has it, if it is given

    @property
    def known(self) -> bool:
        """Does not depend on the graph's inputs."""
        return self.array is not None or self.node is not None

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Rebatch:
    """A model with a fixed batch is imported at another one. `shapes`: of every ONNX value at the batch in the file."""

    old: int
    new: int
    shapes: Mapping[str, tuple[int, ...]]


# Of the forward pass; a training step has about three times as many. Ten times the largest network tried.
MOST_OPERATORS = 5_000
TOO_MANY = f"the model needs more than {MOST_OPERATORS:,} operators, too many to make a schedule of"

_TO_OURS = {"f": DType.F32, "i": DType.I32, "u": DType.I32, "b": DType.U8}


def our_dtype(dtype: np.dtype[np.generic]) -> DType:
    """Floats of any width become f32, integers i32, bool and uint8 u8."""
    if dtype == np.uint8:
        return DType.U8
    if is_float(dtype):
        return DType.F32
    if dtype.kind not in _TO_OURS:
        raise Unsupported(f"element type {dtype}")
    return _TO_OURS[dtype.kind]


def _check_attribute(kind: str, name: str, value: Attribute) -> None:
    """Malformed for values that no kernel can be given: NaN, infinities, integers beyond 32 bits."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float):
            require_number(kind, name, number)
        if isinstance(number, int) and not -(2**31) <= number < 2**31:
            raise Malformed(f"attribute {name!r} holds {number}, which does not fit in 32 bits")


class Importer:
    """Context of the translations: reads ONNX values by name, emits operators, keeps notes."""

    def __init__(
        self,
        opset: int,
        rebatch: Rebatch | None = None,
        seed: int = 0,
        trained: frozenset[str] = frozenset(),
        file_bytes: int = 0,
        quantized: bool = False,
    ) -> None:
        self.opset = opset
        # Numbers computed at import: those of quantized weights, and some more.
        self.room_bytes = LARGEST_FOLDED_BYTES + 8 * file_bytes
        self.quantized = quantized  # activations stay integers
        self.seed = seed  # of the numbers that stand for absent weights
        self.rebatch = rebatch
        self.trained = trained  # values that the file says are parameters
        self.builder = Builder()
        self.values: dict[str, Value] = {}
        self.copies: dict[str, int] = {}  # of a name that bodies of loops make again: the last number
        self.notes: list[str] = []
        self.node = Node(onnx.NodeProto())
        self.dequantized: dict[tuple[object, ...], Value] = {}  # weights that the file holds as integers
        self.computed: set[str] = set()  # tensors whose numbers were computed here: never trained
        self.read: dict[Value, str] = {}  # floats of the file whose numbers are fixed, and the node that reads them
        self._followed: set[Value] = set()
        self._constants = 0

    # --- ONNX values ---

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise Malformed(f"reads tensor {name!r}, which nothing makes")
        return self.values[name]

    def input(self, n: Node, index: int) -> Value:
        """Input `index` of the node, which must be there."""
        if not n.has_input(index):
            raise Malformed(f"input {index} is missing")
        return self.value(n.inputs[index])

    def optional(self, n: Node, index: int) -> Value | None:
        return self.value(n.inputs[index]) if n.has_input(index) else None

    def leaves(self, value: Value) -> set[Value]:
        """The floats of the file that a known value is made of."""
        floats, seen, waiting = set[Value](), {value}, [value]
        while waiting:
            v = waiting.pop()
            if v.in_file:
                floats |= {v} if v.is_float else set()
                continue
            inputs = {self.value(i) for i in v.node.inputs if i} if v.node is not None else set()
            waiting += inputs - seen
            seen |= inputs
        return floats

    def is_declared(self, value: Value) -> bool:
        """Whether a known value is made of a parameter that the file declares."""
        return value.weight and any(v.name in self.trained for v in self.leaves(value))

    def is_zero(self, value: Value) -> bool:
        """Whether all its numbers are zero, and none of them is a parameter that the file declares."""
        return value.known and not self.is_declared(value) and not self._numbers(value, "an input").any()

    def array(self, value: Value, what: str = "an input") -> Array:
        """The numbers of a known value, as they are now. Unsupported when they depend on the graph's inputs.

        The floats of the file that they are made of must not be trained: `read` has them.
        """
        if value.known and value not in self._followed:
            self._followed.add(value)
            for leaf in self.leaves(value):
                self.read.setdefault(leaf, self.node.label)
        return self._numbers(value, what)

    def _numbers(self, value: Value, what: str) -> Array:
        if value.array is None:
            if value.node is None:
                raise Unsupported(f"{what} that is computed from the model's inputs (it must be constant)")
            self._fold(value.node)
        if isinstance(value.array, Fill):
            if value.elements * 4 > LARGEST_FOLDED_BYTES:
                raise Unsupported(f"{what} as large as {list(value.shape)} in a computation at import time")
            return materialize(value.array, TensorType(value.shape, our_dtype(value.dtype))).astype(value.dtype)
        assert value.array is not None
        return value.array.decoded() if isinstance(value.array, Coded) else value.array

    def ints(self, value: Value, what: str) -> tuple[int, ...]:
        """A known integer tensor, flattened."""
        if value.in_file and isinstance(value.array, Fill):
            raise Unsupported(f"{what} ({value.name!r}) is external data whose file is absent")
        array = self.array(value, what)
        if array.dtype.kind not in "iu":
            raise Malformed(f"{what} must be integers, not {array.dtype}")
        if array.size > 10_000:
            raise Malformed(f"{what} has {array.size} elements")
        return tuple(int(v) for v in array.reshape(-1))

    def room(self, *shape: int) -> None:
        """Unsupported where a constant of `shape`, about to be made, would be too large to hold."""
        if math.prod(shape) * 8 > LARGEST_FOLDED_BYTES:
            raise Unsupported(f"a constant as large as {list(shape)} made at import time")

    def number(self, value: Value | None) -> float | None:
        """The number of a known one-element value that training cannot change, else None."""
        if value is None or not value.known or value.elements != 1:
            return None
        if value.weight and (not value.in_file or value.name in self.trained):
            return None
        return float(self.array(value).reshape(-1)[0])

    def constant(self, array: Array, name: str = "") -> Value:
        """A Value for an array made by a translation."""
        self._constants += 1
        return Value(name or f"constant.{self._constants}", array.shape, array.dtype, array)

    def fold(self, n: Node) -> None:
        """Evaluate a node whose inputs are all known; fills in the arrays of its outputs."""
        for i in n.inputs:
            if i:
                self.array(self.value(i))
        self._fold(n)

    def _fold(self, n: Node) -> None:
        inputs = [self._numbers(self.value(i), "an input") if i else None for i in n.inputs]
        try:
            results = _folding.fold(n.proto, inputs, self.opset, self.room_bytes)
        except _folding.FoldingError as error:
            raise Malformed(f"cannot be evaluated: {error}") from None
        results = [widened(r) for r in results]
        self.room_bytes -= sum(r.nbytes for r in results)
        for name, result in zip((o for o in n.outputs if o), results, strict=True):
            value = self.values.get(name)
            if value is None:
                self.values[name] = Value(name, result.shape, result.dtype, result)
            else:
                value.array, value.dtype = result, result.dtype

    # --- the growing graph ---

    def tensor(self, value: Value) -> str:
        """The graph tensor that holds the value; a known one becomes a tensor with a value, once."""
        if value.is_sequence:
            raise Unsupported("a sequence where a tensor is needed")
        if not value.tensor:
            if value.array is None:
                self.array(value)
            dtype = our_dtype(value.dtype)
            held = value.array
            assert held is not None
            if not isinstance(held, (Fill, Coded)):
                held = convert(held, dtype, value.name)
            name = self.builder.fresh(value.name)
            if not value.in_file:
                self.computed.add(name)
            value.tensor = self.builder.add_tensor(name, TensorType(value.shape, dtype), Role.CONSTANT, held)
        return value.tensor

    def tensor_of(self, x: str | Value) -> str:
        """The graph tensor of either."""
        return x if isinstance(x, str) else self.tensor(x)

    def emit(
        self, kind: str, inputs: Sequence[str | Value], attributes: Mapping[str, Attribute] | None = None
    ) -> tuple[str, ...]:
        """Add one operator. Raises Unsupported for an unknown kind, Malformed for shapes that do not fit."""
        try:
            spec(kind)
        except KeyError:
            raise Unsupported(f"operator kind {kind}") from None
        if len(self.builder.operators) >= MOST_OPERATORS:
            raise UnsupportedModelError(f"{self.node.label}: {TOO_MANY}")
        for name, value in (attributes or {}).items():
            _check_attribute(kind, name, value)
        names = [self.tensor_of(i) for i in inputs]
        stem = next((o for o in self.node.outputs if o), kind)
        try:
            outputs = self.builder.emit(kind, names, attributes, hint=f"{stem}.{kind}")
        except (ValueError, KeyError, IndexError, TypeError, AssertionError, ArithmeticError) as error:
            shapes = ", ".join(str(list(self.builder.type(t).shape)) for t in names)
            if any(self.builder.type(t).dtype is not DType.F32 for t in names) and "needs" in str(error):
                raise Unsupported(f"{error}") from None
            raise Malformed(f"{error or 'does not fit its inputs'} (inputs {shapes})") from None
        for name in outputs:
            type = self.builder.type(name)
            check_size(f"node {self.node.label}: its output", type.shape, type.dtype.size_bytes)
        return outputs

    def emit1(self, kind: str, inputs: Sequence[str | Value], attributes: Mapping[str, Attribute] | None = None) -> str:
        return self.emit(kind, inputs, attributes)[0]

    def type(self, tensor: str) -> TensorType:
        return self.builder.type(tensor)

    def shape(self, x: str | Value) -> tuple[int, ...]:
        return self.builder.type(x).shape if isinstance(x, str) else x.shape

    def reshape(self, x: str | Value, shape: Sequence[int]) -> str:
        """A view of x; x itself where the shape is the same already."""
        name = self.tensor_of(x)
        shape = tuple(int(d) for d in shape)
        if self.shape(name) == shape:
            return name
        return self.emit1("Reshape", [name], {"shape": shape})

    def transpose(self, x: str | Value, perm: Sequence[int]) -> str:
        """x with its axes permuted: a view where only axes of length 1 move."""
        name = self.tensor_of(x)
        shape = self.shape(name)
        if sorted(perm) != list(range(len(shape))):
            raise Malformed(f"perm {list(perm)} is no permutation of {len(shape)} axes")
        moved = [a for a in perm if shape[a] != 1]
        if moved == sorted(moved):
            return self.reshape(name, [shape[a] for a in perm])
        return self.emit1("Transpose", [name], {"perm": tuple(perm)})

    def slice(self, x: str | Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] = ()) -> str:
        """x[start : start + size · step : step] on every axis; x itself where that is all of it."""
        name = self.tensor_of(x)
        rank = len(self.shape(name))
        steps = tuple(steps) or (1,) * rank
        if self.shape(name) == tuple(sizes) and all(s == 1 for s in steps):
            return name
        return self.emit1("Slice", [name], {"starts": tuple(starts), "sizes": tuple(sizes), "steps": steps})

    def axis_slice(self, x: str | Value, axis: int, start: int, size: int, step: int = 1) -> str:
        """`slice` along one axis."""
        shape = self.shape(x)
        starts, steps, sizes = [0] * len(shape), [1] * len(shape), list(shape)
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return self.slice(x, starts, sizes, steps)

    def affine(self, x: str | Value, alpha: float, beta: float = 0.0) -> str:
        """alpha · x + beta; x itself where that changes nothing."""
        name = self.tensor_of(x)
        if alpha == 1.0 and beta == 0.0:
            return name
        return self.emit1("Affine", [name], {"alpha": float(alpha), "beta": float(beta)})

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def convert(array: Array, dtype: DType, name: str) -> Array:
    """An array in one of our element types. UsageError when integers do not fit."""
    if dtype is DType.I32 and array.size and not np.can_cast(array.dtype, np.int32):
        low, high = int(array.min()), int(array.max())
        if low < -(2**31) or high >= 2**31:
            raise UsageError(f"tensor {name!r} holds integers that do not fit in 32 bits ({low} to {high})")
    if dtype is DType.F32 and array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            return np.asarray(array, np.float32, order="C")
    return np.asarray(array, dtype.numpy, order="C")  # np.ascontiguousarray would make a vector of a scalar
