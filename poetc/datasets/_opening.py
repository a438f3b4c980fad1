"""From the value of `--data` to samples."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Sequence
from pathlib import Path

from poetc.datasets import function
from poetc.datasets._columns import Samples
from poetc.datasets._kinds import KINDS, Request, Settings, kind_of, require_used
from poetc.datasets._matching import Note, parse_selection
from poetc.datasets._slots import Slot
from poetc.datasets.arrays import read_npy
from poetc.datasets.function import BatchFunction, load_function
from poetc.errors import UsageError, printable
from poetc.files import exists

_NO_SETTINGS = Settings()

# Each module of a kind declares it. The folder of images comes before that of arrays, which takes more folders.
for _module in sorted((m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])), reverse=True):
    if not _module.startswith("_"):
        importlib.import_module(f"poetc.datasets.{_module}")


def open_source(
    text: str,
    slots: Sequence[Slot],
    note: Note,
    *,
    option: str = "--data",
    like: Samples | None = None,
    settings: Settings = _NO_SETTINGS,
) -> Samples | BatchFunction:
    """The parts of `text`: a file or a folder, `:` and arrays of it, or a function.

    `like`: the training data of a validation, whose columns and classes it has by name. `settings`: of the kind. Raises
    UsageError, which names `option` where there is no such source.
    """
    if not text:
        raise UsageError(f"{option} is empty: give a file, a folder or module:function")
    whole = Path(text)
    if function.PATTERN.fullmatch(text) and not _exists(whole) and not os.path.isfile(_split(text)[0]):
        require_used(None, settings, text)
        return load_function(text)
    place, selected = _split(text)
    selection = parse_selection(selected, slots, text)
    pieces = [Path(piece) for piece in place.split(",")]
    if len(pieces) > 1 and all(piece.suffix == ".npy" for piece in pieces):
        require_used(None, settings, text)
        return read_npy([_require(piece, option) for piece in pieces], slots)
    path = _require(Path(place), option)
    kind = kind_of(path)
    require_used(kind, settings, str(path))
    if kind is not None:
        request = Request(path=path, slots=slots, selection=selection, like=like, note=note, settings=settings)
        samples = kind.read(request)
        for slot in slots if selection and not samples.features else ():  # features are the columns that are left
            if slot.name not in selection:
                what = "the target" if slot.is_target else f"input {printable(slot.name)!r}"
                note(f"{option} {text}: names no array for {what}; taken is {printable(samples.called[slot.name])!r}")
        return samples
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder without texts, .npy files and folders of images")
    known = ", ".join(kind.description for kind in KINDS.values())
    raise UsageError(f"{option} {path}: of no kind that is known by its name; give {known}, or module:function")


def ignored_by(text: str) -> int | None:
    """The class of targets of this source that count for nothing; None where its kind has none."""
    place = Path(_split(text)[0])
    kind = kind_of(place) if _exists(place) else None
    return None if kind is None else kind.ignores


def fits(text: str, slots: Sequence[Slot], settings: Settings = _NO_SETTINGS) -> bool:
    """Whether the source has arrays, and batches, of the shapes of `slots`."""
    try:
        source = open_source(text, slots, lambda _: None, settings=settings)
        if isinstance(source, BatchFunction):
            next(source.batches(slots, 1), None)
    except UsageError:
        return False
    return True


def _split(text: str) -> tuple[str, str]:
    """The place and the selection after the last colon, unless there is a file of the whole name."""
    place, colon, selected = text.rpartition(":")
    return (place, selected) if colon and place and not _exists(Path(text)) else (text, "")


def _exists(path: Path) -> bool:
    try:
        return exists(path)
    except OSError:
        return False


def _require(path: Path, option: str) -> Path:
    try:
        if exists(path):
            return path
    except OSError as error:
        raise UsageError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None
    raise UsageError(f"{option} {path}: does not exist")
