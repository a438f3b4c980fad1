"""The data of one client: those that it trains on, and those that it evaluates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.datasets import (
    Augmentations,
    Batches,
    BatchFunction,
    Evaluation,
    Normalization,
    Samples,
    Slot,
    check_values,
    open_source,
    samples_of,
    split,
)
from poetc.errors import UsageError
from poetc.graph import Array

# As `--data` names it, arrays in the order of the model's inputs and the target, or arrays by name.
Source = str | Path | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Training samples, and those of the evaluation; None: there are none."""

    batches: Batches
    evaluation: Evaluation | None

    @property
    def samples(self) -> int:
        """The number of training samples, which is the client's weight in an average."""
        source = self.batches.source
        assert isinstance(source, Samples)
        return len(source)

    @property
    def evaluated_samples(self) -> int:
        """The number of samples of the evaluation."""
        source = None if self.evaluation is None else self.evaluation.source
        return len(source) if isinstance(source, Samples) else 0


def read_data(
    source: Source,
    slots: Sequence[Slot],
    *,
    validation: Source | None = None,
    validation_split: float | None = None,
    normalize: str | None = None,
    any_range: bool = False,
    seed: int = 0,
    shuffle: bool = True,
) -> Data:
    """Open the data of a client, and look at all of their values. Raises UsageError, which names the array.

    `validation_split`: the share of the samples that is kept for evaluation, drawn by `seed`.
    """
    if validation is not None and validation_split is not None:
        raise UsageError("validation and validation_split exclude each other")
    if validation_split is not None and not 0 < validation_split < 1:
        raise UsageError(f"validation_split {validation_split!r}: must be above 0 and below 1")
    may_be_raw = any_range or normalize is not None
    training = _open(source, slots, "data", may_be_raw)
    evaluated = None if validation is None else _open(validation, slots, "validation", may_be_raw, training)
    if validation_split is not None:
        training, evaluated = split(training, slots, validation_split, seed)
    scaling = Normalization() if normalize is None else Normalization.parse(normalize, slots, training)
    batches = Batches(
        source=training,
        slots=slots,
        normalization=scaling,
        augmentation=Augmentations.parse(""),
        seed=seed,
        shuffle=shuffle,
    )
    evaluation = None if evaluated is None else Evaluation(source=evaluated, slots=slots, normalization=scaling)
    return Data(batches=batches, evaluation=evaluation)


def _open(source: Source, slots: Sequence[Slot], option: str, may_be_raw: bool, like: Samples | None = None) -> Samples:
    if isinstance(source, str | Path):
        samples = open_source(str(source), slots, lambda text: None, option=option, like=like)
    else:
        samples = samples_of(option, _arrays(source, option), slots)
    if isinstance(samples, BatchFunction):
        raise UsageError(f"{option} {source}: a function yields batches; a fleet counts samples, so give arrays")
    check_values(samples, slots, any_range=may_be_raw)
    _require_all_classes(samples, slots)
    return samples


def _require_all_classes(samples: Samples, slots: Sequence[Slot]) -> None:
    """UsageError where classes have names, of which this client lacks some: others would number them differently."""
    target = next((s for s in slots if s.is_class), None)
    if not samples.classes or target is None or target.limit is None:
        return
    count = target.limit.most + 1
    if len(samples.classes) < count:
        raise UsageError(
            f"{samples.where}: has only {len(samples.classes)} of the model's {count} classes, by name; other"
            " clients may number theirs differently: give numbers"
        )


def _arrays(source: Sequence[Any] | Mapping[str, Any], option: str) -> Mapping[str, Array] | Sequence[Array]:
    try:
        if isinstance(source, Mapping):
            return {str(name): np.asarray(array) for name, array in source.items()}
        return [np.asarray(array) for array in source]
    except (TypeError, ValueError):
        advice = "give a file, arrays in the order of the inputs and the target, or arrays by name"
        raise UsageError(f"{option}: {advice}") from None
