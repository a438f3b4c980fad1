"""A user C module of MicroPython: micropython.mk, micropython.cmake, and the functions that scripts call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from poetc.emit._module import Module
from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._one_session import one_session
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._texts import text_of
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.program import Binding, Program, all_inputs

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
    files[SESSION] = one_session(module, "MicroPython", "python").encode()
    files[MODULE] = _functions(contents, module).encode()
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


def _functions(contents: Contents, module: Module) -> str:
    infer = next((p for p in module.programs if p.name == "infer"), None)
    inputs = all_inputs(module.programs[0])
    called = ["step", *(["predict"] if infer is not None else []), "save", "load", "reset", "steps", "learning_rate"]
    return text_of(
        "micropython.c.in",
        title=contents.title,
        prefix=f"{module.prefix}_python",
        name=module_name(contents),
        step_operands="\n".join(_operands("step_inputs", inputs)),
        count=str(len(inputs)),
        predict="" if infer is None else _predict(f"{module.prefix}_python", infer),
        called="\n".join(f"    {{MP_ROM_QSTR(MP_QSTR_{f}), MP_ROM_PTR(&{f}_obj)}}," for f in called),
    )


def _predict(prefix: str, infer: Program) -> str:
    count, result = len(infer.outputs), "    return output(0);"
    if count > 1:
        result = (
            f"    mp_obj_t all[{count}];\n    for (uint32_t i = 0; i < {count}; i++)\n        all[i] = output(i);\n"
        )
        result += f"    return mp_obj_new_tuple({count}, all);"
    operands = [*_operands("predict_inputs", infer.inputs), *_operands("outputs", infer.outputs)]
    return text_of(
        "micropython_predict.c.in",
        prefix=prefix,
        operands="\n".join(operands),
        count=str(len(infer.inputs)),
        result=result,
    )


def _operands(name: str, bindings: Sequence[Binding]) -> Iterator[str]:
    yield f"static const operand {name}[] = {{"
    for b in bindings:
        kind = b.operand.type
        spelled = "".join(c if c.isalnum() or c in "._-:/" else "_" for c in b.name)
        yield f"    {{\"{spelled}\", '{_CODES[kind.dtype]}', {kind.size_bytes}u}},"
    yield "};"


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
