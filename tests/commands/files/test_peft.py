"""Adapters of a language model beside peft: the same modules, gradients and losses (`make_peft.py` wrote peft.npz)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gguf
import numpy as np
import onnxruntime
import pytest

from poetc import TrainingOptions
from poetc.commands.export import ExportRequest, export_arrays
from poetc.commands.gguf import MODULES, import_gguf
from poetc.commands.requests import ModelRequest, SolveOptions, SolveRequest
from poetc.commands.solve import solve
from poetc.commands.trainer import trainer
from poetc.commands.weights import model_of
from poetc.runtime.session import Session

HELD = Path(__file__).with_name("peft.npz")
WITH_MAGNITUDES = Path(__file__).with_name("peft_dora.npz")
ROOT = Path(__file__).parents[3]
HEADS = {"attn_q": 2, "attn_k": 1}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def _write(path: Path, weights: dict[str, np.ndarray]) -> None:
    """The model as llama.cpp's converter writes it."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(2):
        for name, module in (MODULES | NORMS).items():
            array = weights[f"model.layers.{layer}.{module}.weight"]
            if name in HEADS:
                split = array.reshape(HEADS[name], 2, -1, array.shape[1])
                array = np.ascontiguousarray(split.swapaxes(1, 2).reshape(array.shape))
            writer.add_tensor(f"blk.{layer}.{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("file", "lora"), [(HELD, "4"), (WITH_MAGNITUDES, "4:dora")])
def test_gradients_and_losses_are_those_of_peft(file: Path, lora: str, tmp_path: Path) -> None:
    with np.load(file) as archive:
        held = dict(archive)
    weights, factors, gradients = (
        {n.removeprefix(f"{kind}/"): a for n, a in held.items() if n.startswith(f"{kind}/")}
        for kind in ("weight", "factor", "gradient")
    )
    _write(tmp_path / "m.gguf", weights)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    ids = held["ids"]
    steps, batch, length = ids.shape
    targets = np.concatenate([ids[:, :, 1:], np.full((steps, batch, 1), -100, np.int32)], axis=2)

    def session(**options: object) -> Session:
        dims = (f"batch_size={batch}", f"sequence_length={length}")
        training = TrainingOptions(lora=(lora,), ignore_index=-100, dim=dims, **options)  # type: ignore[arg-type]
        model = ModelRequest(source=tmp_path / "m.onnx", training=training)
        made = trainer(solve(SolveRequest(model=model, options=SolveOptions(time_limit_s=1))))
        made.load_state_dict(factors, strict=False)
        return made

    with session(optimizer="sgd", learning_rate=1.0) as once:
        names = sorted(n for n in once.state_names() if ".lora_" in n)
        assert names == sorted(factors)  # the modules of peft's all-linear
        loss = once.step(ids[0], targets[0])
        after = once.state_dict(names)
    assert abs(loss - held["losses"][0]) < 1e-6
    mine = np.concatenate([(factors[n].astype(np.float64) - after[n]).ravel() for n in names])
    theirs = np.concatenate([gradients[n].astype(np.float64).ravel() for n in names])
    assert mine @ theirs / np.linalg.norm(mine) / np.linalg.norm(theirs) > 0.99999
    for name in names:
        one, other = (factors[name] - after[name]).ravel(), gradients[name].ravel()
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.99999, name
    with session(optimizer="adamw", learning_rate=1e-3, weight_decay=0.01) as many:
        losses = [many.step(ids[n], targets[n]) for n in range(steps)]
    assert np.abs(np.array(losses) - held["losses"]).max() < 1e-5


@pytest.mark.long  # the first time, peft, transformers and PyTorch are installed
@pytest.mark.parametrize(
    "lora",
    [
        ("2", "4:q_proj,k_proj:alpha=12"),
        ("4:rslora", "2:down_proj:rslora:alpha=3"),
        ("2:dora", "4:q_proj,k_proj:alpha=12:dora"),
    ],
)
def test_peft_loads_the_adapter(lora: tuple[str, ...], tmp_path: Path) -> None:
    """PeftModel.from_pretrained on the model of transformers has the scores of the merged file in onnxruntime."""
    subprocess.run([ROOT / "bench" / "setup_peers", "peft"], check=True)
    with np.load(HELD) as archive:
        weights = {n.removeprefix("weight/"): archive[n] for n in archive.files if n.startswith("weight/")}
        ids = archive["ids"][0].astype(np.int64)
    _write(tmp_path / "m.gguf", weights)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    options = TrainingOptions(lora=lora, dim=(f"batch_size={len(ids)}", f"sequence_length={ids.shape[1]}"))
    model = ModelRequest(source=tmp_path / "m.onnx", training=options)
    solved, random = solve(SolveRequest(model=model, options=SolveOptions(time_limit_s=1))), np.random.default_rng(5)
    graph = model_of(solved)
    shapes = {n: graph.tensors[n].shape for n in graph.values if ".lora_" in n}
    state = {n: (0.2 * random.standard_normal(shape)).astype(np.float32) for n, shape in shapes.items()}
    adapter, merged = tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "merged.onnx"
    adapter.parent.mkdir()
    export_arrays(solved, state, ExportRequest(out=merged, adapter=adapter))
    peer = ROOT / "build" / "peers" / "peft" / "bin" / "python"
    words = [peer, "-P", Path(__file__).with_name("peer_peft.py"), HELD, adapter.parent, tmp_path / "scores.npy"]
    subprocess.run(words, check=True)
    theirs = np.load(tmp_path / "scores.npy")
    mine, plain = (_scores(path, ids) for path in (merged, tmp_path / "m.onnx"))
    assert np.abs(plain - theirs).max() > 0.1 * np.abs(theirs).max()
    assert np.abs(mine - theirs).max() < 1e-5 * np.abs(theirs).max()


def _scores(model: Path, ids: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"input_ids": ids})[0])
