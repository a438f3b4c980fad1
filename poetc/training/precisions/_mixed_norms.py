"""Batch norms of an algorithm in mixed precision: statistics, quotients and parameters are rounded.

The gradient goes straight through each rounding. So that of a scale is the sum of gy · q, with q the rounded quotient
(x - mean) / deviation. That of x is scale / deviation · (gy - mean(gy) - p · mean(gy · p)), p the quotient before it
was rounded. Both follow from the forward pass of WAGEUBN (Yang et al., 2020), whose code leaves them to TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from poetc.graph import Attribute, Operator, Role, Tensor, TensorType, Value
from poetc.training.precisions._algorithm import Numbers

Emit = Callable[[Operator, str, tuple[str, ...], tuple[str, ...], dict[str, Attribute]], None]
KINDS = ("BatchNormApply", "BatchNormGradParams", "BatchNormGradInput")


@dataclass(frozen=True, slots=True)
class _Norm:
    """Names of tensors that the forward pass of a norm made."""

    mean: str
    var: str
    epsilon: float
    quotient: str
    scale: str


@dataclass(slots=True)
class MixedNorms:
    """The operators of norms that compute statistics. `few` rounds a tensor, `like` names a new one of a tensor's type.

    `numbers`: of those roundings that there are.
    """

    numbers: Mapping[str, Numbers]
    tensors: dict[str, Tensor]
    values: dict[str, Value]
    emit: Emit
    few: Callable[[str, Numbers, Operator], str]
    like: Callable[[str, str], str]
    known: dict[tuple[str, ...], _Norm] = field(default_factory=dict)
    constants: dict[tuple[int, float], str] = field(default_factory=dict)

    def write(self, op: Operator) -> bool:
        """Write the operators in the place of `op`; False where it is none of such a norm."""
        if op.kind == KINDS[0] and op.attributes.get("training"):
            self._apply(op)
        elif op.kind in KINDS[1:] and op.inputs[1:3] in self.known:
            (self._parameters if op.kind == KINDS[1] else self._input)(op, self.known[op.inputs[1:3]])
        else:
            return False
        return True

    def _apply(self, op: Operator) -> None:
        x, mean, var, scale, bias = op.inputs
        (y,) = op.outputs
        epsilon = float(op.attributes["epsilon"])  # type: ignore[arg-type]
        zeros, ones = self._constant(mean, 0.0), self._constant(mean, 1.0)
        own_mean, own_var = mean, var
        if "statistics" in self.numbers:
            own_mean, own_var, epsilon = self._rounded(mean, "statistics", op), self._variance(op, var), 0.0
        quotient = self.like(y, f"{y}.quotient")
        statistics: dict[str, Attribute] = {"epsilon": epsilon, "training": True}
        self.emit(op, op.kind, (x, own_mean, own_var, ones, zeros), (quotient,), statistics)
        quotient = self._rounded(quotient, "normalised", op)
        scale, bias = (self._rounded(t, "parameters", op) for t in (scale, bias))
        self.emit(op, op.kind, (quotient, zeros, ones, scale, bias), (y,), {**op.attributes, "epsilon": 0.0})
        self.known[mean, var] = _Norm(own_mean, own_var, epsilon, quotient, scale)

    def _variance(self, op: Operator, var: str) -> str:
        """The square of the rounded deviation and one step more, so that none is 0."""
        deviation, more, square = (self.like(var, f"{var}.{word}") for word in ("root", "more", "square"))
        self.emit(op, "Sqrt", (var,), (deviation,), {})
        numbers = self.numbers["statistics"]
        step = self._constant(var, 2.0 ** (1 - numbers.integer) / numbers.times)
        self.emit(op, "Add", (self._rounded(deviation, "statistics", op), step), (more,), {})
        self.emit(op, "Mul", (more, more), (square,), {})
        return square

    def _parameters(self, op: Operator, norm: _Norm) -> None:
        zeros, ones = self._constant(norm.mean, 0.0), self._constant(norm.mean, 1.0)
        self.emit(op, op.kind, (norm.quotient, zeros, ones, op.inputs[3]), op.outputs, {"epsilon": 0.0})

    def _input(self, op: Operator, norm: _Norm) -> None:
        x, gy = op.inputs[0], op.inputs[6]
        sums = tuple(self.like(norm.mean, f"{op.outputs[0]}.{word}") for word in ("products", "sum"))
        own: dict[str, Attribute] = {"epsilon": norm.epsilon}
        self.emit(op, KINDS[1], (x, norm.mean, norm.var, gy), sums, own)
        self.emit(op, op.kind, (x, norm.mean, norm.var, norm.scale, *sums, gy), op.outputs, own)

    def _rounded(self, tensor: str, name: str, op: Operator) -> str:
        return self.few(tensor, self.numbers[name], op) if name in self.numbers else tensor

    def _constant(self, like: str, value: float) -> str:
        """A vector of one number, as long as the vector `like`."""
        length = self.tensors[like].shape[0]
        if (length, value) not in self.constants:
            name = self.like(like, f"constant {value:g}")
            self.tensors[name] = Tensor(name, TensorType((length,)), Role.CONSTANT)
            self.values[name] = np.full(length, value, np.float32)
            self.constants[length, value] = name
        return self.constants[length, value]
