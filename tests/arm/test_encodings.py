"""Encodings of saved tensors have the same bits on the host and on every core; lossless ones change none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poetc.codegen import BOARDS
from poetc.commands import programs
from poetc.devices import build_problem
from poetc.passes import encoded, offered
from poetc.scheduling import keep_all, pack
from tests.arm.conftest import Bits, Solve, Solved, bits

STEPS = 2
SMALL = ("microbit", "lm3s6965evb")  # too little memory


@pytest.fixture(scope="module")
def plain(solve: Solve) -> Solved:
    return solve("lenet", 2, "qemu-mps2-an386", "100%")


def with_all_encodings(plain: Solved, lossy: str) -> Solved:
    """Every tensor encoded that can be, and kept."""
    solved = plain.artifact
    assert solved.graph is not None and solved.profile is not None
    step = encoded(solved.graph, offered(solved.graph, lossy))
    problem = build_problem(step, solved.profile, budget_bytes=solved.problem.budget_bytes)
    schedule = keep_all(problem)
    solved = replace(solved, graph=step, problem=problem, schedule=schedule, plan=pack(problem, schedule))
    return Solved(solved, programs.training_program(solved))


@pytest.fixture(scope="module")
def lossless_host(plain: Solved) -> Bits:
    """Of the step without encodings."""
    return plain.on_host(STEPS)


@pytest.mark.parametrize("board", sorted(set(BOARDS) - set(SMALL)))
def test_lossless_encodings_have_the_bits_of_the_step_without_them(
    board: str, plain: Solved, lossless_host: Bits, tmp_path: Path
) -> None:
    solved = with_all_encodings(plain, "")
    assert solved.program.high_water_bytes < plain.program.high_water_bytes
    assert bits(solved.on_board(board, tmp_path, STEPS, gradients=True)) == lossless_host


@pytest.mark.parametrize("board", ["aarch64", "mps2-an385-m0", "mps2-an386", "mps3-an547"])
@pytest.mark.parametrize("form", ["f16", "bf16", "int8"])
def test_cores_that_convert_have_the_bits_of_those_that_do_not(
    form: str, board: str, plain: Solved, lossless_host: Bits, tmp_path: Path
) -> None:
    solved = with_all_encodings(plain, form)
    expected = solved.on_host(STEPS)
    assert expected.gradients_crc != lossless_host.gradients_crc
    assert bits(solved.on_board(board, tmp_path, STEPS, gradients=True)) == expected
