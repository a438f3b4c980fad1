"""Firmware that measures a real board: the sweep of shapes as one program that prints its times as CSV."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from poetc import boards, emit
from poetc.benchmark._measure import CODE_BYTES, Measurement, paging_program, plain_program, rows_of, step_of
from poetc.benchmark._networks import board_network
from poetc.devices import DeviceProfile, load_profile
from poetc.errors import UsageError
from poetc.graph import DType, Graph, TrainingGraph
from poetc.program import Program, all_inputs

LINUX = "aarch64"  # the port of programs for Linux with 64 bits
LINUX_BYTES = 1 << 20  # of the tensors of such a program, whatever RAM there is
SPARE_BYTES = 8 << 10  # of RAM, for the times and the port's variables


def emit_bench(device: str, out: Path, *, board: str | None = None, force: bool = False) -> tuple[list[str], int]:
    """Write firmware for `device` to `out`, or a program where it runs Linux with 64 bits.

    Returns the copies that `force` made there (see `codegen.emit`), and how many steps it measures. `board` is one of
    codegen.BOARDS, or the folder of a board, whose start-up and memory map are taken. By default it is the one that
    stands for the device. Raises UsageError.
    """
    profile = load_profile(device)
    core = boards.Core(profile.cpu.core, profile.cpu.fpu, profile.cpu.simd)
    like = boards.board_like(profile.name, profile.cpu.core, profile.cpu.fpu)
    on_linux = board is None and like is None and "a64" in core.features
    name = board or (like.name if like is not None else LINUX if on_linux else None)
    if name is None or (boards.find_board(name).ram is None and not on_linux):
        raise UsageError(
            f"no firmware can be made for {profile.name} ({profile.cpu.core}); --board names a board's port"
        )
    step, program = _program(profile, LINUX_BYTES if on_linux else profile.ram_bytes)
    rows = rows_of("sweep", step, program, [0] * len(program.instructions), profile)
    copies: list[str] = []
    target = boards.TARGETS[boards.find_board(name).target]
    emit.emit(
        [program],
        step.values,
        model="model",
        target=target.name,
        out_dir=out,
        board=None if board is None and target.board == name else name,
        device=core,
        checkpoint=0,
        bench={
            "bench_rows.h": _header(rows, program, step, int(profile.cpu.clock_hz.value)),
            **({"data.bin": ""} if on_linux else {}),  # which the port opens
        },
        force=force,
        copies=copies,
    )
    return copies, len(rows)


def _program(profile: DeviceProfile, room_bytes: int) -> tuple[TrainingGraph, Program]:
    """As many parts of the sweep as fit `room_bytes` of the device, with some tensors paged if it has a store."""
    most_bytes, total = room_bytes, 0
    while most_bytes != total:  # the last time for one part alone
        graph, total = board_network(most_bytes)
        step, program = _lowered(graph, profile)
        image_bytes = program.state_bytes + program.flash_bytes + CODE_BYTES
        fits = program.arena_bytes + profile.base_bytes + SPARE_BYTES <= profile.ram_bytes
        if fits and (profile.flash_bytes is None or image_bytes <= profile.flash_bytes):
            return step, program
        most_bytes = max(total * 3 // 4, 1) if most_bytes >= total else total
    raise UsageError(f"{profile.name} has too little RAM for any of the networks")


def _lowered(graph: Graph, profile: DeviceProfile) -> tuple[TrainingGraph, Program]:
    step = step_of(graph, "sgd")
    return step, (paging_program if profile.default_store else plain_program)(step, profile)


def _header(rows: list[Measurement], program: Program, step: TrainingGraph, clock_hz: int) -> str:
    """The tables for bench.c: the columns, each line up to its time, and which inputs are floats."""
    names = [f.name for f in fields(Measurement)]
    assert names[-1] == "time_ns"
    lines = ["/* The rows of the log. Made by poetc. */", "#include <stdint.h>", ""]
    lines += [f"#define POETC_BENCH_CLOCK_HZ {clock_hz}u", f"#define POETC_BENCH_COLUMNS {json.dumps(','.join(names))}"]
    lines += ["", "static const char *const poetc_bench_rows[] = {"]
    for row in rows:
        loops = " ".join(f"{name}={n}" for name, n in row.loops.items())
        operator = row.operator.replace(",", ";").replace('"', "'")
        caches = f"{row.first_cache_bytes},{row.cache_bytes}"
        lines.append(f"    {json.dumps(f'{row.network},{operator},{row.cost_class},{row.simd},{caches},{loops},')},")
    floats = [int(step.tensors[b.name].dtype is DType.F32) for b in all_inputs(program)]
    lines += ["};", "", f"static const uint8_t poetc_bench_floats[] = {{{', '.join(map(str, floats))}}};", ""]
    return "\n".join(lines)
