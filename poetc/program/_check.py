"""Checks a Program without knowing how it was made: bounds, alignment, and that every read finds the value it names."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import pairwise, product

from poetc.devices.blocks import fills_of
from poetc.errors import PoetcError
from poetc.graph import DType, TensorType
from poetc.ops import Bound, spec
from poetc.program._ir import (
    Blocks,
    Call,
    Move,
    Operand,
    PageIn,
    PageOut,
    PageSource,
    Program,
    Space,
    Stream,
    streams_of,
)
from poetc.runtime.layout import ALIGNMENT_BYTES, TRAILER_BYTES, changed_bytes, page_bytes, sums_bytes

OFFSET_LIMIT = 1 << 32  # Offsets are uint32_t in the runtime.


class ProgramError(PoetcError):
    """A program that would compute another result than its graph. This is a defect of poetc, not of the model."""


def operands(program: Program) -> Iterator[Operand]:
    """Every operand that instructions and bindings refer to."""
    for instruction in program.instructions:
        if isinstance(instruction, Call):
            yield from instruction.inputs
            yield from instruction.outputs
            if instruction.workspace is not None:
                yield instruction.workspace
        else:
            yield instruction.operand
            if isinstance(instruction, Move):
                yield instruction.source
    for binding in (*program.inputs, *program.outputs, *program.state, *program.constants):
        yield binding.operand
    if program.target is not None:
        yield program.target.operand


def check_program(program: Program) -> None:
    """Raises ProgramError at the first thing that is wrong, with the instruction and the reason."""
    _check_bounds(program)
    _check_pages(program)
    _check_absences(program)
    _check_inputs(program)
    contents = _Arena()
    entries = [*program.state, *program.inputs, *([program.target] if program.target else [])]
    for binding in entries:
        if binding.page is None and contents.overlaps(binding.operand):
            raise ProgramError(f"{binding.name}: overlaps {contents.overlaps(binding.operand)[0]} when a run begins")
        contents.write(binding.operand)
    initial = {i: page.tensor for i, page in enumerate(program.pages) if page.image}  # until this run is complete
    stored = {i: page.tensor for i, page in enumerate(program.pages) if page.is_input}  # those that this run wrote, too
    probes: dict[int, list[Operand]] = {}
    for index, operand in program.probes.values():
        probes.setdefault(index, []).append(operand)
    for index, instruction in enumerate(program.instructions):
        where = f"instruction {index}"
        for operand in probes.get(index, ()):
            contents.read(operand, f"{where}: probe")
        match instruction:
            case Call():
                _check_call(instruction, contents, f"{where} ({instruction.operator})")
                _check_streams(instruction, program, initial, stored, f"{where} ({instruction.operator})")
            case PageOut(operand=operand, page=page):
                contents.read(operand, where)
                stored[page] = operand.tensor
                if program.pages[page].slots == 1:
                    initial.pop(page, None)
            case PageIn(operand=operand, page=page, source=source):
                held = stored if source is PageSource.THIS_RUN else initial
                if held.get(page) != operand.tensor:
                    content = held.get(page, "nothing")
                    raise ProgramError(f"{where}: page {page} holds {content} of {source.name}, not {operand.tensor}")
                contents.write(operand)
            case Move(operand=operand, source=moved):
                if (operand.type, operand.tensor) != (moved.type, moved.tensor):
                    raise ProgramError(f"{where}: {moved.tensor} would be moved to where {operand.tensor} is")
                if {operand.space, moved.space} != {Space.ARENA}:
                    raise ProgramError(f"{where}: moves {operand.tensor} out of RAM")
                contents.read(moved, where)
                contents.clear(moved)
                contents.write(operand)
    for binding in program.outputs:
        contents.read(binding.operand, f"output {binding.name}")
    for binding in program.state:
        final = binding.final_tensor or binding.name
        contents.read(_renamed(binding.operand, final), f"state {binding.name} at the end")
    updates_state = program.updates_state
    replaced = {s.page for i in program.instructions for s in streams_of(i) if s.form.is_table and s.form.writes}
    for i, region in enumerate(program.pages):
        if region.is_sums:
            if region.slots == 2 and updates_state and i - 1 not in replaced:
                raise ProgramError(
                    f"page {i}: a run moves {region.tensor}, and leaves checksums of its rows as they are"
                )
        elif region.slots == 2 and updates_state and stored.get(i) != region.final_tensor:
            left = stored.get(i, region.tensor)
            raise ProgramError(f"page {i}: a run leaves {left} on the store, not {region.final_tensor}")


def _check_inputs(program: Program) -> None:
    """Inputs on the store have pages of their own, and they pass through the page buffer while others are in place."""
    bindings = [*program.inputs, *([program.target] if program.target else [])]
    for binding in bindings:
        if binding.page is None:
            continue
        page = program.pages[binding.page]
        if not page.is_input or (page.tensor, page.type) != (binding.name, binding.operand.type):
            raise ProgramError(f"{binding.name}: page {binding.page} is not its own")
        assert program.page_buffer_offset is not None
        block = TensorType((program.block_bytes,), DType.U8)
        buffer = Operand(Space.ARENA, program.page_buffer_offset, block, "")
        covered = [b.name for b in (*bindings, *program.state) if b.page is None and overlap(buffer, b.operand)]
        if covered:
            raise ProgramError(f"{binding.name}: passes through the place of {covered[0]}")


def _check_absences(program: Program) -> None:
    """A failed run restores state only from a page that the same run wrote before, and only to a place of state."""
    written: dict[tuple[int, str], int] = {}
    for index, instruction in enumerate(program.instructions):
        if isinstance(instruction, PageOut):
            written.setdefault((instruction.page, instruction.operand.tensor), index)
    places = {(b.operand.offset_bytes, b.operand.type) for b in program.state}
    for a in program.absences:
        tensor = a.operand.tensor
        if written.get((a.page, tensor), a.begin) >= a.begin:
            raise ProgramError(f"instruction {a.begin}: {tensor} is absent, and page {a.page} does not have it yet")
        if (a.operand.offset_bytes, a.operand.type) not in places:
            raise ProgramError(f"instruction {a.begin}: {tensor} would be brought back to where no state lives")


def _renamed(operand: Operand, tensor: str) -> Operand:
    return Operand(operand.space, operand.offset_bytes, operand.type, tensor)


def _check_bounds(program: Program) -> None:
    limits = {Space.ARENA: program.arena_bytes, Space.FLASH: program.flash_bytes}
    for operand in operands(program):
        if operand.space is Space.STORE:
            continue  # its window is in the call's workspace: see `_check_streams`
        end = operand.offset_bytes + operand.type.size_bytes
        if operand.offset_bytes % ALIGNMENT_BYTES:
            raise ProgramError(f"{operand.tensor}: offset {operand.offset_bytes} is not aligned")
        if operand.offset_bytes < 0 or end > limits[operand.space]:
            limit = limits[operand.space]
            raise ProgramError(f"{operand.tensor}: ends at {end}, outside the {operand.space} of {limit} bytes")
        outside = not any(b.offset_bytes <= operand.offset_bytes and end <= b.end for b in program.banks)
        if program.banks and outside and operand.space is Space.ARENA and operand.type.size_bytes:
            raise ProgramError(f"{operand.tensor}: lies at {operand.offset_bytes}, in no bank of RAM, or in two")
    if max(limits.values()) >= OFFSET_LIMIT:
        raise ProgramError(f"{program.name}: more than 4 GiB of arena or constants")
    for binding in program.state:
        if binding.operand.offset_bytes + binding.operand.type.size_bytes > program.state_bytes:
            raise ProgramError(f"{binding.name}: state outside the {program.state_bytes} bytes at the bottom")


def _check_pages(program: Program) -> None:
    if program.block_bytes % ALIGNMENT_BYTES or program.block_bytes < 2 * TRAILER_BYTES:
        raise ProgramError(f"a block of {program.block_bytes} bytes: must be a multiple of 16, at least 32")
    if program.pages and program.page_buffer_offset is None:
        raise ProgramError("a program with pages has no page buffer")
    regions = sorted((p.first_block, p.first_block + p.block_count * p.slots, p.tensor) for p in program.pages)
    for (_, end, a), (start, _, b) in pairwise(regions):
        if start < end:
            raise ProgramError(f"the pages of {a} and {b} overlap")
    for page in program.pages:
        if page.block_count * program.block_bytes < page_bytes(page.size_bytes, program.block_bytes):
            raise ProgramError(f"the page of {page.tensor} is too small")
    offset = program.page_buffer_offset
    if offset is not None:
        if offset % ALIGNMENT_BYTES or offset + program.block_bytes > program.arena_bytes:
            raise ProgramError("the page buffer is outside the arena or not aligned")
        paged = any(isinstance(i, PageIn | PageOut) for i in program.instructions)
        for operand in operands(program) if paged else ():  # else it is used between two runs alone
            end = operand.offset_bytes + operand.type.size_bytes
            if operand.space is Space.ARENA and operand.offset_bytes < offset + program.block_bytes and end > offset:
                raise ProgramError(f"{operand.tensor}: overlaps the page buffer")


def _check_call(call: Call, contents: _Arena, where: str) -> None:
    for operand in call.inputs:
        contents.read(operand, where)
    kind = spec(call.kind)
    bound = Bound(call.attributes, tuple(o.type for o in call.inputs), tuple(o.type for o in call.outputs))
    allowed = {*kind.must_alias, *kind.may_alias(bound)}
    # The same tensor given twice is allowed where one of the two is.
    allowed |= {(k, j) for i, j in allowed for k, o in enumerate(call.inputs) if o.tensor == call.inputs[i].tensor}
    for i, operand in enumerate(call.inputs):
        for j, output in enumerate(call.outputs):
            same = operand.offset_bytes == output.offset_bytes and (i, j) in allowed
            if operand.space is not Space.STORE and overlap(operand, output) and not same:
                raise ProgramError(f"{where}: writes {output.tensor} over its input {operand.tensor}")
    for i, j in kind.must_alias:
        if {call.inputs[i].space, call.outputs[j].space} == {Space.STORE}:
            if call.inputs[i].offset_bytes != call.outputs[j].offset_bytes:
                raise ProgramError(f"{where}: {call.outputs[j].tensor} is not in the window of {call.inputs[i].tensor}")
            continue
        if call.inputs[i].offset_bytes != call.outputs[j].offset_bytes or call.inputs[i].space is not Space.ARENA:
            raise ProgramError(f"{where}: {call.outputs[j].tensor} is not in the place of {call.inputs[i].tensor}")
    for i, output in enumerate(call.outputs):
        if output.space is Space.FLASH:
            raise ProgramError(f"{where}: writes {output.tensor} to constants")
        if output.space is not Space.STORE and any(overlap(output, other) for other in call.outputs[:i]):
            raise ProgramError(f"{where}: two outputs overlap")
    if call.workspace is not None:
        if any(overlap(call.workspace, o) for o in (*call.inputs, *call.outputs)):
            raise ProgramError(f"{where}: the workspace overlaps an operand")
        contents.clear(call.workspace)
    for output in call.outputs:
        contents.write(output)


def _check_streams(call: Call, program: Program, earlier: dict[int, str], stored: dict[int, str], where: str) -> None:
    """Blocks cover their operands, windows lie in the workspace, and pages hold the tensors that are read."""
    blocks, operands = call.blocks, (*call.inputs, *call.outputs)
    streamed = {n for n, o in enumerate(operands) if o.space is Space.STORE}
    if blocks is None:
        if streamed:
            raise ProgramError(f"{where}: has an operand on the store, and no blocks")
        return
    if {s.operand for s in blocks.streams} != streamed or call.workspace is None:
        raise ProgramError(f"{where}: its streams are not those of its operands on the store")
    low = call.workspace.offset_bytes
    high = low + call.workspace.type.size_bytes
    inside = [(b.offset_bytes, b.type.size_bytes) for b in (blocks.own, blocks.buffer) if b is not None]
    sizes = dict[int, int]()
    for s in blocks.windows:
        at = s.window.offset_bytes
        size_bytes = _window_bytes(s, blocks, operands[s.operand], where)
        for window in {at, at + s.second_bytes}:
            sizes[window] = max(sizes.get(window, 0), size_bytes)
        _check_second(s, blocks, where)
    spans = sorted([*inside, *sizes.items()])
    if any(a + size > b for (a, size), (b, _) in pairwise(spans)) or spans[0][0] < low or sum(spans[-1]) > high:
        raise ProgramError(f"{where}: its windows overlap, or lie outside its workspace")
    for strides, count in zip(blocks.strides, blocks.counts, strict=True):
        for operand, stride in zip(operands, strides, strict=True):
            if stride % ALIGNMENT_BYTES or stride * (count - 1) >= max(1, operand.type.size_bytes):
                raise ProgramError(f"{where}: blocks of {operand.tensor} begin outside it, or are not aligned")
    for s in blocks.streams:
        assert s.page is not None
        tensor, page = operands[s.operand].tensor, program.pages[s.page]
        has_edges = s.form.has_edges(blocks.units, blocks.counts, program.block_bytes)
        if s.form.is_table:
            _check_table(s, program, {w.operand for w in blocks.windows}, where)
        pieces = [s.form.pieces(r, blocks.extents)[1] for r in _firsts(blocks)]
        if blocks.buffer.type.size_bytes < s.form.buffer_bytes(max(pieces), has_edges, program.block_bytes):
            raise ProgramError(f"{where}: its buffer has no room for a piece of {tensor}")
        if s.form.size_bytes != page.size_bytes:
            raise ProgramError(f"{where}: the blocks of {tensor} do not cover it")
        if s.source is None:
            continue
        held = stored if s.source is PageSource.THIS_RUN else earlier
        if held.get(s.page) != tensor:
            content = held.get(s.page, "nothing")
            raise ProgramError(f"{where}: page {s.page} holds {content} of {s.source.name}, not {tensor}")
    for s in blocks.streams:
        if s.source is None:
            assert s.page is not None
            stored[s.page] = operands[s.operand].tensor
            if program.pages[s.page].slots == 1:
                earlier.pop(s.page, None)


def _check_second(stream: Stream, blocks: Blocks, where: str) -> None:
    """Where transfers overlap kernels, each operand on the store whose window is filled anew has two."""
    form = stream.form
    is_filled_anew = stream.page is not None and fills_of(form.axes, blocks.counts) > 1
    several = {a for a, n in enumerate(blocks.counts) if n > 1}
    if bool(stream.second_bytes) != (is_filled_anew and blocks.overlaps):
        raise ProgramError(f"{where}: operand {stream.operand} has one window, or two, and needs the other number")
    if blocks.overlaps and (form.is_table or (form.writes and form.axes and several - form.axes)):
        raise ProgramError(f"{where}: the blocks of operand {stream.operand} cannot be read or written ahead")


def _check_table(stream: Stream, program: Program, windows: set[int], where: str) -> None:
    """The table is that of the last run, checksums of its pieces are behind it, and indices have a window to count in.

    Of rows that move, their numbers are behind the checksums.
    """
    assert stream.page is not None
    sums = program.pages[stream.page + 1] if stream.page + 1 < len(program.pages) else None
    moved_bytes = changed_bytes(stream.form.changed) if stream.form.changed else 0
    if stream.source is PageSource.THIS_RUN or sums is None or not sums.is_sums:
        raise ProgramError(f"{where}: page {stream.page} has no checksums of its pieces")
    if stream.form.changed and sums.size_bytes != sums_bytes(stream.form.pitch) + moved_bytes:
        raise ProgramError(f"{where}: page {stream.page + 1} has no place for the numbers of rows that move")
    if stream.form.indices not in windows:
        raise ProgramError(f"{where}: indices of a table have no window")


def _firsts(blocks: Blocks) -> Iterator[tuple[tuple[int, int], ...]]:
    """The units of the first blocks and of the last ones along each axis: none is larger than all of these."""
    ends = [
        [(b, min(b + n, e)) for b in {0, min(n, (count - 1) * n), (count - 1) * n}]
        for count, n, e in zip(blocks.counts, blocks.units, blocks.extents, strict=True)
    ]
    yield from product(*ends)


def _window_bytes(stream: Stream, blocks: Blocks, operand: Operand, where: str) -> int:
    """The most bytes of a block; ProgramError where blocks leave out rows of the operand, or are not all of it."""
    rows, size = stream.form.rows, stream.form.pitch
    if stream.form.is_table:
        boxes = (stream.form.pieces(r, blocks.extents) for r in _firsts(blocks))
        return max(stream.form.window_bytes(rows, size) for rows, size, _ in boxes)
    whole = rows * size
    for dimension in (stream.form.outer, stream.form.inner):
        if dimension is None:
            continue
        axis, most, end = dimension.axis, 0, 0
        units, extent = blocks.units[axis], blocks.extents[axis]
        for begin in range(0, extent, units):
            low, high = dimension.span.of(begin, min(begin + units, extent), extent)
            if low > end or high < end:
                raise ProgramError(f"{where}: blocks of {operand.tensor} leave out rows")
            most, end = max(most, high - low), high
        if end != dimension.span.limit:
            raise ProgramError(f"{where}: blocks of {operand.tensor} leave out its end")
        if dimension is stream.form.outer:
            rows, whole = rows * most, whole * end
        else:
            size = most * dimension.unit
    if whole != operand.type.size_bytes:
        raise ProgramError(f"{where}: the windows of {operand.tensor} are of another size")
    return rows * size


def overlap(a: Operand, b: Operand) -> bool:
    """Whether two operands share a byte."""
    return (
        a.space is b.space
        and a.offset_bytes < b.offset_bytes + b.type.size_bytes
        and b.offset_bytes < a.offset_bytes + a.type.size_bytes
    )


class _Arena:
    """Which tensor is where, as the program runs: disjoint intervals sorted by offset."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[tuple[int, int, str]] = []

    def _range(self, operand: Operand) -> tuple[int, int]:
        """Indices of the regions that meet the operand."""
        start, end = operand.offset_bytes, operand.offset_bytes + operand.type.size_bytes
        low = bisect.bisect_right(self._starts, start)
        if low and self._regions[low - 1][1] > start:
            low -= 1
        return low, max(low, bisect.bisect_left(self._starts, end))

    def overlaps(self, operand: Operand) -> list[str]:
        low, high = self._range(operand)
        return [tensor for _, _, tensor in self._regions[low:high]]

    def clear(self, operand: Operand) -> None:
        low, high = self._range(operand)
        del self._starts[low:high], self._regions[low:high]

    def write(self, operand: Operand) -> None:
        if operand.type.size_bytes == 0 or operand.space is Space.STORE:
            return
        self.clear(operand)
        at = bisect.bisect_left(self._starts, operand.offset_bytes)
        end = operand.offset_bytes + operand.type.size_bytes
        self._starts.insert(at, operand.offset_bytes)
        self._regions.insert(at, (operand.offset_bytes, end, operand.tensor))

    def read(self, operand: Operand, where: str) -> None:
        if operand.space is not Space.ARENA or operand.type.size_bytes == 0:
            return
        low, high = self._range(operand)
        wanted = (operand.offset_bytes, operand.offset_bytes + operand.type.size_bytes, operand.tensor)
        if self._regions[low:high] != [wanted]:
            there = ", ".join(tensor for _, _, tensor in self._regions[low:high]) or "nothing"
            raise ProgramError(f"{where}: reads {operand.tensor} at {operand.offset_bytes}, where {there} is")
