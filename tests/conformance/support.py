"""The outside models, and the command line as the tests of this folder use it."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from poetc.cli import main
from poetc.commands.analyze import analyze
from poetc.commands.requests import ModelRequest
from poetc.training import TrainingOptions

MODELS = Path(os.environ.get("POETC_MODELS", "/nonexistent"))


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    json: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.json[key]


def poetc(*arguments: object, code: int | None = 0) -> Answer:
    """Run a command with --json; its one object. Fails the test unless it ends with `code` (None: any)."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([*map(str, arguments), "--json"])
    words = " ".join(map(str, arguments))
    assert code is None or ended.value.code == code, f"poetc {words}: exit {ended.value.code}\n{err.getvalue()}"
    assert isinstance(ended.value.code, int)
    return Answer(ended.value.code, json.loads(out.getvalue()))


def files(folder: str, pattern: str) -> list[Path]:
    """Sorted; empty where the models are not there (nothing is collected then)."""
    return sorted((MODELS / folder).glob(pattern))


def needs(model: Path, batch: int | None, device: str = "host", batch_norm: str = "train") -> dict[str, Any]:
    """What `poetc analyze` says first, without its estimates."""
    training = TrainingOptions(batch_norm=batch_norm)
    return analyze(ModelRequest(source=model, batch=batch, device=device, training=training), streams=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A model, and what training it for a step must give."""

    path: Path
    model: Path
    batch: int
    batch_norm: str
    learning_rate_scale: float

    @property
    def solve_options(self) -> list[object]:
        return [self.model, "--batch", self.batch, "--batch-norm", self.batch_norm]


def references() -> list[Reference]:
    """Every reference of one training step."""
    found = []
    for path in files("reference", "*.npz"):
        with np.load(path, allow_pickle=False) as archive:
            if "meta" not in archive:
                continue
            meta = json.loads(str(archive["meta"]))
            batch = len(archive["target"])
        folders = (MODELS / "reference", MODELS / "thirdparty")
        model = next(folder / meta["model"] for folder in folders if (folder / meta["model"]).exists())
        mode = "train" if meta["bn"] == "batch" else "frozen"
        found.append(Reference(path, model, batch, mode, float(meta["lr_scale"])))
    return found


def write_records(path: Path, archive: Any) -> None:
    """One record for the emitted trainer: inputs, then the target, as the kernels take them."""
    names = sorted(name for name in archive.files if name.startswith("in."))
    with path.open("wb") as file:
        for name in [*names, "target"]:
            array = archive[name]
            file.write(array.astype(np.float32 if array.dtype.kind == "f" else np.int32).tobytes())


def open_batch(path: Path) -> int | None:
    """Two rows where a file leaves the batch open, None where its batch is fixed."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    shapes = [info.type.tensor_type.shape for info in graph.input if info.name not in weights]
    is_open = any(shape.dim and not shape.dim[0].HasField("dim_value") for shape in shapes)
    return 2 if is_open else None
