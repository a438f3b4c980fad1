"""Header and source of one or more programs of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetc.emit._bundle_tables import bundle_tables
from poetc.emit._cprint import comment, identifier, identifiers, integer, string
from poetc.emit._instruction_tables import Pools, instruction_rows, required
from poetc.emit._queue_tables import queue_tables
from poetc.emit._state_tables import formatted_tables, region_tables, schedule_table
from poetc.graph import DType, Role, TensorType
from poetc.program import (
    Binding,
    Call,
    Limit,
    Move,
    Operand,
    Page,
    Program,
    ProgramBundle,
    all_inputs,
    checkpoint_block,
    class_scores,
    inputs_on_store,
    limits,
    missing,
    regions,
    scales_itself,
    state_identity,
    state_in_ram_bytes,
    store_blocks,
)
from poetc.runtime.layout import align
from poetc.training.rates import Schedule

TABLES = 3  # POETC_TABLES of poetc.h: counts the changes of tables and images
_C_TYPES = {DType.F32: "float", DType.I32: "int32_t", DType.U8: "uint8_t", DType.I8: "int8_t"}


@dataclass(frozen=True, slots=True)
class Module:
    """The programs of one model, which share state, constants and store. The first is the main one.

    `name`: the beginning of its symbols, by default the model's own name. `named`: its files begin with it too, instead
    of model.h and model.c. The macros POETC_MODEL_* are then in a header of their own.
    """

    model: str
    programs: tuple[Program, ...]
    schedule: Schedule | None = None  # of the learning rate
    name: str = ""
    named: bool = False
    bundle: ProgramBundle | None = None  # switches between the first of `programs`

    @property
    def prefix(self) -> str:
        text = identifier(self.name or self.model)
        return f"m_{text}" if re.match(r"poetc(_|$)", text, re.IGNORECASE) else text  # the runtime's own names

    @property
    def stem(self) -> str:
        """Name of its header and its source."""
        return self.description if self.named else "model"

    @property
    def data_source(self) -> str:
        return f"{self.stem}_data.S"

    @property
    def arena(self) -> str:
        """The symbol of its arena, where its data source defines one."""
        return f"{self.prefix}_arena"

    @property
    def identity_macro(self) -> str:
        return f"{self.prefix.upper()}_IDENTITY" if self.named else "POETC_MODEL_IDENTITY"

    def image(self, name: str) -> str:
        """File of one of its images."""
        return f"{self.prefix}_{name}" if self.named else name

    @property
    def description(self) -> str:
        """The symbol of its `poetc_model`."""
        return f"{self.prefix}_model"

    @property
    def queues(self) -> str | None:
        """The symbol of the queues by which several processors execute the main program; None where one does."""
        main = self.programs[0]
        return f"{self.prefix}_{main.name}_queues" if main.queues and self.bundle is None else None

    @property
    def flash_bytes(self) -> int:
        return max(p.flash_bytes for p in self.programs)

    @property
    def arena_bytes(self) -> int:
        return max(p.arena_bytes for p in self.programs)

    @property
    def emission_macro(self) -> str:
        return f"{self.prefix.upper()}_EMISSION" if self.named else "POETC_MODEL_EMISSION"

    @property
    def checkpoint_block(self) -> int:
        return checkpoint_block(self.programs)

    @property
    def store_blocks(self) -> int:
        return max(store_blocks(p) for p in self.programs)

    @property
    def symbols(self) -> list[str]:
        """The kernels that the programs call, sorted."""
        transitions = [s.instructions for s in self.bundle.switches] if self.bundle is not None else []
        called = {i.symbol for transition in transitions for i in transition if isinstance(i, Call | Move)}
        return sorted(called.union(*(p.kernels for p in self.programs)))

    @property
    def parts(self) -> tuple[str, ...]:
        """The C files of the runtime that these programs need beside those that every emission has."""
        queues = ("poetc_queues.c",) if any(p.queues for p in self.programs) else ()
        streams = ("poetc_stream.c",) if any(p.has_blocks for p in self.programs) else ()
        rows = ("poetc_rows.c",) if any(p.has_tables for p in self.programs) else ()
        inputs = ("poetc_input.c",) if any(inputs_on_store(p) for p in self.programs) else ()
        return (*(() if self.bundle is None else ("poetc_bundle.c",)), *queues, *streams, *rows, *inputs)

    def constants_program(self) -> Program:
        """The program with the most flash: its constants are those of all programs of the module."""
        return max(self.programs, key=lambda p: p.flash_bytes)

    def learning_rate(self) -> Binding | None:
        for binding in self.programs[0].state:
            if binding.role is Role.OPTIMIZER_STATE and re.fullmatch(r"learning_rate(\.\d+)?", binding.name):
                return binding
        return None


# --- model.h ----------------------------------------------------------------------------------------------------------


def header(
    module: Module,
    emission: int,
    *,
    arena_section: str = "",
    store_section: str = "",
    program_section: str = "",
    arena_lines: Sequence[str] = (),
) -> str:
    """The text of the model's header.

    `emission` tells the programs and images of this model from those of others. With `arena_section` or `store_section`
    the library has an arena, or the image of the store. `program_section`: of the arena in a port's program, "" for the
    usual one. `arena_lines` declare an arena in several memories instead.
    """
    prefix, upper = module.prefix, module.prefix.upper()
    main = module.programs[0]
    lines = [
        comment(f"{module.model}: sizes, offsets and programs. Made by poetc."),
        f"#ifndef {upper}_MODEL_H",
        f"#define {upper}_MODEL_H",
        "",
        *(['#include "poetc_rate.h"'] if module.schedule is not None else []),
        *(['#include "poetc_bundle.h"'] if module.bundle is not None else []),
        *(['#include "poetc_queues.h"'] if any(p.queues for p in module.programs) else []),
        '#include "poetc_session.h"',
        "",
        f"#if POETC_TABLES != {TABLES}",
        '#error "the runtime beside this model is of another version: emit both again"',
        "#endif",
        "",
        *_C_LINKAGE_BEGIN,
        *(f"extern const poetc_queues {prefix}_{p.name}_queues;" for p in module.programs if p.queues),
        *(f"extern const poetc_program {prefix}_{p.name};" for p in module.programs),
    ]
    lines += [f"extern const uint8_t {prefix}_state[]; /* the initial state, for poetc_init */"] * bool(
        main.state_bytes
    )
    lines += [f"extern const uint8_t {prefix}_constants[]; /* for poetc_config.flash */"] * bool(module.flash_bytes)
    lines += [f"extern const poetc_limit {prefix}_limits[]; /* of the inputs, for poetc_check_inputs */"] * bool(
        all_inputs(main)
    )
    lines += [f"extern const poetc_region {prefix}_regions[]; /* where state lives, for poetc_state_write */"] * bool(
        regions(main)
    )
    lines.append(f"extern const poetc_model {module.description}; {comment('all of it, for poetc_session_init')}")
    if module.bundle is not None:
        lines.append(f"extern const poetc_bundle {prefix}_bundle; {comment('the plans, for poetc_bundle_init')}")
    lines.append(f"extern const poetc_model {prefix}_loop; {comment(_LOOP)}")
    if module.schedule is not None:
        lines.append(f"extern const poetc_schedule {prefix}_schedule; {comment(str(module.schedule))}")
    lines += arena_lines
    if arena_section and not arena_lines:
        said = comment(f"{upper}_ARENA_BYTES of RAM, in the section {arena_section}")
        lines.append(f"extern uint8_t {module.arena}[]; {said}")
    if store_section:
        lines.append(f"extern const uint8_t {prefix}_store_image[]; {comment(f'store.img, in {store_section}')}")
        lines.append(f"extern const uint8_t {prefix}_store_image_end[];")
    lines += [
        "",
        _define(f"{upper}_ARENA_BYTES", module.arena_bytes, _ARENA_IN_PARTS if arena_lines else _ARENA),
        _define(
            f"{upper}_STATE_BYTES",
            state_in_ram_bytes(main) if arena_lines else main.state_bytes,
            "of all parts, kept from run to run" if arena_lines else "the bottom of it, kept from run to run",
        ),
        _define(f"{upper}_FLASH_BYTES", module.flash_bytes, "constants"),
        _define(f"{upper}_BLOCK_BYTES", main.block_bytes, "a block of the store"),
        _define(f"{upper}_STORE_BLOCKS", module.store_blocks, "blocks of the store in use, from block 0"),
    ]
    for program in module.programs:
        lines += _program_header(module, program)
    lines += _state_header(module)
    if module.named:
        lines += ["", f"#define {module.identity_macro} {state_identity(main):#010x}u"]
        lines += [f"#define {module.emission_macro} {emission:#010x}u"]
    else:
        lines += _generic_names(module, emission, program_section)
    lines += ["", *_C_LINKAGE_END, "#endif", ""]
    return "\n".join(lines)


def generic_header(module: Module, emission: int, program_section: str = "") -> str:
    """The text of model.h, which ports include, for a model whose own header has its name."""
    lines = [comment("The names that ports are written against. Made by poetc."), "#ifndef POETC_MODEL_H"]
    lines += [
        "#define POETC_MODEL_H",
        "",
        f'#include "{module.stem}.h"',
        *_generic_names(module, emission, program_section),
    ]
    return "\n".join([*lines, "", "#endif", ""])


_ARENA = "RAM for poetc_config.arena, enough for every program"
_ARENA_IN_PARTS = "for poetc_config.arena_bytes: from the first part to the end of the last"
_C_LINKAGE_BEGIN = ("#ifdef __cplusplus", 'extern "C" {', "#endif", "")
_C_LINKAGE_END = ("#ifdef __cplusplus", "}", "#endif", "")


def accessor_names(module: Module, program: Program, kind: str, bindings: Sequence[Binding]) -> dict[str, str]:
    """Name of each accessor in model.h; `kind`: in, out."""
    labels = identifiers(b.name for b in bindings)
    return {name: f"{module.prefix}_{program.name}_{kind}_{label}" for name, label in labels.items()}


def state_names(module: Module) -> dict[str, str]:
    """The first part of the macros' names for each state tensor in RAM."""
    labels = identifiers(b.name for b in module.programs[0].state)
    return {name: f"{module.prefix}_STATE_{label}".upper() for name, label in labels.items()}


def _define(name: str, value: int, text: str = "") -> str:
    return f"#define {name} {value}u" + (f" {comment(text)}" if text else "")


def _described(tensor: str, type: TensorType) -> str:
    return comment(f"{tensor} {list(type.shape)}")


def _program_header(module: Module, program: Program) -> list[str]:
    name = f"{module.prefix}_{program.name}"
    inputs = all_inputs(program)
    lines = ["", comment(f"{program.name}: {len(program.instructions)} instructions"), ""]
    lines.append(_define(f"{name.upper()}_ARENA_BYTES", program.arena_bytes))
    lines.append(_define(f"{name.upper()}_INPUT_COUNT", len(inputs)))
    if inputs:
        lines.append(f"extern const poetc_binding {name}_inputs[]; /* inputs, then the target */")
    lines.append(f"extern const poetc_binding {name}_outputs[];")
    for kind, bindings in (("in", inputs), ("out", program.outputs)):
        for tensor, accessor in accessor_names(module, program, kind, bindings).items():
            binding = next(b for b in bindings if b.name == tensor)
            if binding.page is None:
                lines += _accessor(accessor, tensor, binding.operand)
            else:
                lines += [
                    "",
                    comment(f"{tensor} {list(binding.operand.type.shape)} is on the store: poetc_write_input"),
                ]
                lines.append(_define(f"{accessor.upper()}_PAGE", binding.page))
    return lines


def _accessor(name: str, tensor: str, operand: Operand) -> list[str]:
    type = _C_TYPES[operand.type.dtype]
    return [
        "",
        _described(tensor, operand.type),
        _define(f"{name.upper()}_ELEMENTS", operand.type.elements),
        f"static inline {type} *{name}(void *arena)",
        "{",
        f"    return ({type} *)(void *)((uint8_t *)arena + {operand.offset_bytes}u);",
        "}",
    ]


def _state_header(module: Module) -> list[str]:
    bindings = module.programs[0].state
    prefix = module.prefix
    lines = ["", "/* State: offset in the arena and size, in bytes. */"] if bindings else []
    names = state_names(module)
    for binding in bindings:
        name, operand = names[binding.name], binding.operand
        lines.append(f"{_define(f'{name}_OFFSET', operand.offset_bytes)} {_described(binding.name, operand.type)}")
        lines.append(_define(f"{name}_BYTES", operand.type.size_bytes))
    stored = [page for page in module.programs[0].pages if page.image and page.type is not None]
    lines += ["", "/* State on the store: first block, slots, blocks of a slot. */"] if stored else []
    for page in stored:
        assert page.type is not None
        where = f"block {page.first_block}, {page.slots} x {page.block_count}"
        lines.append(comment(f"{where}: {page.tensor} {list(page.type.shape)}"))
    rate = module.learning_rate()
    if rate is not None:
        lines += [
            "",
            _define(f"{prefix.upper()}_LEARNING_RATE_OFFSET", rate.operand.offset_bytes),
            f"static inline void {prefix}_set_learning_rate(poetc_runtime *runtime, float value)",
            "{",
            f"    poetc_set_float(runtime, {prefix.upper()}_LEARNING_RATE_OFFSET, value);",
            "}",
        ]
    return lines


def _generic_names(module: Module, emission: int, program_section: str) -> list[str]:
    """Names that are the same for every model: ports are written against them."""
    prefix, main = module.prefix, module.programs[0]
    name, parts = f"{prefix}_{main.name}", regions(main)
    pairs = [
        ("NAME", string(module.model)),
        ("PROGRAM", f"(&{name})"),
        ("INPUTS", f"{name}_inputs" if all_inputs(main) else "NULL"),
        ("INPUT_COUNT", f"{name.upper()}_INPUT_COUNT"),
        ("LIMITS", f"{prefix}_limits" if all_inputs(main) else "NULL"),
        ("STATE", f"{prefix}_state" if main.state_bytes else "NULL"),
        ("CONSTANTS", f"{prefix}_constants" if module.flash_bytes else "NULL"),
        ("ARENA_BYTES", f"{prefix.upper()}_ARENA_BYTES"),
        ("STATE_BYTES", f"{prefix.upper()}_STATE_BYTES"),
        ("REGIONS", f"{prefix}_regions" if parts else "NULL"),
        ("REGION_COUNT", f"{len(parts)}u"),
        ("BLOCK_BYTES", f"{prefix.upper()}_BLOCK_BYTES"),
        ("STORE_BLOCKS", f"{prefix.upper()}_STORE_BLOCKS"),
        ("STORE_HAS_IMAGE", "1" if any(p.image for p in main.pages) else "0"),
        ("CHECKPOINT_BLOCK", f"{module.checkpoint_block}u"),
        ("IDENTITY", f"{state_identity(main):#010x}u"),
        ("EMISSION", f"{emission:#010x}u"),
        ("DESCRIPTION", f"(&{module.description})"),
        ("LOOP", f"(&{module.prefix}_loop)"),
    ]
    if module.queues is not None:
        pairs.append(("QUEUES", f"(&{module.queues})"))
    if module.bundle is not None:
        pairs.append(("BUNDLE", f"(&{prefix}_bundle)"))
    buffer, rate = spare_block(main), module.learning_rate()
    if any(inputs_on_store(p) for p in module.programs):
        pairs.append(("STORE_INPUTS", "1"))
    if buffer is not None:
        pairs.append(("BUFFER_OFFSET", f"{buffer}u"))
    if module.schedule is not None and rate is not None:
        pairs.append(("SCHEDULE", f"(&{prefix}_schedule)"))
        pairs.append(("STEPS_AN_UPDATE", f"{_steps_an_update(main)}u"))
        pairs.append(("LEARNING_RATE_OFFSET", f"{rate.operand.offset_bytes}u"))
    if program_section:
        pairs.append(("ARENA_SECTION", string(program_section)))
    lines = ["", "/* The main program under names that do not depend on the model. */"]
    lines += [f"#define POETC_MODEL_{key} {value}" for key, value in pairs]
    lines += _scores(module)
    if main.probes:
        lines += ["", "/* Gradients: before which instruction they are whole, offset in the arena, bytes. */"]
        rows = [f"{{{i}u, {o.offset_bytes}u, {o.type.size_bytes}u}}" for _, (i, o) in sorted(main.probes.items())]
        lines += ["#define POETC_MODEL_GRADIENTS { \\", *(f"    {row}, \\" for row in rows), "}"]
    return lines


def _steps_an_update(program: Program) -> int:
    """Above 1 where gradients of several steps are averaged."""
    every = (c.attributes["every"] for c in program.instructions if isinstance(c, Call) and c.kind == "StepsLeft")
    steps = next(every, 1)
    return steps if isinstance(steps, int) else 1


def _scores(module: Module) -> list[str]:
    """The cross-entropies of the evaluation, where its target is a class."""
    program = entries(module).get("evaluate")
    target = program.target if program is not None else None
    if program is None or target is None:
        return []
    rows = [
        "{" + ", ".join([*(f"{v}u" for v in row[:-1]), integer(row.ignored)]) + "}"
        for row in class_scores(program, target.operand.tensor)
    ]
    return [f"#define POETC_MODEL_SCORES {{{', '.join(rows)}}}"] if rows else []


def spare_block(program: Program) -> int | None:
    """Byte offset in the arena of a block's buffer that is free between two runs, when only state is held."""
    if program.page_buffer_offset is not None:
        return program.page_buffer_offset
    start = align(program.state_bytes)
    return start if start + program.block_bytes <= program.high_water_bytes else None


# --- model.c ----------------------------------------------------------------------------------------------------------


def source(module: Module) -> str:
    main = module.programs[0]
    lines = [
        comment(f"{module.model}: programs as tables. Made by poetc."),
        f'#include "{module.stem}.h"',
        "",
        "#include <math.h>",
        "",
        *(f"int {symbol}(const poetc_call *call);" for symbol in module.symbols),
    ]
    for program in module.programs:
        lines += _program_source(module.prefix, program)
    lines += [*_limits(module), *region_tables(module.prefix, main), *formatted_tables(module.prefix, main)]
    lines += [
        *_description(module),
        *schedule_table(module.prefix, module.schedule),
        *required(module.prefix, module.parts),
    ]
    if module.bundle is not None:
        lines += bundle_tables(module.bundle, module.prefix)
    return "\n".join([*lines, ""])


def _program_source(prefix: str, program: Program) -> list[str]:
    name = f"{prefix}_{program.name}"
    pools = Pools()
    rows = instruction_rows(program, pools)
    lines = pools.tables(program.name)
    if rows:
        lines += ["", f"static const poetc_instruction {program.name}_instructions[] = {{", *rows, "};"]
    if program.pages:
        lines += ["", f"static const poetc_page {program.name}_pages[] = {{"]
        lines += [
            f"    {{{p.first_block}u, {p.size_bytes}u, {_slots(p)}u}}, {comment(p.tensor)}" for p in program.pages
        ]
        lines.append("};")
    if program.absences:
        lines += ["", f"static const poetc_absence {program.name}_absences[] = {{"]
        lines += [
            f"    {{{a.begin}u, {a.end}u, {a.page}u, {a.operand.offset_bytes}u}}, {comment(a.operand.tensor)}"
            for a in program.absences
        ]
        lines.append("};")
    return [*lines, *_bindings(name, program), *_descriptor(prefix, program), *queue_tables(prefix, program)]


def _slots(page: Page) -> int:
    """As poetc_page has it."""
    return page.slots if not page.is_sums else 0 if page.slots == 1 else 3


_DTYPES = {DType.F32: "POETC_F32", DType.I32: "POETC_I32", DType.U8: "POETC_U8", DType.I8: "POETC_I8"}


def _limits(module: Module) -> list[str]:
    """The range of each input for `poetc_check_inputs`: of the main program, and of others that a session calls."""
    main, lines = module.programs[0], list[str]()
    for program in (main, *(p for p in entries(module).values() if p is not main)):
        rows, allowed = [], limits(program)
        for binding in all_inputs(program):
            gaps = int(bool(missing(program, binding)))
            limit = allowed.get(binding.name, Limit(0, 0 if _is_scaled(program, binding) else -1, gaps))
            numbers = ", ".join(integer(n) for n in (limit.least, limit.most, limit.ignored))
            rows.append(f"    {{{_DTYPES[binding.operand.type.dtype]}, {numbers}}}, {comment(binding.name)}")
        if rows:
            storage = "const" if program is main else "static const"
            lines += ["", f"{storage} poetc_limit {_limits_name(module, program)}[] = {{", *rows, "};"]
    return lines


def _is_scaled(program: Program, binding: Binding) -> bool:
    return binding.operand.type.dtype is DType.F32 and scales_itself(program, binding)


def _limits_name(module: Module, program: Program) -> str:
    return f"{module.prefix}_limits" if program is module.programs[0] else f"{module.prefix}_{program.name}_limits"


_LOOP = "the programs that firmware calls: evaluate only with POETC_VALIDATES"
ENTRIES = ("train", "infer", "evaluate")  # the programs that a session calls, by name


def entries(module: Module) -> dict[str, Program]:
    """The programs that a session calls, by the names in ENTRIES. A first program of another name is `train`."""
    named = {p.name: p for p in module.programs if p.name in ENTRIES}
    main = module.programs[0]
    return {**({} if main.name in ENTRIES else {"train": main}), **named}


def _description(module: Module) -> list[str]:
    """The `poetc_model`: all facts that a session needs; and that of a board's loop, which links no other program."""
    whole = _model(module, module.description, entries(module))
    of_loop = {name: program for name, program in entries(module).items() if name != "infer"}
    return [*whole, *_model(module, f"{module.prefix}_loop", of_loop)]


def _model(module: Module, symbol: str, called: Mapping[str, Program]) -> list[str]:
    """The lines of the `poetc_model`. `called`: the programs by the name of their entry in it."""
    main, prefix = module.programs[0], module.prefix
    rate, buffer, parts = module.learning_rate(), spare_block(main), regions(main)
    lines = ["", f"const poetc_model {symbol} = {{"]
    for entry, program in called.items():
        name, inputs = f"{prefix}_{program.name}", all_inputs(program)
        lines.append(f"    .{entry} = {{")
        lines.append(f"        .program = &{name},")
        if inputs:
            lines.append(f"        .inputs = {name}_inputs,")
            lines.append(f"        .limits = {_limits_name(module, program)},")
        lines.append(f"        .outputs = {name}_outputs,")
        lines.append(f"        .input_count = {len(inputs)}u,")
        lines.append(f"        .output_count = {len(program.outputs)}u,")
        lines.append("    },")
        if entry == "evaluate" and symbol != module.description:
            at = lines.index("    .evaluate = {")
            lines[at:] = ["#ifdef POETC_VALIDATES", *lines[at:], "#endif"]
    fields = {
        "state_image": f"{prefix}_state" if main.state_bytes else "NULL",
        "constants": f"{prefix}_constants" if module.flash_bytes else "NULL",
        "state": f"{{{f'{prefix}_regions' if parts else 'NULL'}, {len(parts)}u, {module.identity_macro}}}",
        "emission": module.emission_macro,
        "store_blocks": f"{module.store_blocks}u",
        "checkpoint_block": f"{module.checkpoint_block}u",
        "buffer_offset": "POETC_NONE" if buffer is None else f"{buffer}u",
        "learning_rate_offset": "POETC_NONE" if rate is None else f"{rate.operand.offset_bytes}u",
    }
    lines += [f"    .{key} = {value}," for key, value in fields.items()]
    if formatted := sum(page.image for page in main.pages):
        lines += ["#ifdef POETC_FORMATS", f"    .initial_pages = {prefix}_pages,", "#endif"]
        lines += [f"    .formatted = {prefix}_formatted,", f"    .formatted_count = {formatted}u,"]
    return [*lines, "};"]


def _bindings(name: str, program: Program) -> list[str]:
    lines: list[str] = []
    for kind, bindings in (("inputs", all_inputs(program)), ("outputs", program.outputs)):
        if bindings:
            items = [f"    {{{string(b.name)}, {offset_of(b)}, {b.operand.type.size_bytes}u}}," for b in bindings]
            lines += ["", f"const poetc_binding {name}_{kind}[] = {{", *items, "};"]
    return lines


def offset_of(binding: Binding) -> str:
    """The field of a `poetc_binding`."""
    if binding.page is None:
        return f"{binding.operand.offset_bytes}u"
    return f"{binding.page}u * POETC_ALIGN + POETC_ON_STORE"


def _descriptor(prefix: str, program: Program) -> list[str]:
    """C99 designated initialisers, so that the order of the fields in poetc.h does not matter."""
    name, parts = f"{prefix}_{program.name}", len(regions(program))
    fields = {
        "instructions": f"{program.name}_instructions" if program.instructions else "NULL",
        "instruction_count": f"{len(program.instructions)}u",
        "pages": f"{program.name}_pages" if program.pages else "NULL",
        "page_count": f"{len(program.pages)}u",
        "absences": f"{program.name}_absences" if program.absences else "NULL",
        "absence_count": f"{len(program.absences)}u",
        "block_bytes": f"{program.block_bytes}u",
        "page_buffer_offset": f"{program.page_buffer_offset or 0}u",
        "arena_bytes": f"{program.arena_bytes}u",
        "state_bytes": f"{program.state_bytes}u",
        "regions": f"{prefix}_regions" if parts else "NULL",
        "region_count": f"{parts}u",
        "flash_bytes": f"{program.flash_bytes}u",
        "loss_offset": f"{program.outputs[0].operand.offset_bytes}u",
        "updates_state": "1" if program.updates_state else "0",
    }
    return [
        "",
        f"const poetc_program {name} = {{",
        *(f"    .{key} = {value}," for key, value in fields.items()),
        "};",
    ]
