"""PyTorch's side of test_peft.py: scores of its tiny Llama with an adapter that peft reads.

peer_peft.py WEIGHTS.npz ADAPTER_FOLDER SCORES.npy, run by the Python of `bench/setup_peers peft`
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    weights, folder, out = sys.argv[1:]
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with np.load(weights) as held:
        state = {n.removeprefix("weight/"): torch.tensor(held[n]) for n in held.files if n.startswith("weight/")}
        ids = torch.tensor(held["ids"][0].astype(np.int64))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    tuned = PeftModel.from_pretrained(model, folder).eval()
    with torch.no_grad():
        np.save(out, tuned(input_ids=ids).logits.numpy())


if __name__ == "__main__":
    main()
