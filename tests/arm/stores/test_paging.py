"""Paging to an SD card: over SPI on a Cortex-M3 with 64 KiB, through a host controller on a Cortex-A53."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from poetc import measure
from poetc.emit import Memory
from poetc.errors import CheckFailed
from poetc.graph import Array
from poetc.measure import BoardStopped, Firmware
from poetc.program import PageOut, sample_inputs
from tests.arm.conftest import STACK_ARM64_BYTES, Bits, Solve, Solved, run_host
from tests.program.models import state_paged_decisions, training_case

CARDS = ["lm3s6965evb", "raspi3b"]
EIO, ECORRUPT = -5, -84


@pytest.fixture(scope="module")
def solved(solve: Solve) -> Solved:
    """Keep-all takes four times the RAM of the board."""
    solved = solve("ds-cnn", 3, "qemu-lm3s6965evb", "64KiB")
    assert solved.artifact.summary["keep_all_peak_bytes"] > 4 * 65536
    assert solved.artifact.summary["page_outs"] > 0
    return solved


@pytest.fixture(scope="module")
def expected(solved: Solved) -> Bits:
    return solved.on_host(1)


@pytest.mark.parametrize("board", CARDS)
def test_trains_with_tensors_on_the_card(board: str, solved: Solved, expected: Bits, tmp_path: Path) -> None:
    memory = solved.memory
    if board == "raspi3b":  # frames of 64-bit code are larger than those that the plan was made for
        memory = Memory(memory.budget_bytes + STACK_ARM64_BYTES - memory.stack_bytes, STACK_ARM64_BYTES)
    firmware = measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=memory)
    assert firmware.stack_bound_bytes is not None and firmware.stack_bound_bytes <= memory.stack_bytes
    run = measure.execute(firmware, solved.batches(1))
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == solved.program.high_water_bytes
    assert run.page_outs == sum(isinstance(i, PageOut) for i in solved.program.instructions)
    assert run.page_ins > 0
    assert run.stack_bytes is not None and run.stack_bytes <= firmware.stack_bound_bytes
    # The card, read on this machine, holds every page with its number, its run and its checksum.
    pages = measure.check_pages(firmware, 1)
    assert len(pages) == len({i.page for i in solved.program.instructions if isinstance(i, PageOut)})
    card = tmp_path / "run" / "store.bin"
    damaged = bytearray(card.read_bytes())
    damaged[solved.program.pages[next(iter(pages))].first_block * 512] ^= 1
    card.write_bytes(damaged)
    with pytest.raises(CheckFailed, match="on the store"):
        measure.check_pages(firmware, 1)


# --- weights on the card, and what goes wrong with it ---------------------------------------------------------------


class Weights:
    """A dense network whose weights and velocities live on the card, from its first step on."""

    def __init__(self) -> None:
        names = ("fc1.weight", "fc2.weight", "fc1.weight.velocity", "fc2.weight.velocity")
        case = training_case(on_store=names, block_bytes=512)
        on_store = [t.name for t in case.problem.tensors if t.initial == "store"]
        assert set(on_store) >= {"fc1.weight", "fc2.weight"}
        self.case, self.program = case, case.program(state_paged_decisions(case, on_store))

    def build(self, board: str, directory: Path, checkpoint: int | None = None) -> Firmware:
        return measure.build_firmware(
            self.program, self.case.graph.values, board, directory, memory=Memory(32768, 4096), checkpoint=checkpoint
        )

    def batches(self, steps: int) -> Sequence[dict[str, Array]]:
        return [dict(sample_inputs(self.program, step)) for step in range(steps)]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights()


@pytest.mark.parametrize("board", CARDS)
def test_weights_on_the_card(board: str, weights: Weights, tmp_path: Path) -> None:
    with measure.build_host([weights.program], weights.case.graph.values) as model:
        expected = run_host(model, list(weights.batches(5)))
    run = measure.execute(weights.build(board, tmp_path), weights.batches(5))
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)


@pytest.mark.parametrize("board", CARDS)
def test_damaged_weight_stops_the_step(
    board: str, weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the flash has no room for the first weights, so that the firmware does not write them itself."""
    monkeypatch.setattr("poetc.emit._emit.formats_store", lambda *_: False)
    firmware = weights.build(board, tmp_path)
    card = firmware.run_directory / "store.bin"
    image = bytearray(card.read_bytes())
    page = next(p for p in weights.program.pages if p.image)
    image[page.first_block * 512 + 5] ^= 0x10
    card.write_bytes(image)
    with pytest.raises(BoardStopped, match="step 1 code -84") as stopped:
        measure.execute(firmware, weights.batches(2))
    assert stopped.value.code == ECORRUPT


def test_missing_card_stops_before_the_first_step(weights: Weights, tmp_path: Path) -> None:
    firmware = weights.build("lm3s6965evb", tmp_path)
    words = [w for w in measure.emulator_command(firmware, tmp_path / "counts") if not w.startswith("if=sd")]
    words.remove("-drive")
    with pytest.raises(BoardStopped, match="step 0 code -5") as stopped:
        measure.execute(firmware, weights.batches(1), command=words)
    assert stopped.value.code == EIO


@pytest.mark.parametrize("board", CARDS)
def test_block_that_the_card_refuses_stops_the_step(board: str, weights: Weights, tmp_path: Path) -> None:
    """A card that ends within the pages: the driver's code comes out, and nothing hangs."""
    firmware = weights.build(board, tmp_path)
    card = firmware.run_directory / "store.bin"
    pages = weights.program.pages
    used_bytes = max(p.first_block + p.slots * p.block_count for p in pages) * weights.program.block_bytes
    small_bytes = 1 << ((used_bytes - 1).bit_length() - 1)
    assert small_bytes < used_bytes
    card.write_bytes(card.read_bytes()[:small_bytes])
    with pytest.raises(BoardStopped, match="step 1 code -5"):
        measure.execute(firmware, weights.batches(2))
