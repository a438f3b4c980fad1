"""Pages laid out by a real browser (scripts/setup-browser), as wide as a phone and as a desktop."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from poetc import reporting
from poetc.planning.comparison import compare
from poetc.reporting import html as report
from poetc.reporting._charts import size_bars
from poetc.reporting._words import of_budget
from poetc.reporting.comparison import plot
from poetc.reporting.training import section
from poetc.scheduling import SolveOptions
from tests.cli.conftest import MODEL, run
from tests.reporting.test_reports import bundle, example
from tests.solvers.chains import UNIT, chain

WIDTHS = (390, 1280)
# What sticks out to the right of the page though nothing scrolls there, and charts that leave the box drawn for them.
MEASURE = """
function measure(frame) {
  const page = frame.contentDocument, width = frame.clientWidth, found = [];
  const name = e => e.tagName + "." + (e.className.baseVal ?? e.className);
  for (const e of page.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    let scrolls = false;
    for (let up = e; up; up = up.parentElement)
      scrolls ||= ["auto", "scroll"].includes(frame.contentWindow.getComputedStyle(up).overflowX);
    if (box.width > 0 && box.right > width + 1 && !scrolls) found.push("sticks out: " + name(e));
  }
  for (const area of page.querySelectorAll(".area")) {
    const outer = area.getBoundingClientRect(), inner = area.querySelector("svg").getBoundingClientRect();
    if (Math.abs(outer.height - inner.height) > 3 || Math.abs(outer.width - inner.width) > 3)
      found.push("a chart of " + inner.height + " px in a box of " + outer.height);
  }
  for (const table of page.querySelectorAll(".epochs"))
    if (table.scrollWidth > table.clientWidth) found.push("cut: a table of " + table.scrollWidth + " px");
  for (const card of page.querySelectorAll(".card"))
    if (card.scrollWidth > card.clientWidth) found.push("leaves its card: " + card.textContent);
  for (const note of page.querySelectorAll("#notes li"))
    if (note.scrollWidth > note.clientWidth) found.push("leaves its line: " + note.textContent);
  for (const text of page.querySelectorAll("svg text"))
    if (text.getBoundingClientRect().height < 9) { found.push("too small to read: " + text.textContent); break; }
  for (const bar of page.querySelectorAll(".zoom")) {
    const svg = bar.parentElement.querySelector(".area svg, .rows svg"), before = svg.viewBox.baseVal.width;
    bar.firstChild.click();
    if (svg.viewBox.baseVal.width * 2 !== before) found.push("no zoom: " + bar.parentElement.id);
  }
  return {width, found, charts: page.querySelectorAll("svg").length, zooms: page.querySelectorAll(".zoom").length};
}
"""
LOAD = """
addEventListener("load", () => {
  const all = [...document.querySelectorAll("iframe")].map(measure);
  document.getElementById("result").textContent = JSON.stringify(all);
});
"""
# Texts of charts that stand out too little from what is behind them, and the luminance of the brightest background.
CONTRAST = """
function luminance(colour) {
  const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(n => n / 255);
  const [r, g, b] = parts.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function measure(frame) {
  const page = frame.contentDocument, style = e => frame.contentWindow.getComputedStyle(e), found = [];
  let brightest = luminance(style(page.body).backgroundColor), texts = 0;
  for (const text of page.querySelectorAll("svg text")) {
    const behind = luminance(style(text.closest("svg").querySelector("rect")).fill), own = luminance(style(text).fill);
    brightest = Math.max(brightest, behind);
    texts += 1;
    if ((Math.max(own, behind) + 0.05) / (Math.min(own, behind) + 0.05) < 4.5) found.push(text.textContent);
  }
  return {found, brightest, texts};
}
"""


def chromium() -> str:
    """The browser's path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((found for name in names if (found := shutil.which(name))), None)
    assert found is not None, "no Chromium: scripts/setup-browser installs it"
    return found


def measured(pages: list[str], folder: Path, script: str = MEASURE, *flags: str) -> list[dict[str, object]]:
    """Each page at each of WIDTHS, with the browser's `flags`."""
    frames = "".join(
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    outer = folder / "outer.html"
    outer.write_text(
        f'<!doctype html><meta charset="utf-8"><pre id="result"></pre>{frames}<script>{script}{LOAD}</script>'
    )
    # Root, as in most containers, cannot have the sandbox; the pages are our own and load nothing.
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}"]
    command += [*flags, "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]}: exit code {done.returncode}\n{done.stderr[-2000:]}"
    (text,) = re.findall(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    result: list[dict[str, object]] = json.loads(html.unescape(text))
    return result


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A report with its budget curve, and a sweep."""
    folder = tmp_path_factory.mktemp("pages")
    options = ("--batch", "4", "--gap", "0.5", "--time-limit", "5")
    assert run("solve", MODEL, *options, "-d", "stm32f746", "--budget", "60%", "-o", folder / "a.poetc").code == 0
    assert run("report", folder / "a.poetc", "--curve", "--time-limit", "1").code == 0
    sweep = ("sweep", MODEL, *options, "-d", "stm32f746", "-b", "60%,20kB", "-j", "1")
    assert run(*sweep, "-o", folder / "sweep.jsonl", "--html", folder / "sweep.html").code == 0
    return [(folder / "a.poetc" / "report.html").read_text(), (folder / "sweep.html").read_text()]


def test_pages_fit_a_phone_and_a_desktop(pages: list[str], tmp_path: Path) -> None:
    result = measured(pages, tmp_path)
    assert [(r["width"], r["found"]) for r in result] == [(width, []) for _ in pages for width in WIDTHS]
    assert all(isinstance(r["charts"], int) and r["charts"] >= 1 for r in result)
    assert [r["zooms"] for r in result] == [3, 3, 0, 0]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_charts_take_the_colours_of_the_page(pages: list[str], tmp_path: Path, scheme: str) -> None:
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    for result in measured(pages[:1], tmp_path, CONTRAST, *flags):
        assert result["found"] == [] and isinstance(result["texts"], int) and result["texts"] > 10
        assert (float(str(result["brightest"])) < 0.1) == (scheme == "dark")


def test_printed_bars_and_legends_keep_their_colours(pages: list[str]) -> None:
    """Browsers print no backgrounds by default, and a legend's swatch is one."""
    (printed,) = re.findall(r"@media print \{(.*)\}\n", pages[0])
    (exact,) = re.findall(r"([^{}]*)\{ print-color-adjust: exact;", printed)
    assert {".bar", ".swatch", ".dot"} <= {name.strip() for name in exact.split(",")}


def test_names_of_new_versions_are_explained(pages: list[str]) -> None:
    (said,) = re.findall(r"(\S+)@1 is (\S+) after its update", pages[0])
    assert said[0].endswith(said[1]) and "after its update" not in report(example())


def test_the_printed_table_of_operators_ends(tmp_path: Path) -> None:
    """A network of hundreds of operators took dozens of sheets."""
    page, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(report(example(length=150)))
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'chromium'}"]
    subprocess.run([*command, f"--print-to-pdf={paper}", page.as_uri()], capture_output=True, check=True)
    assert 3 < len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 12


def test_a_budget_far_beyond_leaves_the_other_bars_to_be_seen() -> None:
    rows = [("plain", "keep-all", 700, "", ""), ("limit", "budget", 8_000_000, "", ""), ("strong", "peak", 350, "", "")]
    assert re.findall(r"width:([\d.]+)%", size_bars(rows)) == ["100.0", "100.0", "50.0"]
    assert of_budget(8_000_000, 700).endswith("beyond this chart") and of_budget(350, 700) == "50.0 % of keep-all"
    assert re.findall(r"width:([\d.]+)%", size_bars([*rows[::2], ("limit", "budget", 1400, "", "")]))[0] == "50.0"


def test_the_report_of_a_bundle_fits_too(tmp_path: Path) -> None:
    result = measured([report(bundle()[0])], tmp_path)
    assert [(r["width"], r["found"]) for r in result] == [(width, []) for width in WIDTHS]


def test_a_long_name_stays_in_its_card(tmp_path: Path) -> None:
    solved = example("a_name_of_forty_letters_without_a_space_")
    result = measured([report(solved)], tmp_path)
    assert [(r["width"], r["found"]) for r in result] == [(width, []) for width in WIDTHS]


def test_long_names_in_notes_break(tmp_path: Path) -> None:
    solved = example()
    noted = replace(solved, summary={**solved.summary, "notes": ["'model.embed_tokens.weight.rows.integers" * 3]})
    result = measured([report(noted)], tmp_path)
    assert [(r["width"], r["found"]) for r in result] == [(width, []) for width in WIDTHS]


def test_all_columns_of_epochs_are_seen(tmp_path: Path) -> None:
    """With numbers as long as they come: a table that scrolls on a phone hides the rate and the time."""
    row = {"loss": 1234.5, "validation_loss": 0.0001234, "validation_accuracy": 0.98765, "rate": 0.000123}
    epochs = [{"epoch": epoch, "seconds": 1234.5, **row} for epoch in (99, 100)]
    document = {"epochs": epochs, "best_epoch": 100, "stopped_early": False, "steps": 9, "batch": 4, "step_ms": 1.5}
    style = (Path(reporting.__file__).parent / "report.html").read_text().partition("</style>")[0]
    text = f"{style.replace('$', '')}</style><main>{section({**document, 'output': 'a.onnx'})}</main>"
    assert [(r["width"], r["found"]) for r in measured([text], tmp_path)] == [(width, []) for width in WIDTHS]


def test_the_plot_of_a_comparison_is_legible_at_any_width(tmp_path: Path) -> None:
    """It is a file of its own, 860 px wide; whatever shows it scrolls."""
    compared = compare(chain(10), [7 * UNIT, 9 * UNIT], ("dtr", "keep_all"), SolveOptions(time_limit_s=5))
    result = measured([f'<div style="overflow-x:auto">{plot(compared)}</div>'], tmp_path)
    assert [(r["width"], r["found"]) for r in result] == [(width, []) for width in WIDTHS]


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    wide = "<p>a</p><div style='width:600px'>b</div>"
    chart = "<div class='area' style='height:100px'><svg viewBox='0 0 1 9'></svg></div>"
    small = "<svg width='100' height='100' viewBox='0 0 800 800'><text y='400' font-size='12'>a</text></svg>"
    phone, desktop, *others = measured([wide, chart, small], tmp_path)
    assert (phone["found"], desktop["found"]) == (["sticks out: DIV."], [])
    assert ["a chart of" in str(r["found"]) for r in others] == [True, True, False, False]
    assert ["too small to read: a" in str(r["found"]) for r in others] == [False, False, True, True]


def test_columns_of_epochs_have_numbers() -> None:
    """Without validation the accuracy in training is shown, and no column is empty."""
    row = {"epoch": 1, "loss": 1.5, "validation_loss": None, "validation_accuracy": None, "rate": 0.1, "seconds": 2.0}
    document = {"best_epoch": 1, "stopped_early": False, "steps": 9, "batch": 4, "step_ms": 1.5, "output": "a.onnx"}

    def table(row: dict[str, object]) -> list[list[str]]:
        text = section({**document, "epochs": [row]})
        return [re.findall(f"<{tag}[^>]*>([^<]*)</{tag}>", text) for tag in ("th", "td")]

    assert table({**row, "accuracy": 0.93}) == [
        ["epoch", "loss", "accuracy", "rate", "seconds"],
        ["1 (best)", "1.5", "93.00%", "0.1", "2.0"],
    ]
    assert table(row)[0] == ["epoch", "loss", "rate", "seconds"]
    validated = {**row, "accuracy": 0.93, "validation_loss": 0.25, "validation_accuracy": 0.5}
    assert table(validated)[0] == ["epoch", "loss", "val. loss", "val. acc.", "rate", "seconds"]
