"""The files of targets and boards name what exists."""

from __future__ import annotations

import itertools

import pytest

from poetc.boards import BOARDS, TARGETS
from poetc.cli.emit import TARGETS as OFFERED
from poetc.cli.run import run
from poetc.runtime import runtime_directory

PORTS = runtime_directory() / "ports"


@pytest.mark.parametrize("name", TARGETS)
def test_parts_of_a_target(name: str) -> None:
    target = TARGETS[name]
    assert target.name == name
    assert target.build in ("program", "library", "firmware")
    assert all((PORTS / folder).is_dir() for folder in target.ports)
    assert "{" not in target.flags
    assert (BOARDS[target.board].target == name) if target.board else target.build != "firmware"


@pytest.mark.parametrize("name", BOARDS)
def test_parts_of_a_board(name: str) -> None:
    board = BOARDS[name]
    assert board.name == name
    assert board.title
    assert board.qemu[0].startswith("qemu-")
    files = [*board.sources, *filter(None, (board.serial, board.processors))]
    assert all((PORTS / file).is_file() for file in files)
    assert (board.code is None) == (board.ram is None) == TARGETS[board.target].hosted
    memories = sorted(
        [region for _, region in board.banks] + ([board.ram] if board.ram else []), key=lambda r: r.origin
    )
    assert all(one.end <= other.origin for one, other in itertools.pairwise(memories))


def test_help_names_them_all() -> None:
    assert set(OFFERED) == set(TARGETS)
    words = (
        " ".join(str(getattr(option, "help", "")) for option in run.params).replace(",", " ").replace(".", " ").split()
    )
    assert set(BOARDS) <= set(words)
