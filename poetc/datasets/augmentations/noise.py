"""Normal noise is added after the scaling."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.declare import Number
from poetc.graph import Array


class Noise(Augmentation):
    """Of standard deviation `value`."""

    takes = Number(above=True)
    metavar = "DEVIATION"
    after_scaling = True
    is_shared = False

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    def apply(self, array: Array, drawn: Array) -> Array:
        return array.astype(np.float32) + drawn * np.float32(self.value)


AUGMENTATIONS.add("noise", Noise)
