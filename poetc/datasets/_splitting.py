"""A part of the samples for validation, drawn by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._slots import Slot
from poetc.errors import UsageError, format_count

_STREAM = 3  # of the seed's random numbers: order is 1, augmentation 2


def split(samples: Samples, slots: Sequence[Slot], share: float, seed: int) -> tuple[Samples, Samples]:
    """Training and validation.

    Where the target is one class, each class gives its share, rounded; both parts keep the order of the source. Raises
    UsageError where a part would be empty.
    """
    count = len(samples)
    random = np.random.default_rng([seed, _STREAM])
    target = next((s for s in slots if s.is_class), None)
    if target is None:
        validation = np.sort(random.permutation(count)[: round(count * share)])
    else:
        labels = np.asarray(samples.columns[target.name][:]).reshape(count)
        parts = []
        for label in np.unique(labels):
            members = random.permutation(np.flatnonzero(labels == label))
            parts.append(members[: round(len(members) * share)])
        validation = np.sort(np.concatenate(parts))
    training = np.setdiff1d(np.arange(count), validation)
    if not len(validation) or not len(training):
        empty = "validation" if not len(validation) else "training"
        raise UsageError(
            f"{samples.where}: --validation-split {share:g} of {format_count(count, 'sample')} leaves none for {empty};"
            " choose another share, or give --validation"
        )
    return replace(samples, rows=training), replace(samples, rows=validation)
