"""The shape of a decoder of one of the families that are imported, out of the fields of its GGUF file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from poetc.commands.gguf._reading import Gguf
from poetc.errors import UnsupportedModelError, UsageError, printable
from poetc.graph import Array

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma3")
_LOCAL_BASE = 10000.0  # of the rotation in Gemma 3's layers with a window
_MOST_POSITIONS = 8192  # of the tables of angles
_WIDE_GEMMA = 62  # layers of Gemma 3 27B, which scales its scores by the width of a head without their number


@dataclass(frozen=True, slots=True)
class Config:
    architecture: str
    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    size: int  # of a head
    vocabulary: int
    epsilon: float
    base: float
    positions: int
    window: int  # of local layers; 0: there are none
    pattern: int  # of so many layers the last one has no window
    rope_factor: float
    scale: float

    @property
    def is_gemma(self) -> bool:
        return self.architecture.startswith("gemma")

    def is_local(self, layer: int) -> bool:
        return self.window > 0 and (layer + 1) % self.pattern != 0

    def angles(self, factors: Array | None, *, local: bool) -> Array:
        """[positions, size / 2]. `factors` divide the frequencies, as Llama 3.1's do."""
        base = _LOCAL_BASE if local else self.base
        frequencies = base ** (-np.arange(0, self.size, 2, dtype=np.float64) / self.size)
        if factors is not None:
            frequencies = frequencies / factors.astype(np.float64)
        if not local:
            frequencies = frequencies / self.rope_factor
        return np.asarray(np.arange(self.positions)[:, None] * frequencies)


def config_of(file: Gguf) -> Config:
    """The sizes of the decoder in a GGUF file. UnsupportedModelError for other architectures and kinds of RoPE."""
    kind = file.architecture
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(f"{file.path}: its architecture is {printable(kind)!r}; imported are {known}")
    heads, width = file.count("attention.head_count"), file.count("embedding_length")
    size = file.count("attention.key_length", max(1, width // heads))
    layers = file.count("block_count")
    scaling = file.fields.get(f"{kind}.rope.scaling.type", "none")
    factor = file.number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
    if scaling not in ("none", "linear") or factor <= 0:
        raise UnsupportedModelError(f"{file.path}: scales its rotation by {printable(str(scaling))!r}; linear is known")
    if file.count("rope.dimension_count", size) != size or size % 2:
        raise UnsupportedModelError(f"{file.path}: rotates a part of each head; only whole heads are known")
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise UsageError(f"{file.path}: has no table of tokens (token_embd.weight)")
    groups = file.count("attention.head_count_kv", heads)
    if heads % groups:
        raise UsageError(f"{file.path}: {heads} heads do not share {groups} heads of keys")
    window = file.count("attention.sliding_window") if kind == "gemma3" else 0
    wide = kind == "gemma3" and layers == _WIDE_GEMMA
    return Config(
        architecture=kind,
        layers=layers,
        width=width,
        inner=file.count("feed_forward_length"),
        heads=heads,
        groups=groups,
        size=size,
        vocabulary=table.shape[0],
        epsilon=file.number("attention.layer_norm_rms_epsilon"),
        base=file.number("rope.freq_base", 10000.0),
        positions=min(file.count("context_length"), _MOST_POSITIONS),
        window=window,
        pattern=file.count("attention.sliding_window_pattern", 6) if window else 1,
        rope_factor=factor,
        scale=1 / math.sqrt(width / heads if wide else size),
    )
