"""Directories that a command writes, and writes again: its own files are replaced, the user's files stay.

A manifest in the directory is JSON and records under "files" the SHA-256 of each file as it was written. A file that
still has this checksum may be replaced or removed; any other belongs to the user. Where the user's file stands in the
way of a new one, the command refuses and names it, or with `force` renames it first.

New files are staged on the same file system and moved into place one by one. Until the last one is there, the manifest
holds the old checksums under "replacing". So after an interruption the next run knows every file as its own.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from poetc.errors import UsageError, printable
from poetc.files import COPY_SUFFIX, blame, copy_of, open_file, umask, write_text

FILES, REPLACING, OWN = "files", "replacing", "sha256"  # entries of a manifest that this module writes
SHOWN = 8  # names in a message
STAGING_PREFIX = ".poetc-staging-"
LEFTOVER_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of directory.

    `content` names the things in it, and `option` the way to choose another directory, in messages.

    `products` are files and folders that a build makes and `make clean` removes: they are replaced in any state. Those
    in `built` are left alone, but never newer than the written files.
    """

    manifest: str
    content: str
    option: str = "-o"
    products: tuple[str, ...] = ()
    built: tuple[str, ...] = ()

    def is_product(self, name: str) -> bool:
        return any(name == product or name.startswith(f"{product}/") for product in self.products)


@dataclass(slots=True)
class Staging:
    """A directory in the making.

    `document` becomes the manifest, with the checksums of all files in `directory`. After the block, `copies` are the
    names under which files of the user were kept.
    """

    directory: Path
    document: Mapping[str, Any] = field(default_factory=dict)
    copies: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The content of a manifest: the checksums that each file of ours may have. `whole`: it is as it was written."""

    files: Mapping[str, frozenset[str]] = field(default_factory=dict)
    whole: bool = False
    counted: bool = False  # it has checksums: not one of an earlier poetc, which recorded none


def _is_read_only(place: Path) -> bool:
    """Whether its file system was mounted so that nobody may write."""
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def check_replaceable(out: Path, kind: Kind, *, force: bool = False, names: Iterable[str] | None = None) -> None:
    """Raises UsageError, which names the option, for a place that cannot be written or holds something else.

    A long command gives the `names` of the files that it will write. The user's files among them, and changed files of
    ours, are refused here, before the work is done. With `force` both are accepted.
    """
    other = f"choose another directory with {kind.option}"
    if (out.exists() or out.is_symlink()) and not out.is_dir():
        raise UsageError(f"{out}: exists and is not a directory; choose another with {kind.option}")
    if out.is_dir():
        if not os.access(out, os.R_OK | os.W_OK | os.X_OK):
            why = "is on a read-only file system" if _is_read_only(out) else "cannot be replaced without permission"
            raise UsageError(f"{out}: {why}; {other}")
        if any(out.iterdir()) and not os.path.lexists(out / kind.manifest) and not force:
            raise UsageError(f"{out}: holds something else than {kind.content}; {other}, or add to it with --force")
        if names is not None and not force:
            recorded = _read(out, kind)
            if os.path.lexists(out / kind.manifest) and recorded.whole and not recorded.counted:
                raise UsageError(
                    f"{out}: an earlier poetc wrote it and recorded no checksums; {other}, or --force to keep copies of"
                    " its files and replace them"
                )
            _require_ours(out, kind, recorded, sorted({*names, *recorded.files, kind.manifest}))
    there = next((place for place in out.absolute().parents if place.exists()), Path())
    if not out.is_dir() and (not there.is_dir() or not os.access(there, os.W_OK | os.X_OK)):
        raise UsageError(f"{out}: cannot be made in {there}; {other}")


@contextmanager
def replacing(out: Path, kind: Kind, *, force: bool = False) -> Iterator[Staging]:
    """A directory to write to, whose files go to `out` when the block ends well; otherwise nothing is changed.

    Files of an earlier run that are no longer written are removed, unless the user changed them. Raises the errors of
    `check_replaceable`, and UsageError where a file of the user stands in the way.
    """
    check_replaceable(out, kind, force=force)
    target = out.resolve()  # also where that is the working directory, or a link
    try:
        place = target if target.exists() else target.parent
        place.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place)
        directory = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=place))
    except OSError as error:
        error.filename, error.filename2 = str(out), None
        raise
    try:
        with _locked(directory):
            staging = Staging(directory)
            yield staging
            if not _move_whole(staging, target, kind):
                _sync(directory)
                _uninterrupted(lambda: _merge(staging, out, target, kind, force))
    except OSError as error:
        blame(error, directory, out)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def replace_file(out: Path, kind: Kind, name: str, text: str) -> None:
    """Write the one file `name` of a directory of `kind`, and record its checksum.

    Raises UsageError where the user changed the file or the manifest.
    """
    with _locked(out.resolve()):
        changed = _obstacles(out, kind, _read(out, kind), (kind.manifest, name))
        if changed:
            raise UsageError(
                f"{out / changed[0]}: is not as poetc wrote it; move it away, or name another file",
                details={"changed": changed},
            )
        document = json.loads((out / kind.manifest).read_text(encoding="utf-8"))
        old = document.get(FILES, {})
        new = {**_plain(document), FILES: {**old, name: hashlib.sha256(text.encode()).hexdigest()}}
        write_text(out / kind.manifest, _manifest({**new, REPLACING: {n: [d] for n, d in old.items()}}))
        write_text(out / name, text)
        write_text(out / kind.manifest, _manifest(new))


# --- moving -----------------------------------------------------------------------------------------------------------


def _move_whole(staging: Staging, target: Path, kind: Kind) -> bool:
    """Make `target` out of the staging directory at one stroke, if nothing is there yet."""
    if os.path.lexists(target):
        return False
    files = _digests(staging.directory)
    _write_manifest(staging.directory / kind.manifest, {**_plain(staging.document), FILES: files})
    staging.directory.chmod(0o777 & ~umask())
    try:
        os.rename(staging.directory, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False  # another process was quicker
    return True


def _merge(staging: Staging, out: Path, target: Path, kind: Kind, force: bool) -> None:
    """Move every staged file to `target`, and remove those of ours that are no longer written."""
    (staging.directory / kind.manifest).unlink(missing_ok=True)
    files = _digests(staging.directory)
    with _locked(target):
        recorded = _read(target, kind)
        names = sorted({*files, kind.manifest})
        if force:
            staging.copies += _set_aside(target, kind, recorded, names)
        else:
            _require_ours(target, kind, recorded, names, shown=out)
        stale = [n for n in sorted(recorded.files) if n not in names and _is_ours(target, kind, recorded, n)]
        _require_permission(target, out, (*names, *stale))
        old = {name: sorted(digests) for name, digests in recorded.files.items()}
        document = {**_plain(staging.document), FILES: files}
        _move_manifest(staging.directory, target, kind, {**document, REPLACING: old})
        for name in files:
            _move(staging.directory / name, target / name)
        for name in stale:
            (target / name).unlink(missing_ok=True)
            _remove_empty(target, PurePosixPath(name).parents)
        _age(target, kind)
        _move_manifest(staging.directory, target, kind, document)


def _age(target: Path, kind: Kind) -> None:
    """Make products of a build older than its sources, where a clock was put back since: make would keep them."""
    now = time.time()
    for name in (*kind.products, *kind.built):
        place = target / name
        for path in (place, *place.rglob("*")):
            mode = _mode(path)
            if mode is not None and stat.S_ISREG(mode) and path.stat().st_mtime >= now:
                os.utime(path, (0, 0))


def _move(staged: Path, place: Path) -> None:
    """The permissions of a file that is replaced stay. The time is now: a build that runs meanwhile is not newer."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        staged.chmod(stat.S_IMODE(place.stat().st_mode))
    os.utime(staged)
    os.replace(staged, place)


def _move_manifest(directory: Path, target: Path, kind: Kind, document: Mapping[str, Any]) -> None:
    staged = directory / kind.manifest
    _write_manifest(staged, document)
    _move(staged, target / kind.manifest)


def _remove_empty(target: Path, folders: Iterable[PurePosixPath]) -> None:
    for folder in folders:
        if folder.name:
            try:
                (target / folder).rmdir()
            except OSError:  # files of the user are in it
                return


def _uninterrupted(work: Callable[[], None]) -> None:
    """In a thread of its own, which neither Ctrl-C nor SIGTERM reaches.

    A signal that came meanwhile is raised afterwards.
    """
    pool = ThreadPoolExecutor(1)
    future, interruption = pool.submit(work), None
    pool.shutdown(wait=False)
    while not future.done():
        try:
            wait([future])
        except (KeyboardInterrupt, SystemExit) as error:
            interruption = error
    if interruption is not None:
        raise interruption
    future.result()


@contextmanager
def _locked(target: Path, flags: int = 0) -> Iterator[None]:
    """One process at a time changes a directory. OSError if `flags` say not to wait, and another one does."""
    handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | flags)
        except OSError:
            if flags:
                raise  # otherwise a file system without locks
        yield
    finally:
        os.close(handle)


def _remove_leftovers(place: Path) -> None:
    """Staging directories of processes that were killed: old enough to be locked by those that live."""
    for leftover in place.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError):
            if time.time() - leftover.lstat().st_mtime > LEFTOVER_AGE_S:
                with _locked(leftover, fcntl.LOCK_NB):
                    shutil.rmtree(leftover)


def _sync(directory: Path) -> None:
    """A file that replaces an older one is whole after a loss of power."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


# --- whose file it is -------------------------------------------------------------------------------------------------


def _obstacle(target: Path, kind: Kind, recorded: _Recorded, name: str) -> str | None:
    """The user's file where `name` goes, or the file in place of a folder on its way."""
    for folder in reversed(PurePosixPath(name).parents):
        if folder.name:
            mode = _mode(target / folder)
            if mode is None:
                return None
            if not stat.S_ISDIR(mode):
                return str(folder)
    mode = _mode(target / name)
    if mode is None:
        return None
    if name == kind.manifest:
        return None if recorded.whole else name
    ours = stat.S_ISREG(mode) and (
        kind.is_product(name) or _digest_or_none(target / name) in recorded.files.get(name, ())
    )
    return None if ours else name


def _is_ours(target: Path, kind: Kind, recorded: _Recorded, name: str) -> bool:
    return _obstacle(target, kind, recorded, name) is None


def _obstacles(target: Path, kind: Kind, recorded: _Recorded, names: Iterable[str]) -> list[str]:
    paths = (_obstacle(target, kind, recorded, name) for name in names)
    return list(dict.fromkeys(name for name in paths if name is not None))


def _require_ours(
    target: Path, kind: Kind, recorded: _Recorded, names: Iterable[str], shown: Path | None = None
) -> None:
    changed = _obstacles(target, kind, recorded, names)
    if changed:
        listed = ", ".join(changed[:SHOWN]) + (f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else "")
        are, them = ("is", "it") if len(changed) == 1 else ("are", "them")
        raise UsageError(
            f"{shown or target}: {printable(listed)} {are} not as poetc wrote {them}; choose another directory with"
            f" {kind.option}, or replace {them} with --force, which keeps a copy (NAME{COPY_SUFFIX})",
            details={"changed": changed},
        )


def _set_aside(target: Path, kind: Kind, recorded: _Recorded, names: Iterable[str]) -> list[str]:
    """Rename the files in the way; returns the new names."""
    copies = []
    for name in _obstacles(target, kind, recorded, names):
        copy = copy_of(target / name)
        os.rename(target / name, copy)
        copies.append(copy.relative_to(target).as_posix())
    return copies


def _require_permission(target: Path, out: Path, names: Iterable[str]) -> None:
    folders = dict.fromkeys(folder for name in names for folder in PurePosixPath(name).parents)
    for folder in folders:
        place = target / folder
        if place.exists() and not os.access(place, os.W_OK | os.X_OK):
            raise UsageError(f"{out / folder}: cannot be written; change its permissions, or choose another directory")


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


# --- the manifest -----------------------------------------------------------------------------------------------------


def _read(target: Path, kind: Kind) -> _Recorded:
    """The content of the manifest: nothing where it is missing, damaged, or names files outside of the directory."""
    path = target / kind.manifest
    mode = _mode(path)
    if mode is None or not stat.S_ISREG(mode):
        return _Recorded()
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        files = {name: frozenset([digest]) for name, digest in document.get(FILES, {}).items()}
        for name, digests in document.get(REPLACING, {}).items():
            files[name] = files.get(name, frozenset()) | frozenset(digests)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return _Recorded()
    if not all(_is_inside(name) for name in files):
        return _Recorded()
    return _Recorded(files, is_as_written(document, text), FILES in document)


def is_as_written(document: Mapping[str, Any], text: str) -> bool:
    """Whether a manifest, parsed and as text, has the checksum that it ends with; so has one without any."""
    return OWN not in document or text == _manifest({k: v for k, v in document.items() if k != OWN})


def _is_inside(name: str) -> bool:
    """Whether it is the plain name of a file in the directory."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    path = PurePosixPath(name)
    plain = str(path) == name and bool(path.name) and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in (FILES, REPLACING, OWN)}


def _manifest(document: Mapping[str, Any]) -> str:
    """The text, at its end the checksum of all that is before it."""
    digest = hashlib.sha256(_dump(document).encode()).hexdigest()
    return _dump({**document, OWN: digest})


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _write_manifest(path: Path, document: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(_manifest(document))
        file.flush()
        os.fsync(file.fileno())


def _digests(directory: Path) -> dict[str, str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): digest(path) for path in paths}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest(path)
    except (OSError, UsageError):
        return None
