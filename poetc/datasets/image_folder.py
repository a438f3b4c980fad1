"""A folder of images, one subfolder a class, read by Pillow (the extra `images`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._kinds import Request, declare_folder
from poetc.datasets._slots import Slot
from poetc.errors import UsageError
from poetc.files import read_file
from poetc.graph import Array, DType

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_LARGEST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class _Images:
    """The column of the images. They are decoded when they are asked for: u8 in the shape of the model's input."""

    paths: tuple[Path, ...]
    sample_shape: tuple[int, ...]
    channels: int
    channels_last: bool

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.paths), *self.sample_shape

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Any) -> Array:
        chosen = np.arange(len(self.paths))[rows]
        return np.stack([self._read(self.paths[i]) for i in chosen])

    def _read(self, path: Path) -> Array:
        from PIL import Image

        height, width = self.sample_shape[:2] if self.channels_last else self.sample_shape[-2:]
        try:
            with Image.open(path) as image:
                read = image.convert(_MODES[self.channels])
                if read.size != (width, height):
                    read = read.resize((width, height), Image.Resampling.BILINEAR)
                pixels = np.asarray(read, np.uint8).reshape(height, width, self.channels)
        except Exception as error:  # the readers of the formats raise a dozen kinds
            raise UsageError(f"{path}: not an image that Pillow can read") from error
        turned = pixels if self.channels_last else pixels.transpose(2, 0, 1)
        return turned.reshape(self.sample_shape)

    def fingerprint(self) -> bytes:
        """A checksum of names and contents."""
        total = hashlib.sha256()
        for path in self.paths:
            total.update(f"{path.parent.name}/{path.name}".encode())
            total.update(hashlib.sha256(read_file(path, _LARGEST_BYTES)).digest())
        return total.digest()


def is_image_folder(path: Path) -> bool:
    """Whether there is an image in a folder within `path`."""
    return any(_images_in(folder) for folder in path.iterdir() if folder.is_dir())


def read_images(request: Request) -> Samples:
    """Every image of every class, in the order of their names. Images of another size are resized, which a note says.

    Classes are numbered in the order of their folders' names, or as those of the training data, which are names too.
    """
    path, slots, note = request.path, request.slots, request.note
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f"{path}: images need Pillow: pip install '.[images]' in the clone") from error
    inputs, target = [s for s in slots if not s.is_target], next((s for s in slots if s.is_target), None)
    if len(inputs) != 1 or inputs[0].dtype is not DType.F32 or target is None or not target.is_class:
        raise UsageError(f"{path}: a folder of images is for a model with one input, of images, and a class as target")
    channels, channels_last = _layout(path, inputs[0])
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and _images_in(folder))
    if request.like is not None and not request.like.classes:
        raise UsageError(f"{path}: its classes have names; those of {request.like.where} are numbers")
    names = tuple(folder.name for folder in folders) if request.like is None else request.like.classes
    numbers = {name: number for number, name in enumerate(names)}
    unknown = next((folder for folder in folders if folder.name not in numbers), None)
    if unknown is not None:
        raise UsageError(f"{unknown}: is none of the classes {', '.join(names)}")
    most = target.limit.most if target.limit is not None else len(names) - 1
    if len(names) > most + 1:
        raise UsageError(f"{path}: has {len(names)} classes, the model {most + 1}")
    labelled = [(image, numbers[folder.name]) for folder in folders for image in _images_in(folder)]
    images = _Images(tuple(image for image, _ in labelled), inputs[0].sample_shape, channels, channels_last)
    try:
        with Image.open(images.paths[0]) as first:
            width, height = first.size
    except Exception:
        width = height = 0  # Reading it names the fault.
    wanted = inputs[0].sample_shape[:2] if channels_last else inputs[0].sample_shape[-2:]
    if width and (height, width) != tuple(wanted):
        note(f"{path}: images are resized to {wanted[1]} x {wanted[0]}, the first from {width} x {height}")
    labels = np.array([number for _, number in labelled], np.int32).reshape(-1, *target.sample_shape)
    return Samples(
        where=str(path),
        columns={inputs[0].name: images, target.name: labels},
        called={inputs[0].name: "images", target.name: "classes"},
        classes=names,
    )


def _images_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())


def _layout(path: Path, slot: Slot) -> tuple[int, bool]:
    """Channels of the model's images, and whether they are the last axis."""
    shape = slot.sample_shape
    if len(shape) == 2:
        return 1, False
    if len(shape) == 3 and shape[0] in _MODES:
        return shape[0], False
    if len(shape) == 3 and shape[2] in _MODES:
        return shape[2], True
    raise UsageError(f"{path}: input {slot.name!r} takes {slot.shape_text}, which are not images of 1, 3 or 4 channels")


declare_folder("images", "a folder of images by class", read_images, is_image_folder)
