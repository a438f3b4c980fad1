"""An operator seen with the types of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poetc.graph import Attribute, Operator, TensorType


@dataclass(frozen=True, slots=True)
class Bound:
    """An operator seen with the types of its operands: all that shapes, cost and kernel binding need."""

    attributes: Mapping[str, Attribute]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...] = ()

    def get_ints(self, name: str) -> tuple[int, ...]:
        value = self.attributes[name]
        assert isinstance(value, tuple)
        return tuple(int(v) for v in value)

    def get_int(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def get_float(self, name: str, default: float = 0.0) -> float:
        value = self.attributes.get(name, default)
        assert isinstance(value, (int, float))
        return float(value)

    def get_str(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        assert isinstance(value, str)
        return value


def operand_bytes_of(op: Bound) -> int:
    """The bytes of all operands, by which kernels are chosen: no more than `small_ram`, if there is one."""
    size_bytes = sum(t.size_bytes for t in (*op.inputs, *op.outputs))
    return min(size_bytes, op.get_int("small_ram")) if "small_ram" in op.attributes else size_bytes


def bind(op: Operator, tensors: Mapping[str, Any]) -> Bound:
    """`op` with the types of its tensors (`tensors` maps names to Tensor)."""
    return Bound(op.attributes, tuple(tensors[t].type for t in op.inputs), tuple(tensors[t].type for t in op.outputs))
