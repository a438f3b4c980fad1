"""The same bits everywhere: loss and gradients of every step, state after the last, on the host and on every core."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from poetc.boards import BOARDS, TARGETS, resolve
from poetc.commands import programs
from poetc.measure import BoardStopped, build_firmware, build_host, execute
from poetc.program import sample_inputs
from tests.arm.conftest import CORES, INSTRUCTIONS, REPEATED, Bits, Solve, bits, run_host
from tests.program.models import paged_decisions, training_case

STEPS = 20
ALL = sorted(BOARDS)


def test_every_core_has_a_board() -> None:
    cores = {board.target for board in BOARDS.values()}
    assert cores == {t.name for t in TARGETS.values() if t.board}
    assert all(BOARDS[t.board].target == t.name for t in TARGETS.values() if t.board)


def test_the_boards_that_are_left_out_have_the_kernels_of_others() -> None:
    def machine(board: str) -> list[str]:
        return re.findall(r"-m[a-z-]+=\S+", resolve(BOARDS[board].target, board, "separate")[0].flags)

    others = [machine(board) for board in CORES]
    assert all(machine(board) in others for board in REPEATED)


@pytest.fixture(scope="module")
def mlp_host(solve: Solve) -> Bits:
    return solve("mlp", 4, "qemu-microbit", "16KiB").on_host(STEPS)


@pytest.mark.parametrize("board", ALL)
@pytest.mark.long_but("mps2-an386")
def test_mlp_has_the_same_bits(board: str, solve: Solve, mlp_host: Bits, tmp_path: Path) -> None:
    solved = solve("mlp", 4, "qemu-microbit", "16KiB")
    run = solved.on_board(board, tmp_path, STEPS, gradients=True)
    assert len(run.gradients_crc) == STEPS
    assert bits(run) == mlp_host
    assert run.arena_bytes == solved.program.high_water_bytes


@pytest.mark.parametrize("network", ["mlp", "layers"])
@pytest.mark.parametrize("board", ["mps2-an385", "mps2-an386", "virt-a72"])
@pytest.mark.long_but("mps2-an386-mlp")
def test_weights_moved_by_a_rank_of_one_have_the_same_bits(
    network: str, board: str, solve: Solve, tmp_path: Path
) -> None:
    """Dense layers at batch 1."""
    solved = solve(network, 1, "qemu-mps2-an386", "100%")
    assert any(getattr(i, "symbol", None) == "poetc_op_matmul_sgd" for i in solved.program.instructions)
    assert bits(solved.on_board(board, tmp_path, 3, gradients=True)) == solved.on_host(3)


@pytest.fixture(scope="module")
def convolutional_host(solve: Solve) -> Bits:
    return solve("ds-cnn", 2, "qemu-mps2-an386", "60%").on_host(3)


@pytest.mark.long
def test_the_widest_vectors_of_this_machine_have_the_same_bits(
    solve: Solve, convolutional_host: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of the emitted Makefile, against the narrowest vectors and the level of the tests."""
    monkeypatch.delenv("POETC_TEST_LEVEL", raising=False)
    solved = solve("ds-cnn", 2, "qemu-mps2-an386", "60%")
    assert solved.on_host(3, TARGETS["host"].flags) == convolutional_host


@pytest.mark.parametrize("board", INSTRUCTIONS)
def test_convolutions_and_norms_have_the_same_bits(
    board: str, solve: Solve, convolutional_host: Bits, tmp_path: Path
) -> None:
    """A depthwise separable network with batch-norm, at 60 % of its keep-all peak."""
    solved = solve("ds-cnn", 2, "qemu-mps2-an386", "60%")
    run = solved.on_board(board, tmp_path, 3, gradients=True)
    assert bits(run) == convolutional_host
    assert run.arena_bytes == solved.program.high_water_bytes


@pytest.fixture(scope="module")
def fused_host(solve: Solve) -> Bits:
    return solve("ds-cnn", 2, "qemu-mps2-an386", "60%").on_host(3, numerics="fused")


@pytest.mark.parametrize("board", ["aarch64", "mps2-an386", "mps3-an547", "linux-a7", "virt-r52"])
@pytest.mark.long_but("mps2-an386")
def test_fused_multiply_adds_have_the_same_bits(
    board: str, solve: Solve, convolutional_host: Bits, fused_host: Bits, tmp_path: Path
) -> None:
    """By fmla, and by vfma of M-class, A32 and R-class."""
    solved = solve("ds-cnn", 2, "qemu-mps2-an386", "60%")
    run = solved.on_board(board, tmp_path, 3, gradients=True, numerics="fused")
    assert bits(run) == fused_host
    assert fused_host.state_sha256 != convolutional_host.state_sha256


@pytest.mark.parametrize("board", ["mps3-an547"])
def test_fast_numerics_keep_the_bits_of_keep_all(board: str, solve: Solve, tmp_path: Path) -> None:
    """On one target a schedule never changes a bit, whichever the numerics; the card is a file here."""
    solved = solve("ds-cnn", 2, "qemu-mps2-an386", "60%")
    assert solved.artifact.summary["recomputes"] + solved.artifact.summary["page_outs"] > 0
    digests = set()
    for name, program in (("solved", solved.program), ("kept", programs.keep_all_program(solved.artifact))):
        firmware = build_firmware(program, solved.values, board, tmp_path / name, numerics="fast")
        run = execute(firmware, solved.batches(2))
        digests.add((run.losses, run.state_sha256))
    assert len(digests) == 1


@pytest.mark.parametrize("board", ["mps2-an385", "mps2-an386", "mps3-an547"])
@pytest.mark.long
def test_depthwise_windows_have_the_same_bits(board: str, solve: Solve, tmp_path: Path) -> None:
    solved = solve("windows", 2, "qemu-mps2-an386", "100%")
    run = solved.on_board(board, tmp_path, 2, gradients=True)
    assert bits(run) == solved.on_host(2)


@pytest.mark.long
@pytest.mark.parametrize("network", ["windows", "lenet5", "resnet"])
def test_helium_trains_as_the_host_does(network: str, solve: Solve, tmp_path: Path) -> None:
    """Up to rounding: kernels of their own, in assembly."""
    solved = solve(network, 2, "qemu-mps3-an547", "100%")
    firmware = build_firmware(solved.program, solved.values, "mps3-an547", tmp_path, numerics="fast")
    run = execute(firmware, solved.batches(4))
    assert run.losses == pytest.approx(solved.on_host(4).losses, rel=2e-5)


@pytest.mark.long
def test_a_nan_stays_visible_on_helium(solve: Solve, tmp_path: Path) -> None:
    """Behind rectifiers in vectors, whose comparisons are true of a NaN: the loss is none, and training stops."""
    solved = solve("resnet", 2, "qemu-mps3-an547", "100%")
    poisoned = {name: np.full_like(v, np.nan) if np.ndim(v) == 4 else v for name, v in solved.values.items()}
    assert any(np.isnan(np.asarray(v, np.float32)).any() for v in poisoned.values() if np.ndim(v) == 4)
    firmware = build_firmware(solved.program, poisoned, "mps3-an547", tmp_path, numerics="fast")
    with pytest.raises(BoardStopped, match="the loss is no number"):
        execute(firmware, solved.batches(1))


def test_a_processor_of_32_bits_under_linux_has_the_bits_of_the_host(tmp_path: Path) -> None:
    """Pointers of 4 bytes, files and a paged schedule: `poetc emit --board armhf` under qemu-arm."""
    case = training_case(block_bytes=512)
    program, values = case.program(paged_decisions(case, "a")), case.graph.values
    batches = [dict(sample_inputs(program, step)) for step in range(2)]
    run = execute(build_firmware(program, values, "armhf", tmp_path, gradients=True), batches)
    assert run.page_ins > 0
    with build_host([program], values, cflags="-O1") as model:
        assert bits(run) == run_host(model, batches)


@pytest.mark.long
def test_a_network_of_convolutions_has_them_too(solve: Solve, tmp_path: Path) -> None:
    solved = solve("lenet", 2, "qemu-lm3s6965evb", "70%")
    assert bits(solved.on_board("armhf", tmp_path, 2, gradients=True)) == solved.on_host(2)
