"""Batches of an epoch: their order, their last one, and the changes to them. All of it follows from seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._normalizing import Normalization
from poetc.datasets._slots import Slot
from poetc.datasets.augmentations import Augmentations
from poetc.datasets.function import BatchFunction
from poetc.errors import UsageError, format_count
from poetc.graph import Array

Batch = dict[str, Array]
_ORDER, _AUGMENTATION = 1, 2  # streams of the seed's random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of training.

    Batch `k` of an epoch depends on seed, epoch and k alone, so a training that was stopped goes on with the same
    batches.

    Samples from the epoch's beginning fill the last batch. So each sample is seen in each epoch, and some twice. Fewer
    samples than a batch has rows are seen more often.
    """

    source: Samples | BatchFunction
    slots: Sequence[Slot]
    normalization: Normalization
    augmentation: Augmentations
    seed: int
    shuffle: bool = True

    @property
    def rows(self) -> int:
        """Samples of a batch."""
        return self.slots[0].rows

    @property
    def count(self) -> int | None:
        """Batches of an epoch; None: a function yields as many as it does."""
        return None if isinstance(self.source, BatchFunction) else -(-len(self.source) // self.rows)

    def remark(self) -> str:
        """How the last batch is filled; "" if it is full."""
        if isinstance(self.source, BatchFunction) or len(self.source) % self.rows == 0:
            return ""
        samples, last = len(self.source), len(self.source) % self.rows
        if samples < self.rows:
            return (
                f"{format_count(samples, 'sample')} for a batch of {self.rows}; it has each of them up to"
                f" {-(-self.rows // samples)} times; --batch {samples} has each once"
            )
        return (
            f"{samples} samples make {self.count} batches of {self.rows} an epoch; the last has {last} of them and"
            f" {self.rows - last} again from the epoch's beginning"
        )

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch (from 1), from number `first` (from 0)."""
        batches = (
            self._of_function(epoch, first)
            if isinstance(self.source, BatchFunction)
            else self._of_samples(self.source, epoch, first)
        )
        for number, batch in enumerate(batches, first):
            random = np.random.default_rng([self.seed, _AUGMENTATION, epoch, number])
            changed = self.augmentation.before_scaling(batch, self.slots, random)
            changed = self.normalization.apply(changed)
            changed = self.augmentation.after_scaling(changed, self.slots, random)
            yield {slot.name: _in_type(changed[slot.name], slot) for slot in self.slots}

    def _of_samples(self, samples: Samples, epoch: int, first: int) -> Iterator[Batch]:
        samples.require_unchanged()
        order = np.arange(len(samples))
        if self.shuffle:
            order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(len(samples))
        order = np.resize(order, -(-len(order) // self.rows) * self.rows)  # goes round
        for start in range(first * self.rows, len(order), self.rows):
            yield samples.take(order[start : start + self.rows])

    def _of_function(self, epoch: int, first: int) -> Iterator[Batch]:
        assert isinstance(self.source, BatchFunction)
        for batch in islice(self.source.batches(self.slots, epoch), first, None):
            yield {name: _filled(self.source.where, array, self.rows) for name, array in batch.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The batches of validation: every sample once, in the order of the source.

    A last batch that is not full repeats its last sample, and the repeats count for nothing.
    """

    source: Samples | BatchFunction
    slots: Sequence[Slot]
    normalization: Normalization

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Full batches, each with the number of samples that count; others fill up the last one."""
        rows = self.slots[0].rows
        for batch in self._raw(rows):
            count = len(next(iter(batch.values())))
            filled = {name: _filled(self.source.where, array, rows, last=True) for name, array in batch.items()}
            scaled = self.normalization.apply(filled)
            yield {slot.name: _in_type(scaled[slot.name], slot) for slot in self.slots}, count

    def _raw(self, rows: int) -> Iterator[Batch]:
        if isinstance(self.source, BatchFunction):
            yield from self.source.batches(self.slots, 0)
            return
        self.source.require_unchanged()
        for start in range(0, len(self.source), rows):
            yield self.source.take(np.arange(start, min(start + rows, len(self.source))))


def _filled(where: str, array: Array, rows: int, *, last: bool = False) -> Array:
    """`rows` samples: those of a batch that is not full go round, or its last one is repeated."""
    if len(array) > rows:
        raise UsageError(
            f"{where}: a batch of {format_count(len(array), 'sample')}; a step takes {rows}:"
            f" solve with --batch {len(array)}"
        )
    if len(array) == rows:
        return array
    indices = np.minimum(np.arange(rows), len(array) - 1) if last else np.arange(rows) % len(array)
    return array[indices]


def _in_type(array: Array, slot: Slot) -> Array:
    if slot.hides:
        array = np.where(array == -np.inf, slot.hides, array)
    if slot.batch_axis:
        array = np.moveaxis(array.reshape(-1, *slot.sample_shape), 0, slot.batch_axis)
    return np.ascontiguousarray(array, slot.dtype.numpy).reshape(slot.shape)
