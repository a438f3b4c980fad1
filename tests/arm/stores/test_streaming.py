"""Streamed operands on a Cortex-M3 with 64 KiB: weights and images come from an SD card, and updates go back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from poetc import measure, passes
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import load_profile
from poetc.emit import Memory
from poetc.program import inputs_on_store, reads_ahead, sample_inputs, streams_of
from poetc.runtime import runtime_directory
from tests.arm.conftest import Solve, load_networks, run_host
from tests.host_c.stores.test_ahead import cases_of, program_of
from tests.program.models import rows_case

BOARD = "lm3s6965evb"


def test_transfers_and_kernels_are_not_on_the_stack_together(tmp_path: Path) -> None:
    """A convolution that streamed on a board of 16 KiB asked for 2,060 bytes of a stack of 2,048."""
    source, made = runtime_directory() / "src/poetc_stream.c", tmp_path / "stream.o"
    flags = ["-mcpu=cortex-m0", "-mthumb", "-O2", "-std=c99", "-fstack-usage", f"-I{runtime_directory() / 'include'}"]
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", str(source), "-o", str(made)], check=True)
    frames = {
        line.split("\t")[0].rpartition(":")[2]: int(line.split("\t")[1])
        for line in made.with_suffix(".su").read_text().splitlines()
    }
    parts = ("call_kernel", "read_windows", "write_windows", "finish")
    assert frames["poetc_stream"] + max(frames[part] for part in parts) < 400


def test_trains_a_weight_twice_as_large_as_its_ram(solve: Solve, tmp_path: Path) -> None:
    solved = solve("layers", 1, f"qemu-{BOARD}", "64KiB", "auto")
    largest = max(t.size_bytes for t in solved.artifact.graph.tensors.values() if t.role.is_state)
    streams = [s for i in solved.program.instructions for s in streams_of(i)]
    assert largest > 2 * 65536 and any(s.source is None for s in streams) and any(s.form.rows > 1 for s in streams)
    firmware = measure.build_firmware(solved.program, solved.values, BOARD, tmp_path, memory=solved.memory)
    assert firmware.stack_bound_bytes is not None and firmware.stack_bound_bytes <= solved.memory.stack_bytes
    run, expected = measure.execute(firmware, solved.batches(2)), solved.on_host(2)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == solved.program.high_water_bytes
    assert run.stack_bytes is not None and run.stack_bytes <= firmware.stack_bound_bytes


@pytest.mark.long
def test_reads_ahead_in_turn_on_one_core(tmp_path: Path) -> None:
    """Blocks go to two windows, and one core transfers in turn with its kernels: the bits of two threads."""
    profile = load_profile(f"qemu-{BOARD}")
    name = profile.default_store
    assert name is not None
    fast = replace(profile.stores[name], mode="dma")  # as if its transfers could overlap
    profile = replace(profile, stores=profile.stores | {name: fast})
    model = tmp_path / "layers.onnx"
    networks = load_networks()
    network = networks.Network("layers", 8).dense(33).relu().dense(110).relu().dense(networks.CLASSES)
    onnx.save(network.model(), model)
    step = passes.for_small_ram(training_graph(ModelRequest(source=model, batch=1, device=f"qemu-{BOARD}"))[1], 0)
    program, values = program_of(cases_of(step, 0, profile)[1]), dict(step.values)
    assert any(map(reads_ahead, program.instructions)) and len(program.queues) == 2
    batches = [dict(sample_inputs(program, seed)) for seed in range(2)]
    with measure.build_host([program], values) as host:
        expected = run_host(host, batches)
    memory = Memory(65536, int(profile.memory.stack_bytes.value))
    firmware = measure.build_firmware(program, values, BOARD, tmp_path / "fw", memory=memory)
    assert firmware.stack_bound_bytes is not None and firmware.stack_bound_bytes <= 2048
    run = measure.execute(firmware, batches)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == program.high_water_bytes


def test_moves_rows_of_a_table_on_its_card(tmp_path: Path) -> None:
    """Alone, in three steps: the bits of the host, and the stack that is set aside."""
    case = rows_case()
    program, values = case.program(), dict(case.graph.values)
    batches = [dict(sample_inputs(program, seed)) for seed in range(3)]
    with measure.build_host([program], values) as host:
        expected = run_host(host, batches)
    memory = Memory(65536, int(load_profile(f"qemu-{BOARD}").memory.stack_bytes.value))
    firmware = measure.build_firmware(program, values, BOARD, tmp_path, memory=memory)
    assert firmware.stack_bound_bytes is not None and firmware.stack_bound_bytes <= memory.stack_bytes
    run = measure.execute(firmware, batches)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == program.high_water_bytes
    assert run.stack_bytes is not None and run.stack_bytes <= firmware.stack_bound_bytes


@pytest.mark.long
def test_trains_on_images_larger_than_its_ram(solve: Solve, tmp_path: Path) -> None:
    """The training program writes each one to the card, block by block, and the step reads it in bands."""
    solved = solve("picture", 1, f"qemu-{BOARD}", "64KiB", "auto")
    image = inputs_on_store(solved.program)[0]
    assert image.operand.type.size_bytes > 65536
    firmware = measure.build_firmware(solved.program, solved.values, BOARD, tmp_path, memory=solved.memory)
    run, expected = measure.execute(firmware, solved.batches(2)), solved.on_host(2)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == solved.program.high_water_bytes
