"""A Rust crate without the standard library: Cargo.toml, build.rs, and a session that is safe to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from poetc.emit._module import Module
from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._one_session import one_session
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._texts import text_of
from poetc.emit.layouts._version import version
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.program import Binding, Program, all_inputs

_TYPES = {DType.F32: "f32", DType.I32: "i32", DType.U8: "u8", DType.I8: "i8"}
BINDING = "poetc_rust.c"


def place(contents: Contents) -> dict[str, bytes | Path]:
    """C under csrc/, as it is; the crate around it. UsageError for several models, and for one with a store."""
    if len(contents.models) > 1:
        raise UsageError("--layout rust: a crate holds one model; emit each to a directory of its own")
    (module,) = contents.modules
    if module.store_blocks:
        raise UsageError("--layout rust: this program pages, and the crate drives no store; solve with --no-paging")
    own: dict[str, bytes | Path] = {**contents.written, **contents.data_sources(), **contents.runtime}
    own[BINDING] = one_session(module, "Rust", "rust").encode()
    files: dict[str, bytes | Path] = {f"csrc/{name}": content for name, content in own.items()}
    files["Cargo.toml"] = "\n".join(_manifest(contents)).encode()
    files["build.rs"] = _build(contents).encode()
    files["src/lib.rs"] = _library(contents, module).encode()
    files["README.md"] = readme(contents, list(_how(contents, module))).encode()
    return files


def crate_name(contents: Contents) -> str:
    return f"poetc_{contents.library_name}".lower()


def _manifest(contents: Contents) -> Iterator[str]:
    yield "[package]"
    yield f'name = "{crate_name(contents)}"'
    yield f'version = "{version()}"'
    yield 'edition = "2021"'
    yield f'description = "Trains {contents.title}: programs, weights and runtime, made by poetc."'
    yield f'links = "{crate_name(contents)}"'
    yield 'build = "build.rs"'
    yield ""


def _build(contents: Contents) -> str:
    """Compiles the C with the compiler of the target: CC and AR of the environment, or arm-none-eabi- for thumb."""
    sources = [*library_sources(contents), BINDING]
    options = [
        contents.numerics_flag,
        contents.opt_level or "-O2",
        "-std=c99",
        "-ffunction-sections",
        "-fdata-sections",
    ]
    lists = {"sources": sources, "folders": include_folders(sources), "options": options}
    return text_of("build.rs.in", **{n: "\n".join(f'    "{item}",' for item in items) for n, items in lists.items()})


def _library(contents: Contents, module: Module) -> str:
    infer = next((p for p in module.programs if p.name == "infer"), None)
    inputs = all_inputs(module.programs[0])
    declared = (
        "    fn {0}_rust_predict(inputs: *const *const c_void) -> i32;\n"
        "    fn {0}_rust_output(index: u32) -> *const c_void;\n"
    )
    return text_of(
        "lib.rs.in",
        title=contents.title,
        prefix=module.prefix,
        predict_declared=declared.format(module.prefix) if infer is not None else "",
        operands="; ".join(f"`input{i}`: {b.name}" for i, b in enumerate(inputs)),
        **_arguments(inputs),
        predict="" if infer is None else _predict(module.prefix, infer),
    )


def _predict(prefix: str, infer: Program) -> str:
    types = [_array(b) for b in infer.outputs]
    outputs = [f"unsafe {{ &*({prefix}_rust_output({i}) as *const {t[1:]}) }}" for i, t in enumerate(types)]
    return text_of(
        "predict.rs.in",
        prefix=prefix,
        names=", ".join(b.name for b in infer.outputs),
        **_arguments(infer.inputs),
        result=types[0] if len(types) == 1 else f"({', '.join(types)})",
        outputs=outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})",
    )


def _arguments(bindings: Sequence[Binding]) -> dict[str, str]:
    """The arguments of a function of Rust, and the array of their addresses."""
    return {
        "arguments": ", ".join(f"input{i}: {_array(b)}" for i, b in enumerate(bindings)),
        "pointers": ", ".join(f"input{i}.as_ptr() as *const c_void" for i in range(len(bindings))),
    }


def _array(binding: Binding) -> str:
    kind = binding.operand.type
    return f"&[{_TYPES[kind.dtype]}; {kind.elements}]"


def _how(contents: Contents, module: Module) -> Iterator[str]:
    yield f"A Rust crate without the standard library, made by poetc, {contents.numerics} numerics. In `Cargo.toml`:"
    yield from ("", "```toml", "[dependencies]", f'{crate_name(contents)} = {{ path = "/path/to/this/folder" }}', "```")
    names = ", ".join(f"&{b.name.split('.')[-1]}" for b in all_inputs(module.programs[0]))
    yield from ("", "```rust", f"let mut session = {crate_name(contents)}::Session::take().unwrap()?;")
    yield from (f"let loss = session.step({names})?;", "```", "")
    yield "`build.rs` compiles the C with `CC` and `AR`, by default gcc, and arm-none-eabi-gcc for targets that begin"
    yield "with thumb. The arena is static, so there is one session at a time."
    yield ""


LAYOUT = Layout(place, "add it to the dependencies in Cargo.toml by its path")
