"""Writes peft.npz and peft_dora.npz: a tiny Llama of transformers with adapters of peft, its gradients and 50 losses.

pip install torch==2.13.* transformers peft
python tests/commands/files/make_peft.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, STEPS, BATCH, LENGTH = 64, 50, 2, 16


def main() -> None:
    for name, magnitudes in (("peft", False), ("peft_dora", True)):
        np.savez_compressed(Path(__file__).with_name(f"{name}.npz"), **made(magnitudes))


def made(magnitudes: bool) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    held = {f"weight/{n}": t.detach().numpy().copy() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    tuned = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_dora=magnitudes))
    factors = {
        n.removeprefix("base_model.model.").replace(".default", "").replace("vector.weight", "vector"): t
        for n, t in tuned.named_parameters()
        if "lora_" in n
    }
    with torch.no_grad():
        for factor in factors.values():
            moved = 0.1 * torch.tensor(random.standard_normal(factor.shape))
            factor.copy_(factor * (1 + moved) if factor.dim() == 1 else moved)
    held |= {f"factor/{n}": t.detach().numpy().copy() for n, t in factors.items()}
    ids = random.integers(0, VOCABULARY, (STEPS, BATCH, LENGTH))
    optimizer, losses = torch.optim.AdamW(factors.values(), lr=1e-3, weight_decay=0.01), []
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.tensor(ids[step])
        loss = tuned(tokens, labels=tokens).loss
        loss.backward()
        if not step:
            held |= {f"gradient/{n}": t.grad.numpy().copy() for n, t in factors.items()}
        optimizer.step()
        losses.append(float(loss))
    return {"ids": ids.astype(np.int32), "losses": np.array(losses), **held}


if __name__ == "__main__":
    main()
