"""poetc-emit.json: the place of each tensor, with whole names (docs/reference/formats.md). Offsets are in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from poetc.emit._module import Module, accessor_names, entries, state_names
from poetc.graph import TensorType
from poetc.program import Binding, Program, StateTensor, all_inputs, limits, regions, state_identity, tensors


def describe(module: Module, emission: int) -> dict[str, Any]:
    """The manifest's facts about the programs' data, besides checksums."""
    main = module.programs[0]
    names = state_names(module)
    return {
        "record": _sequence(all_inputs(main)),
        "state": {
            "file": "trained.bin",
            "identity": state_identity(main),
            "size_bytes": sum(region.size_bytes for region in regions(main)),
            "tensors": [{**_tensor(t, main), "identifier": names.get(t.name)} for t in tensors(main)],
        },
        "constants": {
            "file": module.image("constants.bin"),
            "tensors": [_placed(b) for b in module.constants_program().constants],
        },
        "session": {**_session(module), "emission": emission},
        "accessors": {program.name: list(_accessors(module, program)) for program in module.programs},
    }


def _session(module: Module) -> dict[str, Any]:
    """The facts that a session needs beside tensors: runtime/session.py reads them."""
    main, rate = module.programs[0], module.learning_rate()
    return {
        "library": "libmodel.so",
        "symbol": module.description,
        "bundle": f"{module.prefix}_bundle" if module.bundle is not None else None,
        "queues": module.queues,
        "arena_bytes": module.arena_bytes,
        "state_bytes": main.state_bytes,
        "block_bytes": main.block_bytes,
        "store_blocks": module.store_blocks,
        "checkpoint_block": module.checkpoint_block,
        "store_image": module.image("store.img") if any(p.image for p in main.pages) else None,
        "learning_rate": None if rate is None else rate.name,
        "programs": {
            entry: {"name": p.name, "arena_bytes": p.arena_bytes, "high_water_bytes": p.high_water_bytes}
            for entry, p in entries(module).items()
        },
    }


def _accessors(module: Module, program: Program) -> Iterator[dict[str, Any]]:
    allowed = limits(program)
    for kind, bindings in (("in", all_inputs(program)), ("out", program.outputs)):
        names = accessor_names(module, program, kind, bindings)
        for binding in bindings:
            row = {**_given(binding), "identifier": names[binding.name], "direction": kind}
            if kind == "in" and binding.name in allowed:
                row["limit"] = {k: v for k, v in asdict(allowed[binding.name]).items() if k != "parts"}
            yield row


def _typed(name: str, type: TensorType) -> dict[str, Any]:
    dtype = np.dtype(type.dtype.numpy).name
    return {"name": name, "dtype": dtype, "shape": list(type.shape), "size_bytes": type.size_bytes}


def _placed(binding: Binding) -> dict[str, Any]:
    return {**_typed(binding.name, binding.operand.type), "offset_bytes": binding.operand.offset_bytes}


def _given(binding: Binding) -> dict[str, Any]:
    """A tensor that the caller reaches in the arena; or an input on the store, which has a page instead."""
    if binding.page is None:
        return _placed(binding)
    return {**_typed(binding.name, binding.operand.type), "offset_bytes": None, "page": binding.page}


def _tensor(tensor: StateTensor, program: Program) -> dict[str, Any]:
    place: Mapping[str, Any] = {"memory": "ram", "offset_bytes": tensor.arena_offset_bytes}
    if tensor.page is not None:
        page = tensor.page
        place = {
            "memory": "store",
            "first_block": page.first_block,
            "slot_blocks": page.block_count,
            "slots": page.slots,
            "block_bytes": program.block_bytes,
        }
    return {**_typed(tensor.name, tensor.type), "offset_bytes": tensor.offset_bytes, "place": dict(place)}


def _sequence(bindings: Iterable[Binding]) -> dict[str, Any]:
    entries, offset = [], 0
    for binding in bindings:
        entries.append({**_typed(binding.name, binding.operand.type), "offset_bytes": offset})
        offset += binding.operand.type.size_bytes
    return {"file": "data.bin", "size_bytes": offset, "tensors": entries}
