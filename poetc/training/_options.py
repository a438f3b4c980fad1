"""How a model is to be trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from poetc.errors import UsageError

LOSSES = ("auto", "cross-entropy", "soft-cross-entropy", "mse", "l1", "huber", "bce")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
BATCH_NORM_MODES = ("train", "frozen")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Hyperparameters as PyTorch defines them: momentum v = momentum·v + g, w -= lr·v; Adam with bias correction."""

    loss: str = "auto"
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    train: str = "all"  # all | last:N | patterns of parameter names, separated by commas
    batch_norm: str = "train"
    output: str = ""  # which output the loss is taken from; "" = the only one, or the first
    label_smoothing: float = 0.0  # of both cross-entropies
    ignore_index: int | None = None  # cross-entropy: targets with this index count for nothing
    huber_delta: float = 1.0
    dropout: bool = False  # whether the model's Dropout drops anything
    dropout_seed: int = 0
    fusion: bool = True  # operators that can be one are one: same results, less memory and time (passes/_fusion.py)
    random_weights: int | None = None  # seed of the numbers that stand for weights whose external file is absent
    micro_batches: int | Literal["auto"] = 1  # parts of the batch whose gradients are added up before the update

    def __post_init__(self) -> None:
        if self.micro_batches != "auto" and (not isinstance(self.micro_batches, int) or self.micro_batches < 1):
            raise UsageError(f"--micro-batches {self.micro_batches!r}: give a number of at least 1, or auto")
        if self.random_weights is not None and not 0 <= self.random_weights < 2**63:
            raise UsageError(f"--random-weights {self.random_weights}: a seed is at least 0 and below 2^63")
        for option, value, allowed in (
            ("--loss", self.loss, LOSSES),
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--batch-norm", self.batch_norm, BATCH_NORM_MODES),
        ):
            if value not in allowed:
                raise UsageError(f"{option} {value!r}: choose from {', '.join(allowed)}")
        for option, number, low, high in (
            ("--lr", self.learning_rate, 0.0, math.inf),
            ("--momentum", self.momentum, 0.0, 1.0),
            ("--beta1", self.beta1, 0.0, 1.0),
            ("--beta2", self.beta2, 0.0, 1.0),
            ("--epsilon", self.epsilon, 0.0, math.inf),
            ("--weight-decay", self.weight_decay, 0.0, math.inf),
            ("--label-smoothing", self.label_smoothing, 0.0, 1.0),
            ("--huber-delta", self.huber_delta, 0.0, math.inf),
        ):
            if not low <= number < high:
                raise UsageError(f"{option} {number!r}: must be at least {low:g} and below {high:g}")
        if self.huber_delta == 0:
            raise UsageError("--huber-delta 0.0: must be above 0")
        for option, given, losses in (
            ("--label-smoothing", self.label_smoothing != 0, ("cross-entropy", "soft-cross-entropy", "auto")),
            ("--ignore-index", self.ignore_index is not None, ("cross-entropy", "auto")),
            ("--huber-delta", self.huber_delta != 1, ("huber",)),
        ):
            if given and self.loss not in losses:
                raise UsageError(f"{option} does nothing for --loss {self.loss}, only for {losses[0]}")
