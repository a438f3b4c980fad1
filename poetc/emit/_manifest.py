"""poetc-emit.json: the place of each tensor, with whole names, in the form of `poetc.program._manifest`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from poetc.emit._module import Module, accessor_names, entries, state_names
from poetc.graph import TensorType
from poetc.program import Binding, Program, StateTensor, all_inputs, limits, regions, state_identity, tensors
from poetc.program._manifest import Constants, Manifest, Place, ProgramSizes, Record, Row, Session, State


def describe(module: Module, emission: int) -> dict[str, Any]:
    """The manifest's facts about the programs' data, besides checksums."""
    main = module.programs[0]
    names = state_names(module)
    state = State(
        file="trained.bin",
        identity=state_identity(main),
        size_bytes=sum(region.size_bytes for region in regions(main)),
        tensors=tuple(_state_row(t, main, names.get(t.name)) for t in tensors(main)),
    )
    constants = tuple(_placed(b) for b in module.constants_program().constants)
    manifest = Manifest(
        record=_record(all_inputs(main)),
        state=state,
        constants=Constants(file=module.image("constants.bin"), tensors=constants),
        session=_session(module, emission),
        accessors={program.name: tuple(_accessors(module, program)) for program in module.programs},
    )
    document: dict[str, Any] = msgspec.to_builtins(manifest)
    return document


def _session(module: Module, emission: int) -> Session:
    main, rate = module.programs[0], module.learning_rate()
    return Session(
        library="libmodel.so",
        symbol=module.description,
        bundle=f"{module.prefix}_bundle" if module.bundle is not None else None,
        queues=module.queues,
        arena_bytes=module.arena_bytes,
        state_bytes=main.state_bytes,
        block_bytes=main.block_bytes,
        store_blocks=module.store_blocks,
        checkpoint_block=module.checkpoint_block,
        store_image=module.image("store.img") if any(p.image for p in main.pages) else None,
        learning_rate=None if rate is None else rate.name,
        programs={
            entry: ProgramSizes(p.name, p.arena_bytes, p.high_water_bytes) for entry, p in entries(module).items()
        },
        emission=emission,
    )


def _accessors(module: Module, program: Program) -> Iterator[Row]:
    allowed = limits(program)
    for kind, bindings in (("in", all_inputs(program)), ("out", program.outputs)):
        names = accessor_names(module, program, kind, bindings)
        for binding in bindings:
            row = _placed(binding)
            row.identifier, row.direction = names[binding.name], kind
            if kind == "in" and binding.name in allowed:
                row.limit = {k: v for k, v in asdict(allowed[binding.name]).items() if k != "parts"}
            yield row


def _row(name: str, type: TensorType, offset_bytes: int | None) -> Row:
    return Row(name, np.dtype(type.dtype.numpy).name, type.shape, type.size_bytes, offset_bytes)


def _placed(binding: Binding) -> Row:
    """A tensor that the caller reaches in the arena; or an input on the store, which has a page instead."""
    row = _row(binding.name, binding.operand.type, None if binding.page is not None else binding.operand.offset_bytes)
    row.page = UNSET if binding.page is None else binding.page
    return row


def _state_row(tensor: StateTensor, program: Program, identifier: str | None) -> Row:
    row, page = _row(tensor.name, tensor.type, tensor.offset_bytes), tensor.page
    row.identifier = identifier
    row.place = Place("ram", offset_bytes=tensor.arena_offset_bytes)
    if page is not None:
        slots = {"slot_blocks": page.block_count, "slots": page.slots}
        row.place = Place("store", first_block=page.first_block, **slots, block_bytes=program.block_bytes)
    return row


def _record(bindings: Sequence[Binding]) -> Record:
    entries, end = [], 0
    for binding in bindings:
        entries.append(_row(binding.name, binding.operand.type, end))
        end += binding.operand.type.size_bytes
    return Record("data.bin", end, tuple(entries))
