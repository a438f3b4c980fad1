"""Left and right are exchanged in half of the images."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.graph import Array


class Flip(Augmentation):
    """The last axis of half of the samples turned."""

    sample_axes = (3,)
    moves = True

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return random.random(shape[0]) < 0.5

    def apply(self, array: Array, drawn: Array) -> Array:
        return np.where(drawn.reshape(-1, *(1,) * (array.ndim - 1)), array[..., ::-1], array)


AUGMENTATIONS.add("flip", Flip)
