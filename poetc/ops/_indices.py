"""Uses of operators by the names of their operands, and the integers among these that count something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetc.graph import Attribute, TensorType


@dataclass(frozen=True, slots=True)
class Use:
    """An operator that reads tensors: by which names, and of which type the first is."""

    kind: str
    attributes: Mapping[str, Attribute]
    inputs: Sequence[str]
    outputs: Sequence[str]
    first: TensorType

    def integer(self, name: str, default: int) -> int:
        """The attribute, or `default` where it is no whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


@dataclass(frozen=True, slots=True)
class Indices:
    """`operand` of a use holds classes or indices from `least` to `most`, and `ignored`, which has no effect.

    `is_exact`: kernels refuse every other integer. Where it is false they take more of them.
    """

    operand: str
    least: int
    most: int
    ignored: int = 0
    is_exact: bool = True


def classes_of(use: Use) -> Indices:
    """The second operand names a class along `axis` of the first one."""
    classes = use.first.shape[use.integer("axis", 1)]
    return Indices(use.inputs[1], 0, classes - 1, use.integer("ignore_index", 0))


def places_of(use: Use) -> Indices:
    """The second operand names places along `axis` of the first one; negative ones count from its end."""
    length = use.first.shape[use.integer("axis", 0)]
    return Indices(use.inputs[1], -length, length - 1)
