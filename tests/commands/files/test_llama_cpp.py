"""llama.cpp itself beside poetc: a file that was imported, and the adapters that poetc wrote for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from poetc import TrainingOptions
from poetc.commands.export import ExportRequest, export_arrays
from poetc.commands.gguf import import_gguf
from poetc.commands.requests import ModelRequest, SolveOptions, SolveRequest
from poetc.commands.solve import solve
from poetc.commands.weights import model_of
from tests.support import gguf_files, llama_cpp

IDS = [3, 77, 12, 200, 258, 9, 31]
PROMPTS = [IDS[:length] for length in (1, 4, len(IDS))]


def _log_probabilities(model: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (scores,) = session.run(["logits"], {"input_ids": np.array([IDS], np.int64)})
    rows = np.asarray(scores, np.float64)[0, [len(prompt) - 1 for prompt in PROMPTS]]
    shifted = rows - rows.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize(
    ("architecture", "tolerance"),
    [("llama", 2e-5), ("qwen2", 2e-5), ("qwen3", 2e-5), ("gemma3", 2e-3)],  # llama.cpp's GELU is a table of 16 bits
)
def test_an_imported_file_has_the_scores_of_llama_cpp(architecture: str, tolerance: float, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", architecture, "F32", table="F32")
    import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    theirs, ours = llama_cpp.next_token(tmp_path / "m.gguf", PROMPTS), _log_probabilities(tmp_path / "m.onnx")
    assert np.ptp(theirs) > 2 and np.abs(ours - theirs).max() < tolerance


def test_llama_cpp_takes_the_adapter(tmp_path: Path) -> None:
    """Of two ranks and scales: as the merged model computes."""
    model, adapter, merged = tmp_path / "m.gguf", tmp_path / "a.gguf", tmp_path / "merged.onnx"
    gguf_files.write(model, kind="F32", table="F32", tied=False)
    import_gguf(model, tmp_path / "m.onnx")
    lora = ("2", "4:q_proj,k_proj:alpha=12")
    options = TrainingOptions(lora=lora, dim=("batch_size=1", f"sequence_length={len(IDS)}"))
    request = ModelRequest(source=tmp_path / "m.onnx", training=options)
    solved, random = solve(SolveRequest(model=request, options=SolveOptions(time_limit_s=1))), np.random.default_rng(3)
    graph = model_of(solved)
    names = [n for n in graph.tensors if ".lora_" in n and n in graph.values]
    state = {n: (0.05 * random.standard_normal(graph.tensors[n].shape)).astype(np.float32) for n in names}
    export_arrays(solved, state, ExportRequest(out=merged, gguf_adapter=adapter))
    theirs, plain = llama_cpp.next_token(model, PROMPTS, adapter), llama_cpp.next_token(model, PROMPTS)
    ours = _log_probabilities(merged)
    assert np.abs(plain - theirs).max() > 1
    assert np.abs(ours - theirs).max() < 2e-5
