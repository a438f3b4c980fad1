"""What runs of one program share is made once: the plugin that measures, and the cycles of its instructions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from poetc.boards import _toolchain, build_counter
from poetc.measure import _counting

LISTING = "00000000 <f>:\n   0:\tadds\tr0, r0, r1\n   2:\tbx\tlr\n"


def test_the_plugin_is_compiled_once_and_is_whole_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_counter(tmp_path).read_bytes()

    def compile_again(*_: object) -> str:
        raise AssertionError("compiled again")

    monkeypatch.setattr(_toolchain, "command", compile_again)
    (tmp_path / "other").mkdir()
    other = build_counter(tmp_path / "other")
    assert other.read_bytes() == first
    other.write_bytes(first[:100])
    assert build_counter(tmp_path / "other").read_bytes() == first


def test_a_program_is_read_again_where_it_was_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elf, out, listings = tmp_path / "firmware.elf", tmp_path / "cycles.txt", [LISTING, LISTING.replace("bx\tlr", "nop")]

    def disassembled(words: Sequence[str | Path], what: str) -> str:
        return listings.pop(0)

    monkeypatch.setattr(_counting, "command", disassembled)
    elf.write_bytes(b"")
    found = []
    for made_ns in (1, 1, 2):
        os.utime(elf, ns=(made_ns, made_ns))
        _counting.write_costs(elf, "arm-none-eabi-", "cortex-m3", out)
        found.append(out.read_text())
    assert found[0] == found[1] == "0 1 0\n2 3 0\n" and found[2] == "0 1 0\n2 1 0\n" and not listings
