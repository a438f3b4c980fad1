"""A library of scheduling problems with best known cost and bound. See docs/reference/formats.md, "Problem library"."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poetc.scheduling import Problem, problem_from_json

HERE = Path(__file__).resolve().parent
ARCHIVES = {"real": HERE / "real.jsonl.gz", "random": HERE / "random.jsonl.gz"}
BEST_KNOWN = HERE / "best_known.json"


@dataclass(frozen=True, slots=True)
class BestKnown:
    """`objective` and `bound` in pJ; `schedule_class`: what the bound holds for. None: nothing found so far."""

    objective: int | None
    bound: int
    solver: str
    schedule_class: str


def problems(group: str) -> Iterator[Problem]:
    """ "real" or "random", in the archive's order."""
    with gzip.open(ARCHIVES[group], "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield problem_from_json(line.encode(), source=f"{ARCHIVES[group].name}:{number}")


def best_known() -> dict[str, BestKnown]:
    """By the problem's name."""
    table = json.loads(BEST_KNOWN.read_text())["problems"]
    return {name: BestKnown(**entry) for name, entry in table.items()}
