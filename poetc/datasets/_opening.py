"""From the value of `--data` to samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poetc.datasets import function
from poetc.datasets._columns import Samples
from poetc.datasets._matching import Note, parse_selection
from poetc.datasets._slots import Slot
from poetc.datasets.arrays import read_npy, read_npy_folder, read_npz
from poetc.datasets.csv_table import read_csv
from poetc.datasets.function import BatchFunction, load_function
from poetc.datasets.image_folder import is_image_folder, read_images
from poetc.datasets.parquet_table import read_parquet
from poetc.errors import UsageError

KINDS = (
    "an .npz file, X.npy,Y.npy, a folder of .npy files or of images by class, a .csv, a .parquet, or module:function"
)


def open_source(
    text: str, slots: Sequence[Slot], note: Note, *, option: str = "--data", classes: tuple[str, ...] = ()
) -> Samples | BatchFunction:
    """The parts of `text`: a file or a folder, `:` and arrays of it, or a function.

    `classes`: of the training data, for a source whose classes have names. Raises UsageError, which names `option`
    where there is no such source.
    """
    whole = Path(text)
    if text and not _exists(whole) and function.PATTERN.fullmatch(text):
        return load_function(text)
    place, selected = _split(text)
    selection = parse_selection(selected, slots, text)
    pieces = [Path(piece) for piece in place.split(",")]
    if len(pieces) > 1 and all(piece.suffix == ".npy" for piece in pieces):
        return read_npy([_require(piece, option) for piece in pieces], slots)
    path = _require(Path(place), option)
    if path.is_dir():
        if is_image_folder(path):
            return read_images(path, slots, classes, note)
        if any(path.glob("*.npy")):
            return read_npy_folder(path, slots, selection)
        raise UsageError(f"{option} {path}: is a folder without .npy files and without folders of images")
    match path.suffix.lower():
        case ".npz":
            return read_npz(path, slots, selection)
        case ".npy":
            return read_npy([path], slots)
        case ".csv" | ".tsv":
            return read_csv(path, slots, selection, classes)
        case ".parquet":
            return read_parquet(path, slots, selection, classes)
    raise UsageError(f"{option} {path}: of no kind that is known by its name; give {KINDS}")


def fits(text: str, slots: Sequence[Slot]) -> bool:
    """Whether the source has arrays, and batches, of the shapes of `slots`."""
    try:
        source = open_source(text, slots, lambda _: None)
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
        return path.exists()
    except (OSError, ValueError):
        return False


def _require(path: Path, option: str) -> Path:
    if not _exists(path):
        raise UsageError(f"{option} {path}: does not exist")
    return path
