"""Encodings of saved tensors have the same bits on the host and on every core; lossless ones change none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poetc.commands import programs
from poetc.devices import build_problem
from poetc.ops.encoding import FORMATS
from poetc.passes import Encoding, encoded, offered
from poetc.scheduling import keep_all, pack
from tests.arm.conftest import CORES, Bits, Solve, Solved, bits

STEPS = 2


@pytest.fixture(scope="module")
def plain(solve: Solve) -> Solved:
    return solve("lenet", 8, "qemu-mps2-an386", "100%")


def with_encodings(plain: Solved, encodings: list[Encoding]) -> Solved:
    """The step with them, every tensor kept."""
    solved = plain.artifact
    assert solved.graph is not None and solved.profile is not None
    step = encoded(solved.graph, encodings)
    problem = build_problem(step, solved.profile, budget_bytes=solved.problem.budget_bytes)
    schedule = keep_all(problem)
    solved = replace(solved, graph=step, problem=problem, schedule=schedule, plan=pack(problem, schedule))
    return Solved(solved, programs.training_program(solved))


@pytest.fixture(scope="module")
def plain_host(plain: Solved) -> Bits:
    return plain.on_host(STEPS)


@pytest.fixture(scope="module")
def mixed(plain: Solved) -> Solved:
    """With all formats: the first tensor in the first, the second in the second, and so on."""
    assert plain.artifact.graph is not None
    lossless = list(offered(plain.artifact.graph))
    by_format = [list(offered(plain.artifact.graph, form))[len(lossless) :] for form in FORMATS]
    lossy = [choices[i % len(choices)] for i, choices in enumerate(zip(*by_format, strict=True))]
    assert {e.format for e in lossy} == set(FORMATS)
    return with_encodings(plain, lossless + lossy)


@pytest.fixture(scope="module")
def mixed_host(mixed: Solved) -> Bits:
    return mixed.on_host(STEPS)


def test_lossless_encodings_have_the_bits_of_the_step_without_them(
    plain: Solved, plain_host: Bits, tmp_path: Path
) -> None:
    """On the host and on one core: the others have these encodings too below, beside those that lose bits."""
    assert plain.artifact.graph is not None
    solved = with_encodings(plain, list(offered(plain.artifact.graph)))
    assert solved.program.high_water_bytes < plain.program.high_water_bytes
    assert solved.on_host(STEPS) == plain_host
    assert bits(solved.on_board("mps2-an386", tmp_path, STEPS, gradients=True)) == plain_host


@pytest.mark.parametrize("board", CORES)
@pytest.mark.long_but("aarch64")
def test_cores_that_convert_have_the_bits_of_those_that_do_not(
    board: str, mixed: Solved, mixed_host: Bits, plain_host: Bits, tmp_path: Path
) -> None:
    assert mixed_host.gradients_crc != plain_host.gradients_crc
    assert bits(mixed.on_board(board, tmp_path, STEPS, gradients=True)) == mixed_host
