"""Runs a Program in numpy on a real arena, so that a packing mistake shows up as a wrong number.

Kernels are replaced by `OpSpec.evaluate`; places, order, pages and aliasing are those of the program.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, MutableMapping

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, Value, materialize_into
from poetc.ops import Bound, Use, results_by_parts, sample, spec
from poetc.ops.sgd_of import SgdOf
from poetc.program._check import ProgramError, check_program
from poetc.program._image import constants_image, initial_pages
from poetc.program._ir import Binding, Call, Move, Operand, PageIn, PageOut, PageSource, Program, Space
from poetc.program._state_file import regions

BLOCK_BYTES = 1 << 22  # of a result that is made at once, where its operator can be cut
POISON = 0xFF  # Every float made of it is a NaN, so that a read of bytes that nobody wrote cannot go unnoticed.


def fit_input(binding: Binding, inputs: Mapping[str, Array]) -> Array:
    """The array given for `binding`, in its type. Raises UsageError if it is missing or has another shape."""
    if binding.name not in inputs:
        raise UsageError(f"no value for input {binding.name!r} (given: {', '.join(sorted(inputs)) or 'none'})")
    array, type = np.asarray(inputs[binding.name]), binding.operand.type
    if array.shape != type.shape:
        raise UsageError(f"input {binding.name!r} has shape {array.shape}, the program takes {type.shape}")
    return np.ascontiguousarray(array, type.dtype.numpy)


def all_inputs(program: Program) -> tuple[Binding, ...]:
    """The arrays that the caller writes before each run: the inputs, then the target."""
    return (*program.inputs, *((program.target,) if program.target else ()))


def inputs_on_store(program: Program) -> tuple[Binding, ...]:
    """The inputs of all runs that lie on the store when a run begins."""
    return tuple(b for b in all_inputs(program) if b.page is not None)


def find_binding(bindings: tuple[Binding, ...], name: str) -> Binding:
    """The binding called `name`. Raises KeyError where there is none."""
    for binding in bindings:
        if binding.name == name:
            return binding
    raise KeyError(name)


class Copies(dict[str, Array]):
    """Gradients by parameter. It is given views of the arena; another mapping may keep them elsewhere."""

    def __setitem__(self, name: str, view: Array) -> None:
        super().__setitem__(name, view.copy())


class Interpreter:
    """A program, its arena and its store. `values` as in `Graph.values`."""

    def __init__(self, program: Program, values: Mapping[str, Value]) -> None:
        check_program(program)
        self.program = program
        self.arena = np.full(program.arena_bytes, POISON, np.uint8)
        self._regions = [r for r in regions(program) if r.page is None]
        self.flash = np.frombuffer(constants_image(program, values), np.uint8)
        self.arena[: program.state_bytes] = 0
        for binding in program.state:
            materialize_into(self._read(binding.operand), values[binding.name], binding.operand.type)
        self.probes: MutableMapping[str, Array] = Copies()  # whole gradients of the last run, by parameter
        self.changed: Callable[[Call, Array], Array] | None = None  # a result, or a part of it, before it is written
        self.high_water_bytes = program.state_bytes  # end of the highest byte written so far
        self.run_count = 0
        self.page_ins = 0
        self.page_outs = 0
        self._pages: dict[tuple[int, int], tuple[int, int, bytes]] = {}  # (page, slot) -> stamp, CRC-32, data
        self._sequence = 0
        self._probes_at: dict[int, list[tuple[str, Operand]]] = {}
        for parameter, (index, operand) in sorted(program.probes.items()):
            self._probes_at.setdefault(index, []).append((parameter, operand))
        for page, data in initial_pages(program, values):
            self._pages[page, 0] = 0, zlib.crc32(data), data

    def run(self, inputs: Mapping[str, Array]) -> float:
        """One step on `inputs` (target included); returns the loss.

        For inference, it returns the first element of the first output.
        """
        self._sequence += 1
        self._spoil()
        for binding in all_inputs(self.program):
            array = fit_input(binding, inputs)
            if binding.page is None:
                self._write(binding.operand, array)
            else:
                self._write_page(binding.page, array.tobytes())
                self._use_buffer()
        with np.errstate(all="ignore"):
            for index, instruction in enumerate(self.program.instructions):
                for parameter, operand in self._probes_at.get(index, ()):
                    self.probes[parameter] = self._read(operand)
                match instruction:
                    case Call():
                        self._call(instruction)
                    case PageOut():
                        self._page_out(instruction)
                    case PageIn():
                        self._page_in(instruction)
                    case Move():
                        self._move(instruction)
        self.run_count += self.program.updates_state
        return float(self._read(self.program.outputs[0].operand).reshape(-1)[0])

    def state(self, name: str) -> Array:
        """A copy of a state tensor, in RAM or on the store. KeyError if there is none."""
        for i, page in enumerate(self.program.pages):
            if page.image and page.type is not None and page.tensor == name:
                data = self._pages[i, self.run_count % page.slots][2]
                return np.frombuffer(data, page.type.dtype.numpy).reshape(page.type.shape).copy()
        return self._read(find_binding(self.program.state, name).operand).copy()

    def output(self, name: str) -> Array:
        return self._read(find_binding(self.program.outputs, name).operand).copy()

    def _spoil(self) -> None:
        """Nothing but the state stays from run to run."""
        if not self.program.banks:
            self.arena[self.program.state_bytes :] = POISON
            return
        kept = [
            (r.arena_offset_bytes, self.arena[r.arena_offset_bytes :][: r.size_bytes].copy()) for r in self._regions
        ]
        self.arena[...] = POISON
        for offset, data in kept:
            self.arena[offset : offset + data.size] = data

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _bytes(self, operand: Operand) -> Array:
        memory = self.arena if operand.space is Space.ARENA else self.flash
        return memory[operand.offset_bytes : operand.offset_bytes + operand.type.size_bytes]

    def _read(self, operand: Operand) -> Array:
        return self._bytes(operand).view(operand.type.dtype.numpy).reshape(operand.type.shape)

    def _write(self, operand: Operand, array: Array) -> None:
        self._read(operand)[...] = array
        self._touch(operand.offset_bytes + operand.type.size_bytes)

    def _touch(self, end: int) -> None:
        self.high_water_bytes = max(self.high_water_bytes, end)

    # --- instructions -------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        if call.workspace is not None:
            self._bytes(call.workspace)[...] = POISON
            self._touch(call.workspace.offset_bytes + call.workspace.type.size_bytes)
        bound = Bound(call.attributes, tuple(o.type for o in call.inputs), tuple(o.type for o in call.outputs))
        kind, inputs = spec(call.kind), [self._input(call, n) for n in range(len(call.inputs))]
        if isinstance(kind, SgdOf) and not kind.adds:
            self.probes[call.inputs[0].tensor] = np.asarray(kind.gradient_of(bound, inputs))
        for block in results_by_parts(call.kind, bound, inputs, self._most_bytes(call)):
            # An output may be a view of an input that another output overwrites.
            results = [r.copy() if np.may_share_memory(r, self.arena) else r for _, _, r in block]
            if self.changed is not None:
                results = [self.changed(call, r) for r in results]
            for (shape, box, _), result, operand in zip(block, results, call.outputs, strict=True):
                if result.shape != tuple(s.stop - s.start for s in box):
                    raise ProgramError(f"{call.operator}: evaluates to shape {result.shape}, not {operand.type.shape}")
                if operand.space is Space.STORE:
                    self._store_output(call, operand, np.asarray(result, operand.type.dtype.numpy))
                else:
                    self._read(operand).reshape(shape)[box] = result
                    self._touch(operand.offset_bytes + operand.type.size_bytes)
        if call.workspace is not None:
            self._bytes(call.workspace)[...] = POISON

    def _most_bytes(self, call: Call) -> int:
        """Of a block of the results: all of them, where a result lies over a part of an input or is on the store."""
        places = {(o.offset_bytes, o.type.size_bytes) for o in call.outputs}
        other_inputs = [o for o in call.inputs if (o.offset_bytes, o.type.size_bytes) not in places]
        apart = all(
            i.space is not Space.ARENA or i.offset_bytes >= o.offset_bytes + o.type.size_bytes or o.offset_bytes >= end
            for o in call.outputs
            for i in other_inputs
            for end in (i.offset_bytes + i.type.size_bytes,)
        )
        in_ram = all(o.space is Space.ARENA for o in call.outputs)
        return BLOCK_BYTES if in_ram and apart else sum(o.type.size_bytes for o in call.outputs)

    def _input(self, call: Call, number: int) -> Array:
        """An input of a call: whole from the store where it is streamed."""
        operand = call.inputs[number]
        if operand.space is not Space.STORE or call.blocks is None:
            return self._read(operand)
        stream = next(s for s in call.blocks.streams if s.operand == number)
        assert stream.source is not None and stream.page is not None
        data = self._page_data(stream.page, stream.source)
        return np.frombuffer(data, operand.type.dtype.numpy).reshape(operand.type.shape)

    def _store_output(self, call: Call, operand: Operand, array: Array) -> None:
        assert call.blocks is not None
        number = len(call.inputs) + call.outputs.index(operand)
        stream = next(s for s in call.blocks.streams if s.operand == number)
        assert stream.page is not None
        self._write_page(stream.page, array.tobytes())

    def _write_page(self, page: int, data: bytes) -> None:
        slot, stamp = self._slot_and_stamp(page, PageSource.THIS_RUN)
        self._pages[page, slot] = stamp, zlib.crc32(data), data

    def _page_data(self, page: int, source: PageSource) -> bytes:
        slot, stamp = self._slot_and_stamp(page, source)
        number, checksum, data = self._pages[page, slot]
        if number != stamp or zlib.crc32(data) != checksum:
            raise ProgramError(f"page {page}: stamped {number}, not {stamp}, or corrupt")
        return data

    def _slot_and_stamp(self, page: int, source: PageSource) -> tuple[int, int]:
        """The place of a page and the numbers in its stamp: as `page_in` in poetc.c."""
        if source is PageSource.IMAGE:
            return 0, 0
        if self.program.pages[page].slots == 2:
            version = self.run_count + (source is PageSource.THIS_RUN)
            return version % 2, version
        return 0, self._sequence

    def _page_out(self, instruction: PageOut) -> None:
        self._write_page(instruction.page, self._bytes(instruction.operand).tobytes())
        self._use_buffer()
        self.page_outs += 1

    def _page_in(self, instruction: PageIn) -> None:
        data = self._page_data(instruction.page, instruction.source)
        operand = instruction.operand
        self._bytes(operand)[...] = np.frombuffer(data, np.uint8)
        self._touch(operand.offset_bytes + operand.type.size_bytes)
        self._use_buffer()
        self.page_ins += 1

    def _move(self, instruction: Move) -> None:
        data = self._bytes(instruction.source).copy()
        self._bytes(instruction.source)[...] = POISON
        self._bytes(instruction.operand)[...] = data
        self._touch(instruction.operand.offset_bytes + instruction.operand.type.size_bytes)

    def _use_buffer(self) -> None:
        offset, size = self.program.page_buffer_offset, self.program.block_bytes
        assert offset is not None
        self.arena[offset : offset + size] = POISON
        self._touch(offset + size)


def sample_inputs(program: Program, seed: int = 0) -> dict[str, Array]:
    """Inputs and target made up from `seed`: normal floats; integers that are in range wherever they are an index."""
    calls = [call for call in program.instructions if isinstance(call, Call) and call.inputs]
    uses = [
        Use(c.kind, c.attributes, [o.tensor for o in c.inputs], [o.tensor for o in c.outputs], c.inputs[0].type)
        for c in calls
    ]
    return sample({binding.name: binding.operand.type for binding in all_inputs(program)}, uses, seed)
