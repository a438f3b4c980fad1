"""The way out of a training, tried before its first step: the files of the end, and room for them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from poetc.artifact import Artifact
from poetc.commands.adapter_files import lora_of
from poetc.commands.adapter_formats import comes_from_gguf
from poetc.commands.export import ExportRequest, export_arrays, export_onnx, find_model, initial_weights
from poetc.commands.programs import graph_of
from poetc.commands.weights import by_graph_name
from poetc.devices.units import format_bytes
from poetc.errors import UnsupportedModelError, UsageError
from poetc.events import Progress
from poetc.graph import Array, Role

GGUF = "adapter.gguf"
ADAPTER = Path("adapter") / "adapter_model.safetensors"  # peft's name
_REPORTS_BYTES = 4 << 20  # report.html and the small files beside it


def rehearse(solved: Artifact, directory: Path, out: Path, note: Progress, *, has_average: bool = False) -> None:
    """Write the output files of a training once before it begins, to raise the errors of its end now.

    The weights are the initial ones with small random changes. Unchanged weights would always fit the file, so that an
    export that refuses trained ones would not be noticed. UsageError where the disk has no room for output and
    checkpoints. `has_average`: checkpoints hold averages of the weights too.
    """
    random = np.random.default_rng(0)
    state = {
        name: array + np.float32(0.05) * random.random(array.shape, np.float32) if array.dtype == np.float32 else array
        for name, array in initial_weights(solved).items()
    }
    with TemporaryDirectory(dir=directory, prefix=".rehearsal-") as scratch:
        if lora_of(solved)[1]:
            write_adapter(solved, state, Path(scratch) / ADAPTER, note)
        export_onnx(solved, state, Path(scratch) / out.name)
        end_bytes = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file())
    _require_room(directory, end_bytes + _REPORTS_BYTES, _checkpoint_bytes(solved, has_average))


def write_adapter(solved: Artifact, state: Mapping[str, Array], path: Path, note: Progress) -> None:
    """The trained adapters for peft, and of a GGUF model for llama.cpp. A note says why there is no file."""
    path.parent.mkdir(exist_ok=True)
    try:
        named = by_graph_name(solved, state, "the trained state")
        export_arrays(solved, named, ExportRequest(adapter=path, force=True))
        if comes_from_gguf(find_model(solved, None)):
            path = path.with_name(GGUF)
            export_arrays(solved, named, ExportRequest(gguf_adapter=path, force=True))
    except (UnsupportedModelError, UsageError) as error:
        note(f"{path} is not written: {error}")


def _checkpoint_bytes(solved: Artifact, has_average: bool) -> int:
    """The arrays of one checkpoint: the state, the best weights, and their averages."""
    step = graph_of(solved)
    state = {n: step.tensors[n] for n in step.updates}
    total = sum(t.type.size_bytes for t in state.values())
    total += sum(t.type.size_bytes for t in state.values() if t.role in (Role.PARAMETER, Role.STATISTIC))
    return total + sum(t.type.size_bytes for t in state.values() if has_average and t.role is Role.PARAMETER)


def _require_room(directory: Path, end_bytes: int, checkpoint_bytes: int) -> None:
    """Two checkpoints stay; while one more, or the files of the end, are written, they have other names."""
    needed = 2 * checkpoint_bytes + max(checkpoint_bytes, end_bytes)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise UsageError(
            f"{directory}: this training writes {format_bytes(needed)}, and {format_bytes(free)} of the disk are free;"
            " make room, or choose another place with -o"
        )
