"""From the names of a target and a board to the compiler, its flags and the memory map."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from poetc.boards._boards import Board, Target
from poetc.boards._cores import Core
from poetc.boards._files import BOARDS, TARGETS, read_board
from poetc.errors import UsageError, nearest

# How a multiply-add rounds. "separate": the product, then the sum. "fused": once.
# "fast" rounds once in Helium's vectors, which take subnormal numbers for zero.
Numerics = Literal["separate", "fused", "fast"]


def find_board(name: str) -> Board:
    """The board of this name, or the one that a folder of the user's describes. Raises UsageError."""
    if name in BOARDS:
        return BOARDS[name]
    if os.sep in name or Path(name).is_dir():
        return read_board(Path(name))
    hint = nearest(next(iter(close_names(name)), name), sorted(BOARDS))
    raise UsageError(f"unknown board {name!r}: {hint}; the folder of a board of your own does, too")


def close_names(name: str) -> list[str]:
    """Boards whose names contain this one, or are spelled nearly so; the likeliest first."""
    within = sorted((known for known in BOARDS if name and name.lower() in known), key=len)
    return within or difflib.get_close_matches(name.lower(), BOARDS, n=1)


def board_like(device: str, core: str, fpu: str) -> Board | None:
    """The board that stands for a device: the emulated one of that name, or the usual one with its core.

    None for cores that no firmware target is built for.
    """
    name = device.removeprefix("qemu-")
    if name in BOARDS and BOARDS[name].code is not None:
        return BOARDS[name]
    target = core.replace("plus", "") + ("f" if core == "cortex-m4" and fpu != "none" else "")
    if target in TARGETS and TARGETS[target].build == "firmware":
        return BOARDS[TARGETS[target].board]
    return None


def resolve(
    target: str, board: str | None, numerics: Numerics, device: Core | None = None
) -> tuple[Target, Board | None]:
    """The target with the flags and the compiler that hold for `board` (by default the target's own).

    They also hold for the core of the `device` that the schedule is for.

    Raises UsageError for an unknown name, a board that has another core, or numerics that the target has not.
    """
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}: {nearest(target, TARGETS)}")
    chosen, exact = TARGETS[target], numerics != "fast"
    known = numerics_of_target(chosen, built_for(chosen, board, device))
    if numerics not in known:
        raise UsageError(f"--numerics {numerics}: {target} has {' or '.join(known)}")
    name = board or chosen.board
    if not name:
        return replace(chosen, flags=_flags(chosen, None, None, exact, device)), None
    named_board = find_board(name)
    if named_board.target != target:
        raise UsageError(f"{name} is a board of target {named_board.target}, not of {target}")
    flags = _flags(chosen, named_board, board, exact, device)
    return replace(chosen, flags=flags, cross_compile=named_board.cross_compile or chosen.cross_compile), named_board


def numerics_flags(numerics: Numerics) -> str:
    """GCC's flags for these numerics. It fuses no multiplication and addition by itself."""
    return "-ffp-contract=off" + " -DPOETC_FUSED" * (numerics != "separate")


def numerics_of_target(target: Target, core: Core | None = None) -> tuple[Numerics, ...]:
    """Those that code for a target may have; `core`: that of the device, where it is known to differ."""
    core = core or target.core
    if core is None:
        return "separate", "fused"
    if not core.multiplies_and_adds:
        return ("separate",)
    return ("separate", "fused", "fast") if core.simd == "helium" else ("separate", "fused")


def _flags(target: Target, board: Board | None, asked: str | None, exact: bool, device: Core | None) -> str:
    usual = (board.flags if board is not None else "") or target.flags
    core = built_for(target, asked, device)
    if target.core is not None and core is not None and core.flags() != target.core.flags():
        return usual.replace(target.core.flags(), core.flags(exact=exact))
    return f"{usual} {target.exact_flags if exact else ''}".rstrip()


def built_for(target: Target, asked: str | None, device: Core | None) -> Core | None:
    """The core whose instructions the code has. None: any core's.

    The device's core, if it suits the target and the board that was `asked` for; else that of the board or the target.
    """
    core = (find_board(asked).core if asked else None) or target.core
    if core is None or device is None:
        return core
    if target.build == "library":
        suits = device.is_microcontroller
    elif target.hosted:
        suits = not asked and device.runs(core)
    else:  # with the precision that its FPU has
        suits = device.name == core.name and (device.fpu == "none") == (core.fpu == "none")
    return device if suits else core


def check_device(target: str, asked: str | None, core: Core, device: str, build: str | None = None) -> list[str]:
    """The note for a user whose code for `target` runs elsewhere than on `device`, which has `core`.

    The schedule is for `device`; `asked` is the board that the user asked for. `build` is the kind of result, by
    default the target's usual one. Raises UsageError for code that does not run there, unless the board was asked for.
    """
    chosen = TARGETS[target]
    built = built_for(chosen, asked, core)
    if built is None:
        return []
    if not core.runs(built):
        if asked:
            return [f"code for {asked} ({built}), as asked, does not run on {device} ({core}), which it was solved for"]
        ways = f"choose --target {_listed(_runnable(core))}"
        if chosen.board:
            ways += ", or name a --board to build for that one all the same"
        raise UsageError(
            f"{target}: code for a {built} does not run on {device} ({core}), which this was solved for; {ways}"
        )
    if asked or (build or chosen.build) != "firmware":
        return []
    notes = []
    board = BOARDS[chosen.board]
    if board.name != device.removeprefix("qemu-"):
        notes.append(
            f"firmware.elf is for the memory map and start-up of {board.name} ({board.title}); docs/how-to/port.md says"
            f" how they become {device}'s"
        )
    best = _runnable(core)[0]
    if best != target and core.is_microcontroller:
        notes.append(f"code for a {built} runs on {device}'s {core} but does not use all of it: --target {best} does")
    return notes


def _runnable(core: Core) -> list[str]:
    """Targets whose code runs on a core, those that use most of it first; last those of any core."""
    ranked = []
    for name, target in TARGETS.items():
        built = built_for(target, None, core)
        if built is not None and core.runs(built):
            ranked.append((target.build == "library", -len(built.features), name))
    return [*(name for *_, name in sorted(ranked)), *(["host"] if not ranked else []), "c99"]


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
