"""Figures of the README are those of the pages of results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOLVERS = {
    "poetc": "poetc",
    "*proven lower bound*": "*lower bound*",
    "Checkmate (LP rounding)": "checkmate_lp",
    "Checkmate (MILP)": "checkmate",
    "POET": "poet",
    "DTR": "dtr",
    "Melon": "melon",
    "Capuchin": "capuchin",
}


def rows(path: Path) -> dict[str, list[str]]:
    """The tables of a page by the first cell of each row; of rows with the same one, the first."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace(" %", "%") for cell in line.strip("|").split("|")] for line in lines]
    found: dict[str, list[str]] = {}
    for first, *more in cells:
        found.setdefault(first, more)
    return found


def test_the_schedulers_of_the_readme_have_the_figures_of_the_results() -> None:
    readme, results = rows(ROOT / "README.md"), rows(ROOT / "docs" / "results" / "schedulers.md")
    for name, solver in SOLVERS.items():
        assert readme[name] == results[solver], name


def test_the_caption_of_the_picture_tells_its_energy() -> None:
    """`make pictures` solves what the row of poetc at 40 % has."""
    said = re.search(r"in 40 % of the RAM for (\d+) % more energy", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    assert int(said[1]) == round(float(rows(ROOT / "docs" / "results" / "schedulers.md")["poetc"][2].strip("+%")))
    drawn = (ROOT / "docs" / "assets" / "timeline.svg").read_text(encoding="utf-8")
    assert "270.5" in drawn or "267.9" in drawn, "the picture is of this budget"
