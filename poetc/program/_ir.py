"""The flat program: emitter and interpreter read nothing else, so the emitted code is the validated one."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from poetc.devices.blocks import Stream as Form
from poetc.graph import Attribute, Role, TensorType


class Space(enum.StrEnum):
    ARENA = "arena"  # RAM, given by the caller
    FLASH = "flash"  # constants, read in place
    STORE = "store"  # streamed: blocks pass through the window at the offset, in RAM


@dataclass(frozen=True, slots=True)
class Operand:
    space: Space
    offset_bytes: int  # a multiple of ALIGNMENT_BYTES
    type: TensorType
    tensor: str  # for people and for probes


class PageSource(enum.IntEnum):
    """Which write of a page a PageIn must find; values as POETC_PAGE_* in poetc.h.

    Static, so that a stale page is found.
    """

    THIS_RUN = 0  # written earlier in this run
    LAST_RUN = 1  # state on the store, as the last complete run left it
    IMAGE = 2  # never written by the program: frozen weights that live on the store


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand of a call whose blocks pass through a window: from a page, or to it where `source` is None.

    `page` is None for an operand in RAM, whose blocks do not lie together. `form`: the pieces of each block.
    `second_bytes`: how far behind the window it has another one, 0: it has none. Blocks go to both in turn.
    """

    operand: int  # its number among inputs, then outputs
    page: int | None
    source: PageSource | None
    window: Operand
    form: Form
    second_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """A call that runs its kernel once a block, along one axis or two, the second one within blocks of the first.

    `strides`: by axis, the bytes by which each operand moves from block to block, 0 for one that stays and for windows.
    `ints`: the kernel's numbers for the first block, one in between, and the last one, by outer then inner axis. `own`:
    the kernel's workspace. `begin`: which of the kernel's numbers is the first unit of a block, -1: none.
    `buffer`: for pieces that are no whole blocks of the store. Both lie in the call's workspace, as the windows do.
    """

    counts: tuple[int, ...]
    units: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    windows: tuple[Stream, ...]  # all of them
    ints: tuple[tuple[int, ...], ...]
    begin: int
    own: Operand | None
    buffer: Operand
    rewritten_bytes: int  # of blocks of the store that it writes again

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The operands on the store."""
        return tuple(s for s in self.windows if s.page is not None)

    @property
    def overlaps(self) -> bool:
        """Whether transfers of a block can overlap the kernel of another one."""
        return any(s.second_bytes for s in self.windows)


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call, or one a block. In C the operands are inputs, then outputs, then a workspace if there is one."""

    operator: str
    kind: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    symbol: str
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    workspace: Operand | None = None
    node: str = ""  # of the model, where one gave rise to the operator
    blocks: Blocks | None = None

    @property
    def title(self) -> str:
        """The operator and its node, for messages."""
        return f"{self.kind} {self.operator!r}" + (f" of node {self.node!r}" if self.node else "")


@dataclass(frozen=True, slots=True)
class PageOut:
    operand: Operand
    page: int  # index into Program.pages


@dataclass(frozen=True, slots=True)
class PageIn:
    operand: Operand
    page: int
    source: PageSource = PageSource.THIS_RUN


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a tensor from `source` to `operand`; the two may overlap."""

    operand: Operand
    source: Operand
    symbol: ClassVar[str] = "poetc_op_move"


Instruction = Call | PageOut | PageIn | Move


@dataclass(frozen=True, slots=True)
class Page:
    """A region of the store: `slots` times `size_bytes` of data and the trailer, in whole blocks.

    State that lives on the store and is updated has two slots, written in turn by successive runs. So a run that fails,
    or is cut by a power loss, leaves the state of the last complete run. `image`: the store must hold the initial value
    of `tensor` before the first run. `final_tensor` is the version that a run of a training program must leave there.
    `is_input`: the caller writes it before each run, as if that run had. `is_sums`: it has the checksums of the pieces
    of the page before it, a table whose rows are read one by one. With two slots these are the table's, and behind the
    checksums are the numbers of the rows that the last step moved. It is no state, and has the table's name.
    """

    first_block: int
    block_count: int  # of one slot
    size_bytes: int
    tensor: str
    slots: int = 1
    image: bool = False
    final_tensor: str = ""
    type: TensorType | None = None  # None where `image` is False, and of checksums
    is_input: bool = False
    is_sums: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """A tensor that the caller or the initial image reaches by name.

    For state, `final_tensor` is the version after a run. `page`: of an input that lies on the store; its operand says
    no more than its type.
    """

    name: str
    role: Role
    operand: Operand
    final_tensor: str = ""
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Absence:
    """State in RAM whose bytes are elsewhere while instructions [begin, end) run; restored if one of them fails.

    `page` has it then, written earlier in the run. `operand` is its place in RAM, with the version that the page has.
    """

    begin: int
    end: int
    page: int
    operand: Operand


@dataclass(frozen=True, slots=True)
class BankRange:
    """The part of an arena that lies in one bank of RAM: nothing lies across two of them, or between."""

    name: str
    offset_bytes: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An instruction in a processor's queue, and by processor the number of its entries that must be over before."""

    instruction: int
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All that a device does in a run, and the data that it starts from.

    `state` is initialised once from the image and persists. `probes` says after how many instructions a gradient can be
    read whole at an operand; later ones may overwrite it. `high_water_bytes` is the end of the highest byte of the
    arena that anything occupies, sizes not rounded up. A measurement must find it.

    `banks`: the parts of the arena, in ascending order, where it is spread over banks of RAM. Offsets are distances
    from the first one. `state_bytes` then ends in the last one. `arena_address`: of the first one, where the program is
    for the memory map of a board.
    """

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
    absences: tuple[Absence, ...] = ()
    high_water_bytes: int = 0
    queues: tuple[tuple[QueueEntry, ...], ...] = ()  # by processor, if several can execute it together
    banks: tuple[BankRange, ...] = ()
    arena_address: int | None = None

    def where(self, index: int) -> str:
        """ " in KIND 'OPERATOR' of node 'NODE'" for an instruction that calls a kernel, and "" for any other."""
        instruction = self.instructions[index] if index < len(self.instructions) else None
        return f" in {instruction.title}" if isinstance(instruction, Call) else ""

    @property
    def kernels(self) -> set[str]:
        """The symbols that it calls."""
        return {i.symbol for i in self.instructions if isinstance(i, Call | Move)}

    @property
    def has_blocks(self) -> bool:
        """Whether a call runs in blocks, streamed or with all operands in RAM."""
        return any(isinstance(i, Call) and i.blocks is not None for i in self.instructions)

    @property
    def has_tables(self) -> bool:
        """Whether a call reads or moves single rows of a table on the store."""
        return any(s.form.is_table for i in self.instructions for s in streams_of(i))

    @property
    def updates_state(self) -> bool:
        """Whether a run makes a new version of any state (training), or none (inference)."""
        writes = (i.page for i in self.instructions if isinstance(i, PageOut))
        streams = (s.page for i in self.instructions for s in streams_of(i) if s.source is None and s.page is not None)
        written = itertools.chain(writes, streams)
        return any(b.final_tensor != b.name for b in self.state) or any(self.pages[p].slots == 2 for p in written)


def reads_ahead(instruction: Instruction) -> bool:
    """Whether an instruction has transfers that can overlap its kernels."""
    return isinstance(instruction, Call) and instruction.blocks is not None and instruction.blocks.overlaps


def streams_of(instruction: Instruction) -> tuple[Stream, ...]:
    """The streamed operands of an instruction."""
    return instruction.blocks.streams if isinstance(instruction, Call) and instruction.blocks is not None else ()
