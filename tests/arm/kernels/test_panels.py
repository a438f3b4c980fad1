"""The products of a Cortex-M4F touch nothing behind their workspace, wherever it lies."""

from __future__ import annotations

import subprocess
from pathlib import Path

from poetc import passes, training
from poetc.boards import BOARDS, build_counter, read_elf
from poetc.devices import build_problem, load_profile
from poetc.emit import emit
from poetc.frontend import load
from poetc.program import lower
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions
from tests.arm.conftest import load_networks

BEFORE_BYTES, BEHIND_BYTES = 4100, 248  # of panels.c


def test_nothing_behind_a_workspace_is_touched(tmp_path: Path) -> None:
    """The emulator sees every load and store; the port's own program gives way to panels.c."""
    graph = load(load_networks().write("lenet", tmp_path / "lenet.onnx"), batch=1)
    step = passes.run_standard(training.build(graph, TrainingOptions()))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    out = emit([program], step.values, model="lenet", target="cortex-m4f", out_dir=tmp_path / "out")
    (out / "port" / "train.c").write_text(Path(__file__).with_name("panels.c").read_text())
    subprocess.run(["make", "-s", "firmware.elf"], cwd=out, check=True)
    elf, counts = read_elf(out / "firmware.elf", "arm-none-eabi-"), tmp_path / "counts"
    begin = elf.symbols["before"] + BEFORE_BYTES
    plugin = f"{build_counter(tmp_path)},arena={begin:x}-{begin + BEHIND_BYTES:x},out={counts}"
    words = [*BOARDS["mps2-an386"].qemu, "-plugin", plugin, "-semihosting-config", "enable=on,target=native"]
    run = subprocess.run([*words, "-kernel", "firmware.elf"], cwd=out, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "arena 0" in counts.read_text().splitlines()
