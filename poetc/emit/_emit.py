"""Writes a directory of C that builds with one `make`, or as a part of a firmware project."""

from __future__ import annotations

import functools
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poetc.boards import BOARDS, TARGETS, Board, Core, Numerics, Target, built_for, own_linker_script, resolve
from poetc.emit._dead_lines import without_dead_lines
from poetc.emit._firmware import (
    FLEET_PROGRAM,
    FRAME_BYTES,
    NO_SECTIONS,
    Memory,
    Sections,
    checkpoint_steps,
    formats_store,
    layout_of,
    linker_script,
    port_sources,
)
from poetc.emit._library_banks import bank_declarations, bank_parts, bank_script
from poetc.emit._manifest import describe
from poetc.emit._module import Module, generic_header, header, source
from poetc.emit._package import as_package
from poetc.emit._sources import runtime_sources
from poetc.emit._unused_kernels import without_unused
from poetc.emit.layouts import LAYOUTS, OPT_LEVELS, Contents, Emitted, Files, check_names
from poetc.emit.layouts._contents import arena_section
from poetc.emit.layouts.makefile import PRODUCTS, makefile_in, remove_outdated
from poetc.errors import UsageError
from poetc.graph import Value
from poetc.output_directory import Kind, replacing
from poetc.program import (
    Program,
    ProgramBundle,
    ProgramError,
    check_program,
    constants_image,
    initial_pages,
    inputs_on_store,
    pack_state,
    packed_pages,
    packed_state,
    state_image,
    store_image,
)
from poetc.runtime import runtime_directory
from poetc.runtime.layout import align
from poetc.training.rates import Schedule

PROCESSORS = runtime_directory() / "ports" / "processors"
KIND = Kind("poetc-emit.json", "emitted C", built=PRODUCTS)


@dataclass(frozen=True, slots=True)
class Part:
    """One model of an emission: its programs (the main one first; they share state and constants) and weights."""

    programs: Sequence[Program]
    values: Mapping[str, Value]
    model: str
    name: str = ""  # the beginning of its symbols; "": the model's name
    bundle: ProgramBundle | None = None  # the first programs are its plans


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of an emission.

    `layout` is one of LAYOUTS, `opt_level` one of OPT_LEVELS or "" for the target's.

    `shared_arena`: one arena for all models, of which one trains at a time.
    """

    layout: str = "makefile"
    opt_level: str = ""
    sections: Sections = NO_SECTIONS
    shared_arena: bool = False

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"unknown layout {self.layout!r}: choose from {', '.join(LAYOUTS)}")
        if self.opt_level and self.opt_level not in OPT_LEVELS:
            raise UsageError(f"unknown level {self.opt_level!r}: choose from {', '.join(OPT_LEVELS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The machine that an emission is for, and the program that it gets there.

    `numerics`: how multiply-adds round. `board`: whose memory map firmware is linked for, by default the target's usual
    one; `memory`: how much of its RAM. `device`: the core that the schedule is for. Where it suits the target, its
    flags are taken.
    `schedule`: of the learning rate, which the program of a host or board follows; default: it stays as it is.
    `checkpoint`: firmware saves its state after so many steps, 0: never, None: as the board does.
    `bench`: files by name that firmware for measurements needs; its program is then bench.c instead of train.c.
    `package`: a Python package around the library instead of a program, for a target with an operating system.
    `threads`: large kernels of a program for an operating system run in so many, unless `make` says otherwise.
    `only_used`: without the parts and kernels that no program calls, which takes the compiler less time.
    `fleet`: the program of the firmware is the one that a gateway drives over a serial line.
    """

    target: str
    numerics: Numerics = "separate"
    board: str | None = None
    memory: Memory | None = None
    device: Core | None = None
    checkpoint: int | None = None
    schedule: Schedule | None = None
    bench: Mapping[str, str] | None = None
    package: bool = False
    only_used: bool = False
    fleet: bool = False
    threads: int = 1

    @property
    def program(self) -> str:
        """The file of the folder `device` that has the program."""
        return FLEET_PROGRAM if self.fleet else "train.c" if self.bench is None else "bench.c"


def emit(
    programs: Sequence[Program],
    values: Mapping[str, Value],
    *,
    model: str,
    out_dir: Path | str,
    force: bool = False,
    copies: list[str] | None = None,
    bundle: ProgramBundle | None = None,
    **build: Any,
) -> Path:
    """Write the sources of one model: `programs` (the main one first; they share state and constants).

    `build` are the fields of `Build`, of which `target` is needed. Returns `out_dir`, as `emit_models` does.
    """
    part = Part(programs, values, model, bundle=bundle)
    return emit_models([part], Form(), Build(**build), out_dir, force=force, copies=copies)


def emit_models(
    parts: Sequence[Part],
    form: Form,
    build: Build,
    out_dir: Path | str,
    *,
    force: bool = False,
    copies: list[str] | None = None,
) -> Path:
    """Write the sources of one model or several in a `form` to `out_dir`; returns it.

    Several models are a library that has the runtime and each kernel once. UsageError where two have a name in common.
    Of an earlier emission in `out_dir` only unchanged files are replaced or removed. UsageError names a file that the
    user added or changed, if it is in the way. With `force` such a file is renamed, and `copies` gets the new name.
    Raises UsageError for an unknown target too. The bytes written depend on nothing else than the arguments and this
    version of poetc.
    """
    checkpoint = build.checkpoint
    chosen, its_board = resolve(build.target, build.board, build.numerics, build.device)
    chosen = shaped(chosen, form, len(parts), build.package)
    if parts[0].programs[0].arena_address is not None and chosen.build != "library":
        chosen = replace(chosen, flags=f"{chosen.flags} -DPOETC_BANKS")
    if chosen.build != "firmware" and checkpoint is None:
        checkpoint = 0 if chosen.build == "library" else None
    named = LAYOUTS[form.layout].named or len(parts) > 1
    modules = [Module(p.model, tuple(p.programs), build.schedule, p.name, named, p.bundle) for p in parts]
    for module in modules:
        _check_shared(module)
        _check_schedule(module, chosen)
    _check_form(modules, form, chosen)
    if build.fleet:
        _check_fleet(modules[0].programs[0], chosen, its_board)
    kind = KIND if build.bench is None else replace(KIND, option="--emit")
    steps = checkpoint_steps(modules[0].programs[0], chosen, its_board, 0 if build.fleet else checkpoint)
    models = [_emitted(m, p.values, form, chosen) for m, p in zip(modules, parts, strict=True)]
    check_names(models)
    formats = formats_store(
        modules[0].programs[0], its_board, steps, sum(len(d) for n, d in models[0].images.items() if n.endswith(".bin"))
    )
    if formats:
        pages = packed_pages(modules[0].programs[0], parts[0].values)
        models = [replace(models[0], images={**models[0].images, modules[0].image("pages.bin"): pages})]
    contents = Contents(
        models=tuple(models),
        runtime=_runtime(
            modules,
            chosen,
            built_for(TARGETS[build.target], build.board, build.device),
            only_used=build.only_used,
        ),
        target=chosen,
        board=its_board,
        numerics=build.numerics,
        sections=form.sections,
        arenas=named or (chosen.build == "library" and bool(form.sections.arena or form.sections.banks)),
        shared_arena=form.shared_arena,
        checkpoint=steps,
        formats=formats,
        threads=build.threads,
        opt_level=form.opt_level,
        port=port_sources(
            chosen,
            its_board,
            build.program,
            bundle=any(p.bundle for p in parts),
            queues=any(m.queues for m in modules) and build.program == "train.c",
        ),
        files={name: text.encode() for name, text in (build.bench or {}).items()},
    )
    contents = replace(contents, files={**contents.files, **_other_files(contents, build.memory)})
    out = Path(out_dir)
    old = makefile_in(out)
    with replacing(out, kind, force=force) as staging:
        _write(staging.directory, LAYOUTS[form.layout].place(contents))
        staging.document = _document(contents, build.target, form)
    remove_outdated(out, old)
    if copies is not None:
        copies += staging.copies
    return out


def shaped(target: Target, form: Form, models: int, package: bool) -> Target:
    """The target that is built in this form: with other flags, and a library where no program is possible."""
    if package:
        if form != Form() or models > 1:
            raise UsageError("--package: a Python package holds one model, in a layout of its own")
        return as_package(target)
    if form.opt_level:
        target = replace(target, flags=re.sub(r"-O\w+", form.opt_level, target.flags))
    if models > 1 or not LAYOUTS[form.layout].programs:
        return replace(target, build="library", ports=())
    return target


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
    if "device" in target.ports and schedule.of.needs_losses:
        raise UsageError(f"--schedule {schedule}: the program of {target.name} has no validation losses")


def _check_form(modules: Sequence[Module], form: Form, target: Target) -> None:
    if form.shared_arena and len(modules) == 1:
        raise UsageError("--share-arena: one model has no other to share its arena with")
    if target.build == "library" and any(m.programs[0].arena_address is not None for m in modules):
        if len(modules) > 1:
            raise UsageError("several models in one library need arenas in one piece; emit each model in banks apart")
    elif form.sections.banks:
        bank = form.sections.banks[0]
        raise UsageError(f"--section {bank.bank}={bank.section}: banks have sections of their own in a library alone")
    if form.sections and target.hosted:
        raise UsageError(f"--section: the operating system of {target.name} gives a program its memory")
    if form.sections.store and not any(p.image for m in modules for p in m.programs[0].pages):
        raise UsageError(
            f"--section store={form.sections.store}: no weights live on the store; solve with --state store"
        )


def _check_fleet(program: Program, target: Target, board: Board | None) -> None:
    """UsageError where no gateway can drive the firmware."""
    if board is None or not board.serial or target.build != "firmware":
        known = ", ".join(b.name for b in BOARDS.values() if b.serial)
        raise UsageError(f"--fleet: there is a serial line for firmware of the boards {known}")
    if any(page.slots > 1 for page in program.pages):
        raise UsageError("--fleet: some state lives on the store, where no gateway reaches it; solve with --state ram")
    for binding in inputs_on_store(program):
        raise UsageError(f"--fleet: input {binding.name!r} lies on the store, and is not read there; raise --budget")
    free = program.arena_bytes - align(program.state_bytes)
    if free < FRAME_BYTES:
        raise UsageError(f"--fleet: the arena has {free} bytes besides the state; a gateway needs {FRAME_BYTES}")


def images(module: Module, values: Mapping[str, Value]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each image that the programs of a model need."""
    main = module.programs[0]
    if main.state_bytes:
        yield "state.bin", packed_state(main, values)
    if module.flash_bytes:
        yield "constants.bin", constants_image(module.constants_program(), values)
    if any(p.image for p in main.pages):
        yield "store.img", store_image(main, values)


def initial_state(program: Program, values: Mapping[str, Value]) -> bytes:
    """The trained.bin of `program` before its first step."""
    arena = np.frombuffer(state_image(program, values), np.uint8)
    pages = dict(initial_pages(program, values))
    return pack_state(program, 0, arena, lambda page: pages[page])


def _emitted(module: Module, values: Mapping[str, Value], form: Form, target: Target) -> Emitted:
    images_by_name, text = dict(images(module, values)), source(module).encode()
    usual = Module(module.model, module.programs, bundle=module.bundle)
    # Neither a schedule of the learning rate nor other names make another model.
    emission = functools.reduce(
        lambda crc, data: zlib.crc32(data, crc),
        [text if module == usual else source(usual).encode(), *images_by_name.values()],
        0,
    )
    has_arena = module.named or (target.build == "library" and bool(form.sections.arena))
    store = form.sections.store if any(p.image for p in module.programs[0].pages) else ""
    parts = bank_parts(module, form.sections) if target.build == "library" else []
    declared = header(
        module,
        emission,
        arena_lines=bank_declarations(module, parts) if parts else (),
        arena_section=arena_section(form.sections) if has_arena else "",
        program_section=form.sections.arena,
        store_section=store,
    )
    files = {f"{module.stem}.c": text, f"{module.stem}.h": declared.encode()}
    if parts:
        files[f"{module.prefix}_banks.ld"] = bank_script(parts).encode()
    return Emitted(module, emission, files, {module.image(name): data for name, data in images_by_name.items()})


def _runtime(
    modules: Sequence[Module], target: Target, core: Core | None, *, only_used: bool
) -> Mapping[str, bytes | Path]:
    symbols = {symbol for module in modules for symbol in module.symbols}
    parts = {part for module in modules for part in module.parts}
    files = {f"runtime/{name}": path for name, path in runtime_sources(symbols, sorted(parts)).items()}
    if target.build == "library" and any(module.queues for module in modules):
        files |= {f"runtime/processors/{name}": PROCESSORS / name for name in ("poetc_processors.h", "rp2.c")}
    if core is not None and core.is_microcontroller:
        texts = without_dead_lines({name: path.read_text() for name, path in files.items()}, core)
        return {name: text.encode() for name, text in texts.items()}
    if not only_used:
        return files
    files.pop("runtime/src/poetc_task.c")  # of programs whose examples come one by one
    return without_unused(files, symbols)


def _other_files(contents: Contents, memory: Memory | None) -> dict[str, bytes]:
    """The files of a program beside its model and its port, by path: start-up, linker script, packages."""
    files: dict[str, bytes] = {}
    target, board = contents.target, contents.board
    if not contents.port:
        return files
    (model,) = contents.models
    if model.module.named:
        files["model.h"] = generic_header(model.module, model.emission, contents.sections.arena).encode()
    if target.build == "firmware" and board is not None:
        image_bytes = sum(len(data) for name, data in contents.images.items() if name.endswith(".bin"))
        main = model.module.programs[0]
        processors = max(1, len(main.queues)) if contents.has_processors else 1
        if processors > 1 and processors > board.processor_count:
            raise UsageError(
                f"{board.name} has {board.processor_count} processors, and the schedule is for {processors}; solve with"
                " --processors for fewer"
            )
        plan = layout_of(board, memory, main, model.module.arena_bytes, image_bytes, processors)
        own = own_linker_script(board)
        files["link.ld"] = linker_script(plan, contents.sections).encode() if own is None else own.read_bytes()
    return files


def _write(directory: Path, files: Files) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content)


def _document(contents: Contents, target: str, form: Form) -> dict[str, Any]:
    """The manifest: of one model as it is, of several in a list."""
    described = [
        {
            "model": model.module.model,
            **({"name": model.module.prefix} if model.module.named else {}),
            "target": target,
            "programs": [p.name for p in model.module.programs],
            **describe(model.module, model.emission),
        }
        for model in contents.models
    ]
    shape = {"layout": form.layout} if form.layout != "makefile" else {}
    return {**described[0], **shape} if len(described) == 1 else {"models": described, **shape}
