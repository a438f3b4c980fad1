"""Inputs scaled to the range that the model was made for: by numbers, or by the training data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poetc.datasets._columns import Samples, chunks
from poetc.datasets._slots import Slot
from poetc.errors import UsageError
from poetc.graph import Array, DType

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:->({_NUMBER})\.\.({_NUMBER}))?")


@dataclass(frozen=True, slots=True)
class Scale:
    """x becomes (x - shift) / scale, in 32 bits; the arrays broadcast against one sample."""

    shift: Array
    scale: Array

    def apply(self, array: Array) -> Array:
        with np.errstate(all="ignore"):  # The session names a value that has become infinite.
            return np.asarray((array.astype(np.float32) - self.shift) / self.scale)

    def to_json(self) -> dict[str, Any]:
        return {"shift": self.shift.reshape(-1).tolist(), "scale": self.scale.reshape(-1).tolist()}


@dataclass(frozen=True, slots=True)
class Normalization:
    """The scale of each input that has one."""

    scales: Mapping[str, Scale] = field(default_factory=dict)

    def apply(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {name: self.scales[name].apply(a) if name in self.scales else a for name, a in batch.items()}

    def to_json(self) -> dict[str, Any]:
        """By input, as the outputs record it: the model expects inputs that are scaled likewise."""
        return {name: scale.to_json() for name, scale in self.scales.items()}

    @staticmethod
    def parse(text: str, slots: Sequence[Slot], training: Samples | None) -> Normalization:
        """The scaling that `text` names.

        It is `auto`, `MEAN,STD`, `LOW..HIGH` (becomes 0..1) or `LOW..HIGH->A..B`. MEAN and STD are each one number, or
        one a channel with `/` between. `auto` takes mean and standard deviation of the training data by channel. Raises
        UsageError.
        """
        floats = [s for s in slots if s.dtype is DType.F32 and not (s.is_target or s.hides)]
        if not floats:
            raise UsageError(f"--normalize {text}: the model has no input of floating-point numbers")
        if text == "auto":
            if training is None:
                raise UsageError("--normalize auto: a function yields no samples to look through; give numbers")
            return Normalization({slot.name: _measure(training, slot) for slot in floats})
        return Normalization({slot.name: _parse(text, slot) for slot in floats})


def _parse(text: str, slot: Slot) -> Scale:
    ends = _RANGE.fullmatch(text)
    if ends:
        low, high, to_low, to_high = (float(n) if n else None for n in ends.groups())
        assert low is not None and high is not None
        to_low, to_high = (0.0, 1.0) if to_low is None or to_high is None else (to_low, to_high)
        if low == high or to_low == to_high:
            raise UsageError(f"--normalize {text}: a range has two different ends")
        scale = (high - low) / (to_high - to_low)
        return Scale(np.float32(low - to_low * scale).reshape(1), np.float32(scale).reshape(1))
    fields = text.split(",")
    try:
        mean, deviation = ([float(n) for n in word.split("/")] for word in fields)
    except ValueError:
        raise UsageError(
            f"--normalize {text}: give auto, MEAN,STD (each with / between channels), LOW..HIGH or LOW..HIGH->A..B"
        ) from None
    if not all(map(math.isfinite, mean + deviation)) or not all(deviation):
        raise UsageError(f"--normalize {text}: means are finite, and standard deviations not 0")
    shape = _channel_shape(slot)
    for numbers in (mean, deviation):
        if len(numbers) not in (1, math.prod(shape)):
            raise UsageError(
                f"--normalize {text}: {len(numbers)} numbers for the {math.prod(shape)} channels of {slot.name!r}"
            )
    parts = (np.array(n, np.float32).reshape(shape if len(n) > 1 else (1,)) for n in (mean, deviation))
    return Scale(*parts)


def _channel_shape(slot: Slot) -> tuple[int, ...]:
    """The shape of numbers a channel, against one sample.

    A channel is on the first axis of images and sequences, and every feature of a table.
    """
    shape = slot.sample_shape
    return (shape[0], *(1 for _ in shape[1:])) if shape else (1,)


def _measure(training: Samples, slot: Slot) -> Scale:
    """Mean and standard deviation of the training samples, in 64 bits; a channel that is constant keeps its scale."""
    shape = _channel_shape(slot)
    axes = tuple(i + 1 for i, n in enumerate(shape) if n == 1 and slot.sample_shape and i < len(slot.sample_shape))
    column = training.columns[slot.name]
    total, squares, count = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    pivot: Array | None = None
    for first, part in chunks(column):
        rows = np.arange(first, first + len(part))
        chosen = part if training.rows is None else part[np.isin(rows, training.rows)]
        if not len(chosen):
            continue
        values = np.asarray(chosen, np.float64)
        present = ~np.isnan(values)  # the model itself replaces others
        if pivot is None:  # near the mean, so that squares do not cancel
            there = np.maximum(present.sum(axis=(0, *axes)), 1)
            pivot = (values.sum(axis=(0, *axes), where=present) / there).reshape(shape)
        values = np.where(present, values - pivot, 0)
        total += values.sum(axis=(0, *axes)).reshape(shape)
        squares += np.square(values).sum(axis=(0, *axes)).reshape(shape)
        count += present.sum(axis=(0, *axes)).reshape(shape)
    assert pivot is not None
    count = np.maximum(count, 1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return Scale((mean + pivot).astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32))
