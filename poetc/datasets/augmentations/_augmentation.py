"""Augmentations: the declaration of a kind, and the list of them in `--augment`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from poetc.datasets._slots import Slot
from poetc.declare import Registry, Values
from poetc.errors import UsageError, shortened
from poetc.graph import Array, DType

Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Augmentation(ABC):
    """One change of floating-point inputs. `value` is the number behind its name, as in crop:2.

    `takes` and `metavar`: the values, and their name in messages. `sample_axes`: how many axes a sample must have; none
    are listed where any number does. `after_scaling`: the change belongs behind `--normalize`. `moves`: elements go to
    other places, and a target with an element for each of them goes along.
    """

    value: Any = None

    takes: ClassVar[Values | None] = None
    metavar: ClassVar[str] = ""
    sample_axes: ClassVar[Sequence[int]] = ()
    after_scaling: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    @abstractmethod
    def draw(self, shape: Sequence[int], random: Random) -> Array:
        """The random numbers for a batch of an input of `shape`, samples first."""

    @abstractmethod
    def apply(self, array: Array, drawn: Array) -> Array:
        """A batch of an input after the change, of the same shape."""

    def fits(self, slot: Slot) -> bool:
        """Whether it changes this input."""
        has_axes = not self.sample_axes or len(slot.sample_shape) in self.sample_axes
        return slot.dtype is DType.F32 and not slot.is_target and has_axes


AUGMENTATIONS: Registry[type[Augmentation]] = Registry("--augment")
_SHAPES = {1: "[samples, features]", 2: "[samples, channels, length]", 3: "[samples, channels, height, width]"}


def forms() -> list[str]:
    """Each kind as it is written, such as crop:PIXELS."""
    kinds = ((name, AUGMENTATIONS[name]) for name in AUGMENTATIONS)
    return [f"{name}:{kind.metavar}" if kind.takes is not None else name for name, kind in kinds]


@dataclass(frozen=True, slots=True)
class Augmentations:
    """Changes of a batch, in their order; those before scaling come first."""

    kinds: Mapping[str, Augmentation] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Augmentations:
        """`flip,crop:2,noise:0.1`. Raises UsageError."""
        kinds: dict[str, Augmentation] = {}
        for word in text.split(",") if text else ():
            name, colon, value = word.strip().partition(":")
            if name not in set(AUGMENTATIONS) or (AUGMENTATIONS[name].takes is None) == bool(colon):
                raise UsageError(f"--augment {shortened(word)}: choose from {', '.join(forms())}")
            kind = AUGMENTATIONS[name]
            if name in kinds:
                raise UsageError(f"--augment {shortened(word)}: {name} is given twice")
            try:
                kinds[name] = kind(None if kind.takes is None else kind.takes.accept(value))
            except ValueError as error:
                raise UsageError(f"--augment {name}: {error}") from None
        return Augmentations(kinds)

    def require_inputs(self, slots: Sequence[Slot]) -> None:
        """UsageError where a kind has no input to change, or would part an input from its target."""
        for name, kind in self.kinds.items():
            changed = [slot for slot in slots if kind.fits(slot)]
            if not changed:
                shapes = " or ".join(_SHAPES[n] for n in kind.sample_axes)
                inputs = f"floating-point inputs {shapes}".strip()
                raise UsageError(f"--augment: {name} is for {inputs}, and the model has none")
            for target in slots if kind.moves else ():
                if target.is_target and target.boxes:
                    raise UsageError(f"--augment: {name} moves the image, and the boxes of {target.name} would stay")
                if len(changed) > 1 and any(_lies_on(target, slot) for slot in changed):
                    raise UsageError(f"--augment: {name} does not know which input the pixels of {target.name} are of")

    def before_scaling(self, batch: Mapping[str, Array], slots: Sequence[Slot], random: Random) -> dict[str, Array]:
        """The batch after all changes that come before `--normalize`."""
        return self._changed(batch, slots, random, after=False)

    def after_scaling(self, batch: Mapping[str, Array], slots: Sequence[Slot], random: Random) -> dict[str, Array]:
        """The batch after the others."""
        return self._changed(batch, slots, random, after=True)

    def _changed(
        self, batch: Mapping[str, Array], slots: Sequence[Slot], random: Random, *, after: bool
    ) -> dict[str, Array]:
        changed = dict(batch)
        for slot in slots:
            for kind in self._kinds(after, slot):
                drawn = kind.draw(changed[slot.name].shape, random)
                changed[slot.name] = kind.apply(changed[slot.name], drawn)
                for target in slots if kind.moves else ():
                    if _lies_on(target, slot):
                        changed[target.name] = kind.apply(changed[target.name], drawn)
        return changed

    def _kinds(self, after: bool, slot: Slot) -> Iterator[Augmentation]:
        return (kind for kind in self.kinds.values() if kind.after_scaling == after and kind.fits(slot))


def _lies_on(target: Slot, image: Slot) -> bool:
    """Whether a target has an element for each place of an input's last two axes, or of a signal's last one."""
    count = min(2, len(image.sample_shape) - 1)
    places = image.sample_shape[len(image.sample_shape) - count :]
    if not target.is_target or count <= 0 or target.sample_shape[len(target.sample_shape) - count :] != places:
        return False
    return len(target.sample_shape) > 1 or target.dtype is DType.I32  # else floats along one axis: shares of classes
