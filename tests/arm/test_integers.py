"""Training in integers has the same bits on the host and on every core, whatever the schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc.codegen import BOARDS
from tests.arm.conftest import Bits, Solve, Solved, bits

STEPS = 3
SMALL = ("microbit", "lm3s6965evb", "aarch64")  # too little memory, or the core of virt-a72


@pytest.fixture(scope="module")
def residual(solve: Solve) -> Solved:
    return solve("resnet", 2, "qemu-mps2-an386", "60%", precision="niti")


@pytest.fixture(scope="module")
def residual_host(residual: Solved) -> Bits:
    return residual.on_host(STEPS)


@pytest.fixture(scope="module")
def depthwise(solve: Solve) -> Solved:
    return solve("ds-cnn", 2, "qemu-mps2-an386", "60%", precision="niti")


@pytest.fixture(scope="module")
def depthwise_host(depthwise: Solved) -> Bits:
    return depthwise.on_host(STEPS)


@pytest.mark.long
def test_the_schedule_changes_no_bit(residual: Solved, residual_host: Bits, solve: Solve) -> None:
    """At 60 % of the memory some kernels make their sums twice."""
    free = solve("resnet", 2, "qemu-mps2-an386", "100%", precision="niti")
    assert residual.program.high_water_bytes < free.program.high_water_bytes
    assert free.on_host(STEPS) == residual_host


@pytest.mark.parametrize("board", sorted(set(BOARDS) - set(SMALL)))
def test_residual_additions_have_the_same_bits(
    board: str, residual: Solved, residual_host: Bits, tmp_path: Path
) -> None:
    run = residual.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == residual_host
    assert run.arena_bytes == residual.program.high_water_bytes


@pytest.mark.long
@pytest.mark.parametrize("board", ["mps2-an385-m0", "mps2-an386", "mps3-an547"])
def test_depthwise_convolutions_have_the_same_bits(
    board: str, depthwise: Solved, depthwise_host: Bits, tmp_path: Path
) -> None:
    run = depthwise.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == depthwise_host
    assert run.arena_bytes == depthwise.program.high_water_bytes
