"""How a random network is trained, and on which numbers: all that both sides have to agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import RandomState  # its stream is guaranteed to stay as it is

from poetc.training import TrainingOptions

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`input_shape` and `target_shape` include the batch. `vocabulary`: the input is integers below it (0: floats)."""

    seed: int
    family: str
    layers: str
    exporter: str
    batch: int
    steps: int
    input_shape: tuple[int, ...]
    vocabulary: int
    target_shape: tuple[int, ...]
    classes: int  # of cross-entropy; 0: the target is floats
    class_axis: int
    device: str
    budget_percent: int
    numerics: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training(self) -> TrainingOptions:
        return TrainingOptions(**self.options)

    def batch_of(self, step: int) -> tuple[Array, Array]:
        """Input and target of a step, new ones for each."""
        random = RandomState((self.seed * 97 + step) % 2**32)
        if self.vocabulary:
            x: Array = random.randint(0, self.vocabulary, self.input_shape).astype(np.int64)
        else:
            x = random.standard_normal(self.input_shape).astype(np.float32)
        loss, shape = self.options["loss"], self.target_shape
        if loss == "cross-entropy":
            target: Array = random.randint(0, self.classes, shape).astype(np.int64)
            ignored = self.options.get("ignore_index")
            if ignored is not None:
                target[random.rand(*shape) < 0.2] = ignored
                target.reshape(-1)[0] = 0  # at least one that counts
        elif loss == "soft-cross-entropy":
            weights = random.rand(*shape) + 0.05
            target = (weights / weights.sum(self.class_axis, keepdims=True)).astype(np.float32)
        elif loss == "bce":
            target = random.rand(*shape).astype(np.float32)
        else:
            target = random.standard_normal(shape).astype(np.float32)
        return x, target


def draw_options(random: RandomState, loss: str, *, has_batch_norm: bool, batch: int) -> dict[str, Any]:
    """Optimizer, loss and how batch norm is trained, as arguments of TrainingOptions."""

    def pick(*of: Any) -> Any:
        return of[random.randint(len(of))]

    optimizer = pick("sgd", "sgd", "momentum", "adam", "adam", "adamw")
    rate = {"sgd": (0.05, 0.01), "momentum": (0.02, 0.005), "adam": (0.01, 0.002), "adamw": (0.01, 0.002)}[optimizer]
    options: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "learning_rate": pick(*rate)}
    if random.rand() < 0.25:
        options["weight_decay"] = 0.01
    if optimizer == "momentum":
        options["momentum"] = pick(0.9, 0.5)
    if optimizer in ("adam", "adamw") and random.rand() < 0.3:
        options["beta2"] = 0.99
    if loss in ("cross-entropy", "soft-cross-entropy") and random.rand() < 0.2:
        options["label_smoothing"] = 0.1
    if loss == "cross-entropy" and random.rand() < 0.15:
        options["ignore_index"] = pick(-100, 1)
    if loss == "huber":
        options["huber_delta"] = pick(1.0, 0.5)
    if has_batch_norm and random.rand() < 0.25:
        options["batch_norm"] = "frozen"
    if random.rand() < 0.2:
        options["fusion"] = False
    halves = batch % 2 == 0 and "ignore_index" not in options
    if halves and (not has_batch_norm or options.get("batch_norm") == "frozen") and random.rand() < 0.2:
        options["micro_batches"] = 2
    return options


def sketch(array: Array) -> Array:
    """An array of up to 8 elements as it is; of more, four weighted sums that no change of an element leaves alone."""
    flat = np.asarray(array, np.float64).reshape(-1)
    if flat.size <= 8:
        return flat
    positions = np.arange(1, flat.size + 1)
    return np.array([np.cos(0.7 * k * positions + 0.3 * k * k) @ flat / math.sqrt(flat.size) for k in range(1, 5)])
