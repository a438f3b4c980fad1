"""Writes a directory of C that builds with one `make`, or with one line of a compiler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from poetc.codegen._boards import Board, Target, resolve
from poetc.codegen._check import ProgramError, check_program
from poetc.codegen._cores import Core
from poetc.codegen._firmware import (
    Memory,
    call_graph_flags,
    checkpoint_steps,
    layout,
    linker_script,
    makefile_lines,
    port_sources,
)
from poetc.codegen._image import constants_image, initial_pages, packed_state, state_image, store_image
from poetc.codegen._manifest import describe
from poetc.codegen._module import Module, header, source
from poetc.codegen._package import MODULES, as_package, init_source, package_readme
from poetc.codegen._readme import readme
from poetc.codegen._sources import runtime_sources
from poetc.codegen._state_file import model_identity, pack_state
from poetc.codegen.program import Program
from poetc.errors import UsageError
from poetc.graph import Value
from poetc.output_directory import Kind, replacing
from poetc.runtime import runtime_directory
from poetc.training.rates import Schedule

KIND = Kind("poetc-emit.json", "emitted C")
Numerics = Literal["portable", "fast"]


WARNINGS = "-Wall -Wextra -pedantic"
PRODUCTS = (
    "build",
    "__pycache__",
    "train",
    "libmodel.a",
    "libmodel.so",
    "firmware.elf",
    "firmware.map",
)  # of a Makefile
GOALS = {"program": "train", "library": "libmodel.a", "firmware": "firmware.elf", "package": "libmodel.so"}


def emit(
    programs: Sequence[Program],
    values: Mapping[str, Value],
    *,
    model: str,
    target: str,
    out_dir: Path | str,
    numerics: Numerics = "portable",
    board: str | None = None,
    memory: Memory | None = None,
    device: Core | None = None,
    checkpoint: int | None = None,
    schedule: Schedule | None = None,
    bench: Mapping[str, str] | None = None,
    package: bool = False,
    force: bool = False,
    copies: list[str] | None = None,
) -> Path:
    """Write the sources of `programs` (the main one first; they share state and constants) to `out_dir`; returns it.

    `numerics`: "portable" gives the same bits on every target (no contraction to fused multiply-add); "fast" lets the
    compiler contract. `board`: whose memory map firmware is linked for, by default the target's usual one; `memory`:
    how much of its RAM. `device`: the core that the schedule is for; where it suits the target, its flags are taken.
    `schedule`: of the learning rate, which the program of a host or board follows; default: it stays as it is.
    `checkpoint`: firmware saves its state after so many steps, 0: never, None: as the board does.
    `bench`: files by name that firmware for measurements needs; its program is then bench.c instead of train.c.
    `package`: a Python package around the library instead of a program, for a target with an operating system.
    Of an earlier emission in `out_dir` only unchanged files are replaced or removed. UsageError names a file that the
    user added or changed, if it is in the way. With `force` such a file is renamed, and `copies` gets the new name.
    Raises UsageError for an unknown target too. The bytes written depend on nothing else than the arguments and this
    version of poetc.
    """
    chosen, its_board = resolve(target, board, numerics == "portable", device)
    if package:
        chosen = as_package(chosen)
    module = Module(model, tuple(programs), schedule)
    _check_shared(module)
    _check_schedule(module, chosen)
    out = Path(out_dir)
    kind = KIND if bench is None else replace(KIND, option="--emit")
    with replacing(out, kind, force=force) as staging:
        steps = checkpoint_steps(module.programs[0], chosen, its_board, checkpoint)
        identity = _write(staging.directory, module, values, chosen, its_board, memory, numerics, steps, bench)
        staging.document = {
            "model": model,
            "target": target,
            "programs": [p.name for p in programs],
            **describe(module, identity),
        }
    if copies is not None:
        copies += staging.copies
    return out


def share_layout(a: Program, b: Program) -> bool:
    """Whether two programs have the same state in the same places, and one's constants are among the other's."""
    state = [[(s.name, s.operand) for s in p.state] for p in (a, b)]
    constants = sorted((set(p.constants) for p in (a, b)), key=len)
    return state[0] == state[1] and constants[0] <= constants[1]


def _check_shared(module: Module) -> None:
    for program in module.programs:
        check_program(program)
        if not share_layout(program, module.programs[0]):
            raise ProgramError(f"{program.name} and {module.programs[0].name} lay out state or constants differently")


def _check_schedule(module: Module, target: Target) -> None:
    """Raises UsageError where the emitted program could not follow the schedule of the learning rate."""
    schedule = module.schedule
    if schedule is None:
        return
    if module.learning_rate() is None:
        raise UsageError(f"--schedule {schedule}: the learning rate does not live in RAM; solve with --state ram")
    if target.name != "host" and schedule.needs_steps:
        raise UsageError(f"--schedule {schedule}: give the number of steps too, as in {schedule.kind}:steps=2000")
    if "device" in target.ports and schedule.kind == "plateau":
        raise UsageError(f"--schedule {schedule}: the program of {target.name} has no validation losses")


def images(module: Module, values: Mapping[str, Value]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each image that the programs of a model need."""
    main = module.programs[0]
    if main.state_bytes:
        yield "state.bin", packed_state(main, values)
    if module.flash_bytes:
        yield "constants.bin", constants_image(module.constants_program(), values)
    if any(p.image for p in main.pages):
        yield "store.img", store_image(main, values)


def identity_of(model: str, programs: Sequence[Program], values: Mapping[str, Value]) -> int:
    """The number that tells the state of an emission of `programs` from that of others: see `emit`."""
    module = Module(model, tuple(programs))
    return model_identity([source(module).encode(), *(data for _, data in images(module, values))])


def initial_state(program: Program, values: Mapping[str, Value], identity: int) -> bytes:
    """The trained.bin of `program` before its first step, for the emission that has this identity."""
    arena = np.frombuffer(state_image(program, values), np.uint8)
    pages = initial_pages(program, values)
    return pack_state(program, identity, 0, arena, lambda page: pages[page])


def _write(
    directory: Path,
    module: Module,
    values: Mapping[str, Value],
    target: Target,
    board: Board | None,
    memory: Memory | None,
    numerics: Numerics,
    checkpoint: int,
    bench: Mapping[str, str] | None,
) -> int:
    """Write everything but the manifest; returns the identity of the model."""
    files: dict[str, bytes] = {"model.c": source(module).encode()}
    files |= images(module, values)
    # A schedule of the learning rate does not make another model.
    identity = identity_of(module.model, module.programs, values) if module.schedule else model_identity(files.values())
    files["model.h"] = header(module, identity).encode()
    files["model_data.S"] = _data(module, files).encode()
    copies = {f"runtime/{name}": runtime_directory() / name for name in runtime_sources(module.symbols)}
    copies |= port_sources(target, board, "train.c" if bench is None else "bench.c")
    files |= {name: text.encode() for name, text in (bench or {}).items()}
    if target.build == "firmware" and board is not None:
        image_bytes = sum(len(data) for name, data in files.items() if name.endswith(".bin"))
        files["link.ld"] = linker_script(layout(board, memory, module.arena_bytes, image_bytes)).encode()
    sources = sorted(n for n in (*files, *copies) if n.endswith((".c", ".S")))
    files["Makefile"] = _makefile(target, sources, numerics, checkpoint).encode()
    if target.build == "package":
        files |= {"__init__.py": init_source(module).encode(), "README.md": package_readme(module, target).encode()}
        copies |= {name: runtime_directory() / name for name in MODULES}
    else:
        one_line = _one_line(target, sources, numerics, checkpoint)
        files["README.md"] = readme(module, target, board, numerics, checkpoint, one_line).encode()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    for name, path in copies.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, directory / name)
    return identity


def _data(module: Module, files: Mapping[str, bytes]) -> str:
    """The images as assembly: `.incbin` is fast to compile for any size, and %progbits suits every ELF."""
    lines = ["/* The initial state and the constants, read-only. */"]
    lines.append('    .section .rodata.poetc, "a", %progbits')
    for name in ("state", "constants"):
        if f"{name}.bin" in files:
            symbol = f"{module.prefix}_{name}"
            lines += ["    .balign 16", f"    .global {symbol}", f"    .type {symbol}, %object", f"{symbol}:"]
            lines += [f'    .incbin "{name}.bin"', f"    .size {symbol}, . - {symbol}"]
    return "\n".join([*lines, '    .section .note.GNU-stack, "", %progbits', ""])


def _compiler_flags(numerics: Numerics) -> str:
    return f"-std=c99 {WARNINGS} -ffp-contract={'off' if numerics == 'portable' else 'fast'}"


def _include_flags(sources: Sequence[str]) -> str:
    """Folders of the runtime are its rooms; a deeper file is named by its way from there."""
    rooms = {"/".join(s.split("/")[: 2 if s.startswith("runtime/") else 1]) for s in sources if "/" in s}
    return " ".join(["-I.", "-Iruntime/include", *(f"-I{room}" for room in sorted(rooms))])


def _makefile(target: Target, sources: Sequence[str], numerics: Numerics, checkpoint: int) -> str:
    objects = [f"build/{Path(s).with_suffix('.o').as_posix()}" for s in sources]
    library = [o for o in objects if o != "build/main.o"]
    goal = GOALS[target.build]
    lines = [
        f"# `make` builds {goal}. CC, CROSS_COMPILE, CFLAGS (optimisation and processor) and LDFLAGS may be given.",
        f"CROSS_COMPILE ?= {target.cross_compile}".rstrip(),
        "ifeq ($(origin CC),default)",
        "CC = $(CROSS_COMPILE)gcc",
        "endif",
        "ifeq ($(origin AR),default)",
        "AR = $(CROSS_COMPILE)ar",
        "endif",
        f"CFLAGS ?= {target.flags}",
        f"POETC_CFLAGS = {_compiler_flags(numerics)} -ffunction-sections -fdata-sections{call_graph_flags(target)}"
        + " -fPIC" * (target.build == "package"),
        f"CPPFLAGS += {_include_flags(sources)}",
        *_thread_options(target),
        *_program_options(target, checkpoint),
        "",
        *_make_list("LIBRARY", library),
        "",
        f"all: {goal}",
        "",
    ]
    if target.build == "program":
        lines += [
            f"train: {'build/main.o ' if 'main.c' in sources else ''}$(LIBRARY)",
            "\t$(CC) $(CFLAGS) -Wl,--gc-sections -o $@ $^ $(LDFLAGS) $(if $(THREADS),-pthread)",
            "",
            "# The same code as a shared library: build it with CFLAGS='-O2 -fPIC'.",
        ]
    if target.hosted:
        lines += [
            "libmodel.so: $(LIBRARY)",
            "\t$(CC) $(CFLAGS) -shared -o $@ $^ $(LDFLAGS) $(if $(THREADS),-pthread)",
            "",
        ]
    if target.build == "firmware":
        lines += makefile_lines(target)
    lines += [
        "libmodel.a: $(LIBRARY)",
        "\trm -f $@",
        "\t$(AR) rcs $@ $^",
        "",
        "build/%.o: %.c",
        "\t@mkdir -p $(dir $@)",
        "\t$(CC) $(POETC_CFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<",
        "",
        "build/%.o: %.S",
        "\t@mkdir -p $(dir $@)",
        "\t$(CC) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<",
        "",
        "build/model_data.o: $(wildcard *.bin)",
        "",
        "clean:",
        f"\trm -rf {' '.join(PRODUCTS)}",
        "",
        ".PHONY: all clean",
        "-include $(LIBRARY:.o=.d)",
        "",
    ]
    return "\n".join(lines)


def _thread_options(target: Target) -> list[str]:
    if not target.hosted:
        return []
    return [
        "# THREADS=N: large kernels run in N threads, or fewer if the environment's POETC_THREADS says so: same bits.",
        "# After a change: make clean.",
        "THREADS =",
        "POETC_CFLAGS += $(if $(THREADS),-DPOETC_THREADS=$(THREADS) -pthread)",
    ]


def _program_options(target: Target, checkpoint: int) -> list[str]:
    if "device" not in target.ports:
        return []
    return [
        "# State is saved to the store after so many steps (0: never); GRADIENTS=1 logs a checksum of them. After a",
        "# change: make clean.",
        f"CHECKPOINT_STEPS ?= {checkpoint}",
        "GRADIENTS ?=",
        "CPPFLAGS += -DPOETC_CHECKPOINT_STEPS=$(CHECKPOINT_STEPS) $(if $(GRADIENTS),-DPOETC_LOG_GRADIENTS)",
        *_range_option(target),
    ]


def _range_option(target: Target) -> list[str]:
    """Firmware has no room for a look at ranges."""
    if not target.hosted:
        return []
    return [
        "# ANY_RANGE=1: inputs are trained on that look as if nobody had scaled them. After a change: make clean.",
        "ANY_RANGE ?=",
        "CPPFLAGS += $(if $(ANY_RANGE),-DPOETC_ANY_RANGE)",
    ]


def _make_list(name: str, items: Sequence[str]) -> list[str]:
    return [f"{name} = \\", *(f"  {item} \\" for item in items[:-1]), f"  {items[-1]}"]


def _one_line(target: Target, sources: Sequence[str], numerics: Numerics, checkpoint: int) -> str:
    """The compiler's command that does without make."""
    flags = f"{_compiler_flags(numerics)} {target.flags} {_include_flags(sources)}"
    if checkpoint:
        flags += f" -DPOETC_CHECKPOINT_STEPS={checkpoint}"
    return f"{target.cross_compile}gcc {flags} {' '.join(sources)} " + ("-o train" if target.hosted else "-c")
