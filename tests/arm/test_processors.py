"""A schedule for two processors on boards that have two: the bits of one, and the work of each."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from poetc import emit, measure
from poetc.devices.processors import MICROCONTROLLER_TEAM_BYTES
from poetc.errors import UsageError
from poetc.graph import Array
from poetc.measure import HostModel, build_host
from poetc.program import Program, sample_inputs
from tests.host_c.stores.test_queues import parallel
from tests.program.models import Case

STEPS = 3
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "two-processors.md"


@pytest.fixture(scope="module")
def program() -> tuple[Case, Program]:
    return parallel(2, 2)


def bits(model: HostModel, batches: list[dict[str, Array]]) -> tuple[tuple[float, ...], tuple[int, ...], str]:
    losses, gradients = [], []
    for batch in batches:
        losses.append(model.run(batch))
        gradients.append(model.gradients_crc())
    return tuple(losses), tuple(gradients), measure.state_digest({n: model.state(n) for n in model.state_names()})


@pytest.mark.parametrize("board", ["mps2-an521", "aarch64"])
def test_two_processors_do_the_work_of_one(board: str, program: tuple[Case, Program], tmp_path: Path) -> None:
    case, two = program
    one, values = replace(two, queues=()), case.graph.values
    batches = [dict(sample_inputs(two, step)) for step in range(STEPS)]
    with build_host([one], values) as model:
        expected = bits(model, batches)
    firmware = measure.build_firmware(two, values, board, tmp_path, checkpoint=0, gradients=True)
    assert firmware.has_processors
    run = measure.execute(firmware, batches)
    assert (run.losses, run.gradients_crc, run.state_sha256) == expected
    assert run.arena_bytes == two.high_water_bytes
    assert len(run.queue_instructions) == 2 and min(run.queue_instructions) > 0
    assert sum(run.queue_instructions) == run.instructions
    assert max(run.queue_instructions) <= run.longest_instructions < run.instructions
    if board == "mps2-an521":
        assert firmware.elf.extents["processors.0"] <= MICROCONTROLLER_TEAM_BYTES
        size = emit.firmware_size(two, firmware.board, values=values, checkpoint=0, gradients=True)
        assert size.ram_bytes == firmware.elf.data_bytes + firmware.elf.bss_bytes
        assert abs(size.flash_bytes - firmware.elf.flash_bytes) <= 512  # without the code of the checksum


@pytest.mark.parametrize("processors", [2, pytest.param(4, marks=pytest.mark.long)])
def test_bare_processors_do_the_work_of_one(processors: int, tmp_path: Path) -> None:
    """Of QEMU's virt machine, with -smp 2 and 4: PSCI starts the others."""
    case, several = next(found for seed in range(2, 20) if all((found := parallel(seed, processors))[1].queues))
    one, values = replace(several, queues=()), case.graph.values
    batches = [dict(sample_inputs(several, step)) for step in range(STEPS)]
    with build_host([one], values) as model:
        expected = bits(model, batches)
    firmware = measure.build_firmware(several, values, "virt-a72", tmp_path, checkpoint=0, gradients=True)
    assert firmware.has_processors
    run = measure.execute(firmware, batches)
    assert (run.losses, run.gradients_crc, run.state_sha256) == expected
    assert run.arena_bytes == several.high_water_bytes
    assert len(run.queue_instructions) == processors and min(run.queue_instructions) > 0
    assert max(run.queue_instructions) <= run.longest_instructions < run.instructions


def test_a_board_with_fewer_processors_refuses(tmp_path: Path) -> None:
    case, four = parallel(2, 4)
    with pytest.raises(UsageError, match="mps2-an521 has 2 processors, and the schedule is for 4"):
        emit.emit(
            [four], case.graph.values, model="m", target="generic-m33", board="mps2-an521", out_dir=tmp_path / "src"
        )


@pytest.mark.long
def test_a_board_with_one_processor_runs_it_too(program: tuple[Case, Program], tmp_path: Path) -> None:
    """Without the port of the second, and with the instructions of the first alone."""
    case, two = program
    firmware = measure.build_firmware(two, case.graph.values, "mps2-an386", tmp_path, checkpoint=0)
    assert not firmware.has_processors
    batches = [dict(sample_inputs(two, step)) for step in range(STEPS)]
    run = measure.execute(firmware, batches)
    with build_host([two], case.graph.values) as model:
        assert run.losses == bits(model, batches)[0]
    assert run.queue_instructions == ()


SDK = """/* The part of the Pico SDK's header that the port calls. */
void multicore_launch_core1(void (*entry)(void));
void multicore_reset_core1(void);
"""


@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m33"])
def test_a_library_for_the_pico_sdk(core: str, program: tuple[Case, Program], tmp_path: Path) -> None:
    """The port of RP2040 and RP2350 compiles in such a project, and is empty in others."""
    case, two = program
    out = emit.emit([two], case.graph.values, model="model", target="c99", out_dir=tmp_path / "src")
    (tmp_path / "sdk" / "pico").mkdir(parents=True)
    (tmp_path / "sdk" / "pico" / "multicore.h").write_text(SDK)
    folders = [f"-I{out / name}" for name in ("runtime/processors", "runtime/include")]
    for words, symbols in (
        (["-DLIB_PICO_MULTICORE=1"], {"poetc_processors_begin", "poetc_processors_run"}),
        ([], set()),
    ):
        command = [
            "arm-none-eabi-gcc",
            f"-mcpu={core}",
            "-mthumb",
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
        ]
        command += [
            *words,
            *folders,
            f"-I{tmp_path / 'sdk'}",
            "-c",
            str(out / "runtime/processors/rp2.c"),
            "-o",
            "rp2.o",
        ]
        subprocess.run(command, check=True, cwd=tmp_path)
        listed = subprocess.run(
            ["arm-none-eabi-nm", "-g", "rp2.o"], check=True, cwd=tmp_path, capture_output=True, text=True
        )
        assert symbols <= set(listed.stdout.split()) and ("multicore_launch_core1" in listed.stdout) == bool(symbols)


def test_the_c_of_the_page_compiles(program: tuple[Case, Program], tmp_path: Path) -> None:
    """Its names are those of the files of a model with another name."""
    case, two = program
    out = emit.emit([two], case.graph.values, model="digits", target="c99", out_dir=tmp_path / "src")
    begin, serve = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (comment,) = re.findall(r"/\* (poetc_queues_init\(.*?\)) ", serve)
    lines = ['#include "model.h"', '#include "poetc_processors.h"', serve]
    lines += ["poetc_session session;", "poetc_runtime runtime;", "int begin(void)", "{", "int err;", begin]
    lines += [f"return err ? err : {comment};", "}"]
    (tmp_path / "page.c").write_text("\n".join(lines) + "\n")
    folders = [f"-I{out / name}" for name in (".", "runtime/processors", "runtime/include")]
    command = ["gcc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", *folders, "page.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
