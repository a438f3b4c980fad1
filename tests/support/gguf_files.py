"""Tiny GGUF files with random blocks, and their logits by a decoder of its own, in float64 and llama.cpp's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from tokenizers import pre_tokenizers

from tests.support.language import TEMPLATE

WIDTH, INNER, HEADS, GROUPS, SIZE, LAYERS, EPSILON, BASE, WINDOW = 256, 256, 4, 2, 64, 2, 1e-5, 1e4, 4
WORDS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "Ġt", "<|end|>", "<|start|>"]
_SCALES = {"Q6_K": [208], "Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2]}
_SCALES |= {"Q5_K": [0, 2]}


def random_blocks(kind: str, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Random bytes of blocks, with scales that make numbers of about 0.05."""
    count, size_bytes = gguf.GGML_QUANT_SIZES[Type[kind]]
    raw = random.integers(0, 256, (shape[0], shape[1] // count * size_bytes), dtype=np.uint8)
    parts = raw.reshape(shape[0], -1, size_bytes)
    for at in _SCALES[kind]:
        scale = random.uniform(-1, 1, parts.shape[:2]) * (0.0001 if kind.endswith("K") else 0.004)
        parts[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    if kind.endswith("1"):
        parts[0, 0, :2] = 0  # a block of equal numbers
    return raw


def write(
    path: Path,
    architecture: str = "llama",
    kind: str = "Q4_1",
    table: str = "Q8_0",
    *,
    tied: bool = True,
    without: str = "",
    fields: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """The file, and its tensors as float64."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), architecture)
    numbers: dict[str, np.ndarray] = {}

    def add(name: str, shape: tuple[int, ...], form: str) -> None:
        if name == without:
            return
        if form in ("F32", "F16"):
            scale, shift = (0.05, 0.0) if len(shape) == 2 else (0.2, 1.0 if "norm" in name else 0.0)
            data = (scale * random.standard_normal(shape) + shift).astype(np.float32 if form == "F32" else np.float16)
            writer.add_tensor(name, data)
            numbers[name] = data.astype(np.float64)
            return
        assert len(shape) == 2
        raw = random_blocks(form, (shape[0], shape[1]), random)
        writer.add_tensor(name, raw, raw_dtype=Type[form])
        numbers[name] = gguf.quants.dequantize(raw, Type[form]).astype(np.float64)

    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(SIZE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    if architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
    for name, value in (fields or {}).items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * 258 + [3, 3])
    writer.add_token_merges(["a b", "Ġ t"])
    writer.add_eos_token_id(258)
    writer.add_chat_template(TEMPLATE)
    add("token_embd.weight", (len(WORDS), WIDTH), table)
    for n in range(LAYERS):
        at = f"blk.{n}"
        add(f"{at}.attn_norm.weight", (WIDTH,), "F32")
        for name, outputs in (("q", HEADS * SIZE), ("k", GROUPS * SIZE), ("v", GROUPS * SIZE)):
            add(f"{at}.attn_{name}.weight", (outputs, WIDTH), kind)
            if architecture == "qwen2":
                add(f"{at}.attn_{name}.bias", (outputs,), "F32")
            elif architecture in ("qwen3", "gemma3") and name != "v":
                add(f"{at}.attn_{name}_norm.weight", (SIZE,), "F32")
        add(f"{at}.attn_output.weight", (WIDTH, HEADS * SIZE), kind)
        add(f"{at}.ffn_norm.weight", (WIDTH,), "F32")
        if architecture == "gemma3":
            add(f"{at}.post_attention_norm.weight", (WIDTH,), "F32")
            add(f"{at}.post_ffw_norm.weight", (WIDTH,), "F32")
        for name, shape in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
            add(f"{at}.ffn_{name}.weight", shape, kind)
    add("output_norm.weight", (WIDTH,), "F32")
    if not tied:
        add("output.weight", (len(WORDS), WIDTH), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def logits(w: Mapping[str, np.ndarray], architecture: str, ids: np.ndarray) -> np.ndarray:
    """Scores [length, words] of tokens, as llama.cpp's graphs of these families compute them."""
    is_gemma, count = architecture == "gemma3", len(ids)

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * scale

    def heads(x: np.ndarray, name: str, number: int) -> np.ndarray:
        y = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(1))
        y = y.reshape(count, number, SIZE)
        return norm(y, w[f"{name}_norm.weight"]) if f"{name}_norm.weight" in w else y

    def turned(x: np.ndarray) -> np.ndarray:
        angles = np.arange(count)[:, None] * BASE ** (-np.arange(0, SIZE, 2) / SIZE)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        y = np.empty_like(x)
        first, second = (slice(0, None, 2), slice(1, None, 2)) if architecture == "llama" else _HALVES
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    x = w["token_embd.weight"][ids] * (np.sqrt(WIDTH) if is_gemma else 1)
    places = np.arange(count)
    seen = places[:, None] >= places
    if is_gemma:
        seen &= places[:, None] - places < WINDOW  # both layers are local: the sixth is the first without a window
    for n in range(LAYERS):
        at = f"blk.{n}"
        y = norm(x, w[f"{at}.attn_norm.weight"])
        q, k = turned(heads(y, f"{at}.attn_q", HEADS)), turned(heads(y, f"{at}.attn_k", GROUPS))
        v = heads(y, f"{at}.attn_v", GROUPS)
        k, v = (np.repeat(a, HEADS // GROUPS, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(SIZE)
        scores = np.where(seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1) @ w[f"{at}.attn_output.weight"].T
        x = x + (norm(y, w[f"{at}.post_attention_norm.weight"]) if is_gemma else y)
        y = norm(x, w[f"{at}.ffn_norm.weight"])
        gate, up = y @ w[f"{at}.ffn_gate.weight"].T, y @ w[f"{at}.ffn_up.weight"].T
        if is_gemma:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        y = (gate * up) @ w[f"{at}.ffn_down.weight"].T
        x = x + (norm(y, w[f"{at}.post_ffw_norm.weight"]) if is_gemma else y)
    head = w.get("output.weight", w["token_embd.weight"])
    return np.asarray(norm(x, w["output_norm.weight"]) @ head.T)


_HALVES: tuple[Any, Any] = (slice(0, SIZE // 2), slice(SIZE // 2, None))
