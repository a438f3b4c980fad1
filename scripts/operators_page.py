"""Write docs/operators.md from the registry of operator kinds."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from poetc.ops import OpSpec, registry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"


def family(spec: OpSpec) -> str:
    return type(spec).__module__.rsplit(".", 1)[-1]


def page() -> str:
    """The whole page."""
    kinds = sorted(registry().values(), key=lambda s: (family(s), s.kind))
    lines = ["# Operator kinds", "", "Made by `scripts/operators_page.py`: one section a file of `poetc/ops/`."]
    for name, members in groupby(kinds, family):
        lines += ["", f"## {name}", "", "| kind | |", "|---|---|"]
        for spec in members:
            summary = spec.summary.replace("|", "\\|")
            notes = [] if spec.recomputable else ["runs once a step"]
            notes += ["a view: no kernel, no cost"] if spec.is_view else []
            note = f" ({', '.join(notes)})" if notes else ""
            lines.append(f"| `{spec.kind}` | {summary}{note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
