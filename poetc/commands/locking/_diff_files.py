"""The differences between two directories of `poetc solve`, or two lock files, entry by entry, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from poetc import artifact
from poetc.commands.locking._check_reports import proven_words
from poetc.commands.locking._diff import Difference, changed, diff_artifacts
from poetc.commands.locking._file import Entry, read
from poetc.devices import format_bytes, format_ns, format_pj
from poetc.errors import UsageError

COSTS = {"energy_pj": ("energy", format_pj), "time_ns": ("time", format_ns)}
SIZES = {
    "budget_bytes": ("the budget", format_bytes),
    "peak_bytes": ("the peak", format_bytes),
    "arena_bytes": ("the packed arena", format_bytes),
    "ram_bytes": ("all RAM", format_bytes),
}
COUNTS = {
    "recomputes": "recomputations",
    "page_outs": "page-outs",
    "page_ins": "page-ins",
    "moves": "moves within RAM",
    "low_workspace_kernels": "kernels with less workspace",
}


def diff(before: Path, after: Path) -> Difference:
    """The difference between two directories made by `poetc solve`, or two lock files.

    Raises UsageError where one is neither.
    """
    files = [path for path in (before, after) if path.is_file()]
    if len(files) == 2:
        return diff_locks(before, after)
    for path in (before, after):
        if not path.exists():
            raise UsageError(f"{path}: does not exist")
    if files:
        raise UsageError(f"{files[0]}: is a file; give two directories of poetc solve, or two lock files")
    return diff_artifacts(artifact.read(before), artifact.read(after))


def diff_locks(before: Path, after: Path) -> Difference:
    """The difference between two lock files. Raises UsageError where one is not."""
    a, b = ({entry.name: entry for entry in read(path).entries} for path in (before, after))
    entries: dict[str, dict[str, Any]] = {}
    sentences: list[str] = []
    for name in sorted(a.keys() | b.keys()):
        x, y = a.get(name), b.get(name)
        if x is None or y is None:
            changes = ["was added." if x is None else "was removed."]
        else:
            changes = list(_changes(x, y))
        if changes:
            entries[name] = {
                "before": None if x is None else msgspec.to_builtins(x.result),
                "after": None if y is None else msgspec.to_builtins(y.result),
                "sentences": changes,
            }
            sentences += [f"{name}: {word}" for word in changes]
    return Difference(tuple(sentences), {"same": not sentences, "entries": entries, "sentences": sentences})


def _changes(a: Entry, b: Entry) -> Iterator[str]:
    hashes = [what for what in ("model", "profile", "options") if getattr(a.hashes, what) != getattr(b.hashes, what)]
    if hashes:
        yield f"{' and '.join(hashes)} changed."
    options = [
        f"{field} from {getattr(a.options, field)!r} to {getattr(b.options, field)!r}"
        for field in a.options.__struct_fields__
        if getattr(a.options, field) != getattr(b.options, field)
    ]
    if options:
        yield f"the options changed: {'; '.join(options)}."
    versions = [name for name in sorted(a.versions | b.versions) if a.versions.get(name) != b.versions.get(name)]
    if versions:
        named = ("poetc's code" if name == "code" else name for name in versions)
        yield f"recorded with another version: {', '.join(named)}."
    x, y = a.result, b.result
    for field, (name, show) in (COSTS | SIZES).items():
        before, after = getattr(x, field), getattr(y, field)
        if before != after:
            yield f"{name} {changed(before, after, show)}."
    for field, name in COUNTS.items():
        before, after = getattr(x, field), getattr(y, field)
        if before != after:
            yield f"{name}: {after:,} instead of {before:,}."
    statuses = list(map(proven_words, (a, b)))
    if statuses[0] != statuses[1]:
        yield f"proven: {statuses[0]} before; {statuses[1]} now."
