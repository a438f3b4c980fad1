"""PyTorch's side of bench/language_models.py, run by a Python that has torch, transformers and peft.

`peer_language_models.py export NAME TOKENS FILE` writes the graph of a model: its published configuration, random
weights, which are left out of the file. `peer_language_models.py run NAME TOKENS` trains peft's adapters beside it:
it reads lines, takes a step for each, and answers with its processor time in ms, the loss, the peak of the process's
memory in bytes and the time by the clock in ms.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as t
from onnx.external_data_helper import load_external_data_for_tensor
from transformers.initialization import no_init_weights

RANK = 8
TIED: dict[str, Any] = {"tie_word_embeddings": True, "attention_dropout": 0.0}
SMOL: dict[str, Any] = {"vocab_size": 49152, "rope_theta": 1e5, "rms_norm_eps": 1e-5, **TIED}
KEPT_BYTES = 1 << 18  # larger tensors, which are weights, are left out of the file


def widths(hidden: int, inner: int, layers: int, heads: int, groups: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 2048,
    }


def model_of(name: str) -> torch.nn.Module:
    """A decoder by the configuration that its authors published, with random weights."""
    torch.manual_seed(0)
    with no_init_weights():
        model = decoder(name).eval()
    model.tie_weights()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.uniform_(-0.03, 0.03)
            else:
                parameter.fill_(1.0)
    return model


def decoder(name: str) -> torch.nn.Module:
    if name == "SmolLM2-135M":
        return t.LlamaForCausalLM(t.LlamaConfig(**SMOL, **widths(576, 1536, 30, 9, 3)))
    if name == "SmolLM2-360M":
        return t.LlamaForCausalLM(t.LlamaConfig(**SMOL, **widths(960, 2560, 32, 15, 5)))
    if name == "Qwen3-0.6B":
        options = {"vocab_size": 151936, "head_dim": 128, "rope_theta": 1e6, **TIED}
        return t.Qwen3ForCausalLM(t.Qwen3Config(**options, **widths(1024, 3072, 28, 16, 8)))
    options = {"vocab_size": 262144, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256, **TIED}
    return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**options, **widths(640, 2048, 18, 4, 1)))


class Scores(torch.nn.Module):
    """Tokens in, scores of the next ones out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return found


def export(name: str, tokens: int, path: Path) -> None:
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        whole = Path(scratch) / "whole.onnx"
        with torch.no_grad():
            program = torch.onnx.export(
                Scores(model_of(name).eval()), (ids,), input_names=["input_ids"], output_names=["logits"], dynamo=True
            )
        assert program is not None
        program.save(str(whole), external_data=True)
        strip(found := onnx.load(str(whole), load_external_data=False), scratch)
    onnx.save(found, str(path))


def strip(found: onnx.ModelProto, folder: str) -> None:
    """Leave the weights out, and where in the exporter's source a node was made."""
    for tensor in found.graph.initializer:
        size = next((int(e.value) for e in tensor.external_data if e.key == "length"), len(tensor.raw_data))
        if size > KEPT_BYTES:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value="absent")
        elif tensor.external_data:
            load_external_data_for_tensor(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    for node in found.graph.node:
        del node.metadata_props[:]


def tuned(name: str, dtype: torch.dtype) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model_of(name).to(dtype), LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear"))


def peak_bytes() -> int:
    """The peak of resident memory of this process since it was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def run(name: str, tokens: int, dtype: torch.dtype) -> None:
    model, draw = tuned(name, dtype).train(), torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens + 1), generator=draw)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, busy = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        scores = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(scores[0].float(), ids[0, 1:])
        loss.backward()
        optimizer.step()
        value = loss.item()
        busy, wall = time.process_time() - busy, time.perf_counter() - wall
        print(1e3 * busy, value, peak_bytes(), 1e3 * wall, flush=True)


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    kind, name, tokens, *rest = sys.argv[1:]
    if kind == "export":
        export(name, int(tokens), Path(rest[0]))
    else:
        run(name, int(tokens), getattr(torch, rest[0]))


if __name__ == "__main__":
    main()
