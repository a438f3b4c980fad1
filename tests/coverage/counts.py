"""Counts of lines and branches by file, from coverage.py and from gcov, and tables of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

AT_ONCE = 200  # files of counts that one gcov reads


@dataclass(slots=True)
class Counts:
    """Of one file: which lines ran, and which ways out of a line were taken. A way has the line and a number there."""

    lines: dict[int, bool] = field(default_factory=dict)
    branches: dict[tuple[int, int], bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """Of a file or a room."""

    name: str
    lines: int
    lines_run: int
    branches: int
    branches_taken: int

    @property
    def missing(self) -> int:
        return self.branches - self.branches_taken


def counting_compiler(name: str, folder: Path) -> None:
    """Put a compiler of that name, whose programs count, into `folder`."""
    real = shutil.which(name)
    assert real is not None
    (folder / "real").mkdir(exist_ok=True)
    (folder / "real" / name).symlink_to(real)
    shutil.copy(Path(__file__).with_name("counting-cc"), folder / name)


def python_shares(document: Mapping[str, object]) -> list[Share]:
    """Of the JSON report of coverage.py, a file each."""
    files = document["files"]
    assert isinstance(files, dict)
    result = []
    for name, found in files.items():
        s = found["summary"]
        result.append(Share(name, s["num_statements"], s["covered_lines"], s["num_branches"], s["covered_branches"]))
    return result


def c_counts(folder: Path, sources: Path) -> dict[str, Counts]:
    """Of all programs that left counts below `folder`, added up by the file of `sources` that they were copied from.

    A file counts where it has the name of a file of `sources`, which emitted directories keep copies of. Their own
    model.c is tables, without a line that runs.
    """
    known = {path.name: path.relative_to(sources).as_posix() for path in sources.rglob("*.[ch]")}
    result: dict[str, Counts] = defaultdict(Counts)
    data = sorted(folder.rglob("*.gcda"))
    for start in range(0, len(data), AT_ONCE):
        words = ["gcov", "--json-format", "--stdout", "--branch-probabilities"]
        done = subprocess.run([*words, *data[start : start + AT_ONCE]], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            for file in json.loads(line)["files"] if line.startswith("{") else ():
                name = known.get(Path(file["file"]).name)
                if name is not None:
                    _add(result[name], file["lines"])
    return dict(result)


def _add(counts: Counts, lines: Iterable[Mapping[str, object]]) -> None:
    """A line or a branch that several objects have is taken where one of them took it."""
    for line in lines:
        number, branches = line["line_number"], line["branches"]
        assert isinstance(number, int) and isinstance(branches, list)
        counts.lines[number] = counts.lines.get(number, False) or bool(line["count"])
        for place, branch in enumerate(branches):
            key = (number, place)
            counts.branches[key] = counts.branches.get(key, False) or bool(branch["count"])


def c_shares(counts: Mapping[str, Counts]) -> list[Share]:
    return [
        Share(name, len(c.lines), sum(c.lines.values()), len(c.branches), sum(c.branches.values()))
        for name, c in sorted(counts.items())
    ]


def python_missing(document: Mapping[str, object]) -> list[str]:
    """Branches that no test took, one a line: "FILE:LINE -> LINE", where a negative line is the end of a function."""
    files = document["files"]
    assert isinstance(files, dict)
    return [f"{name}:{a} -> {b}" for name, found in files.items() for a, b in found["missing_branches"]]


def c_missing(counts: Mapping[str, Counts]) -> list[str]:
    """Branches of the runtime that no test took, one a line: "FILE:LINE, way NUMBER"."""
    return [
        f"{name}:{line}, way {way}"
        for name, c in sorted(counts.items())
        for (line, way), taken in sorted(c.branches.items())
        if not taken
    ]


def by_room(shares: Iterable[Share], depth: int) -> list[Share]:
    """Added up by the first `depth` folders of a name."""
    rooms: dict[str, list[Share]] = defaultdict(list)
    for share in shares:
        rooms["/".join(share.name.split("/")[:-1][:depth])].append(share)
    return [
        Share(
            name,
            sum(s.lines for s in of),
            sum(s.lines_run for s in of),
            sum(s.branches for s in of),
            sum(s.branches_taken for s in of),
        )
        for name, of in sorted(rooms.items())
    ]


def table(what: str, shares: Iterable[Share]) -> list[str]:
    """Markdown, the sum last."""
    listed = list(shares)
    total = Share(
        "all",
        sum(s.lines for s in listed),
        sum(s.lines_run for s in listed),
        sum(s.branches for s in listed),
        sum(s.branches_taken for s in listed),
    )
    head = [f"| {what} | lines | that ran | branches | that were taken |", "|---|---|---|---|---|"]
    rows = (
        f"| {s.name} | {s.lines:,} | {_per_cent(s.lines_run, s.lines)} | {s.branches:,} |"
        f" {_per_cent(s.branches_taken, s.branches)} |"
        for s in (*listed, total)
    )
    return [*head, *rows]


def _per_cent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def worst(shares: Iterable[Share], most: int) -> list[str]:
    """The files with the most branches that no test took, as lines of text."""
    found = sorted(shares, key=lambda s: s.missing, reverse=True)[:most]
    return [f"{s.missing:5,} of {s.branches:5,} branches missing in {s.name}" for s in found if s.missing]
