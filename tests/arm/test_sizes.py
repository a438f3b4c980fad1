"""Flash and RAM of each board's firmware: predicted before anything is compiled, and tracked so that growth shows.

After a change that is meant to take more: `make sizes`, and look at the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from poetc import boards, measure
from poetc.boards import BOARDS
from poetc.commands import emit
from poetc.emit import FirmwareSize, Numerics, firmware_size, is_measured
from poetc.emit import size_columns as columns
from poetc.errors import UsageError
from poetc.measure import Firmware
from poetc.program import packed_state
from tests.arm.conftest import Solve, Solved

GOLDEN = Path(__file__).with_name("golden")
GROWTH = 0.02
ACCURACY, ACCURACY_BYTES = 0.02, 1024  # of the predicted flash: whichever is more
LENET_CODE_BYTES = 46 * 1024  # 40 with VMLA, 42 before convolutions of 3 x 3 had loops
BARE = sorted(name for name, board in BOARDS.items() if board.code is not None and is_measured(board))


@dataclass(frozen=True)
class Built:
    firmware: Firmware
    predicted: FirmwareSize

    @property
    def sizes(self) -> dict[str, int]:
        """As `size` counts them. What is neither a table nor the model's weights is code."""
        elf, predicted = self.firmware.elf, self.predicted
        return {
            "flash_bytes": elf.flash_bytes,
            "code_bytes": elf.flash_bytes - predicted.tables_bytes - predicted.image_bytes,
            "ram_bytes": elf.data_bytes + elf.bss_bytes,
        }


def build(solved: Solved, board: str, directory: Path, numerics: Numerics = "separate") -> Built:
    memory = solved.memory
    firmware = measure.build_firmware(solved.program, solved.values, board, directory, memory=memory, numerics=numerics)
    return Built(
        firmware, firmware_size(solved.program, BOARDS[board], values=solved.values, numerics=numerics, memory=memory)
    )


def require_prediction(built: Built) -> None:
    elf, predicted = built.firmware.elf, built.predicted
    error = predicted.flash_bytes - elf.flash_bytes
    allowed = max(ACCURACY * elf.flash_bytes, ACCURACY_BYTES)
    assert abs(error) <= allowed, (
        f"{built.firmware.board.name}: flash is {elf.flash_bytes:,}, predicted {predicted.flash_bytes:,}: make sizes"
    )
    ram = elf.data_bytes + elf.bss_bytes
    assert 0 <= predicted.ram_bytes - ram <= 64, f"RAM is {ram:,}, predicted {predicted.ram_bytes:,}: make sizes"


def growth(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    return [
        f"{what} {before[what]:,} -> {value:,} ({value / before[what] - 1:+.1%})"
        for what, value in now.items()
        if value > before[what] * (1 + GROWTH)
    ]


@pytest.mark.parametrize("board", BARE)
def test_lenet_is_as_predicted_and_has_not_grown(
    board: str, solve: Solve, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if board == "microbit":
        network, solved = "mlp", solve("mlp", 4, "qemu-microbit", "16KiB")
    else:
        network, solved = "lenet", solve("lenet", 8, "qemu-mps2-an386", "100%")
    built = build(solved, board, tmp_path)
    path = GOLDEN / f"{network}-{board}.json"
    if request.config.getoption("--update-golden"):
        path.write_text(json.dumps(built.sizes, indent=1) + "\n")
    grown = growth(json.loads(path.read_text()), built.sizes)
    assert not grown, f"{network} on {board}: {', '.join(grown)}; if it is meant to: make sizes"
    require_prediction(built)
    if BOARDS[board].target.startswith("cortex-m"):
        assert built.sizes["code_bytes"] <= LENET_CODE_BYTES
    # What a budget counts is never less than what is linked.
    base_bytes = solved.artifact.problem.base_bytes
    if BOARDS[board].target.startswith("cortex-m"):
        assert built.sizes["ram_bytes"] <= base_bytes + solved.program.arena_bytes


def test_growth_is_told_by_name_and_share() -> None:
    before = {"flash_bytes": 10_000, "code_bytes": 8_000, "ram_bytes": 500}
    assert growth(before, {**before, "flash_bytes": 10_200, "ram_bytes": 100}) == []
    assert growth(before, {**before, "code_bytes": 8_800}) == ["code_bytes 8,000 -> 8,800 (+10.0%)"]


@pytest.mark.parametrize(
    ("board", "network", "batch", "device", "budget", "numerics"),
    [
        ("lm3s6965evb", "lenet", 12, "qemu-lm3s6965evb", "64KiB", "separate"),  # pages and checkpoints
        ("mps3-an547", "ds-cnn", 2, "qemu-mps2-an386", "60%", "fast"),
        ("mps2-an386", "ds-cnn", 2, "qemu-mps2-an386", "60%", "fused"),
    ],
)
def test_other_programs_are_as_predicted(
    board: str,
    network: str,
    batch: int,
    device: str,
    budget: str,
    numerics: Numerics,
    solve: Solve,
    tmp_path: Path,
) -> None:
    require_prediction(build(solve(network, batch, device, budget), board, tmp_path, numerics))


def test_solve_predicts_what_run_measures(solve: Solve, tmp_path: Path) -> None:
    """The same numbers in the summary of `solve` and in what `run` compares with the program."""
    solved = solve("lenet", 8, "qemu-mps2-an386", "100%")
    summary = solved.artifact.summary
    predicted = firmware_size(solved.program, BOARDS["mps2-an386"], values=solved.values, memory=solved.memory)
    assert summary["firmware_board"] == "mps2-an386"
    assert summary["flash_bytes"] == predicted.flash_bytes
    assert summary["firmware_ram_bytes"] == predicted.ram_bytes
    assert summary["flash_bytes"] == sum(summary[f"flash_{part}_bytes"] for part in ("code", "tables", "image"))
    assert predicted.image_bytes == len(packed_state(solved.program, solved.values)) + solved.program.flash_bytes


def test_devices_are_predicted_by_their_core() -> None:
    def board(device: str, core: str, fpu: str) -> str | None:
        found = boards.board_like(device, core, fpu)
        return found.name if found else None

    assert board("stm32f746", "cortex-m7", "single") == "mps2-an500"
    assert board("rp2040", "cortex-m0plus", "none") == "microbit"
    assert board("nrf52840", "cortex-m4", "single") == "mps2-an386"
    assert board("qemu-lm3s6965evb", "cortex-m3", "none") == "lm3s6965evb"
    assert board("rp2350", "cortex-m33", "single") is None
    assert board("host", "native", "double") is None
    targets = {key[0] for key in columns()}
    assert targets == {board.target for board in BOARDS.values() if board.code is not None}


def test_emit_says_what_does_not_fit_before_the_linker(solve: Solve, tmp_path: Path) -> None:
    from poetc import artifact

    solved = solve("ds-cnn", 2, "qemu-mps2-an386", "60%")
    artifact.write(solved.artifact, tmp_path / "large", {})
    with pytest.raises(UsageError, match=r"microbit has 16384 bytes of RAM; the arena of .* needs") as refused:
        emit.emit(tmp_path / "large", "cortex-m0", tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_emit_says_when_flash_is_too_small(solve: Solve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from poetc import artifact

    artifact.write(solve("mlp", 4, "qemu-microbit", "16KiB").artifact, tmp_path / "mlp", {})
    board = BOARDS["microbit"]
    assert board.code is not None
    monkeypatch.setitem(BOARDS, "microbit", replace(board, code=replace(board.code, size_bytes=8192)))
    with pytest.raises(UsageError, match="microbit has 8192 bytes of flash"):
        emit.emit(tmp_path / "mlp", "cortex-m0", tmp_path / "out")
