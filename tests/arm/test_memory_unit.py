"""Code of cortex-a-bare accesses vectors at any address, which AArch64 allows with its memory management unit on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from poetc.benchmark import plain_program, step_of
from poetc.boards import BOARDS, TARGETS
from poetc.devices import load_profile
from poetc.emit import _firmware
from poetc.measure import build_firmware, execute
from poetc.program import sample_inputs
from poetc.runtime import runtime_directory
from tests.support.graphs import small_cnn

PROGRAM = Path(__file__).with_name("memory_unit.c")


@pytest.mark.parametrize(("name", "count", "caches"), [("virt-a72", 3, 1), ("raspi3b", 1, 0)])
def test_the_memory_management_unit_is_on_where_code_runs(name: str, count: int, caches: int, tmp_path: Path) -> None:
    """Of each processor, as its own register says."""
    found, root = BOARDS[name], runtime_directory()
    target = TARGETS[found.target]
    assert "-mstrict-align" not in target.flags
    script = tmp_path / "link.ld"
    plan = _firmware.layout(found, _firmware.Memory(1 << 23, 1 << 14), 0, 1 << 16, count)
    script.write_text(_firmware.linker_script(plan, _firmware.NO_SECTIONS))
    sources = _firmware.port_sources(target, found, queues=count > 1)
    own = [p for p in sources.values() if p.suffix in (".c", ".S") and p.name not in ("train.c", "poetc_loop.c")]
    folders = [root / "include", root / "ports" / "processors", *{p.parent for p in sources.values()}]
    command = ["aarch64-linux-gnu-gcc", *target.flags.split(), f"-DCOUNT={count}", *(f"-I{f}" for f in folders)]
    command += [*_firmware.link_flags(target), "-T", script, "-o", tmp_path / "firmware.elf", PROGRAM, *own]
    subprocess.run(command, check=True)
    emulator = [*found.qemu, "-semihosting-config", "enable=on,target=native"]
    emulator += ["-smp", str(count), "-m", "64M"] if found.smp else []
    ran = subprocess.run(
        [*emulator, "-kernel", tmp_path / "firmware.elf"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout + ran.stderr).splitlines() == [f"{n} mmu=1 caches={caches} sum=10" for n in range(count)]


def test_counts_are_those_of_the_same_kernels_on_linux(tmp_path: Path) -> None:
    """So that profiles of Linux boards may be made of instructions that were counted without an operating system."""
    step = step_of(small_cnn(), "sgd")
    program = plain_program(step, load_profile("qemu-virt-a72"))
    inputs = [sample_inputs(program, 0)]
    bare, linux = (
        execute(build_firmware(program, step.values, name, tmp_path / name, numerics="fused"), inputs)
        for name in ("virt-a72", "aarch64")
    )
    assert bare.instructions == pytest.approx(linux.instructions, rel=0.15)
