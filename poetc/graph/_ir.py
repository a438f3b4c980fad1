"""The intermediate representation: tensors and operators in SSA form, static shapes, one order.

This page is the whole of it. The importer makes a `Graph`; a `TrainingGraph` is the same with loss, backward and update
operators. State (parameters, optimizer state, running statistics) is in SSA form too. An update reads `w` and writes
`w@1`, with the obligation (`OpSpec.must_alias`) that both occupy the same bytes. After it, `w` no longer exists, so a
schedule that recomputes a reader of `w` too late is refused without any further rule.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poetc.graph._coded import Coded

if TYPE_CHECKING:
    import networkx

Attribute = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
Array = npt.NDArray[Any]  # float64 too, in finite-difference tests


class DType(enum.StrEnum):
    """Element types that kernels know. int64 in a model becomes I32; bool becomes U8; I8 is for integer training.

    F16 and BF16 are storage of floats (`poetc.ops.narrow`); their arrays in numpy hold the bits.
    """

    F32 = "f32"
    I32 = "i32"
    U8 = "u8"
    I8 = "i8"
    F16 = "f16"
    BF16 = "bf16"

    @property
    def is_narrow(self) -> bool:
        """Whether it stores floats in 16 bits."""
        return self in (DType.F16, DType.BF16)

    @property
    def size_bytes(self) -> int:
        return self.numpy.itemsize

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return _NUMPY[self]


_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.F32: np.dtype(np.float32),
    DType.I32: np.dtype(np.int32),
    DType.U8: np.dtype(np.uint8),
    DType.I8: np.dtype(np.int8),
    DType.F16: np.dtype(np.uint16),
    DType.BF16: np.dtype(np.uint16),
}


class Role(enum.StrEnum):
    INPUT = "input"  # given by the caller at every step
    TARGET = "target"  # the same, for the loss
    PARAMETER = "parameter"  # trained
    CONSTANT = "constant"  # never changes: frozen weights, masks; may be read in place from flash
    STATISTIC = "statistic"  # running mean and variance
    OPTIMIZER_STATE = "optimizer_state"  # momentum, Adam moments, step counter, learning rate
    ACTIVATION = "activation"  # made by a forward or loss operator
    GRADIENT = "gradient"  # made by a backward operator

    @property
    def is_state(self) -> bool:
        """Lives in RAM from one training step to the next."""
        return self in (Role.PARAMETER, Role.STATISTIC, Role.OPTIMIZER_STATE)


class Phase(enum.StrEnum):
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor, as shape inference computes it: without name or role."""

    shape: tuple[int, ...]
    dtype: DType = DType.F32

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    type: TensorType
    role: Role

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def size_bytes(self) -> int:
        return self.type.size_bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of one kind (see `poetc.ops`). Names are unique in the graph; inputs and outputs name tensors."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    phase: Phase = Phase.FORWARD
    source: str = ""  # the ONNX node(s) that it came from, for messages and reports


@dataclass(frozen=True, slots=True)
class Fill:
    """A value not held in memory: a constant, or seeded weights where the model file carries none.

    `kind`: zeros | ones | constant (`value`) | normal (standard deviation `value`) | uniform (in [`value`, `high`]).
    The random kinds depend on `seed_name` and the shape alone, so the same model gets the same numbers everywhere.
    """

    kind: str
    value: float = 0.0
    high: float = 0.0
    seed_name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Filed:
    """A value that stays in a file: `read` gives its array, anew each time."""

    read: Callable[[], Array]


Value = Array | Fill | Coded | Filed


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the numbers of a weight stand in the model file, so that trained ones can be put back there.

    `holder`: "initializer", or the operator of the node whose output `tensor` is. For Constant, ConstantOfShape and
    DequantizeLinear, `tensor` is their input. `dtype` is numpy's name of the element type in the file.
    """

    tensor: str
    holder: str = "initializer"
    dtype: str = "float32"
    parted_from: str = ""  # the file has one initializer of this name for several equal weights
    left_out: bool = False  # the file has none: all of it was zero
    copies: tuple[tuple[str, str], ...] = ()  # initializers with the same numbers: (name, transposed | repeated)
    module: str = ""  # the PyTorch module that holds it, where the tensor's name does not say so
    scale: tuple[float, ...] = ()  # of integers behind DequantizeLinear, in a graph that is to stay quantised


@dataclass(frozen=True, slots=True)
class Fact:
    """Something about a model that a user would know and the file does not say, with the evidence for it.

    `confidence` is "certain" where it follows from the graph, "likely" where the numbers or a name tell it. `value` is
    an axis, or a word. `option` is the option that overrides the fact.
    """

    kind: str  # such as "class axis"
    subject: str  # the tensor, layer or input that it is about
    value: int | str
    evidence: str  # the end of a sentence
    confidence: str = "certain"
    option: str = ""


TIED = ": kept as one, tied weight"  # the end of a note of the import that begins with the weight's name


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in topological order. `values` holds a value for every PARAMETER, CONSTANT and state tensor."""

    name: str
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    notes: tuple[str, ...] = ()  # Decisions of the importer that the user should know (one line each).
    origins: Mapping[str, Origin] = field(default_factory=dict)  # of weights, as far as the model file holds them
    facts: tuple[Fact, ...] = ()

    def fact(self, kind: str, subject: str) -> Fact | None:
        """The fact of that kind about a tensor, layer or input; None: there is none."""
        return next((f for f in self.facts if f.kind == kind and f.subject == subject), None)

    def batch_axis(self, name: str) -> int:
        """The axis of the samples in an input or output."""
        fact = self.fact("batch axis", name)
        return 0 if fact is None else int(fact.value)

    @property
    def batch(self) -> int | None:
        """The samples of the first input that has axes; None where none has."""
        shapes = ((name, self.tensors[name].shape) for name in self.inputs)
        return next((shape[self.batch_axis(name)] for name, shape in shapes if shape), None)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """Operators and tensors as nodes, with all annotations; see `poetc.graph.networks`."""
        from poetc.graph.networks import graph_network

        return graph_network(self)


@dataclass(frozen=True, slots=True)
class TrainingGraph(Graph):
    """A Graph with the whole training step in `operators`.

    `gradients` maps a trained parameter to the tensor that holds its whole gradient, where there is one. Fusion leaves
    out those that only the update would read. `zero_gradients` names parameters whose gradient is zero whatever the
    data, so that they are not updated. `updates` maps a state tensor to its next version. `options` records how it was
    made (loss, optimizer, learning rate, batch-norm mode, ...).
    """

    loss: str = ""
    target: str = ""
    gradients: Mapping[str, str] = field(default_factory=dict)
    zero_gradients: tuple[str, ...] = ()
    updates: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Attribute] = field(default_factory=dict)


_DRAWN = 1 << 20  # numbers at once


def materialize(value: Value, type: TensorType) -> Array:
    """The array of a value, as `type` says: itself, or that for which it stands. Deterministic."""
    if isinstance(value, Filed):
        return value.read()
    if isinstance(value, Coded):
        return value.decoded().reshape(type.shape)
    if not isinstance(value, Fill):
        return value
    dtype = type.dtype.numpy
    match value.kind:
        case "zeros":
            return np.zeros(type.shape, dtype)
        case "ones":
            return np.ones(type.shape, dtype)
        case "constant":
            return np.full(type.shape, value.value, dtype)
    result = np.empty(type.shape, dtype)
    _draw(value, result.reshape(-1))
    return result


def materialize_into(place: Array, value: Value, type: TensorType) -> None:
    """The same, in a place that is contiguous: random numbers are drawn there, without an array beside it."""
    if isinstance(value, Fill) and value.kind in ("normal", "uniform"):
        _draw(value, place.reshape(-1))
    else:
        place[...] = materialize(value, type)


def _draw(value: Fill, place: Array) -> None:
    import hashlib

    seed = int.from_bytes(hashlib.sha256(value.seed_name.encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.PCG64(seed))
    if value.kind not in ("normal", "uniform"):
        raise ValueError(f"unknown fill kind {value.kind!r}")
    for start in range(0, place.size, _DRAWN):  # no numbers of 64 bits beside a large tensor
        part = place[start : start + _DRAWN]
        if value.kind == "normal":
            part[...] = random.standard_normal(part.size) * value.value
        else:
            part[...] = random.uniform(value.value, value.high, part.size)
