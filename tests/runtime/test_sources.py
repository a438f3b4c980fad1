"""How the C of the runtime is laid out: heads that explain, includes by folder, files of a readable size."""

from __future__ import annotations

import re

import pytest

from poetc.runtime import runtime_directory

RUNTIME = runtime_directory()
KERNELS = RUNTIME / "kernels"
FILES = sorted(p.relative_to(RUNTIME).as_posix() for p in RUNTIME.rglob("*.[ch]"))


@pytest.mark.parametrize("name", [f for f in FILES if f.startswith("kernels/")])
def test_head_says_what_is_computed_in_which_layout_and_order(name: str) -> None:
    head = re.match(r"/\*(.*?)\*/", (RUNTIME / name).read_text(), re.DOTALL)
    assert head is not None, f"{name} begins without a comment"
    text = head[1]
    assert "Layout: " in text and ("Order of sums: " in text), text
    words = re.sub(r"\n \*", " ", text)
    for sentence in re.split(r"(?<=[.:;])\s+", words):
        assert len(sentence.split()) <= 25, sentence


def test_a_header_in_a_folder_is_included_by_its_folder() -> None:
    """So that one include path reaches all kernels, here and in an emitted directory."""
    for name in FILES:
        for included in re.findall(r'#include "([^"]+)"', (RUNTIME / name).read_text()):
            if name.startswith("kernels/"):
                folders = (KERNELS, RUNTIME / "include", RUNTIME / "src")
                assert any((folder / included).exists() for folder in folders), f"{name} includes {included}"


@pytest.mark.parametrize("name", FILES)
def test_file_is_short_enough_to_read(name: str) -> None:
    assert len((RUNTIME / name).read_text().splitlines()) <= 600
