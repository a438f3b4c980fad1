"""`poetc import-gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from poetc.commands.gguf._config import config_of
from poetc.commands.gguf._decoder import Decoder
from poetc.commands.gguf._reading import read_gguf
from poetc.commands.gguf._tokenizer import tokenizer_files
from poetc.events import Progress, silent
from poetc.files import new_files, require_free

_LARGEST_BYTES = 2**31 - 2**20  # of an ONNX file in one piece


def import_gguf(path: Path, out: Path, *, force: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Write the model of a GGUF file as ONNX to `out`, and its tokenizer beside it; the answer of `--json`.

    UsageError: a file is in the way (and not `force`), or damaged. UnsupportedModelError: another architecture.
    """
    file = read_gguf(path)
    config = config_of(file)
    files, why = tokenizer_files(file)
    companion_files = {out.with_name(name): data for name, data in files.items()}
    data = out.with_name(out.name + ".data")
    require_free((out, *companion_files), path, force)
    progress("reading the tensors")
    decoder = Decoder(file, config)
    model = decoder.model()
    copies: list[str] = []
    progress("writing the model")
    is_large = sum(len(t.raw_data) for t in model.graph.initializer) > _LARGEST_BYTES
    with new_files(out, data, *companion_files, force=force, copies=copies) as staged:
        if is_large:
            onnx.save(model, staged, save_as_external_data=True, location=data.name, size_threshold=1024)
        else:
            onnx.save(model, staged)
        for place, content in companion_files.items():
            staged.with_name(place.name).write_bytes(content)
    notes = [*decoder.notes, *((f"no tokenizer is written: {why}; give --tokenizer to poetc train",) if why else ())]
    return {
        "out": str(out),
        "tokenizer": None if why else str(out.with_name("tokenizer.json")),
        "architecture": config.architecture,
        "layers": config.layers,
        "width": config.width,
        "vocabulary": config.vocabulary,
        "forms": dict(sorted(decoder.forms.items())),
        "notes": notes,
        "copies": copies,
    }
