"""A signal begins earlier or later; zeros fill it up."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.declare import Whole
from poetc.graph import Array


class Shift(Augmentation):
    """A move along the last axis by up to `value` places each way."""

    takes = Whole(1)
    metavar = "PLACES"
    sample_axes = (1, 2)
    moves = True

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return random.integers(-self.value, self.value + 1, size=shape[0])

    def apply(self, array: Array, drawn: Array) -> Array:
        places = np.arange(array.shape[-1]) - drawn.reshape(-1, *(1,) * (array.ndim - 1))
        inside = (places >= 0) & (places < array.shape[-1])
        moved = np.take_along_axis(array, np.broadcast_to(places * inside, array.shape), axis=-1)
        return np.where(inside, moved, np.zeros(1, array.dtype))


AUGMENTATIONS.add("shift", Shift)
