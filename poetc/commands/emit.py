"""`poetc emit`: from a solved directory to C, and the bytes that it needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from poetc import artifact, codegen
from poetc.artifact import Artifact
from poetc.codegen.program import Program
from poetc.commands.programs import all_programs, graph_of, memory_of, require_room, values_of
from poetc.events import Progress, silent
from poetc.training.rates import parse as rates_of


def emit(
    directory: Path,
    target: str,
    out: Path,
    progress: Progress = silent,
    *,
    board: str | None = None,
    numerics: codegen.Numerics = "portable",
    checkpoint: int | None = None,
    package: bool = False,
    schedule: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write C for `target` (and `board`, for firmware) to `out`; returns its needs in bytes.

    `package`: as a Python package, its library built where the compiler is installed. `force`: files there that the
    user changed are replaced, and copies kept.
    """
    rates = None if schedule is None else rates_of(schedule)
    solved = artifact.read(directory)
    device = _core(solved)
    chosen, its_board = codegen.resolve(target, board, numerics == "portable", device)
    notes = list(solved.notes)  # Such as weights that were absent: the emitted program starts from other numbers.
    if device is not None:
        notes += codegen.check_device(target, board, device, solved.problem.device)
    progress("lowering")
    programs = all_programs(solved)
    training = programs[0]
    if chosen.build == "firmware":
        # Firmware has RAM for the training step; inference and evaluation come along where they need no more.
        programs = [p for p in programs if p.arena_bytes <= training.arena_bytes]
    size = _firmware_size(training, its_board, numerics, memory_of(solved), checkpoint)
    progress("writing C")
    copies: list[str] = []
    codegen.emit(
        programs,
        values_of(solved),
        model=graph_of(solved).name.removesuffix(".onnx"),
        target=target,
        out_dir=out,
        numerics=numerics,
        board=board,
        memory=memory_of(solved),
        device=device,
        checkpoint=checkpoint,
        package=package,
        schedule=rates,
        force=force,
        copies=copies,
    )
    if package:
        progress("compiling")
        notes += _build_package(out, f"{chosen.cross_compile}gcc")
    arena_bytes, budget_bytes = max(program.arena_bytes for program in programs), solved.problem.budget_bytes
    larger = [p for p in programs if p.arena_bytes > training.arena_bytes]
    if larger and solved.problem.base_bytes + arena_bytes > budget_bytes:
        notes.append(
            f"training fits the budget of {budget_bytes:,} bytes with an arena of {training.arena_bytes:,};"
            f" {' and '.join(f'the program {p.name} takes one of {p.arena_bytes:,}' for p in larger)}"
        )
    return {
        "out": str(out),
        "target": target,
        "board": its_board.name if its_board is not None else None,
        "device": solved.problem.device,
        "core": device.name if device is not None else None,
        "flags": chosen.flags,
        "makes": codegen.GOALS["package" if package else chosen.build],
        "library": str(out / "libmodel.so") if package and (out / "libmodel.so").exists() else None,
        "programs": [program.name for program in programs],
        "arena_bytes": arena_bytes,
        "train_arena_bytes": training.arena_bytes,
        "state_bytes": training.state_bytes,
        "flash_bytes": max(program.flash_bytes for program in programs),
        "store_bytes": max(codegen.store_blocks(p) for p in programs) * training.block_bytes,
        "steps": len(training.instructions),
        "firmware_flash_bytes": size.flash_bytes if size else None,
        "firmware_ram_bytes": size.ram_bytes if size else None,
        "copies": copies,
        "notes": notes,
    }


def _build_package(out: Path, compiler: str) -> list[str]:
    """Build the library and keep it alone; a note where it cannot be built here."""
    (out / "libmodel.so").unlink(missing_ok=True)  # of an earlier emission
    shutil.rmtree(out / "build", ignore_errors=True)
    missing = [name for name in ("make", compiler) if shutil.which(name) is None]
    if missing:
        return [
            f"{missing[0]} not found: libmodel.so is not built; run `make` in {out}, or `make CROSS_COMPILE=` there"
            " on the device itself"
        ]
    codegen.make_library(out, f"CC={compiler}")
    shutil.rmtree(out / "build", ignore_errors=True)
    return []


def _firmware_size(
    program: Program,
    board: codegen.Board | None,
    numerics: codegen.Numerics,
    memory: codegen.Memory,
    checkpoint: int | None,
) -> codegen.FirmwareSize | None:
    """Sizes of the emitted program, if it is firmware; UsageError where the board has no room for it."""
    if board is None or board.code is None:
        return None
    size = codegen.firmware_size(program, board, numerics=numerics, memory=memory, checkpoint=checkpoint)
    require_room(program, board, size)
    return size


def _core(solved: Artifact) -> codegen.Core | None:
    if solved.profile is None:
        return None
    cpu = solved.profile.cpu
    return codegen.Core(cpu.core, cpu.fpu, cpu.simd)
