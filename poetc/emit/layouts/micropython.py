"""A user C module of MicroPython: micropython.mk, micropython.cmake, and the functions that scripts call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from poetc.emit._module import Module
from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._one_session import one_session
from poetc.emit.layouts._readme import readme
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.program import Binding, all_inputs

MODULE = "poetc_micropython.c"  # the one source in which MicroPython looks for names
SESSION = "poetc_micropython_session.c"
_CODES = {DType.F32: "f", DType.I32: "i", DType.U8: "B", DType.I8: "b"}  # of MicroPython's array


def place(contents: Contents) -> dict[str, bytes | Path]:
    """Files as they are, beside the module. UsageError for several models, and for one with a store."""
    if len(contents.models) > 1:
        raise UsageError("--layout micropython: a module holds one model, and a build of MicroPython one such module")
    (module,) = contents.modules
    if module.store_blocks:
        raise UsageError(
            "--layout micropython: the module drives no store, and this program pages; solve with --no-paging"
        )
    files: dict[str, bytes | Path] = {**contents.written, **contents.data_sources(inline=True), **contents.runtime}
    for name in contents.images:  # their bytes are in the assembly: make runs in a folder of MicroPython
        del files[name]
    sources = [*library_sources(contents), SESSION]
    files[SESSION] = "\n".join(one_session(module, "MicroPython", "python")).encode()
    files[MODULE] = "\n".join(_functions(contents, module)).encode()
    files["micropython.mk"] = "\n".join(_make(contents, sources)).encode()
    files["micropython.cmake"] = "\n".join(_cmake(contents, sources)).encode()
    files["README.md"] = readme(contents, list(_how(contents, module))).encode()
    return files


def module_name(contents: Contents) -> str:
    return f"poetc_{contents.library_name}".lower()


def _options(contents: Contents) -> list[str]:
    return f"{contents.numerics_flag} {contents.opt_level}".split()


def _make(contents: Contents, sources: Sequence[str]) -> Iterator[str]:
    yield f"# {contents.title}: a user C module of MicroPython, made by poetc."
    yield f"POETC_DIR := $(USERMOD_DIR)\nSRC_USERMOD_C += $(POETC_DIR)/{MODULE}"
    yield from (f"SRC_USERMOD_LIB_{'C' if s.endswith('.c') else 'ASM'} += $(POETC_DIR)/{s}" for s in sources)
    folders = " ".join(f"-I$(POETC_DIR)/{folder}" for folder in include_folders(sources))
    yield f"CFLAGS_USERMOD += {folders} {' '.join(_options(contents))}"
    # MicroPython's own warnings, as errors, are stricter than the runtime's about doubles.
    yield "CFLAGS_USERMOD += -Wno-error=double-promotion -Wno-error=float-conversion"
    yield ""


def _cmake(contents: Contents, sources: Sequence[str]) -> Iterator[str]:
    name = f"usermod_{module_name(contents)}"
    yield f"# {contents.title}: a user C module of MicroPython, made by poetc."
    yield f"add_library({name} INTERFACE)"
    yield f"target_sources({name} INTERFACE"
    yield from (f"    ${{CMAKE_CURRENT_LIST_DIR}}/{source}" for source in [MODULE, *sources])
    yield ")"
    yield f"target_include_directories({name} INTERFACE"
    yield from (f"    ${{CMAKE_CURRENT_LIST_DIR}}/{folder}" for folder in include_folders(sources))
    yield ")"
    options = " ".join(f"$<$<COMPILE_LANGUAGE:C>:{option}>" for option in _options(contents))
    yield f"target_compile_options({name} INTERFACE {options})"
    yield f"target_link_libraries(usermod INTERFACE {name})"
    yield ""


def _functions(contents: Contents, module: Module) -> Iterator[str]:
    prefix, name = f"{module.prefix}_python", module_name(contents)
    train = module.programs[0]
    infer = next((p for p in module.programs if p.name == "infer"), None)
    yield f"/* Trains {contents.title} from MicroPython: see README.md. Made by poetc. */"
    yield f"""#include "poetc.h"
#include "py/runtime.h"
#include "py/binary.h"
#include "py/objarray.h"
#include <string.h>

#if !MICROPY_PY_BUILTINS_FLOAT
#error "the losses are floats: build MicroPython with MICROPY_FLOAT_IMPL"
#endif

int32_t {prefix}_init(void);
int32_t {prefix}_step(const void *const *inputs, float *loss);
int32_t {prefix}_predict(const void *const *inputs);
const void *{prefix}_output(uint32_t index);
float {prefix}_rate(void);
int32_t {prefix}_set_rate(float rate);
uint32_t {prefix}_steps(void);
int32_t {prefix}_save(uint8_t *bytes, uint32_t size, uint32_t *used);
int32_t {prefix}_load(const uint8_t *bytes, uint32_t size);

typedef struct {{
    const char *name;
    char typecode;
    uint32_t bytes;
}} operand;

static bool is_begun;

static void check(int32_t code)
{{
    if (code == POETC_ENUMBER || code == POETC_ERANGE)
        mp_raise_ValueError(MP_ERROR_TEXT("a number is not finite, or an index out of range"));
    if (code != POETC_OK)
        mp_raise_OSError(-code);
}}

/* The session has the initial weights when it is used first. */
static void begin(void)
{{
    if (!is_begun)
        check({prefix}_init());
    is_begun = true;
}}

/* An array of the operand's type, or its bytes. */
static const void *input_of(mp_obj_t object, const operand *wanted)
{{
    mp_buffer_info_t given;
    mp_get_buffer_raise(object, &given, MP_BUFFER_READ);
    const char type = given.typecode == 'l' && sizeof(long) == 4 ? 'i' : (char)given.typecode;
    if (given.len != wanted->bytes || (type != wanted->typecode && type != 'B' && type != BYTEARRAY_TYPECODE))
        mp_raise_msg_varg(&mp_type_ValueError, MP_ERROR_TEXT("%s: %u bytes of type %c, not %u of type %c"),
                          wanted->name, (unsigned)given.len, type, (unsigned)wanted->bytes, wanted->typecode);
    return given.buf;
}}
"""
    inputs = [*all_inputs(train)]
    yield from _operands("step_inputs", inputs)
    yield f"""
static mp_obj_t step(size_t count, const mp_obj_t *arguments)
{{
    const void *inputs[{len(inputs)}];
    float loss;
    begin();
    for (size_t i = 0; i < count; i++)
        inputs[i] = input_of(arguments[i], &step_inputs[i]);
    check({prefix}_step(inputs, &loss));
    return mp_obj_new_float((mp_float_t)loss);
}}
static {_function("step", len(inputs))}
"""
    if infer is not None:
        yield from _operands("predict_inputs", infer.inputs)
        yield from _operands("outputs", infer.outputs)
        count = len(infer.outputs)
        yield f"""
/* A copy on the heap of MicroPython, as a memoryview with the type of its numbers. */
static mp_obj_t output(uint32_t index)
{{
    const operand *o = &outputs[index];
    void *copy = m_new(uint8_t, o->bytes);
    memcpy(copy, {prefix}_output(index), o->bytes);
    return mp_obj_new_memoryview((uint8_t)o->typecode, o->bytes / mp_binary_get_size('@', o->typecode, NULL), copy);
}}

static mp_obj_t predict(size_t count, const mp_obj_t *arguments)
{{
    const void *inputs[{len(infer.inputs)}];
    begin();
    for (size_t i = 0; i < count; i++)
        inputs[i] = input_of(arguments[i], &predict_inputs[i]);
    check({prefix}_predict(inputs));"""
        if count == 1:
            yield "    return output(0);"
        else:
            yield f"    mp_obj_t all[{count}];"
            yield f"    for (uint32_t i = 0; i < {count}; i++)\n        all[i] = output(i);"
            yield f"    return mp_obj_new_tuple({count}, all);"
        yield f"}}\nstatic {_function('predict', len(infer.inputs))}"
    yield f"""
static mp_obj_t save(void)
{{
    uint32_t size = 0;
    vstr_t bytes;
    begin();
    check({prefix}_save(NULL, 0, &size));
    vstr_init_len(&bytes, size);
    check({prefix}_save((uint8_t *)bytes.buf, size, &size));
    return mp_obj_new_bytes_from_vstr(&bytes);
}}
static MP_DEFINE_CONST_FUN_OBJ_0(save_obj, save);

static mp_obj_t load(mp_obj_t object)
{{
    mp_buffer_info_t given;
    begin();
    mp_get_buffer_raise(object, &given, MP_BUFFER_READ);
    check({prefix}_load(given.buf, (uint32_t)given.len));
    return mp_const_none;
}}
static MP_DEFINE_CONST_FUN_OBJ_1(load_obj, load);

static mp_obj_t reset(void)
{{
    is_begun = false;
    begin();
    return mp_const_none;
}}
static MP_DEFINE_CONST_FUN_OBJ_0(reset_obj, reset);

static mp_obj_t steps(void)
{{
    begin();
    return mp_obj_new_int_from_uint({prefix}_steps());
}}
static MP_DEFINE_CONST_FUN_OBJ_0(steps_obj, steps);

static mp_obj_t learning_rate(size_t count, const mp_obj_t *arguments)
{{
    begin();
    if (count > 0)
        check({prefix}_set_rate((float)mp_obj_get_float(arguments[0])));
    return mp_obj_new_float((mp_float_t){prefix}_rate());
}}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(learning_rate_obj, 0, 1, learning_rate);

static const mp_rom_map_elem_t names[] = {{
    {{MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR_{name})}},"""
    called = ["step", *(["predict"] if infer is not None else []), "save", "load", "reset", "steps", "learning_rate"]
    yield from (f"    {{MP_ROM_QSTR(MP_QSTR_{f}), MP_ROM_PTR(&{f}_obj)}}," for f in called)
    yield f"""}};
static MP_DEFINE_CONST_DICT(globals, names);
const mp_obj_module_t {name}_module = {{
    .base = {{&mp_type_module}},
    .globals = (mp_obj_dict_t *)&globals,
}};
MP_REGISTER_MODULE(MP_QSTR_{name}, {name}_module);
"""


def _operands(name: str, bindings: Sequence[Binding]) -> Iterator[str]:
    yield f"static const operand {name}[] = {{"
    for b in bindings:
        kind = b.operand.type
        spelled = "".join(c if c.isalnum() or c in "._-:/" else "_" for c in b.name)
        yield f"    {{\"{spelled}\", '{_CODES[kind.dtype]}', {kind.size_bytes}u}},"
    yield "};"


def _function(name: str, count: int) -> str:
    return f"MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN({name}_obj, {count}, {count}, {name});"


def _how(contents: Contents, module: Module) -> Iterator[str]:
    name = module_name(contents)
    yield f"A user C module of MicroPython 1.24 or later, made by poetc, {contents.numerics} numerics."
    yield f"Put this folder, as `{name}`, into a folder of modules. Ports that are built by make take that folder,"
    yield "the others the CMake file:"
    yield from ("", "```sh", "make -C ports/unix USER_C_MODULES=/path/to/modules")
    yield from (f"make -C ports/esp32 USER_C_MODULES=/path/to/modules/{name}/micropython.cmake", "```", "")
    inputs = all_inputs(module.programs[0])
    names = [b.name.split(".")[-1] for b in inputs]
    yield from ("In a script:", "", "```python", f"import {name} as model")
    yield f"loss = model.step({', '.join(names)})"
    infer = next((p for p in module.programs if p.name == "infer"), None)
    if infer is not None:
        outputs = ", ".join(b.name.split(".")[-1] for b in infer.outputs)
        yield f"{outputs} = model.predict({', '.join(b.name.split('.')[-1] for b in infer.inputs)})"
    yield from ("state = model.save()", "model.load(state)", "```", "")
    yield "Each input is an array of its type, or its bytes:"
    yield ""
    for b, n in zip(inputs, names, strict=True):
        yield f"- `{n}`: `array('{_CODES[b.operand.type.dtype]}')` with {b.operand.type.elements} elements"
    yield ""
    if infer is not None:
        yield "`predict` gives a memoryview of each output."
    yield "`steps()` gives the number of steps and `learning_rate([rate])` the rate of the next one. `reset()` goes"
    yield "back to the initial weights. The arena is static and not on MicroPython's heap. Wrong inputs raise"
    yield "ValueError, codes of the runtime OSError."
    yield ""


LAYOUT = Layout(place, "put it into the folder that USER_C_MODULES of MicroPython's build names")
