"""README.md of an emitted directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poetc.boards import Board, Target
from poetc.emit._firmware import FLEET_PROGRAM, used_blocks
from poetc.emit._library_banks import BankPart
from poetc.emit._module import Module
from poetc.emit.layouts._contents import Contents
from poetc.errors import format_count
from poetc.program import TRAILER_BYTES, Binding, all_inputs, regions, state_in_ram_bytes, tensors
from poetc.runtime import runtime_state_bytes


def readme(contents: Contents, how: Sequence[str]) -> str:
    """How the directory is built or added to a project; then data, store and programs of each model."""
    target, board, checkpoint = contents.target, contents.board, contents.checkpoint
    in_fleet = f"port/{FLEET_PROGRAM}" in contents.port
    lines = [f"# {' and '.join(m.name or m.model for m in contents.modules)}", "", *how, *_replacing()]
    for model in contents.models:
        module = model.module
        parts = [
            _data(module, target, in_fleet),
            () if in_fleet else _result(module, target),
            _threads(target),
            _store(module, target, board, checkpoint, contents.formats),
            _programs(module, contents.arenas),
            _sizes(module, contents.bank_parts(module), len(contents.images.get(module.image("state.bin"), b""))),
        ]
        text = [line for part in parts for line in part]
        if len(contents.models) > 1:  # a chapter of its own
            text = [f"## {module.name or module.model}", "", *(f"#{s}" if s.startswith("## ") else s for s in text)]
        lines += text
    return "\n".join(lines)


def _replacing() -> Iterator[str]:
    yield "`poetc emit` into this directory again replaces only files that are as it wrote them. Files that you add"
    yield "stay. A file that you changed is refused by name, or with `--force` kept as `NAME.orig`."
    yield ""


def _data(module: Module, target: Target, in_fleet: bool) -> Iterator[str]:
    main = module.programs[0]
    yield from ("## Data", "")
    yield "One record a training step. A record is, without gaps and little-endian,"
    yield ""
    for binding in all_inputs(main):
        yield f"- {_described(binding)}"
    if target.build == "library":
        yield from (
            "",
            f"which your program writes to the arena before each `poetc_run` (accessors are in `{module.stem}.h`).",
            "",
        )
    elif "host" in target.ports:
        yield ""
        yield "`./train [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA [STEPS]` uses the file DATA once, EPOCHS times"
        yield "or for STEPS steps. The trained weights go to STATE_OUT; without it and `-c` they are not kept. After"
        yield "each epoch the records of VALIDATION, those of the program `evaluate`, are evaluated. STATE_OUT then"
        yield "gets the state with the least validation loss. Inputs that look unscaled (beyond 16, and whole or of"
        yield "one sign) end it with exit code 1; `./train -r DATA` trains on them."
        yield "In Python:"
    elif in_fleet:
        yield ""
        yield "The program reads them from `data.bin` (in the directory that the emulator or debugger runs in), all in"
        yield "each epoch that a gateway asks for over the serial line (`poetc.flower.gateway_app`). In Python:"
    else:
        yield ""
        yield "The program reads them from `data.bin` (in the directory that it, or the emulator or debugger, runs in),"
        yield "trains until there is none left, and writes all trained state to `trained.bin`. `make EPOCHS=N` uses"
        yield "them N times."
        if any(program.name == "evaluate" for program in module.programs):
            condition = (
                "Where there is a `validation.bin`"
                if target.hosted
                else "With `make VALIDATION=1` and a `validation.bin`"
            )
            yield f"{condition}, its records, those of the program `evaluate`, are evaluated after"
            yield "each epoch. `trained.bin` is then the state with the least validation loss."
        if target.hosted:
            yield "Inputs that look unscaled (beyond 16, and whole or of one sign) end it with exit code 1; a program"
            yield "made by `make ANY_RANGE=1` trains on them."
        yield "In Python:"
    if target.build != "library":
        yield ""
        names = ["data" if len(all_inputs(main)) == 1 else f"array{i}" for i in range(len(all_inputs(main)))]
        yield "    with open('data.bin', 'wb') as file:"
        yield f"        for {', '.join(names)} in batches:  # numpy arrays of these shapes and types"
        yield f"            file.write({' + '.join(f'{n}.tobytes()' for n in names)})"
        yield ""


def _result(module: Module, target: Target) -> Iterator[str]:
    main = module.programs[0]
    parts = tensors(main)
    if not parts:
        return
    on_store = [t for t in parts if t.page is not None]
    size = sum(region.size_bytes for region in regions(main)) + TRAILER_BYTES
    yield from ("## Trained state", "")
    if target.build == "library":
        yield f"`poetc_state_write` (`runtime/include/poetc_state.h`) hands over all state, {size} bytes, to a function"
        yield "of yours:"
    else:
        name = "STATE_OUT" if "host" in target.ports else "`trained.bin`"
        yield f"{name} holds all state, {size} bytes:"
    yield f"{format_count(len(parts), 'tensor')}, of which {len(parts) - len(on_store)} live in RAM while they train,"
    yield f"{len(on_store)} on the store. `poetc-emit.json` has the name, type, shape, offset and place of each:"
    yield ""
    yield "    import json, math, numpy"
    yield "    state = json.load(open('poetc-emit.json'))['state']"
    yield "    data = open('trained.bin', 'rb').read()"
    yield "    arrays = {t['name']: numpy.frombuffer(data, t['dtype'], math.prod(t['shape']), t['offset_bytes'])"
    yield "              .reshape(t['shape']) for t in state['tensors']}"
    yield ""


def _threads(target: Target) -> Iterator[str]:
    if not target.hosted:
        return
    yield from ("## Threads", "")
    yield "`make THREADS=N` builds for at most N threads (1 to 64; after a change `make clean`). The environment's"
    yield "`POETC_THREADS` asks for fewer when the program starts. Losses and weights have the same bits whatever the"
    yield "number. Besides the arena each thread but the first takes a stack of 256 KiB and a buffer of 1 MiB, of"
    yield "which only the used part becomes resident. Without `THREADS` there is none of this in the program."
    yield ""


def _described(binding: Binding) -> str:
    type = binding.operand.type
    shape = " x ".join(map(str, type.shape)) or "one"
    return f"`{binding.name}`: {shape} of {type.dtype.name.lower()}, {type.size_bytes} bytes"


def _store(module: Module, target: Target, board: Board | None, checkpoint: int, formats: bool) -> Iterator[str]:
    main = module.programs[0]
    blocks = module.store_blocks
    if not blocks and not checkpoint:
        return
    yield from ("## Store", "")
    used = used_blocks(module.programs, saves=bool(checkpoint)) * main.block_bytes
    where = (
        "the SD card, from its first block (it is not a file system)"
        if board is not None and board.card
        else "`store.bin`"
    )
    if target.build == "library":
        where = "the store that `config.store` drives"
    yield f"{used} bytes of {where}, in blocks of {main.block_bytes}."
    if blocks:
        first = min(page.first_block for program in module.programs for page in program.pages)
        yield f"Pages take blocks {first} to {blocks - 1}: each has a checksum and a stamp, and one that is not as it"
        yield "was written stops the step with code -84; a driver's error stops it with the driver's code. The weights"
        yield "stay whole."
        yield "`poetc_error_text` (`runtime/include/poetc_data.h`) has a sentence on each code."
    if any(page.image for page in main.pages):
        yield ""
        image = module.image("store.img")
        if formats:
            yield "Weights live there. The firmware writes the initial ones itself where the store has no checkpoint."
        else:
            yield f"`{image}` holds the weights that live there: copy it to the start of the store before the first"
            yield f"step, for example `dd if={image} of=CARD conv=notrunc`."
    if checkpoint:
        every = "every step" if checkpoint == 1 else f"every {checkpoint} steps"
        yield ""
        place = "behind the pages" if module.checkpoint_block else "from block 0 on"
        yield f"After {every} the state is saved to two slots {place}, in turn. When the board starts again,"
        yield "training goes on from the newest whole one (`resumed step N` in the log), with the record after it; data"
        yield "that do not begin with the records which were used are new, and are used from their first one."
        yield "To begin anew, clear the store. `make CHECKPOINT_STEPS=N` (0: never) changes it."
    elif "host" in target.ports:
        yield ""
        yield "`./train -c DATA ...` saves a checkpoint after every step, and goes on from the newest one, with the"
        yield "record after it; data that do not begin with the records which were used are new, and are used from"
        yield "their first one."
    yield ""


def _programs(module: Module, arena: bool) -> Iterator[str]:
    prefix, main = module.prefix, module.programs[0]
    state = f"{prefix}_state" if main.state_bytes else "NULL"
    constants = f"{prefix}_constants" if module.flash_bytes else "NULL"
    yield from ("## Programs", "")
    yield f"`{prefix}_{main.name}` is a training step; its first output is the loss."
    others = module.programs[1:]
    for program in others:
        outputs = ", ".join(_described(b) for b in program.outputs)
        purpose = "for predictions" if program.target is None else "followed by the loss, to evaluate it"
        yield f"`{prefix}_{program.name}` is the model itself, on the same weights, {purpose}: {outputs}."
    yield ""
    inputs = ", ".join(f"{'target' if b is main.target else f'input_{n}'}" for n, b in enumerate(all_inputs(main), 1))
    yield "A session (`poetc_session.h`) takes one call a step:"
    yield ""
    yield "```c"
    yield "static poetc_session session; /* config: as below, without flash */"
    yield f"err = poetc_session_init(&session, &{module.description}, &config);"
    yield f"const void *inputs[] = {{{inputs}}}; /* arrays of yours, in the order above */"
    yield "err = poetc_session_step(&session, inputs, &loss);"
    yield "```"
    yield ""
    yield "Or, step by step:"
    yield ""
    yield "```c"
    if not arena:
        yield f"static uint8_t arena[{prefix.upper()}_ARENA_BYTES] __attribute__((aligned(16)));"
    yield "poetc_config config = {0};"
    yield "poetc_runtime runtime;"
    yield f"config.arena = {module.arena if arena else 'arena'};"
    yield f"config.arena_bytes = {f'{prefix.upper()}_ARENA_BYTES' if arena else 'sizeof arena'};"
    yield f"config.flash = {constants};"
    if module.store_blocks:
        yield "config.store = ...; /* two functions that move whole blocks: runtime/include/poetc.h */"
    yield f"err = poetc_init(&runtime, &{prefix}_{main.name}, &config, {state});"
    yield f"/* each step: write the inputs (accessors in {module.stem}.h), then */"
    yield "err = poetc_run(&runtime);"
    for program in others:
        purpose = "predict" if program.target is None else "evaluate"
        yield f"/* to {purpose}: write the inputs of {program.name}, */"
        yield f"err = poetc_select(&runtime, &{prefix}_{program.name});"
        yield "err = poetc_run(&runtime); /* then read its outputs, and poetc_select the training step again */"
    yield "```"
    yield ""


def _sizes(module: Module, parts: Sequence[BankPart], image_bytes: int) -> Iterator[str]:
    prefix, main = module.prefix, module.programs[0]
    yield from ("## Sizes", "", "| | bytes |", "|---|---|")
    if not parts:
        yield f"| arena, state included (`{prefix.upper()}_ARENA_BYTES`) | {module.arena_bytes} |"
    for part in parts:
        yield f"| arena in {part.bank}, section `{part.section}`, at {part.address:#010x} | {part.size_bytes} |"
    if not parts and main.arena_bytes < module.arena_bytes:
        name = f"{prefix}_{main.name}".upper()
        yield f"| enough where `{prefix}_{main.name}` alone runs (`{name}_ARENA_BYTES`) | {main.arena_bytes} |"
    state_bytes = state_in_ram_bytes(main) if parts else main.state_bytes
    yield f"| of it state (`{prefix.upper()}_STATE_BYTES`) | {state_bytes} |"
    yield f"| constants in flash | {module.flash_bytes} |"
    yield f"| initial state in flash, without its zeros | {image_bytes} |"
    yield f"| runtime state, where a pointer has 4 bytes | {runtime_state_bytes(4)} |"
    yield f"| pages on the store | {module.store_blocks * main.block_bytes} |"
    yield ""
