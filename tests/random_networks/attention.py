"""Self-attention in the three ways that PyTorch programs write it, with masks."""

from __future__ import annotations

import math

import torch
from numpy.random import RandomState
from torch import Tensor, nn
from torch.nn import functional


def _additive(length: int, random: RandomState) -> Tensor:
    """A bias on the scores, some positions shut out; each still sees itself."""
    mask = torch.from_numpy(random.randn(length, length).astype("float32"))
    shut = torch.from_numpy(random.rand(length, length) < 0.3) & ~torch.eye(length, dtype=torch.bool)
    return mask.masked_fill(shut, float("-inf"))


class ManualAttention(nn.Module):
    """Products, a softmax, products. `mask`: none | causal | filled | additive."""

    def __init__(self, length: int, width: int, heads: int, mask: str, bias: bool) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.q, self.k, self.v = (nn.Linear(width, width, bias=bias) for _ in range(3))
        self.out = nn.Linear(width, width, bias=bias)
        seen = torch.ones(length, length).tril().bool()
        if mask in ("causal", "filled"):
            self.register_buffer("seen", seen)
        elif mask == "additive":
            self.register_buffer("bias", torch.zeros(length, length).masked_fill(~seen, -1e9))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        if self.mask == "causal":
            scores = scores.masked_fill(~self.seen, float("-inf"))
        elif self.mask == "filled":
            scores = torch.where(self.seen, scores, torch.full_like(scores, -1e4))
        elif self.mask == "additive":
            scores = scores + self.bias
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))  # type: ignore[no-any-return]


class Packed(nn.Module):
    """nn.MultiheadAttention. `mask`: none | causal | additive."""

    def __init__(self, length: int, width: int, heads: int, mask: str, random: RandomState, bias: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)
        self.mask: Tensor | None
        if mask == "none":
            self.mask = None
        elif mask == "causal":
            self.register_buffer("mask", torch.ones(length, length).triu(1).bool())
        else:
            self.register_buffer("mask", _additive(length, random))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=self.mask, need_weights=False)[0]  # type: ignore[no-any-return]


class Attend(nn.Module):
    """scaled_dot_product_attention. `mask`: none | causal | boolean | additive."""

    def __init__(self, length: int, width: int, heads: int, mask: str, random: RandomState) -> None:
        super().__init__()
        self.heads, self.causal = heads, mask == "causal"
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        additive = _additive(length, random)
        self.mask: Tensor | None
        if mask == "boolean":
            self.register_buffer("mask", torch.isfinite(additive))
        elif mask == "additive":
            self.register_buffer("mask", additive)
        else:
            self.mask = None

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))  # type: ignore[no-any-return]
