"""Files of weights, read: a trained.bin, an .npz, a .safetensors file, or adapters of the package peft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poetc import codegen
from poetc.artifact import Artifact
from poetc.commands.adapter_files import read_adapter
from poetc.commands.programs import graph_of, inference_programs, training_program
from poetc.commands.weights import by_graph_name, model_of, read_safetensors
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import read_arrays, read_file
from poetc.graph import Array
from poetc.loop import is_checkpoint, read_checkpoint

LARGEST_STATE_BYTES = 1 << 32


def read_weights(solved: Artifact, path: Path, note: Progress = silent) -> dict[str, Array]:
    """The arrays of a trained.bin, a checkpoint, an .npz or a .safetensors file, checked, by the graph's names.

    `note` is told which step a checkpoint holds.
    """
    try:
        if path.suffix == ".npz":
            arrays: Mapping[str, Any] = read_arrays(path)
        elif path.suffix == ".safetensors":
            arrays = read_adapter(solved, path, read_safetensors(path))
        elif is_checkpoint(path):
            arrays = _read_checkpoint(path, note)
        else:
            arrays = read_trained(solved, path)
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


def read_trained(solved: Artifact, path: Path) -> dict[str, Array]:
    """All state in a trained.bin.

    `poetc-emit.json` beside it, if it is of the same emission, says where each tensor is; else it must be of this
    solution.
    """
    data = read_file(path, LARGEST_STATE_BYTES)
    manifest = _manifest_beside(path)
    if manifest is not None and codegen.state_identity(data) == manifest.get("identity"):
        return codegen.read_listed_state(data, manifest, str(path))
    program = training_program(solved)
    state = codegen.read_state(data, program, str(path))
    if codegen.state_identity(data) not in identities(solved):
        raise UsageError(
            f"{path}: trained by another schedule, from other weights, or by another version of poetc; with the"
            f" {codegen.MANIFEST} of the directory that trained it beside it, it can be read"
        )
    return state


def identities(solved: Artifact) -> list[int]:
    """Programs that `poetc emit` writes: all of them, and for firmware those that need no more RAM than training."""
    training = training_program(solved)
    whole = [training, *inference_programs(solved, training)]
    small = [p for p in whole if p.arena_bytes <= training.arena_bytes]
    values = {**model_of(solved).values, **graph_of(solved).values}
    name = graph_of(solved).name.removesuffix(".onnx")
    sets = [whole] if len(small) == len(whole) else [whole, small]
    return [codegen.identity_of(name, programs, values) for programs in sets]


def _manifest_beside(path: Path) -> Mapping[str, Any] | None:
    beside = path.parent / codegen.MANIFEST
    if not beside.is_file():
        return None
    try:
        state = json.loads(read_file(beside))["state"]
    except (OSError, UsageError, ValueError, KeyError, TypeError):
        return None
    return state if isinstance(state, dict) else None
