"""`poetc emit`: from a solved directory to C, and the bytes that it needs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from poetc import artifact, boards, measure
from poetc.artifact import Artifact
from poetc.boards import Numerics
from poetc.commands.programs import (
    all_programs,
    arena_ram_bytes,
    graph_of,
    memory_of,
    numerics_of,
    require_ram,
    require_room,
    switches_of,
    values_of,
)
from poetc.commands.weights import require_floats
from poetc.devices import format_bytes
from poetc.emit import (
    GOALS,
    LAYOUTS,
    Build,
    FirmwareSize,
    Form,
    Memory,
    Part,
    Sections,
    bank_sections,
    bank_starts,
    emit_models,
    firmware_size,
    is_measured,
    shaped,
)
from poetc.errors import UsageError, nearest
from poetc.events import Progress, silent
from poetc.program import state_in_ram_bytes, store_blocks
from poetc.runtime import STACK_BYTES, WIDE_NESTED_STACK_BYTES
from poetc.training.rates import parse as rates_of


def emit(
    directories: Path | Sequence[Path],
    target: str | None,
    out: Path,
    progress: Progress = silent,
    *,
    board: str | None = None,
    numerics: Numerics | None = None,
    checkpoint: int | None = None,
    package: bool = False,
    schedule: str | None = None,
    force: bool = False,
    layout: str = "makefile",
    names: Sequence[str] = (),
    opt_level: str = "",
    sections: Sequence[str] = (),
    share_arena: bool = False,
    fleet: bool = False,
) -> dict[str, Any]:
    """Write C for `target` (and `board`, for firmware) to `out`; returns its needs in bytes.

    `package`: as a Python package, its library built where the compiler is installed. `force`: files there that the
    user changed are replaced, and copies kept. Of several directories one library is made; the symbols of each begin
    with one of `names`. `layout`, `opt_level`, `sections` (as `arena=.axi_sram`) and `share_arena`: as `codegen.Form`
    says. `fleet`: firmware that a gateway drives. `board` may be the folder of a board of the user's own. `target`
    None: the board's; without one this machine, or any core where only a library can be made.
    """
    paths = [directories] if isinstance(directories, Path) else list(directories)
    if len(names) > len(paths):
        raise UsageError(f"--name {names[len(paths)]}: there are {len(paths)} directories, and a name for each already")
    form = Form(layout, opt_level, shared_arena=share_arena)
    if target is None and board is not None:
        target = boards.find_board(board).target
    if target is None:
        target = LAYOUTS[layout].target or ("host" if len(paths) == 1 and LAYOUTS[layout].programs else "c99")
    rates = None if schedule is None else rates_of(schedule)
    solved = [artifact.read(path) for path in paths]
    form = replace(form, sections=Sections.parse(sections, [b.name for b in solved[0].problem.banks]))
    for one in solved if fleet else ():
        require_floats(one, "--fleet")
    notes = [note for one in solved for note in one.notes]  # such as absent weights
    device = _core(solved[0])
    numerics = numerics_of_plans(solved, paths, target, board, numerics)
    chosen, its_board = boards.resolve(target, board, numerics, device)
    chosen = shaped(chosen, form, len(paths), package)
    for one in solved:
        core = _core(one)
        if core is not None:
            notes += boards.check_device(target, board, core, one.problem.device, chosen.build)
    progress("lowering")
    all_names = [*names, *[""] * (len(solved) - len(names))]
    for one in solved:
        _require_banks(one, chosen, its_board, fleet)
    form = _with_banks(form, solved[0], chosen)
    parts = [_part(one, name, chosen, its_board, form.sections) for one, name in zip(solved, all_names, strict=True)]
    size = None
    if chosen.build == "firmware" and not opt_level:
        instead = "" if board is not None else _own_board(solved[0], target, its_board)
        size = _firmware_size(parts[0], its_board, numerics, memory_of(solved[0]), checkpoint, instead)
    progress("writing C")
    copies: list[str] = []
    build = Build(
        target=target,
        numerics=numerics,
        board=board,
        memory=memory_of(solved[0]),
        device=device,
        checkpoint=checkpoint,
        package=package,
        schedule=rates,
        fleet=fleet,
        threads=max(int(one.summary.get("threads", 1)) for one in solved),
    )
    emit_models(parts, form, build, out, force=force, copies=copies)
    if chosen.build == "firmware" and its_board is not None:
        notes += _small_stack(memory_of(solved[0]).stack_bytes, its_board)
    if package:
        progress("compiling")
        notes += _build_package(out, f"{chosen.cross_compile}gcc")
    for one, part in zip(solved, parts, strict=True):
        notes += _larger(one, part)
        if part.programs[0].banks and len(part.programs) == 1 and one.inference is not None:
            last = part.programs[0].banks[-1].name
            notes.append(
                f"no programs for predictions and evaluation: they keep all tensors in {last}, without room there"
            )
    programs = [program for part in parts for program in part.programs]
    trained = [part.programs[0] for part in parts]
    arenas = [max(arena_ram_bytes(program) for program in part.programs) for part in parts]
    return {
        "out": str(out),
        "target": target,
        "layout": layout,
        "board": its_board.name if its_board is not None and chosen.build != "library" else None,
        "device": solved[0].problem.device,
        "core": device.name if device is not None else None,
        "flags": chosen.flags,
        "makes": GOALS["package" if package else chosen.build],
        "library": str(out / "libmodel.so") if package and (out / "libmodel.so").exists() else None,
        "models": [part.name or part.model for part in parts],
        "programs": list(dict.fromkeys(program.name for program in programs)),
        "arena_bytes": max(arenas) if share_arena else sum(arenas),
        "train_arena_bytes": (max if share_arena else sum)(arena_ram_bytes(p) for p in trained),
        "state_bytes": sum(state_in_ram_bytes(p) if p.banks else p.state_bytes for p in trained),
        "flash_bytes": sum(max(program.flash_bytes for program in part.programs) for part in parts),
        "store_bytes": sum(
            max(store_blocks(p) for p in part.programs) * p.block_bytes for part, p in zip(parts, trained, strict=True)
        ),
        "steps": sum(len(p.instructions) for p in trained),
        "firmware_flash_bytes": size.flash_bytes if size else None,
        "firmware_ram_bytes": size.ram_bytes if size else None,
        "copies": copies,
        "notes": notes,
    }


def _require_banks(solved: Artifact, target: boards.Target, board: boards.Board | None, fleet: bool) -> None:
    """UsageError where the arena would have to be in one piece, and was solved for banks of RAM."""
    if not solved.problem.banks:
        return
    if target.build == "library":
        return
    if target.build != "firmware" or fleet:
        bank_starts(None, solved.problem, solved.plan, memory_of(solved))
    if board is not None:
        bank_starts(board, solved.problem, solved.plan, memory_of(solved))


def _with_banks(form: Form, solved: Artifact, target: boards.Target) -> Form:
    """With a section for each bank that the arena of a library is in."""
    if target.build != "library" or not solved.problem.banks:
        return form
    banks = solved.profile.memory.banks if solved.profile is not None else {}
    usual = {name: bank.section for name, bank in banks.items() if bank.section}
    return replace(form, sections=bank_sections(form.sections, solved.problem, solved.plan, usual))


def _part(solved: Artifact, name: str, target: boards.Target, board: boards.Board | None, sections: Sections) -> Part:
    bundle = switches_of(solved)[0] if solved.others else None
    starts = None
    if target.build == "library" and solved.problem.banks:
        starts = {b.bank: b.address for b in sections.banks if b.address is not None}
    programs = all_programs(solved, bundle, board, starts)
    if starts is not None:  # predictions keep all in the last bank
        programs = [p for p in programs if p.arena_bytes <= programs[0].banks[-1].end]
    if target.build == "firmware":
        # Firmware has RAM for the training step; inference and evaluation come along where they need no more.
        programs = [p for p in programs if p.arena_bytes <= programs[0].arena_bytes]
    model = graph_of(solved).name.removesuffix(".onnx")
    return Part(programs, values_of(solved), model, name, bundle)


def _larger(solved: Artifact, part: Part) -> list[str]:
    """A note where another program than training takes more than the budget."""
    training, budget_bytes = part.programs[0], solved.problem.budget_bytes
    larger = [p for p in part.programs if p.arena_bytes > training.arena_bytes]
    if not larger or solved.problem.base_bytes + max(p.arena_bytes for p in larger) <= budget_bytes:
        return []
    return [
        f"training fits the budget of {budget_bytes:,} bytes with an arena of {training.arena_bytes:,};"
        f" {' and '.join(f'the program {p.name} takes one of {p.arena_bytes:,}' for p in larger)}"
    ]


def _small_stack(stack_bytes: int, board: boards.Board) -> list[str]:
    """A note where the profile sets less stack aside than the deepest kernel may need: `poetc run` refuses it then."""
    needed_bytes = STACK_BYTES + (WIDE_NESTED_STACK_BYTES if board.trap == "mmu" else 0)
    if stack_bytes >= needed_bytes:
        return []
    return [
        f"the device profile sets {stack_bytes:,} bytes of stack aside, kernels may need {needed_bytes:,}; raise its"
        " memory.stack_bytes and solve again, or see what poetc run finds"
    ]


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
    measure.make_library(out, f"CC={compiler}")
    shutil.rmtree(out / "build", ignore_errors=True)
    return []


def _own_board(solved: Artifact, target: str, usual: boards.Board | None) -> str:
    """The ways to firmware for the device itself, where the usual board of the target is too small for it."""
    profile, device = solved.profile, solved.problem.device
    if usual is None or profile is None or usual.name in device:
        return ""
    own = f"{device} with {format_bytes(profile.ram_bytes)} of RAM"
    return (
        f"; {usual.name} is the usual board of {target}: for the {own} give --board DIR, or the --layout of a project"
    )


def _firmware_size(
    part: Part,
    board: boards.Board | None,
    numerics: Numerics,
    memory: Memory,
    checkpoint: int | None,
    instead: str = "",
) -> FirmwareSize | None:
    """Sizes of the emitted program, if it is firmware; UsageError where the board has no room for it.

    `instead`: another way out, for the message.
    """
    program = part.programs[0]
    if board is None or board.code is None or program.banks:
        return None
    if not is_measured(board):
        require_ram(program, part.values, board, memory, instead)
        return None
    size = firmware_size(program, board, values=part.values, numerics=numerics, memory=memory, checkpoint=checkpoint)
    require_room(program, board, size, instead)
    return size


def numerics_of_plans(
    solved: Sequence[Artifact], paths: Sequence[Path], target: str, board: str | None, asked: Numerics | None
) -> Numerics:
    """Those of all models of a library, which has its kernels once."""
    if target not in boards.TARGETS:
        raise UsageError(f"unknown target {target!r}: {nearest(target, boards.TARGETS)}")
    of_each = [numerics_of(one, target, board, asked) for one in solved]
    for path, other in zip(paths, of_each, strict=True):
        if other != of_each[0]:
            raise UsageError(
                f"{path} was solved for {other} numerics, {paths[0]} for {of_each[0]}: choose for both with --numerics"
            )
    return of_each[0]


def _core(solved: Artifact) -> boards.Core | None:
    if solved.profile is None:
        return None
    cpu = solved.profile.cpu
    return boards.Core(cpu.core, cpu.fpu, cpu.simd)
