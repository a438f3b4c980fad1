"""Training with tensors in 16 bits has the same bits on the host and on every core, whatever the schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import measure
from tests.arm.conftest import Solve, bits

STEPS = 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "board"),
    [
        ("f16", "mps2-an386"),
        ("f16", "mps3-an547"),
        ("f16", "virt-a72"),
        ("bf16", "mps2-an386"),
        ("bf16", "virt-a72"),
        ("afp", "mps3-an547"),
        ("afp", "virt-a72"),
        ("mls", "mps2-an386"),
        ("mls", "virt-a72"),
        ("fp8", "mps2-an386"),
    ],
)
def test_every_core_has_the_bits_of_the_host(precision: str, board: str, solve: Solve, tmp_path: Path) -> None:
    """Cores that convert 16 bits in hardware, in scalars and in vectors, and one that does it in software."""
    solved = solve("lenet", 4, "qemu-mps2-an386", "80%", precision=precision)
    run = solved.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == solved.on_host(STEPS)
    assert run.arena_bytes == solved.program.high_water_bytes


@pytest.mark.long
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_vectors_of_helium_convert_as_the_host_does(precision: str, solve: Solve, tmp_path: Path) -> None:
    """The assembler of binutils 2.40 encodes VCVTB with other registers than it was told, unless they are q0."""
    solved = solve("lenet", 1, "qemu-mps2-an386", "80%", precision=precision)
    firmware = measure.build_firmware(solved.program, solved.values, "mps3-an547", tmp_path, numerics="fast")
    run = measure.execute(firmware, solved.batches(STEPS))
    np.testing.assert_allclose(run.losses, solved.on_host(STEPS).losses, rtol=1e-4)
