"""poetc compare."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from poetc.planning import ENGINE as OURS
from poetc.planning.comparison import compare
from poetc.reporting.comparison import markdown, plot, table
from poetc.scheduling import SolveOptions, problem_to_json
from poetc.solvers import available
from tests.cli.conftest import Ended
from tests.solvers.chains import UNIT, chain

Run = Callable[..., Ended]
ROW = {"solver", "budget_bytes", "energy_pj", "time_ns", "peak_bytes", "arena_bytes", "seconds", "status"}


def test_every_solver_has_its_row(poetc: Run, tmp_path: Path) -> None:
    problem = tmp_path / "chain.json"
    problem.write_bytes(problem_to_json(chain(9, budget_units=8, page=(3, 2))))
    out = tmp_path / "out"
    ended = poetc("compare", problem, "--budgets", "100%,60%", "--time-limit", "5", "-o", out, "--json")
    assert ended.code == 0, ended.err
    rows = ended.json["rows"]
    assert {(r["solver"], r["budget_bytes"]) for r in rows} == {
        (name, b["budget_bytes"]) for name in available() for b in ended.json["bounds"]
    }
    bounds = {b["budget_bytes"]: b["bound"] for b in ended.json["bounds"]}
    ours = {r["budget_bytes"]: r["energy_pj"] for r in rows if r["solver"] == OURS}
    for row in rows:
        assert row.keys() >= ROW
        if row["status"] in ("infeasible", "timeout", "unsupported", "failed"):
            assert row["energy_pj"] is None
            assert row["reason"]
            continue
        assert row["peak_bytes"] <= row["budget_bytes"]
        assert row["energy_pj"] >= ours[row["budget_bytes"]] >= bounds[row["budget_bytes"]]
        assert abs(row["gap"] - (1 - bounds[row["budget_bytes"]] / row["energy_pj"])) < 1e-9
    assert json.loads((out / "comparison.json").read_text())["rows"] == rows
    with (out / "comparison.csv").open() as file:
        assert [r["solver"] for r in csv.DictReader(file)] == [r["solver"] for r in rows]
    ElementTree.parse(out / "comparison.svg")
    page = (out / "comparison.md").read_text().splitlines()
    assert page[0].startswith("| solver | ")
    assert [line.split(" | ")[0].strip("| ") for line in page[2:]] == [
        *dict.fromkeys(r["solver"] for r in rows),
        "*lower bound*",
    ]


def test_compare_a_model_in_words(poetc: Run, model: Path, tmp_path: Path) -> None:
    chosen = ("--solvers", "poetc,dtr,keep_all,vdnn", "--budgets", "70%", "--gap", "0.05", "--time-limit", "10")
    ended = poetc("compare", model, "--batch", "2", "-d", "stm32f746", *chosen, "--no-paging", "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    section = ended.out.split("\n\n")[0].splitlines()
    assert section[0].endswith(", 70% of the keep-all peak")
    lines = {line.split()[0]: line for line in section[2:]}
    assert set(lines) == {"poetc", "dtr", "keep_all", "vdnn"}
    assert "does not fit" in lines["keep_all"]
    assert "cannot handle the graph" in lines["vdnn"]
    assert "keep-all needs" in ended.out


def test_bounds_say_which_placement_of_state_they_are_for(poetc: Run, digits: Path, tmp_path: Path) -> None:
    """`solve` may place state otherwise, and need less than the bound."""
    page = tmp_path / "out" / "comparison.md"

    def compared(*state: str) -> str:
        chosen = ("--solvers", "keep_all", "--budgets", "100%,20%", *state, "-o", tmp_path / "out")
        ended = poetc("compare", digits, "--batch", "2", "-d", "stm32f746", *chosen)
        assert ended.code == 0, ended.err
        paragraphs = [" ".join(paragraph.split()) for paragraph in ended.out.split("\n\n")]
        (line,) = [paragraph for paragraph in paragraphs if "placement of state" in paragraph]
        assert page.read_text().rstrip().endswith(f"{line}.")
        return line

    assert "all in RAM at 100%; all on the store at 20%. `poetc solve` places each tensor" in compared()
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [p["state_placement"] for p in written["state_placements"]] == ["all on the store", "all in RAM"]
    assert compared("--state", "store").endswith("with every solver: all on the store")
    help_text = " ".join(poetc("compare", "--help", "all").out.split())
    assert "the same for every solver" in help_text and "chosen one by one, together" not in help_text
    ours = ("--solvers", "poetc", "--budgets", "100%", "-o", tmp_path / "ours", "--json")
    (bound,) = poetc("compare", digits, "--batch", "2", "-d", "stm32f746", *ours).json["bounds"]
    assert bound["schedule_class"] == "all schedules" and bound["state_placement"] == "all in RAM"


def test_without_our_solver_the_page_has_no_line_of_bounds() -> None:
    page = markdown(compare(chain(10), [9 * UNIT], ("dtr",), SolveOptions(time_limit_s=5)))
    assert page.splitlines()[-1].startswith("| dtr | ")


def test_an_arena_above_the_budget_is_marked() -> None:
    compared = compare(chain(10), [9 * UNIT], ("dtr",), SolveOptions(time_limit_s=5))
    assert "!" not in markdown(compared)
    (row,) = compared.rows
    page = markdown(replace(compared, rows=(replace(row, arena_fits=False),)))
    assert page.splitlines()[2].endswith("% ! |")
    assert page.splitlines()[-1].startswith("! ")


def test_wrong_requests(poetc: Run, model: Path, tmp_path: Path) -> None:
    ended = poetc("compare", model, "--batch", "2", "--solvers", "nobody", "-o", tmp_path / "out")
    assert ended.code == 2
    assert "unknown solver 'nobody'" in ended.err
    assert poetc("compare", model, "--batch", "2", "--budgets", "many").code == 2
    ended = poetc("compare", model, "--batch", "2", "--budgets", " ,", "-o", tmp_path / "out")
    assert ended.code == 2
    assert "--budgets is empty" in ended.err
    assert poetc("compare", tmp_path / "missing.json").code == 2


def test_plot_shows_what_found_nothing() -> None:
    result = compare(chain(10), [7 * UNIT, 9 * UNIT], ("poetc", "dtr", "keep_all"), SolveOptions(time_limit_s=5))
    svg = plot(result)
    assert "no schedule:" in svg
    root = ElementTree.fromstring(svg)
    height = float(root.attrib["viewBox"].split()[3])
    assert all(float(text.attrib.get("y", 0)) < height for text in root.iter("{http://www.w3.org/2000/svg}text"))
    assert svg.count("<polyline") == 3  # the bound, poetc, dtr
    lines = table(result).splitlines()
    assert sum(line.startswith(("poetc ", "dtr ", "keep_all ")) for line in lines) == 6
    assert max(map(len, lines)) <= 80


def test_points_of_one_colour_have_other_marks() -> None:
    """A solver that has a schedule for one budget alone is a mark without a line."""
    compared = compare(chain(10), [9 * UNIT], ("dtr",), SolveOptions(time_limit_s=5))
    (row,) = compared.rows
    names = [f"solver{number:02}" for number in range(16)]
    svg = plot(replace(compared, rows=tuple(replace(row, solver=name) for name in names)))
    root = ElementTree.fromstring(svg)
    marks = [e.attrib for e in root.iter("{http://www.w3.org/2000/svg}path")]
    assert len({(m["stroke"], m["d"]) for m in marks}) == len(names)
    assert not any("stroke-dasharray" in m for m in marks)


def test_solvers_lists_capabilities_and_citations(poetc: Run) -> None:
    ended = poetc("solvers")
    assert ended.code == 0
    for name, info in available().items():
        assert name in ended.out
        assert info.citation in ended.out
    listed = poetc("solvers", "--json").json["solvers"]
    assert {s["name"]: s["paging"] for s in listed}["rotor"] is False


def test_compare_takes_transfers_that_overlap_processors_and_parts(
    poetc: Callable[..., Ended], model: Path, tmp_path: Path
) -> None:
    """And a budget as a part. The published solvers that place operators have the processors."""
    common = ("compare", model, "--batch", "4", "--time-limit", "2", "-o", tmp_path / "out", "--force", "--json")
    dma = poetc(*common, "-d", "stm32f746", "--dma", "--budgets", "0.8x", "--solvers", "vdnn_all,capuchin", "-q").json
    rows = {row["solver"]: row for row in dma["rows"]}
    assert all("energy_pj" in row and row["budget_bytes"] < dma["keep_all_peak_bytes"] for row in rows.values())
    cores = ("-d", "rpi4", "--processors", "all", "--micro-batches", "2")
    beside = poetc(*common, *cores, "--budgets", "3x", "--solvers", "heft,keep_all").json
    times = {row["solver"]: row["time_ns"] for row in beside["rows"]}
    assert times["heft"] < times["keep_all"]
    refused = poetc(*common, "-d", "nrf52840", "--dma", "--budgets", "80%", "--solvers", "dtr")
    assert (refused.code, "cannot transfer while the processor computes" in refused.err) == (2, True)
