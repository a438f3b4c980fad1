"""Compiled objects that are kept between builds, for emitted directories whose sources are the same.

The folder is $POETC_CACHE, else $XDG_CACHE_HOME/poetc, else ~/.cache/poetc. POETC_CACHE=off keeps nothing. An entry is
a zip archive with the object of one source file and its list of headers. Its name is a digest of all that the compiler
read: the source, the headers, every option with `-march=native` spelt out, and the compiler's version. The folder may
be removed at any time. An entry that is damaged is compiled again; where the folder cannot be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

VARIABLE = "POETC_CACHE"
LIMIT_BYTES = 256 << 20  # of all entries; the ones that were used least recently go first
_AFTER_EVICTION = 0.75  # share of the limit
# All entries are measured after a large one, and after one of 16 others, whose names begin so: with many it takes long.
_LARGE = 1 / 64  # share of the limit
_MEASURED_AFTER: tuple[str, ...] = ("0",)
_SUFFIXES = (".o", ".d", ".ci")  # object, headers for make, call graph of firmware
_FORMAT = b"poetc objects 1\n"
_ANY = "runtime/src/poetc.c"  # in every emitted directory: all files have the same options
_READ_BY_COMPILER = ("CPATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH")  # variables
_NAMES_FILES = ("@", "-include", "-imacros", "-fprofile", "-specs", "--specs")  # options: files that are not looked at
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def folder() -> Path | None:
    """Where objects are kept; None where nothing is."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen) / "objects"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "poetc" / "objects"
    try:
        return Path.home() / ".cache" / "poetc" / "objects"
    except RuntimeError:  # a user without a home
        return None


@contextmanager
def kept_objects(sources: Path, make: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """A build of an emitted directory inside the block takes objects of the same files that an earlier build made.

    New objects are kept after it. `make`: the words of the build's command, without a goal.
    """
    place = folder()
    options = None if place is None else _options(make, environment)
    if place is None or options is None:
        yield
        return
    build = _Build(sources, place, options)
    before = {stem: build.made_ns(stem) for stem in build.stems if not build.restore(stem)}
    yield
    build.keep([stem for stem, made_ns in before.items() if build.made_ns(stem) != made_ns])


def are_kept(sources: Path, make: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a build would compile nothing of the runtime. `make`, `environment`: see `kept_objects`."""
    place = folder()
    options = None if place is None else _options(make, environment)
    if place is None or options is None:
        return False
    build = _Build(sources, place, options)
    return all(build.is_kept(stem) for stem in build.stems if stem.startswith("runtime/"))


def _options(make: Sequence[str], environment: Mapping[str, str]) -> bytes | None:
    """A digest of the compiler and of all its options, as `make` would call it. None if that cannot be told."""
    goal = f"build/{Path(_ANY).with_suffix('.o').as_posix()}"
    words = [*make, "-n", "-B", "--no-print-directory", goal]
    told = subprocess.run(words, capture_output=True, text=True, env=dict(environment), check=False)
    lines = told.stdout.replace("\\\n", " ").strip().splitlines()
    if told.returncode or not lines or not lines[-1].endswith(_ANY):
        return None
    command = shlex.split(lines[-1])
    if "-c" not in command or any(word.startswith(_NAMES_FILES) for word in command):
        return None
    # The command of the compiler proper, in which `native` has become a processor with all its features.
    spelt = [*command[: command.index("-c")], "-###", "-S", "-o", os.devnull, "-x", "c", os.devnull]
    try:
        shown = subprocess.run(spelt, capture_output=True, env=dict(environment), cwd=os.sep, check=False)
    except OSError:
        return None
    if shown.returncode:
        return None
    around = [f"{name}={environment.get(name, '')}" for name in _READ_BY_COMPILER]
    return hashlib.sha256("\0".join([*command, *around]).encode() + shown.stdout + shown.stderr).digest()


@dataclass(frozen=True)
class _Build:
    """One emitted directory. `options`: a digest that stands for the compiler and its options."""

    sources: Path
    place: Path
    options: bytes

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """Every file that a compiler may read, by its path in the directory."""
        paths = sorted(p for p in self.sources.rglob("*.[ch]") if "build" not in p.relative_to(self.sources).parts)
        return {p.relative_to(self.sources).as_posix(): p.read_bytes() for p in paths}

    @cached_property
    def _including(self) -> dict[str, list[str]]:
        """The files that each includes. Where several have the name that is included, they are all taken."""
        by_name: dict[str, list[str]] = {}
        for path in self.texts:
            by_name.setdefault(path.rpartition("/")[2], []).append(path)
        return {
            path: [p for name in _INCLUDE.findall(text.decode()) for p in by_name.get(name.rpartition("/")[2], [])]
            for path, text in self.texts.items()
        }

    @property
    def stems(self) -> list[str]:
        """The names of the sources in C, without their suffix."""
        return [path[:-2] for path in self.texts if path.endswith(".c")]

    def _entry(self, stem: str) -> Path:
        waiting, read = [f"{stem}.c"], set[str]()
        while waiting:
            path = waiting.pop()
            if path not in read:
                read.add(path)
                waiting += self._including[path]
        digest = hashlib.sha256(_FORMAT + self.options + f"{stem}\0".encode())
        for path in sorted(read):
            digest.update(f"{path}\0{len(self.texts[path])}\0".encode() + self.texts[path])
        return self.place / digest.hexdigest()

    def made_ns(self, stem: str) -> int:
        """When its object was made; 0: there is none. One from before may be of other options."""
        try:
            return (self.sources / "build" / f"{stem}.o").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def is_kept(self, stem: str) -> bool:
        """Whether there is an object of it, which may be damaged."""
        return self._entry(stem).exists()

    def restore(self, stem: str) -> bool:
        """Put the object in its place; False where there is none, or a damaged one, which is removed."""
        entry = self._entry(stem)
        try:
            with zipfile.ZipFile(io.BytesIO(entry.read_bytes())) as archive:
                files = {name: archive.read(name) for name in archive.namelist() if name in _SUFFIXES}
            if not {".o", ".d"} <= files.keys():
                raise zipfile.BadZipFile
            os.utime(entry)  # used now
        except FileNotFoundError:
            return False
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
            with contextlib.suppress(OSError):
                entry.unlink()
            return False
        target = self.sources / "build" / stem
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix, data in files.items():
            target.with_name(target.name + suffix).write_bytes(data)
        return True

    def keep(self, stems: Sequence[str]) -> None:
        """Keep the objects of these sources. A failure of it is no error."""
        with contextlib.suppress(OSError):
            written = [self._keep(stem) for stem in stems]
            if any(name.startswith(_MEASURED_AFTER) or size > _LARGE * LIMIT_BYTES for name, size in written):
                _evict(self.place)

    def _keep(self, stem: str) -> tuple[str, int]:
        """The name of the entry and its bytes; nothing where there is nothing to keep."""
        built = self.sources / "build" / stem
        parts = {s: built.with_name(built.name + s) for s in _SUFFIXES}
        if not parts[".o"].exists() or not parts[".d"].exists():  # another goal than that needs it
            return "", 0
        self.place.mkdir(parents=True, exist_ok=True)
        entry = self._entry(stem)
        handle, staged = tempfile.mkstemp(prefix=".new-", dir=self.place)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for suffix, path in parts.items():
                    if path.exists():
                        part = zipfile.ZipInfo(suffix)  # of no date: a clock before 1980 would be an error
                        archive.writestr(part, path.read_bytes(), zipfile.ZIP_DEFLATED)
            size = os.path.getsize(staged)
            os.replace(staged, entry)
        except BaseException:
            Path(staged).unlink(missing_ok=True)
            raise
        return entry.name, size


def _evict(place: Path) -> None:
    """Remove entries where they have become too many; also those that a process left half-written."""
    entries = []
    for entry in os.scandir(place):
        with contextlib.suppress(FileNotFoundError):
            about = entry.stat()
            entries.append((about.st_mtime, about.st_size, entry.path))
    total = sum(size for _, size, _ in entries)
    if total <= LIMIT_BYTES:
        return
    for _, size, path in sorted(entries):
        if total <= LIMIT_BYTES * _AFTER_EVICTION:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
