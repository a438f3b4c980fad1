"""The instructions of a program as tables of C."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from poetc.devices.blocks import Dimension
from poetc.emit._cprint import Pool, comment, floating, integer, table
from poetc.program import Call, Instruction, Move, Operand, PageIn, PageOut, Program, Space, Stream
from poetc.runtime.layout import ALIGNMENT_BYTES


def _reference(operand: Operand) -> str:
    return f"{2 * (operand.offset_bytes // ALIGNMENT_BYTES) + (operand.space is Space.FLASH)}u"


def _operands(instruction: Instruction) -> list[Operand]:
    if isinstance(instruction, Call) and instruction.blocks is not None:
        blocks, operands = instruction.blocks, [*instruction.inputs, *instruction.outputs]
        places = [operands[s.operand] for s in blocks.windows if s.page is None]
        for stream in blocks.windows:
            operands[stream.operand] = stream.window
        return [*operands, *([blocks.own] if blocks.own else []), blocks.buffer, *places]
    if isinstance(instruction, Call):
        workspace = [instruction.workspace] if instruction.workspace else []
        return [*instruction.inputs, *instruction.outputs, *workspace]
    if isinstance(instruction, Move):
        return [instruction.source, instruction.operand]
    return [instruction.operand]


@dataclass(slots=True)
class Pools:
    """The tables that instructions share: operands, whole numbers and floats."""

    refs: Pool[str] = field(default_factory=Pool)
    ints: Pool[str] = field(default_factory=Pool)
    floats: Pool[str] = field(default_factory=Pool)

    @property
    def entries(self) -> int:
        """Entries of all three tables, 4 bytes each."""
        return len(self.refs.items) + len(self.ints.items) + len(self.floats.items)

    def tables(self, name: str) -> list[str]:
        """C of the tables that are not empty; their names begin with `name`."""
        lines: list[str] = []
        for kind, part, pool in (
            ("poetc_ref", "refs", self.refs),
            ("int32_t", "ints", self.ints),
            ("float", "floats", self.floats),
        ):
            if pool.items:
                lines += ["", *table(f"static const {kind} {name}_{part}[]", pool.items)]
        return lines


ROWS, OLD_ROWS, NEW_ROWS, WRITES, FROM_RAM, TO_RAM = -1, -2, -3, 3, 4, 5  # of poetc_pieces.h, in place of a source


def _source(stream: Stream) -> int:
    if stream.page is None:
        return TO_RAM if stream.form.writes else FROM_RAM
    if stream.form.is_table:
        moved = NEW_ROWS if stream.form.writes else OLD_ROWS
        return moved if stream.form.changed else ROWS
    return WRITES if stream.source is None else int(stream.source)


def _dimension(dimension: Dimension | None) -> list[int]:
    if dimension is None:
        return [-1, 0, 0, 1, 0, 0, 0]
    span = dimension.span
    return [dimension.axis, span.limit, span.mul, span.div, span.low, span.high, dimension.unit]


def _block_ints(call: Call) -> list[int]:
    """The numbers of an instruction in blocks, as poetc_stream.c reads them."""
    blocks = call.blocks
    assert blocks is not None
    lists = list(dict.fromkeys(blocks.ints))
    longest = max(map(len, lists))  # fewer loops in a last block of one unit: C finds all lists equally far apart
    numbers = [lists.index(ints) for ints in blocks.ints]
    axes = list(zip(blocks.counts, blocks.units, blocks.extents, strict=True))
    strides = [list(by_operand) for by_operand in blocks.strides]
    if len(axes) == 1:  # no inner axis is one of a single block, which is the last
        axes.append((1, 1, 1))
        numbers = [n for n in numbers for _ in range(3)]
        strides.append([0] * len(strides[0]))
    numbers_of_blocks = [
        len(strides[0]) + bool(blocks.own),
        len(blocks.windows),
        longest,
        blocks.buffer.type.size_bytes,
    ]
    numbers_of_blocks += [blocks.begin, *(n for axis in axes for n in axis), *numbers]
    numbers_of_blocks += [stride // ALIGNMENT_BYTES for pair in zip(*strides, strict=True) for stride in pair]
    numbers_of_blocks += [0, 0] * bool(blocks.own)
    for s in blocks.windows:
        form = s.form
        rows = form.indices if form.is_table else form.rows
        numbers_of_blocks += [s.operand, -1 if s.page is None else s.page, _source(s), rows, form.pitch]
        numbers_of_blocks.append(s.second_bytes // ALIGNMENT_BYTES)
        numbers_of_blocks += [*_dimension(form.outer), *_dimension(form.inner)]
    return [*numbers_of_blocks, *(n for ints in lists for n in (*ints, *[0] * (longest - len(ints))))]


def instruction_rows(program: Program, pools: Pools) -> list[str]:
    """Rows of the table of instructions. Fills the pools."""
    rows: list[str] = []

    def row(pool: Pool[str], table_name: str, items: list[str]) -> str:
        at = pool.add(items)
        return "NULL" if at is None else f"{program.name}_{table_name} + {at}"

    for instruction in program.instructions:
        kernel, opcode = "NULL", "POETC_COMPUTE"
        int_row: list[str] = []
        float_row: list[str] = []
        match instruction:
            case Call():
                kernel, what = instruction.symbol, instruction.operator
                int_row = [integer(v) for v in instruction.ints]
                if instruction.blocks is not None:
                    opcode = "POETC_STREAM_AHEAD" if instruction.blocks.overlaps else "POETC_STREAM"
                    int_row = [integer(v) for v in _block_ints(instruction)]
                float_row = [floating(v) for v in instruction.floats]
            case PageOut(page=page):
                opcode, what, int_row = "POETC_PAGE_OUT", instruction.operand.tensor, [str(page)]
            case PageIn(page=page, source=page_source):
                opcode, what = "POETC_PAGE_IN", instruction.operand.tensor
                int_row = [str(page), f"POETC_PAGE_{page_source.name}"]
            case Move(operand=operand):
                kernel, what, int_row = instruction.symbol, operand.tensor, [str(operand.type.size_bytes)]
        parts = [
            kernel,
            row(pools.refs, "refs", [_reference(o) for o in _operands(instruction)]),
            row(pools.ints, "ints", int_row),
            row(pools.floats, "floats", float_row),
            opcode,
        ]
        rows.append(f"    {{{', '.join(parts)}}}, {comment(what)}")
    return rows


def required(prefix: str, parts: Collection[str]) -> list[str]:
    """Functions of these files of the runtime, to which it refers weakly.

    A linker takes them out of a static library for a strong reference alone.
    """
    lines = []
    if "poetc_stream.c" in parts:
        arguments = "poetc_runtime *runtime, const poetc_instruction *instruction, poetc_slice *slice"
        lines += ["", f"int poetc_stream({arguments});"]
        lines.append(f"int (*const {prefix}_stream)({arguments}) = poetc_stream;")
    if "poetc_rows.c" in parts:
        arguments = "const void *at, const poetc_instruction *instruction, int32_t phase"
        lines += ["", f"int poetc_rows({arguments});"]
        lines.append(f"int (*const {prefix}_rows)({arguments}) = poetc_rows;")
    if "poetc_input.c" in parts:
        arguments = "poetc_session *, const poetc_entry *, uint32_t, poetc_source, void *"
        lines += ["", f"int (*const {prefix}_fill)({arguments}) = poetc_session_fill;"]
    return lines
