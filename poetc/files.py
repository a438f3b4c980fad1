"""Files that appear whole or not at all, and temporary directories."""

from __future__ import annotations

import errno
import fcntl
import filecmp
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from poetc.errors import PoetcError, UsageError, printable

if TYPE_CHECKING:
    import numpy as np

FULL_BYTES = 1 << 20  # where less is free, a write that names no file failed there
LARGEST_TEXT_BYTES = 1 << 26  # of a problem, a schedule, a lock file: a hundred times the largest there is
COPY_SUFFIX = ".orig"  # of files of the user that are kept
_PIECE_BYTES = 1 << 16


def open_file(path: Path) -> BufferedReader:
    """A regular file, or a link to one, for reading.

    Raises UsageError at once for a device, a pipe and a name that no file can have; OSErrors as `open` does,
    IsADirectoryError among them.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer is not waited for
    except ValueError:
        raise UsageError(f"{printable(str(path))}: no file can have this name") from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UsageError(f"{path}: is a device or a pipe, not a file")


def exists(path: Path) -> bool:
    """Whether there is such a file or folder. OSError where that cannot be told, as in a folder of somebody else."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def read_file(path: Path, limit_bytes: int = LARGEST_TEXT_BYTES) -> bytes:
    """All of a file. Raises the errors of `open_file`, and UsageError for a file above `limit_bytes`.

    Memory is taken for the size of the file, not for the limit: `read` reserves as many bytes as it is asked for.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        data = b"" if size_bytes > limit_bytes else file.read(size_bytes + 1)
        while size_bytes < len(data) <= limit_bytes and (more := file.read(_PIECE_BYTES)):
            data += more  # a file that grows, or one of /proc, which says that it is empty
    if size_bytes > limit_bytes or len(data) > limit_bytes:
        raise UsageError(f"{path}: larger than the {limit_bytes:,} bytes that such a file can have")
    return data


def read_arrays(path: Path, hint: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, by name.

    Raises the errors of `open_file`, and UsageError, which ends with `hint`, for anything else, a damaged archive
    included.
    """
    import numpy as np  # here alone: the help of the command line needs none of it

    with open_file(path) as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:  # numpy, zipfile and zlib raise a dozen kinds for a damaged archive
            raise UsageError(f"{path}: not an .npz file of arrays{hint}") from error
    if other := next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None):
        raise UsageError(f"{path}: {other!r} in it is no array{hint}")  # numpy gives the bytes of such a file
    return arrays


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Arrays by name as an .npz file. The same arrays give the same bytes, whatever the clock says.

    No name is special, as it would be for `numpy.savez`, which fails where the clock is before 1980.
    """
    import zipfile

    import numpy as np

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)


def require_tmpdir() -> None:
    """UsageError where TMPDIR names no directory that can be written: Python would take another one without a word."""
    named = os.environ.get("TMPDIR")
    if named and not (os.path.isdir(named) and os.access(named, os.W_OK | os.X_OK)):
        raise UsageError(f"TMPDIR {printable(named)}: no directory that can be written; set it to another, or unset it")


@contextmanager
def scratch_directory(prefix: str) -> Iterator[Path]:
    """A directory among the machine's temporary files, gone after the block.

    Raises UsageError where they lack room, or TMPDIR is of no use; errors name no file in it.
    """
    require_tmpdir()
    try:
        place = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        if error.errno != errno.ENOSPC and not isinstance(error, FileNotFoundError):
            raise
        raise _no_room(None if error.filename is None else Path(error.filename).parent) from None
    try:
        yield place
    except OSError as error:
        if error.errno == errno.ENOSPC and _is_in(error.filename, place):
            raise _no_room(place.parent) from None
        blame(error, place, place.parent)
        raise
    except PoetcError as error:  # The message of a compiler, which does not look for another directory as Python does.
        theirs = Path(os.environ.get("TMPDIR") or place.parent)
        if os.strerror(errno.ENOSPC) in str(error) and _is_full(theirs):
            raise _no_room(theirs) from None
        error.args = (str(error).replace(f"{place}{os.sep}", ""), *error.args[1:])
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _is_in(name: object, place: Path) -> bool:
    if isinstance(name, str | os.PathLike):
        return Path(os.fspath(name)).is_relative_to(place)
    return _is_full(place)


def blame(error: OSError, temporary: Path, shown: Path) -> None:
    """Blame `shown`, which the user knows, instead of the files in `temporary`, or of none, as a full disk does."""
    names = (error.filename, error.filename2)
    nameless = names == (None, None) and (
        error.errno == errno.EFBIG or (error.errno == errno.ENOSPC and _is_full(temporary))
    )
    if nameless or any(
        isinstance(n, str | os.PathLike) and Path(os.fspath(n)).is_relative_to(temporary) for n in names
    ):
        error.filename, error.filename2 = str(shown), None


def _is_full(place: Path) -> bool:
    """Whether the disk of `place` has less than FULL_BYTES free. True where the disk cannot be asked."""
    try:
        return shutil.disk_usage(place).free < FULL_BYTES
    except OSError:
        return True


def _no_room(place: Path | None) -> UsageError:
    where = "the directory of temporary files" if place is None else f"{place}, where temporary files go"
    return UsageError(f"no space left in {where}; free some, or set TMPDIR to another directory")


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text, as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside the destination, then move there: a reader sees the old file or the new one, never a half.

    A link is followed, and the permissions of a file that is replaced stay.
    """
    if path.is_char_device() or path.is_fifo():  # there is nothing to replace
        path.write_bytes(data)
        return
    path = path.resolve()
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask()
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def require_writable(*paths: Path | None) -> None:
    """The OSError of `write_bytes`, for a file that cannot be written: before a long work, not behind it."""
    for path in paths:
        if path is None or path.is_char_device() or path.is_fifo():
            continue
        end = path.resolve()
        try:
            if end.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            handle, name = tempfile.mkstemp(prefix=f".{end.name}.", dir=end.parent)
            os.close(handle)
            os.unlink(name)
        except OSError as error:
            error.filename, error.filename2 = str(end), None
            raise


def require_free(outputs: Sequence[Path], source: Path | None, force: bool) -> None:
    """UsageError where an output is in the way, or must not be replaced."""
    for path in outputs:
        end_of_link(path)
        if path.is_dir():
            raise UsageError(f"{path}: is a directory; name a file")
        if source is not None and path.exists() and path.samefile(source):
            raise UsageError(f"{path}: is the file that is read; write to another file with -o")
        if path.exists() and not force:
            raise UsageError(f"{path}: exists; write to another file, or replace it with --force")


def copy_of(path: Path) -> Path:
    """A free name for a file of the user that is set aside: NAME.orig, or with a number behind it."""
    number, copy = 1, path.with_name(f"{path.name}{COPY_SUFFIX}")
    while os.path.lexists(copy):
        number += 1
        copy = path.with_name(f"{path.name}{COPY_SUFFIX}{number}")
    return copy


@contextmanager
def new_files(path: Path, *companions: Path, force: bool = False, copies: list[str] | None = None) -> Iterator[Path]:
    """A place to write `path` to, which gets its name when the block ends well; otherwise nothing is changed.

    Files of the names of `companions` that are written next to it, in the same folder, get their names just before it.
    UsageError where one of them exists, unless `force`. A link is followed, also where its file does not exist yet.
    With `copies`, a file of other content is renamed before it is replaced, and its new name is added there.
    """
    end = end_of_link(path)
    if end == path:
        path.parent.mkdir(parents=True, exist_ok=True)
    place = None
    try:
        place = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=end.parent))
        yield place / path.name
        moves = [(place / p.name, end_of_link(p)) for p in (*companions, path) if (place / p.name).exists()]
        for staged, target in moves:
            if target.is_dir():
                raise UsageError(f"{target}: is a directory; name a file")
            if target.exists() and not force:
                raise UsageError(f"{target}: exists; write to another file, or replace it with --force")
            with staged.open("rb") as file:
                os.fsync(file.fileno())
            staged.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask())
        for staged, target in moves:
            if copies is not None and target.exists() and not filecmp.cmp(staged, target, shallow=False):
                copy = copy_of(target)
                os.rename(target, copy)
                copies.append(copy.name)
            os.replace(staged, target)
    except OSError as error:
        if place is not None:
            blame(error, place, path)
        else:
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def end_of_link(path: Path) -> Path:
    """The file that a link names, which may not exist; another path as it is. Raises UsageError."""
    if not path.is_symlink():
        return path
    try:
        end = path.resolve()
    except (OSError, RuntimeError):  # a circle; Python 3.13 returns one of its links
        end = path
    if end.is_symlink():
        raise UsageError(f"{path}: is a link that leads back to itself; name another file")
    if not end.parent.is_dir():
        raise UsageError(f"{path}: is a link to {end}, whose directory does not exist; make it, or name another file")
    return end


def lock_folder(folder: Path) -> int:
    """Lock a folder; returns the handle whose closing frees it. BlockingIOError where it is locked already.

    The lock is the kernel's: it ends with the process, however that ends.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        pass  # a file system without locks
    return handle


def portable(path: Path) -> str:
    """A path below this folder relative to it, so that a copy of the folder repeats the training elsewhere."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def umask() -> int:
    """The process's; it is set for a moment, there is no other way to read it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def finite(value: Any) -> Any:
    """`value` with null for numbers that JSON has no word for (infinities, not-a-number)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value
