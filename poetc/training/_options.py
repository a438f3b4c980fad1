"""How a model is to be trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from poetc.errors import UsageError

LOSSES = ("auto", "cross-entropy", "mse", "l1", "huber", "bce")
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

    def __post_init__(self) -> None:
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
        ):
            if not low <= number < high:
                raise UsageError(f"{option} {number!r}: must be at least {low:g} and below {high:g}")
