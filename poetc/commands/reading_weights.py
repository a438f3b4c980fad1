"""Files of weights, read: a trained.bin, checkpoints, an .npz, a .safetensors file, or adapters of the package peft."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poetc import emit
from poetc.artifact import Artifact
from poetc.commands.adapter_files import read_adapter
from poetc.commands.programs import inference_programs, training_program
from poetc.commands.weights import by_graph_name, read_safetensors
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import read_arrays, read_file
from poetc.graph import Array
from poetc.loop import is_checkpoint, read_checkpoint
from poetc.program import (
    Manifest,
    Program,
    checkpoint_block,
    identity_in,
    is_trained,
    listed_layout,
    manifest_of,
    read_listed_state,
    read_state,
    state_on_store,
    store_layout,
)

LARGEST_STATE_BYTES = 1 << 32


def read_weights(solved: Artifact, path: Path, note: Progress = silent) -> dict[str, Array]:
    """The arrays of a trained.bin, a checkpoint, an .npz or a .safetensors file, checked, by the graph's names.

    A checkpoint is one of `poetc train`, or the newest whole one in the store.bin of an emitted program. `note` is told
    its step.
    """
    try:
        if path.suffix == ".npz":
            arrays: Mapping[str, Any] = read_arrays(path)
        elif path.suffix == ".safetensors":
            arrays = read_adapter(solved, path, read_safetensors(path))
        elif is_checkpoint(path):
            arrays = _read_checkpoint(path, note)
        else:
            arrays = read_trained(solved, path, note)
    except FileNotFoundError:
        raise UsageError(f"{path}: does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory, not a file of weights") from None
    return by_graph_name(solved, arrays, str(path))


def _read_checkpoint(path: Path, note: Progress) -> Mapping[str, Array]:
    """The state in a checkpoint of `poetc train`, with the average of the weights if there is one."""
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise UsageError(f"{path}: a damaged checkpoint: its checksum does not hold; the one beside it may be whole")
    step, average = checkpoint.progress["step"], checkpoint.arrays.get("average", {})
    note(f"{path}: the checkpoint of step {step}" + (", with the average of the weights" if average else ""))
    return {**checkpoint.arrays["state"], **average}


def read_trained(solved: Artifact, path: Path, note: Progress = silent) -> dict[str, Array]:
    """All state in a trained.bin, or in the newest checkpoint of a store.bin.

    `poetc-emit.json` beside it, if it describes this state, names each tensor, also of earlier versions of poetc.
    Else it must be the state of this model, whatever schedule trained it.
    """
    data = read_file(path, LARGEST_STATE_BYTES)
    manifest = _manifest_beside(path)
    if not is_trained(data):
        data = _from_store(solved, path, data, manifest, note)
    if manifest is not None and identity_in(data) == manifest.state.identity:
        return read_listed_state(data, manifest.state, str(path))
    return read_state(data, training_program(solved), str(path))


def _from_store(solved: Artifact, path: Path, data: bytes, manifest: Manifest | None, note: Progress) -> bytes:
    """The trained.bin that the store's newest whole checkpoint would make. `data` as they are where it is no store."""
    training = training_program(solved)
    layouts = [listed_layout(manifest)] if manifest is not None else []
    layouts += [store_layout(training, checkpoint_block(programs)) for programs in _emitted(solved)]
    checkpoint = state_on_store(data, layouts)
    if checkpoint is not None:
        note(f"{path}: the checkpoint of step {checkpoint[1]}")
        return checkpoint[0]
    if any(len(data) >= layout.end_bytes for layout in layouts):
        raise UsageError(
            f"{path}: neither a trained.bin nor a store with a whole checkpoint of this model; with the"
            f" {emit.MANIFEST} of the directory that trained it beside it, it can be read"
        )
    return data


def _emitted(solved: Artifact) -> list[list[Program]]:
    """Programs that `poetc emit` writes: all of them, and for firmware those that need no more RAM than training."""
    training = training_program(solved)
    whole = [training, *inference_programs(solved, training)]
    small = [p for p in whole if p.arena_bytes <= training.arena_bytes]
    return [whole] if len(small) == len(whole) else [whole, small]


def _manifest_beside(path: Path) -> Manifest | None:
    with contextlib.suppress(OSError, UsageError):
        return manifest_of(path.parent / emit.MANIFEST)
    return None
