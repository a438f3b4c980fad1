"""PyTorch's half of bench/decoders.py: tiny models of public architectures, through both exporters, with gradients.

    build/peers/decoders/bin/python -P bench/peer_decoders.py FOLDER [NAME ...]

The architectures are those of transformers, the options those of the published configurations: tied tables, scaled
rotary places, windows, norms of queries and keys. Widths are small and weights random. FOLDER gets
NAME.dynamo.onnx and NAME.legacy.onnx, and NAME.npz with inputs, target, output, loss and gradients in float32. Where an
exporter fails, a file .failed has its words.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t

WORDS, BATCH, LENGTH, ANSWER = 64, 2, 12, 7
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
BERT: dict[str, Any] = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}
AUDIO: dict[str, Any] = {
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_source_positions": 16,
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "SmolLM2": lambda: t.LlamaForCausalLM(
        t.LlamaConfig(
            **{**SIZES, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 24}, tie_word_embeddings=True
        )
    ),
    "Llama-3.2": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "TinyLlama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)),
    "Qwen2.5": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "Qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
    "Gemma-3": lambda: t.Gemma3ForCausalLM(
        t.Gemma3TextConfig(
            **{**SIZES, "num_key_value_heads": 1},
            head_dim=16,
            sliding_window=4,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "Phi-3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**SIZES, pad_token_id=0)),
    "GPT-2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=2, n_head=4)),
    "BERT": lambda: t.BertForMaskedLM(t.BertConfig(**BERT)),
    "MiniLM": lambda: t.BertModel(t.BertConfig(**{**BERT, "hidden_size": 24, "num_attention_heads": 3})),
    "T5-small": lambda: t.T5ForConditionalGeneration(
        t.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
    "Whisper-tiny": lambda: t.WhisperForConditionalGeneration(
        t.WhisperConfig(vocab_size=WORDS, max_target_positions=16, **AUDIO)
    ),
}


class Scores(torch.nn.Module):
    """A model whose inputs are tensors and whose output is one."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        if self.name == "T5-small":
            found = self.model(input_ids=given[0], decoder_input_ids=given[1], use_cache=False).logits
        elif self.name == "Whisper-tiny":
            found = self.model(input_features=given[0], decoder_input_ids=given[1], use_cache=False).logits
        elif self.name == "MiniLM":
            found = self.model(input_ids=given[0]).last_hidden_state
        elif self.name == "BERT":
            found = self.model(input_ids=given[0]).logits
        else:
            mask = torch.ones_like(given[0])
            found = self.model(input_ids=given[0], attention_mask=mask, use_cache=False).logits
        result: torch.Tensor = found
        return result


def inputs_of(name: str) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, WORDS, (BATCH, LENGTH), generator=draw)
    answer = torch.randint(3, WORDS, (BATCH, ANSWER), generator=draw)
    if name == "T5-small":
        return ids, answer
    return (torch.randn(BATCH, 8, 32, generator=draw), answer) if name == "Whisper-tiny" else (ids,)


def write(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    model, given = Scores(MODELS[name]().eval(), name), inputs_of(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases begin with ones and zeros
                parameter += 0.1 * torch.randn_like(parameter)
    scores = model(*given)
    target = torch.randint(0, scores.shape[-1], scores.shape[:-1], generator=torch.Generator().manual_seed(2))
    loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), target.reshape(-1))
    loss.backward()  # type: ignore[no-untyped-call]
    held = {f"input{k}": tensor.numpy() for k, tensor in enumerate(given)}
    held |= {"target": target.numpy(), "output": scores.detach().numpy(), "loss": loss.detach().numpy()}
    held |= {f"grad.{n}": p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    np.savez(folder / f"{name}.npz", **held)
    exporters: dict[str, dict[str, Any]] = {
        "dynamo": {"dynamo": True, "external_data": False, "verbose": False},
        "legacy": {"dynamo": False, "opset_version": 17},
    }
    for exporter, options in exporters.items():
        path = folder / f"{name}.{exporter}.onnx"
        try:
            torch.onnx.export(model, given, str(path), **options)
        except Exception as error:  # exporters raise all kinds
            path.with_suffix(".failed").write_text(str(error).split("##")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name in asked.names:
        if not list(asked.folder.glob(f"{name}.legacy.*")):
            write(name, asked.folder)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
