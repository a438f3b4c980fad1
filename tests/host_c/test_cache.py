"""Maintenance of a Cortex-M7's caches around transfers by DMA: the lines that are touched, and the start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from poetc.runtime import runtime_directory

LINE, BOTH_CACHES = 32, 3
CLEAN, DROP, BY_WAY, CONTROL = 0xE000EF68, 0xE000EF70, 0xE000EF60, 0xE000ED14


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "cache"
    include = f"-I{runtime_directory() / 'ports' / 'cortex-m'}"
    source = Path(__file__).parent / "cache.c"
    subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", include, "-o", path, source], check=True)
    return path


def writes(program: Path, *words: object) -> list[tuple[int, int]]:
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True)
    return [(int(a, 16), int(b, 16)) for a, b in (line.split() for line in done.stdout.splitlines())]


@pytest.mark.parametrize(("word", "register"), [("clean", CLEAN), ("drop", DROP)])
@pytest.mark.parametrize(("start", "size"), [(0x20000010, 512), (0x20000000, 32), (0x20000010, 16), (0x20000010, 17)])
def test_every_line_that_a_block_touches(program: Path, word: str, register: int, start: int, size: int) -> None:
    """Operands lie at multiples of 16: the first and the last line may be shared with a neighbour."""
    lines = range(start // LINE * LINE, start + size, LINE)
    assert writes(program, word, BOTH_CACHES, start, size) == [(register, line) for line in lines]


def test_a_core_without_caches_is_left_alone(program: Path) -> None:
    assert writes(program, "enable", 0) == writes(program, "clean", 0, 0x20000000, 512) == []


def test_the_start_empties_each_line_before_the_data_cache_is_on(program: Path) -> None:
    found = writes(program, "enable", BOTH_CACHES)
    emptied = [value for register, value in found if register == BY_WAY]
    assert sorted(emptied) == sorted(way << 30 | line << 5 for way in range(4) for line in range(8))
    assert [(r, v >> 16) for r, v in found if r == CONTROL] == [(CONTROL, 2), (CONTROL, 1)]
    assert found[-1][0] == CONTROL
