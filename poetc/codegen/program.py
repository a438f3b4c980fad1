"""The flat program: the only thing that the emitter and the host interpreter read, so what is validated is what is emitted."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from poetc.graph import Attribute, Role, TensorType


class Space(enum.StrEnum):
    ARENA = "arena"  # RAM, given by the caller
    FLASH = "flash"  # constants, read in place


@dataclass(frozen=True, slots=True)
class Operand:
    space: Space
    offset_bytes: int  # a multiple of ALIGNMENT_BYTES
    type: TensorType
    tensor: str  # for people and for probes


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call. In C the operands are inputs, then outputs, then the workspace if there is one."""

    operator: str
    kind: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    symbol: str
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    workspace: Operand | None = None


@dataclass(frozen=True, slots=True)
class PageOut:
    operand: Operand
    page: int  # index into Program.pages


@dataclass(frozen=True, slots=True)
class PageIn:
    operand: Operand
    page: int


Instruction = Call | PageOut | PageIn


@dataclass(frozen=True, slots=True)
class Page:
    """A region of the store: `size_bytes` of data and the trailer, in whole blocks."""

    first_block: int
    block_count: int
    size_bytes: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A tensor that the caller or the initial image reaches by name."""

    name: str
    role: Role
    operand: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`state` are initialised once from the image and persist; `probes` says after how many instructions a gradient can be
    read whole at an operand (it may be overwritten afterwards)."""

    name: str
    instructions: tuple[Instruction, ...]
    arena_bytes: int
    state_bytes: int
    flash_bytes: int
    inputs: tuple[Binding, ...]
    target: Binding | None
    outputs: tuple[Binding, ...]  # the loss for training; the model's outputs for inference
    state: tuple[Binding, ...]
    constants: tuple[Binding, ...]
    pages: tuple[Page, ...] = ()
    block_bytes: int = 512
    page_buffer_offset: int | None = None  # one block in the arena, if the program pages
    probes: Mapping[str, tuple[int, Operand]] = field(default_factory=dict)


ALIGNMENT_BYTES = 16
