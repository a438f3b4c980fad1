"""Operator kinds that the papers on scheduling tell apart."""

from __future__ import annotations

# In lower case and without a trailing Grad...
CONVOLUTIONS = frozenset({"conv", "convtranspose", "convolution"})
CONTRACTIONS = CONVOLUTIONS | {"matmul", "gemm", "dense", "linear", "scores", "context", "lstm", "gru", "rnn"}
REDUCTIONS = frozenset(
    {"batchnormstats", "softmax", "logsoftmax", "layernorm", "groupnorm", "rmsnorm", "argmax", "cumsum"}
    | {"crossentropy", "meansquarederror", "norm", "bn", "lrn", "loss"}
)


def is_convolution(kind: str) -> bool:
    return kind.lower() in CONVOLUTIONS


def is_contraction(kind: str) -> bool:
    return kind.lower() in CONTRACTIONS


def is_reduction(kind: str) -> bool:
    lower = kind.lower()
    return lower in REDUCTIONS or lower.startswith("reduce") or lower.endswith("pool")
