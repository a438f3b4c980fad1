"""`poetc.lock`: canonical JSON, one entry a problem.

These classes are the format, field by field (docs/reference/formats.md).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import msgspec

from poetc.errors import UsageError, printable, shortened
from poetc.files import read_file, write_text
from poetc.scheduling.objective import Objective
from poetc.scheduling.schedule import LARGEST_SEED
from poetc.scheduling.scope import names_everything

VERSION = 1
# Newest first: older files were hashed without them.
LATER_OPTIONS = (
    *("group", "processors"),
    *("max_energy", "importance_at_least", "importance"),
    *("state", "dma", "fixed_order", "max_written"),
)
OLD_RESULTS = {"leaner_kernels": "low_workspace_kernels"}  # names in version 0.1


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task of an entry.

    `model` and a device's file are relative to the lock file; `training` holds the options that differ from their
    defaults.
    """

    model: str
    device: str
    batch: int | None = None
    budget: str | None = None
    deadline: str | None = None
    max_written: str | None = None
    objective: str | None = "energy"  # None asks for the problem's own, but never in a lock file
    paging: bool = True
    dma: bool = False
    processors: str = ""
    state: str = "auto"
    importance: str | None = None  # relative to the lock file
    importance_at_least: str | None = None
    max_energy: str | None = None
    solver: str = "poetc"
    time_limit_s: float = 60.0
    gap: float = 0.0
    seed: int = 0
    fixed_order: bool = False
    group: str = "auto"
    training: dict[str, float | int | str | tuple[str | float, ...]] = {}


DEFAULTS = Options(model="", device="")


class Hashes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each is an SHA-256.

    They cover the model's file, the whole profile with all that it inherits, the options, and the problem. The problem
    is the one that all of them make, with budget and deadline. `importance` is that of its file, where updates are
    chosen. `entry` covers all of the entry but its name, so that an
    edited entry is told from a recorded one; it is "" in older files.
    """

    model: str
    profile: str
    options: str
    problem: str
    entry: str = ""
    importance: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of an entry. The bound is in the unit of the objective: pJ, or ns."""

    status: str
    objective: int
    bound: int
    schedule_class: str
    scope: dict[str, str] | None = None  # as `Scope.kinds`; None in a lock file of version 0.1
    energy_pj: int
    time_ns: int
    budget_bytes: int
    peak_bytes: int
    arena_bytes: int
    ram_bytes: int
    recomputes: int
    page_outs: int
    page_ins: int
    moves: int = 0
    low_workspace_kernels: int = 0
    importance: float | None = None  # of the updates, where they were chosen, and the proven bound on all sets
    importance_bound: float | None = None

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective > 0 else 0.0

    @property
    def is_everything(self) -> bool:
        """Whether the bound holds for every schedule."""
        return self.scope is None or names_everything(self.scope)  # version 0.1 names none

    @property
    def importance_gap(self) -> float:
        """(bound - importance) / importance; 0 where updates were not chosen."""
        value, bound = self.importance or 0.0, self.importance_bound or 0.0
        return max(0.0, (bound - value) / value) if value > 0 else 0.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    options: Options
    hashes: Hashes
    result: Result
    versions: dict[str, str]  # of poetc and the solver's libraries


def hash_of_entry(entry: Entry) -> str:
    """The hash of an entry without its name and its own hash, as `Hashes.entry` records it."""
    return hash_of(msgspec.structs.replace(entry, name="", hashes=msgspec.structs.replace(entry.hashes, entry="")))


class LockFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    entries: tuple[Entry, ...] = ()

    def with_entry(self, entry: Entry) -> LockFile:
        """With `entry` added, or in place of the one of its name; sorted by name."""
        kept = {e.name: e for e in self.entries} | {entry.name: entry}
        return LockFile(version=self.version, entries=tuple(kept[name] for name in sorted(kept)))


def canonical(value: object) -> bytes:
    """The one JSON text of a value: keys sorted, no spaces. For hashes."""
    return msgspec.json.encode(value, order="sorted")


def hash_of(value: object) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def is_hash_of(recorded: str, options: Options) -> bool:
    """Whether a lock file of this or an earlier poetc, which had fewer options, recorded `options` as `recorded`."""
    fields = msgspec.to_builtins(options)
    for later in LATER_OPTIONS:
        if recorded == hash_of(fields):
            return True
        if fields.pop(later) != getattr(DEFAULTS, later):
            return False
    return recorded == hash_of(fields)


def dumps(lock: LockFile) -> str:
    """The file's text: canonical JSON, indented so that version control shows the changes."""
    return msgspec.json.format(canonical(lock), indent=1).decode() + "\n"


def read(path: Path) -> LockFile:
    """Read and check a lock file. UsageError names the file and its fault."""
    try:
        data = read_file(path)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}; poetc lock writes it") from None
    try:
        document = msgspec.json.decode(data)
        _take_old_keys(document)
        lock = msgspec.convert(document, LockFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: not a lock file of this version: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if lock.version != VERSION:
        raise UsageError(f"{path}: a lock file of version {lock.version}; this poetc reads {VERSION}")
    for entry in lock.entries:
        if reason := _wrong(entry.options):
            raise UsageError(f"{path}: entry {printable(entry.name)!r}: {reason}")
    names = [entry.name for entry in lock.entries]
    if len(set(names)) != len(names):
        raise UsageError(f"{path}: two entries have the same name")
    return lock


def _take_old_keys(document: object) -> None:
    """Rename the keys of version 0.1 in a decoded lock file.

    A value that is not shaped like a lock file is left to be refused.
    """
    entries = document.get("entries") if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        result = entry.get("result") if isinstance(entry, dict) else None
        if isinstance(result, dict):
            for old, new in OLD_RESULTS.items():
                if old in result and new not in result:
                    result[new] = result.pop(old)


def _wrong(options: Options) -> str:
    """Why these options cannot be solved for, where the command line would not have taken them."""
    if not options.model or "\0" in options.model or "\0" in options.device:
        return f"the model {shortened(options.model)!r} and the device {shortened(options.device)!r} must name files"
    if not 0 < options.time_limit_s < math.inf:
        return f"time_limit_s is {options.time_limit_s:g}; it must be above 0"
    if not 0 <= options.gap <= 1:
        return f"gap is {options.gap:g}; it must be between 0 and 1"
    if not 0 <= options.seed <= LARGEST_SEED:
        return f"seed is {shortened(options.seed)}; it must be between 0 and {LARGEST_SEED}"
    if options.objective not in (None, *Objective):
        return f"objective is {shortened(options.objective)!r}; it must be {' or '.join(Objective)}"
    if options.batch is not None and not 1 <= options.batch <= LARGEST_SEED:
        return f"batch is {shortened(options.batch)}; it must be between 1 and {LARGEST_SEED}"
    return ""


def write(path: Path, lock: LockFile) -> None:
    """Whole or not at all."""
    write_text(path, dumps(lock))


def line_of(text: str, name: str) -> int:
    """The line of a lock file's text where the entry `name` says its name; 1 if it does not."""
    wanted = f'"name": {msgspec.json.encode(name).decode()}'
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().rstrip(",") == wanted:
            return number
    return 1
