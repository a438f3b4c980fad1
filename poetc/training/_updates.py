"""Which part of each parameter is trained: a value, however it was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Whole:
    """Every element is trained: a weight, a bias, or the scale or shift of a norm."""


@dataclass(frozen=True, slots=True)
class Channels:
    """A weight is trained in a `share` of its input channels: the first ones, or those of the largest norm."""

    share: Fraction
    largest: bool = False

    def count(self, channels: int) -> int:
        """The channels that are trained, rounded down; 0 where the share is less than one."""
        return channels * self.share.numerator // self.share.denominator


@dataclass(frozen=True, slots=True)
class Adapter:
    """A weight W is frozen, and (alpha / rank) · B · A is trained beside it: LoRA (Hu et al., 2021).

    `stable`: times alpha / √rank instead: rsLoRA (Kalajdzievski, 2023). `magnitudes`: each output's row of the sum
    is divided by its norm, and multiplied by a number that is trained: DoRA (Liu et al., 2024).
    """

    rank: int
    alpha: float = 8.0  # peft's default
    dropout: float = 0.0  # share of the elements of A's input that are dropped in training
    stable: bool = False
    magnitudes: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.stable else self.rank)


Update = Whole | Channels | Adapter


@dataclass(frozen=True, slots=True)
class Updates:
    """A candidate set of updates: the trained part of each parameter. A parameter that has no entry is frozen.

    `seed`: of the numbers that adapters start from.
    """

    by_parameter: Mapping[str, Update] = field(default_factory=dict)
    seed: int = 0

    def __iter__(self) -> Iterator[tuple[str, Update]]:
        return iter(sorted(self.by_parameter.items()))

    @property
    def whole(self) -> frozenset[str]:
        return frozenset(n for n, u in self.by_parameter.items() if isinstance(u, Whole))

    @property
    def channels(self) -> dict[str, Channels]:
        return {n: u for n, u in self if isinstance(u, Channels)}

    @property
    def adapters(self) -> dict[str, Adapter]:
        return {n: u for n, u in self if isinstance(u, Adapter)}

    def options(self) -> tuple[str, tuple[str, ...]]:
        """The texts of `--train` and `--lora` that mean these updates."""
        train = [n for n, u in self if isinstance(u, Whole)]
        for name, part in self.channels.items():
            train.append(f"{name}@{part.share.numerator}/{part.share.denominator}{':norm' * part.largest}")
        lora = [
            f"{a.rank}:{name}:alpha={a.alpha:g}:dropout={a.dropout:g}:seed={self.seed}{':rslora' * a.stable}"
            f"{':dora' * a.magnitudes}"
            for name, a in self.adapters.items()
        ]
        return ",".join(train) or "adapter", tuple(lora)
