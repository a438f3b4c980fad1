"""The notebook of the tutorials runs, and gives the outputs that it keeps."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.support import notebook

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


@pytest.mark.long
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TUTORIALS)
    kept = notebook.read(TUTORIALS / "digits.ipynb")
    gc.collect()
    gc.disable()  # until the end: a file that a cell leaves open is a warning here, and not in some later test
    try:
        assert notebook.run(kept) == [cell["outputs"] for cell in notebook.code_cells(kept)]
    finally:
        gc.collect()
        gc.enable()


def test_the_notebook_keeps_a_curve() -> None:
    cells = notebook.code_cells(notebook.read(TUTORIALS / "digits.ipynb"))
    drawn = [data for cell in cells for output in cell["outputs"] for data in output.get("data", {})]
    assert "image/svg+xml" in drawn
