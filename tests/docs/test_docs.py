"""The documentation: links lead somewhere, the site is whole, what it shows runs."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from poetc.cli import cli
from poetc.devices import profile
from poetc.ops.optimizers import OPTIMIZERS
from poetc.training import LOSSES
from tests.cli.conftest import run
from tests.support.small import small_model

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made from their words."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h.lower())).strip("-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = page if not path else page.parent / path
        assert found.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Those of the project, but in the laboratory, which tells of files that went, and where a name stands for any."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    rooms = "poetc|solvers|profiles|tests|bench|scripts|docs|demo"
    for name in re.findall(rf"(?<![\w./-])((?:{rooms})/[\w./*{{-]*[\w*])", text):
        if page.parent.name != "lab" and not re.search(r"[*{]|NEW", name):
            assert (ROOT / name).exists() or (ROOT / "poetc" / name).exists(), f"{page.name}: {name}"


def test_extras_are_installed_from_the_clone() -> None:
    """poetc is on no index: neither pages nor messages install it by its name."""
    for file in [*PAGES, *(ROOT / "poetc").rglob("*.py")]:
        assert not re.search(r"pip install '?poetc\b", file.read_text()), file


@pytest.mark.parametrize("page", sorted((DOCS / "results").glob("*.md")), ids=lambda p: p.stem)
def test_results_begin_with_a_sentence_of_result(page: Path) -> None:
    """A figure, in words of its own: neither a table nor how it was measured."""
    first = page.read_text().split("\n\n")[1]
    sentence = re.split(r"(?<=\.)\s", first)[0]
    assert re.match(r"[A-Z0-9]", first) and sentence.endswith("."), first
    assert re.search(r"\d|\b(all|each|every|no|none|as (near|accurate))\b", sentence, re.IGNORECASE), sentence
    assert not re.search(r"make[s]? these|ran on|commands?\b|\d{4}-\d\d|\b20\d\d\b", sentence), sentence


def test_a_release_has_few_and_short_lines() -> None:
    """Of what a user can do now, and what changed for one; the history of the repository has the rest."""
    first, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first and len(releases) > 2
    for release in releases:
        lines = [line for line in release.splitlines()[1:] if line.strip()]
        assert len(lines) <= 20, f"{release.splitlines()[0]}: {len(lines)} lines"
        for line in lines:
            text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", line))
            assert len(re.findall(r"\S*\w\S*", text)) <= 25, line


def in_navigation(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in items:
        for target in item.values():
            yield from [target] if isinstance(target, str) else in_navigation(target)


def test_every_page_is_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent.name != "lab"}
    assert set(in_navigation(site["nav"])) == pages


def test_the_home_page_links_every_page_and_names_every_command() -> None:
    home = (DOCS / "index.md").read_text()
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert set(in_navigation(site["nav"])) - {"index.md"} <= set(re.findall(r"\]\(([\w/-]+\.md)\)", home))
    rows = "".join(re.findall(r"^\| (`.*?) \|", home, re.MULTILINE))
    assert set(re.findall(r"`([\w-]+)`", rows)) == set(cli.commands)


@pytest.mark.parametrize("name", ["first-schedule", "microcontroller", "raspberry-pi", "language-model"])
def test_tutorials_begin_with_a_model_of_your_own(name: str) -> None:
    beginning = (DOCS / "tutorials" / f"{name}.md").read_text().split("\n## ")[:2]
    assert "export-your-model.md" in "".join(beginning) or "import-gguf" in "".join(beginning)


def test_the_laboratory_lists_its_pages() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "lab" / "index.md").read_text()))
    assert listed == {page.name for page in (DOCS / "lab").glob("*.md")} - {"index.md"}


def test_the_page_of_operators_is_what_the_registry_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "operators_page.py"))
    assert (DOCS / "reference" / "operators.md").read_text() == script["page"](), "run `make pages`"
    assert not any(len(line) == 1 for line in script["page"]().splitlines()), "a text was taken for a list of lines"


def test_the_pages_of_commands_and_of_c_are_current() -> None:
    site = runpy.run_path(str(ROOT / "scripts" / "site_pages.py"))
    for page, text in site["pages"]().items():
        assert page.read_text() == text, "run `make pages`"
    commands = site["commands"]()
    assert all(f"\n## poetc {name}" in commands for name in cli.commands)
    assert all(f"`{option.opts[0]}`" in commands for option in cli.commands["solve"].params if option.opts[0][0] == "-")
    for header in site["HEADERS"]:
        functions = re.findall(
            r"^(?!static|typedef|#|\s)\w[\w\s*]*?\b(poetc_\w+)\([^;{]*;", header.read_text(), re.MULTILINE
        )
        assert functions
        assert {f"### `{name}`" for name in functions} <= set(site["c_interface"]().splitlines())


def test_losses_and_optimizers_are_explained() -> None:
    page = (DOCS / "reference" / "training.md").read_text()
    assert all(f"| `{name}` |" in page for name in (*LOSSES, *OPTIMIZERS))


def test_profile_fields_are_listed() -> None:
    page = (DOCS / "reference" / "profiles.md").read_text() + (DOCS / "reference" / "stores.md").read_text()
    for section in (profile.Cpu, profile.Memory, profile.Compute, profile.Power, profile.Store, profile.Bank):
        assert all(f"`{field}`" in page for field in section.__struct_fields__), section


def blocks(page: str, language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def in_a_copy(folder: Path, model: Path = ROOT / "demo" / "digits.onnx") -> None:
    (folder / "demo").mkdir()
    (folder / "demo" / "digits.onnx").write_bytes(model.read_bytes())
    for name in ("digits_new_writer.npz", "make_transformer.py"):
        (folder / "demo" / name).write_bytes((ROOT / "demo" / name).read_bytes())


def execute(piece: str) -> None:
    """With files that it leaves to Python to close."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        exec(compile(piece, "documentation", "exec"), {"__name__": "__main__"})


MADE = {  # the last thing that each makes
    "tutorials/first-schedule": "poetc.lock",
    "tutorials/raspberry-pi": "mine.onnx",
    "tutorials/microcontroller": "firmware/firmware.elf",
    "how-to/train-in-c": "trained.bin",
    "how-to/firmware-projects": "digits-build/firmware.elf",
    "how-to/adapters": "tuned.poetc/summary.json",
    "how-to/best-updates": "best.poetc/summary.json",
}


@pytest.mark.long
@pytest.mark.parametrize("page", MADE)
def test_pages_of_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a shell, and every piece of Python, one after the other in one folder.

    How-to guides have a small model in place of the demonstration's.
    """
    in_a_copy(tmp_path, *([] if page.startswith("tutorials/") else [small_model()]))
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text()
    count = 0
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            execute(block)
            count += 1
        for line in block.replace("\\\n", "").splitlines() if language == "sh" else ():
            program, *words = shlex.split(line)
            count += 1
            if program == "poetc":
                ended = run(*words)
                assert ended.code == 0, f"{line}\n{ended.err}"
                continue
            start = sys.executable if program == "python" else program
            done = subprocess.run([start, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert count >= 3
    assert (tmp_path / MADE[page]).exists()


def test_the_python_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small model in place of the demonstration's."""
    in_a_copy(tmp_path, small_model())
    (solver,) = blocks("how-to/add-a-solver.md", "python")
    called = """
from random import Random
from tests.support.problems import training_problem
print(solve(training_problem(Random(1), 4), SolveOptions()).proof)
"""
    monkeypatch.chdir(tmp_path)
    pieces = [*blocks("tutorials/python.md", "python"), solver + called]
    assert len(pieces) == 4
    for piece in pieces:
        execute(piece)
    assert (tmp_path / "digits.poetc" / "summary.json").exists() and (tmp_path / "trained.bin").exists()


@pytest.mark.parametrize(
    ("language", "before", "after"),
    [
        (".md", "A head\n\n- ", "\n\n| cell |\n\n```\n" + "code " * 30 + "\n```\n"),
        (".py", 'x = """\nIt says what it needs.\n"""\n# ', "\ny = 1  # another text\n"),
        (".py", 'def f():\n    """A line.\n\n    ', '\n    """\n'),
        (".py", "def f(x):\n    raise UsageError(f'{x}: here; ", "; there')\n"),
        (".c", 'char *x = "/* It says what it needs. */";\n\n/* ', " */\nint y;\n"),
        (".h", "int x;\n\n// ", "\nint y;\n"),
    ],
)
def test_faults_of_sentences_are_found(language: str, before: str, after: str) -> None:
    prose = runpy.run_path(str(ROOT / "scripts" / "prose"))

    def found(text: str) -> list[tuple[int, str]]:
        return [(line, fault) for line, fault, _ in prose["faults"](prose["READERS"][language](before + text + after))]

    line = before.count("\n") + 1
    assert found("Word" + " word" * 25 + ". Another one.") == [(line, "26 words")]
    assert found("Word" + " word" * 24 + ". Is this what you want? It has `what` it needs.") == []
    assert found("It says what it needs.") == [(line, '"what"')]


def test_the_first_line_of_a_docstring_stands_alone() -> None:
    prose = runpy.run_path(str(ROOT / "scripts" / "prose"))
    source = '"""This line\ngoes on."""\n\ndef f():\n    """This one stands alone.\n\n    So be it.\n    """\n'
    assert [(line, fault) for line, fault, _ in prose["faults"](prose["python_texts"](source))] == [(1, "first line")]
