"""A square of each image is blanked (DeVries and Taylor, "Improved Regularization of CNNs with Cutout", 2017)."""

from collections.abc import Sequence

import numpy as np

from poetc.datasets.augmentations._augmentation import AUGMENTATIONS, Augmentation, Random
from poetc.declare import Whole
from poetc.graph import Array


class Cutout(Augmentation):
    """Zeros in a square of `value` pixels a side, whose centre is anywhere in the image; after the scaling."""

    takes = Whole(1)
    metavar = "PIXELS"
    sample_axes = (3,)
    after_scaling = True

    def draw(self, shape: Sequence[int], random: Random) -> Array:
        return np.stack([random.integers(0, size, size=shape[0]) for size in shape[-2:]], axis=1)

    def apply(self, array: Array, drawn: Array) -> Array:
        inside = []
        for axis, size in enumerate(array.shape[-2:]):
            first = drawn[:, axis, None] - self.value // 2
            places = np.arange(size)
            inside.append((places >= first) & (places < first + self.value))
        blank = inside[0][:, None, :, None] & inside[1][:, None, None, :]
        return np.where(blank, np.zeros(1, array.dtype), array)


AUGMENTATIONS.add("cutout", Cutout)
