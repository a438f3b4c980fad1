"""Simple augmentation: each training batch sees its images changed, by numbers that the seed fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poetc.datasets._slots import Slot
from poetc.errors import UsageError
from poetc.graph import Array, DType

Random = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """`flip`: left and right are exchanged in half of the images.

    `crop_pixels`: a window of the image's own size is moved by up to so many pixels each way; beyond the border are
    zeros. Both happen before inputs are scaled.
    `noise`: the standard deviation of normal noise that is added after it.
    """

    flip: bool = False
    crop_pixels: int = 0
    noise: float = 0.0

    @staticmethod
    def parse(text: str) -> Augmentation:
        """`flip,crop:2,noise:0.1`. Raises UsageError."""
        flip, crop, noise = False, 0, 0.0
        for word in text.split(",") if text else ():
            name, _, value = word.strip().partition(":")
            try:
                if name == "flip" and not value:
                    flip = True
                elif name == "crop" and int(value) > 0:
                    crop = int(value)
                elif name == "noise" and 0 < float(value) < np.inf:
                    noise = float(value)
                else:
                    raise ValueError
            except ValueError:
                raise UsageError(f"--augment {word}: choose from flip, crop:PIXELS and noise:DEVIATION") from None
        return Augmentation(flip=flip, crop_pixels=crop, noise=noise)

    def require_images(self, slots: Sequence[Slot]) -> None:
        """UsageError where there is nothing to flip, to crop, or to add noise to."""
        if self.noise and not any(s.dtype is DType.F32 and not s.is_target for s in slots):
            raise UsageError("--augment: noise is for floating-point inputs, and the model has none")
        if (self.flip or self.crop_pixels) and not any(map(_is_image, slots)):
            raise UsageError(
                "--augment: flip and crop are for floating-point inputs [samples, channels, height, width]"
            )

    def before_scaling(self, batch: Mapping[str, Array], slots: Sequence[Slot], random: Random) -> dict[str, Array]:
        """Images flipped and cropped."""
        changed = dict(batch)
        for slot in slots:
            if not _is_image(slot):
                continue
            array = changed[slot.name]
            if self.flip:
                turned = random.random(len(array)) < 0.5
                array = np.where(turned[:, None, None, None], array[..., ::-1], array)
            if self.crop_pixels:
                array = self._crop(array, random)
            changed[slot.name] = array
        return changed

    def after_scaling(self, batch: Mapping[str, Array], slots: Sequence[Slot], random: Random) -> dict[str, Array]:
        """Noise added."""
        changed = dict(batch)
        for slot in slots:
            if self.noise and slot.dtype is DType.F32 and not slot.is_target:
                array = changed[slot.name]
                drawn = random.standard_normal(array.shape, dtype=np.float32)
                changed[slot.name] = array.astype(np.float32) + drawn * np.float32(self.noise)
        return changed

    def _crop(self, array: Array, random: Random) -> Array:
        n = self.crop_pixels
        height, width = array.shape[-2:]
        padded = np.pad(array, ((0, 0), (0, 0), (n, n), (n, n)))
        places = random.integers(0, 2 * n + 1, size=(len(array), 2))
        return np.stack([p[:, y : y + height, x : x + width] for p, (y, x) in zip(padded, places, strict=True)])


def _is_image(slot: Slot) -> bool:
    return slot.dtype is DType.F32 and not slot.is_target and len(slot.sample_shape) == 3
