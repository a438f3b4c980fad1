"""What became of each random network, a line of JSON each, so that a long run goes on where it ended."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

DEFECTS = ("differs", "fails")
SHOWN_SEEDS = 8


@dataclass(frozen=True, slots=True)
class Record:
    """`end` as in `comparing.Case`, or "fails" where something was raised. `why`: the reason, without names."""

    seed: int
    end: str
    why: str
    exporter: str
    as_c: bool


def kind_of(reason: str) -> str:
    """A message without paths, names and numbers, so that like ones are counted together."""
    text = reason.rpartition("cannot be trained:")[2] if "cannot be trained:" in reason else reason
    text = re.sub(r"\S*\.onnx:? ", "", text)
    text = re.sub(r"'[^']*'", "_", text)
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|-?\d[\d,.]*", "#", text)
    return " ".join(text.split())[:90]


def read(path: Path) -> dict[int, Record]:
    """By seed; the last of a seed holds. Nothing where the file is absent."""
    if not path.exists():
        return {}
    found = (Record(**json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}"))
    return {record.seed: record for record in found}


def append(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def done(records: Mapping[int, Record]) -> set[int]:
    """The seeds that need no other run: those with a defect are tried again."""
    return {seed for seed, record in records.items() if record.end not in DEFECTS}


def summary(records: Iterable[Record]) -> str:
    """Counts by end, by exporter and by reason, most first, as lines of text."""
    all_of = sorted(records, key=lambda r: r.seed)
    if not all_of:
        return "no networks"
    as_c = sum(r.as_c and r.end == "agrees" for r in all_of)
    ends = Counter(r.end for r in all_of)
    shares = ", ".join(f"{count:,} {what}" for what, count in sorted(ends.items()))
    lines = [f"{len(all_of):,} networks, seeds {all_of[0].seed} to {all_of[-1].seed}: {shares}"]
    lines.append(f"  {as_c:,} of those that agree ran as scheduled C too")
    exporters = Counter(r.exporter for r in all_of)
    lines.append("  exporters: " + ", ".join(f"{count:,} {name}" for name, count in sorted(exporters.items())))
    for (end, why), count in Counter((r.end, r.why) for r in all_of if r.why or r.end in DEFECTS).most_common():
        seeds = [str(r.seed) for r in all_of if (r.end, r.why) == (end, why)]
        more = " ..." if count > SHOWN_SEEDS else ""
        lines.append(f"  {count:6,} {end}: {why} (seeds {' '.join(seeds[:SHOWN_SEEDS])}{more})")
    return "\n".join(lines)
