"""Each sample is made stronger or weaker: the contrast of an image, the loudness of a sound."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.declare import Number
from poetc.graph import Array


class Gain(Augmentation):
    """A factor from 1 - `value` to 1 + `value` for each sample, after the scaling."""

    takes = Number(above=True, below=1.0)
    metavar = "SHARE"
    after_scaling = True

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return random.uniform(1.0 - self.value, 1.0 + self.value, size=shape[0]).astype(np.float32)

    def apply(self, array: Array, drawn: Array) -> Array:
        return array.astype(np.float32) * drawn.reshape(-1, *(1,) * (array.ndim - 1))


AUGMENTATIONS.add("gain", Gain)
