"""A kernel that is bound to an operator: the C function, and by name the numbers that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

P = TypeVar("P", bound="Parameters")


@dataclass(frozen=True, slots=True)
class Block:
    """Units begin .. end - 1 of an axis of `extent`; of the operand with a halo, rows first .. last - 1."""

    begin: int
    end: int
    extent: int
    first: int
    last: int

    @property
    def units(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Parameters:
    """The integers that a kernel gets, by name.

    A subclass is a frozen dataclass. C finds its fields in their order in `call->ints`. A field is an integer, a truth
    value, a tuple of integers, or another record. The last two lie in place, one number after the other.
    """

    def ints(self) -> tuple[int, ...]:
        """The numbers in the order of C."""
        return tuple(_flat([getattr(self, field.name) for field in fields(self)]))

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """The kernel of a block, where that is another than `poetc.kernels.blocks` would make."""
        return None


@dataclass(frozen=True, slots=True)
class Window(Parameters):
    """A window of a table. The number at `BEGIN` is the field `begin`, the first row: the runtime sets it for each."""

    BEGIN: ClassVar[int] = 3

    def beginning(self, unit: int) -> Window:
        """Of the block that begins with that unit."""
        raise NotImplementedError


def _flat(values: Any) -> Iterator[int]:
    for value in values:
        if isinstance(value, Parameters):
            yield from value.ints()
        elif isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield int(value)


NO_PARAMETERS = Parameters()


@dataclass(frozen=True, slots=True)
class Kernel:
    """The C function that runs an operator (`poetc/runtime/kernels/`), with its compile-time constants.

    `parameters` and `floats` arrive in the kernel as `call->ints` and `call->floats`. The operands are the operator's
    inputs followed by its outputs, then the workspace if `workspace_bytes` > 0. `alternative` is 0 for the fastest
    kernel of the operator, n for its n-th low-workspace kernel. `repeats` says how often the kernel does the work of
    the operator.
    """

    symbol: str
    parameters: Parameters = NO_PARAMETERS
    floats: tuple[float, ...] = ()
    workspace_bytes: int = 0
    alternative: int = 0
    repeats: int = 1

    @property
    def name(self) -> str:
        """Its name in a Problem among the kernels of its operator: `conv_packed`, then `conv_packed#1` and so on."""
        name = self.symbol.removeprefix("poetc_op_")
        return f"{name}#{self.alternative}" if self.alternative else name

    @property
    def ints(self) -> tuple[int, ...]:
        """The parameters as C gets them."""
        return self.parameters.ints()

    def parameters_as(self, record: type[P]) -> P:
        """The parameters, which are such a record. Raises TypeError if they are another one."""
        if not isinstance(self.parameters, record):
            raise TypeError(f"{self.symbol} has {type(self.parameters).__name__}, not {record.__name__}")
        return self.parameters


Sized = tuple[Parameters, int]  # the parameters of a kernel with less workspace, and the floats of that
Rule = Callable[[Kernel], Iterator[Sized]]  # of low-workspace kernels
