"""A window of the image's own size is moved; beyond the border are zeros."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.declare import Whole
from poetc.graph import Array


class Crop(Augmentation):
    """A move by up to `value` pixels each way."""

    takes = Whole(1)
    metavar = "PIXELS"
    sample_axes = (3,)
    moves = True

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return random.integers(0, 2 * self.value + 1, size=(shape[0], 2))

    def apply(self, array: Array, drawn: Array) -> Array:
        n, (height, width) = self.value, array.shape[-2:]
        padded = np.pad(array, ((0, 0),) * (array.ndim - 2) + ((n, n), (n, n)))
        return np.stack([p[..., y : y + height, x : x + width] for p, (y, x) in zip(padded, drawn, strict=True)])


AUGMENTATIONS.add("crop", Crop)
