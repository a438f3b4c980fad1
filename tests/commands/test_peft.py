"""Adapters of a language model beside peft: the same modules, gradients and losses (`make_peft.py` wrote peft.npz)."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from poetc import TrainingOptions
from poetc.commands.gguf import MODULES, import_gguf
from poetc.commands.requests import ModelRequest, SolveOptions, SolveRequest
from poetc.commands.solve import solve
from poetc.commands.trainer import trainer
from poetc.runtime.session import Session

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


def test_gradients_and_losses_are_those_of_peft(tmp_path: Path) -> None:
    with np.load(Path(__file__).with_name("peft.npz")) as archive:
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
        training = TrainingOptions(lora=("4",), ignore_index=-100, dim=dims, **options)  # type: ignore[arg-type]
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
    with session(optimizer="adamw", learning_rate=1e-3, weight_decay=0.01) as many:
        losses = [many.step(ids[n], targets[n]) for n in range(steps)]
    assert np.abs(np.array(losses) - held["losses"]).max() < 1e-5
