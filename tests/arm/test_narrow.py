"""Training with tensors in 16 bits has the same bits on the host and on every core, whatever the schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.conftest import Solve, bits

STEPS = 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "board"),
    [("f16", "mps2-an386"), ("f16", "mps3-an547"), ("f16", "virt-a72"), ("bf16", "mps2-an386"), ("bf16", "virt-a72")],
)
def test_every_core_has_the_bits_of_the_host(precision: str, board: str, solve: Solve, tmp_path: Path) -> None:
    """Cores that convert 16 bits in hardware, in scalars and in vectors, and one that does it in software."""
    solved = solve("lenet", 4, "qemu-mps2-an386", "80%", precision=precision)
    run = solved.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == solved.on_host(STEPS)
    assert run.arena_bytes == solved.program.high_water_bytes
