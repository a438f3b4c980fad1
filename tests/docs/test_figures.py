"""Figures of the README are those of the pages of results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


PERFORMANCE = ROOT / "docs" / "results" / "performance.md"


def table(path: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first line begins with `head`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head))
    ends = next(i for i, line in enumerate(lines[start:], start) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : ends]]


def test_the_training_steps_of_the_readme_are_those_of_the_results() -> None:
    """Speeds are of the step in half of the memory, over the faster of both peers; memories are of batch 8."""
    keep_all, memory, less = (
        {row[0].removesuffix("\\*"): row[1:] for row in table(PERFORMANCE, head)}
        for head in ("| ms a step, keep-all | separate", "| MB | poetc", "| ms a step | keep-all")
    )
    rows_of_readme = table(ROOT / "README.md", "| network | poetc, MB")
    assert len(rows_of_readme) == len(memory) == 4
    for name, ours, peers, speed in rows_of_readme:
        cells = [cell.replace("*", "").split("; ") for cell in memory[f"{name}; batch 8"][1:4]]
        assert ours == cells[0][1]
        assert float(peers) == min(float(cells[1][1]), float(cells[2][1]))
        fused_ms = float(less[f"{name}, batch 8"][2].split(",")[1].split(" in ")[0])
        assert f" in {ours} MB" in less[f"{name}, batch 8"][2]
        peer_ms = min(float(cell) for cell in keep_all[f"{name}, batch 8"][2:4])
        digits = len(speed.split(" ")[0].partition(".")[2])
        assert f"{peer_ms / fused_ms:.{digits}f} x" == speed


def more_energy(picture: str) -> float:
    """Per cent beyond computing everything once, as a picture of a schedule tells it."""
    said = re.search(r"within a budget of 270\.5 kB, and takes ([\d.]+) % more energy", picture)
    assert said is not None, "the picture is of another budget"
    return float(said[1])


def test_the_caption_of_the_picture_tells_its_energy() -> None:
    """`make pictures` solves with every choice open. The row of poetc at 40 % has fewer, as other solvers do."""
    said = re.search(r"in 40 % of the RAM for (\d+) % more energy", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    result = float(rows(ROOT / "docs" / "results" / "schedulers.md")["poetc"][2].strip("+%"))
    drawn = more_energy((ROOT / "docs" / "assets" / "timeline.svg").read_text(encoding="utf-8"))
    assert int(said[1]) == round(drawn)
    assert drawn <= result + 0.06, "run make pictures"


@pytest.mark.long
def test_the_picture_is_what_make_draws(tmp_path: Path) -> None:
    """The commands of `make pictures`, in a quarter of its time. Searches with a time limit agree within three points.

    Two searches end within half a per cent in joules. Their per cents are of one computation of the kernels chosen, and
    schedules with other kernels start from other joules.
    """
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\npictures:")[1].split("\n\n")[0]
    drawn = ROOT / "docs" / "assets" / "timeline.svg"
    assert "--time-limit 60" in recipe
    recipe = recipe.replace("--time-limit 60", "--time-limit 15")  # enough for a point beside the picture
    for line in recipe.splitlines()[1:]:
        words = line.replace("build/", f"{tmp_path}/").replace("docs/assets/", f"{tmp_path}/").split()
        subprocess.run([sys.executable, "-m", "poetc", *words[1:]], cwd=ROOT, check=True)
    anew = more_energy((tmp_path / drawn.name).read_text(encoding="utf-8"))
    assert anew == pytest.approx(more_energy(drawn.read_text(encoding="utf-8")), abs=3.0)


PAPERS = ROOT / "docs" / "results" / "papers.md"


def numbers(cells: list[str]) -> list[float]:
    """Those among them: other cells say why there is none."""
    return [float(cell.replace(",", "")) for cell in cells if re.fullmatch(r"[\d,]+(\.\d+)?", cell)]


def test_no_published_method_is_ahead_of_ours_in_the_figure_of_poet() -> None:
    rows_of_page = table(PAPERS, "| network | device, batch | RAM, MB | deadline | POET")
    compared = 0
    for row in rows_of_page:
        theirs, found = numbers(row[4:-2]), numbers(row[-2:])
        if theirs:
            ours, bound = found
            assert bound <= ours <= min(theirs), row
            compared += 1
    assert compared > 15


def test_the_boards_of_poet_hold_what_the_page_says() -> None:
    """VGG-16 and ResNet-18 in the RAM of both microcontrollers, where no other method has a schedule."""
    rows_of_page = table(PAPERS, "| network | device, batch | RAM, MB | deadline | POET")
    for device, ram in (("mkr1000, 1", "0.033"), ("nrf52840, 1", "0.262")):
        for network in ("vgg16_cifar", "resnet18_cifar"):
            (row,) = [r for r in rows_of_page if r[:3] == [network, device, ram]]
            assert not numbers(row[4:-2]) and len(numbers(row[-2:])) == 2


@pytest.mark.long
def test_the_main_job_of_the_readme_prints_its_figures(tmp_path: Path) -> None:
    """The RAM alone: losses have other last digits on other machines."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^    poetc (train demo/digits.onnx (?:.*\\\n)*.*)-o mine.onnx$", text, re.MULTILINE)
    assert command
    asked = command[1].replace("\\\n", " ").split()
    run = [sys.executable, "-m", "poetc", *asked, "--epochs", "1", "-o", str(tmp_path / "mine.onnx")]
    printed = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in ("peak, predicted", "peak, measured", "budget"):
        rows = [re.search(rf"^ *{name} +([\d,]+) B$", where, re.MULTILINE) for where in (text, printed)]
        assert rows[0] and rows[1] and rows[0][1] == rows[1][1], name
