"""Augmentations: the declaration of a kind, and the list of them in `--augment`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
    other places, and a target with an element for each of them goes along. `is_shared`: inputs of one size get the
    same random numbers.
    """

    value: Any = None

    takes: ClassVar[Values | None] = None
    metavar: ClassVar[str] = ""
    sample_axes: ClassVar[Sequence[int]] = ()
    after_scaling: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    is_shared: ClassVar[bool] = True

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
        """UsageError where a kind has no input to change, would erase one, or would part it from its target."""
        for name, kind in self.kinds.items():
            changed = [slot for slot in slots if kind.fits(slot)]
            if not changed:
                where = "" if not kind.sample_axes else f" {' or '.join(_SHAPES[n] for n in kind.sample_axes)}"
                raise UsageError(f"--augment: {name} is for floating-point inputs{where}, and the model has none")
            for slot in changed if isinstance(kind.value, int) else ():
                if kind.value >= min(_places(slot)):
                    raise UsageError(
                        f"--augment {name}:{kind.value}: nothing of {slot.name} {slot.shape_text} would be left"
                    )
            for target in slots if kind.moves else ():
                if target.is_target and target.boxes:
                    raise UsageError(f"--augment: {name} moves the image, and the boxes of {target.name} would stay")

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
        for kind in self.kinds.values():
            if kind.after_scaling != after:
                continue
            drawn: dict[
                tuple[int, ...], Array
            ] = {}  # inputs of one size belong together, as the eyes of a stereo camera
            for slot in slots:
                if kind.fits(slot):
                    places = _places(slot)
                    if places not in drawn or not kind.is_shared:
                        drawn[places] = kind.draw(changed[slot.name].shape, random)
                    changed[slot.name] = kind.apply(changed[slot.name], drawn[places])
            for target in slots if kind.moves else ():
                for places in drawn:
                    if _lies_on(target, places):
                        changed[target.name] = kind.apply(changed[target.name], drawn[places])
        return changed


def _places(slot: Slot) -> tuple[int, ...]:
    """The last two axes of an image, the last one of a signal."""
    return slot.sample_shape[-2:] if len(slot.sample_shape) > 2 else slot.sample_shape[-1:]


def _lies_on(target: Slot, places: tuple[int, ...]) -> bool:
    """Whether a target has an element for each place of an input."""
    if not target.is_target or target.sample_shape[-len(places) :] != places:
        return False
    return len(target.sample_shape) > 1 or target.dtype is DType.I32  # else floats along one axis: shares of classes
