"""`.npz` and `.npy` files: one array a slot, which stays on the disk where the file holds it uncompressed."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import numpy as np

from poetc.datasets._columns import Column, Samples
from poetc.datasets._kinds import Request, declare, declare_folder
from poetc.datasets._matching import match
from poetc.datasets._slots import Slot
from poetc.datasets._stored import StoredArray
from poetc.errors import UsageError
from poetc.files import open_file, read_arrays
from poetc.graph import Array

_LOCAL_HEADER_BYTES = 30  # of a member of a zip archive, before its name and its extra field


def read_npz(request: Request) -> Samples:
    """The arrays of an archive, by name."""
    return match(str(request.path), _members(request.path), request.slots, request.selection)


def read_npy(paths: Sequence[Path], slots: Sequence[Slot]) -> Samples:
    """One file a slot, in the order of the model's inputs and the target."""
    where = ",".join(map(str, paths))
    if len(paths) != len(slots):
        names = ", ".join("target" if s.is_target else s.name for s in slots)
        raise UsageError(f"{where}: {len(paths)} .npy files; needed are {len(slots)}: {names}")
    columns = {str(path): npy_column(path) for path in paths}
    selection = {slot.name: str(path) for slot, path in zip(slots, paths, strict=True)}
    return match(where, columns, slots, selection)


def read_npy_folder(request: Request) -> Samples:
    """A folder with NAME.npy for each input, and target.npy."""
    path = request.path
    columns = {p.stem: npy_column(p) for p in sorted(path.glob("*.npy"))}
    return match(str(path), columns, request.slots, request.selection)


def npy_column(path: Path) -> Column:
    with open_file(path) as file:
        try:
            np.lib.format.read_magic(file)
            file.seek(0)
            stored = _stored(path, file)
            if stored is not None:
                return stored
            file.seek(0)
            array: Array = np.load(file, allow_pickle=False)
        except Exception as error:  # numpy and the tokenizer of its header raise a dozen kinds
            raise UsageError(f"{path}: not an .npy file of one array") from error
    return _with_samples(path, path.stem, array)


def _with_samples(path: Path, name: str, array: Array) -> Array:
    if array.ndim == 0:
        raise UsageError(f"{path}: {name} is a single value, not an array of samples")
    return array


def _members(path: Path) -> dict[str, Column]:
    stored = _stored_members(path)
    if stored is not None:
        return dict(stored)
    return dict(read_arrays(path))


def _stored_members(path: Path) -> dict[str, StoredArray] | None:
    """The arrays of an archive that is not compressed; None where one of them must be read whole."""
    arrays: dict[str, StoredArray] = {}
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    return None
                file.seek(member.header_offset)
                header = file.read(_LOCAL_HEADER_BYTES)
                skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                file.seek(member.header_offset + _LOCAL_HEADER_BYTES + skipped)
                stored = _stored(path, file)
                if stored is None:
                    return None
                arrays[member.filename.removesuffix(".npy")] = stored
    except Exception:  # numpy, zipfile and the tokenizer raise a dozen kinds; reading it whole names the fault
        return None
    return arrays


def _stored(path: Path, file: BufferedReader) -> StoredArray | None:
    """The array whose header begins where `file` stands. None for one without samples, and in Fortran's order."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject or not shape or 0 in shape or (fortran and len(shape) > 1):
        return None
    return StoredArray(path, file.fileno(), file.tell(), dtype, shape)


declare("npz", "an .npz file", read_npz, ".npz")
declare("npy", "X.npy,Y.npy", lambda request: read_npy([request.path], request.slots), ".npy")
declare_folder("npy-folder", "a folder of .npy files", read_npy_folder, lambda path: any(path.glob("*.npy")))
