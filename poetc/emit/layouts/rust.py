"""A Rust crate without the standard library: Cargo.toml, build.rs, and a session that is safe to use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poetc.emit._module import Module
from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._one_session import one_session
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.program import Binding, all_inputs

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
    own[BINDING] = "\n".join(one_session(module, "Rust", "rust")).encode()
    files: dict[str, bytes | Path] = {f"csrc/{name}": content for name, content in own.items()}
    files["Cargo.toml"] = "\n".join(_manifest(contents)).encode()
    files["build.rs"] = "\n".join(_build(contents)).encode()
    files["src/lib.rs"] = "\n".join(_library(contents, module)).encode()
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


def _build(contents: Contents) -> Iterator[str]:
    """Compiles the C with the compiler of the target: CC and AR of the environment, or arm-none-eabi- for thumb."""
    sources = [*library_sources(contents), BINDING]
    options = [
        contents.numerics_flag,
        contents.opt_level or "-O2",
        "-std=c99",
        "-ffunction-sections",
        "-fdata-sections",
    ]
    yield "// Compiles the C of the model. Made by poetc."
    yield "use std::{env, path::PathBuf, process::Command};"
    yield ""
    yield "const SOURCES: &[&str] = &["
    yield from (f'    "{source}",' for source in sources)
    yield "];"
    yield "const FOLDERS: &[&str] = &["
    yield from (f'    "{folder}",' for folder in include_folders(sources))
    yield "];"
    yield "const OPTIONS: &[&str] = &["
    yield from (f'    "{option}",' for option in options)
    yield "];"
    yield """
fn core(target: &str) -> &'static [&'static str] {
    // Flags of the core, as rustc names its targets.
    match target {
        "thumbv6m-none-eabi" => &["-mcpu=cortex-m0", "-mthumb"],
        "thumbv7m-none-eabi" => &["-mcpu=cortex-m3", "-mthumb"],
        "thumbv7em-none-eabi" => &["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft"],
        "thumbv7em-none-eabihf" => &["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"],
        "thumbv8m.main-none-eabihf" => &["-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard"],
        _ => &[],
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}; set CC and AR"));
    assert!(status.success(), "{command:?} failed");
}

fn main() {
    let target = env::var("TARGET").unwrap();
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("csrc");
    let prefix = if target.starts_with("thumb") { "arm-none-eabi-" } else { "" };
    let compiler = env::var("CC").unwrap_or(format!("{prefix}gcc"));
    let archiver = env::var("AR").unwrap_or(format!("{prefix}ar"));
    println!("cargo:rerun-if-changed=csrc");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed=AR");
    let mut objects = Vec::new();
    for source in SOURCES {
        let object = out.join(source.replace('/', "_") + ".o");
        let mut command = Command::new(&compiler);
        command.current_dir(&folder).args(core(&target));
        if source.ends_with(".c") {
            command.args(OPTIONS);
        }
        for include in FOLDERS {
            command.arg("-I").arg(include);
        }
        run(command.arg("-c").arg(source).arg("-o").arg(&object));
        objects.push(object);
    }
    let archive = out.join("libpoetc_model.a");
    let _ = std::fs::remove_file(&archive);
    run(Command::new(&archiver).arg("crs").arg(&archive).args(&objects));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=poetc_model");
}
"""


def _library(contents: Contents, module: Module) -> Iterator[str]:
    prefix = module.prefix
    train = module.programs[0]
    infer = next((p for p in module.programs if p.name == "infer"), None)
    yield f"//! Trains {contents.title}: see README.md. Made by poetc."
    yield "#![no_std]"
    yield ""
    yield "use core::{ffi::c_void, marker::PhantomData, ptr, sync::atomic::{AtomicBool, Ordering}};"
    yield ""
    yield 'extern "C" {'
    yield f"    fn {prefix}_rust_init() -> i32;"
    yield f"    fn {prefix}_rust_step(inputs: *const *const c_void, loss: *mut f32) -> i32;"
    if infer is not None:
        yield f"    fn {prefix}_rust_predict(inputs: *const *const c_void) -> i32;"
        yield f"    fn {prefix}_rust_output(index: u32) -> *const c_void;"
    yield f"    fn {prefix}_rust_rate() -> f32;"
    yield f"    fn {prefix}_rust_set_rate(rate: f32) -> i32;"
    yield f"    fn {prefix}_rust_steps() -> u32;"
    yield f"    fn {prefix}_rust_save(bytes: *mut u8, size: u32, used: *mut u32) -> i32;"
    yield f"    fn {prefix}_rust_load(bytes: *const u8, size: u32) -> i32;"
    yield "}"
    yield """
/// A code of the runtime, below 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

fn checked(code: i32) -> Result<(), Error> {
    if code == 0 {
        Ok(())
    } else {
        Err(Error(code))
    }
}

/// The one training session of this model: its arena is static. It stays in one thread.
pub struct Session {
    _in_one_thread: PhantomData<*mut ()>,
}

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Session {
    /// The session with the initial weights; `None` while there is one already.
    pub fn take() -> Option<Result<Session, Error>> {
        #[cfg(target_has_atomic = "8")]
        let taken = TAKEN.swap(true, Ordering::AcqRel);
        // Cortex-M0 has no swap: take the session outside interrupts there.
        #[cfg(not(target_has_atomic = "8"))]
        let taken = TAKEN.load(Ordering::Acquire);
        if taken {
            return None;
        }
        TAKEN.store(true, Ordering::Release);
        let session = Session { _in_one_thread: PhantomData };"""
    yield f"        Some(checked(unsafe {{ {prefix}_rust_init() }}).map(|()| session))"
    yield "    }"
    inputs = [(f"input{i}", b) for i, b in enumerate(all_inputs(train))]
    yield ""
    yield (
        "    /// One training step: the loss, before the update. "
        + "; ".join(f"`{n}`: {b.name}" for n, b in inputs)
        + "."
    )
    yield f"    pub fn step(&mut self, {', '.join(f'{n}: {_array(b)}' for n, b in inputs)}) -> Result<f32, Error> {{"
    yield f"        let inputs = [{', '.join(f'{n}.as_ptr() as *const c_void' for n, _ in inputs)}];"
    yield "        let mut loss = 0.0;"
    yield f"        checked(unsafe {{ {prefix}_rust_step(inputs.as_ptr(), ptr::addr_of_mut!(loss)) }})?;"
    yield "        Ok(loss)"
    yield "    }"
    if infer is not None:
        arguments_of_infer = [(f"input{i}", b) for i, b in enumerate(infer.inputs)]
        outputs = [_array(b) for b in infer.outputs]
        result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        yield ""
        yield f"    /// One prediction, valid until the next call: {', '.join(b.name for b in infer.outputs)}."
        arguments = ", ".join(f"{n}: {_array(b)}" for n, b in arguments_of_infer)
        yield f"    pub fn predict(&mut self, {arguments}) -> Result<{result}, Error> {{"
        yield f"        let inputs = [{', '.join(f'{n}.as_ptr() as *const c_void' for n, _ in arguments_of_infer)}];"
        yield f"        checked(unsafe {{ {prefix}_rust_predict(inputs.as_ptr()) }})?;"
        got = [f"unsafe {{ &*({prefix}_rust_output({i}) as *const {o[1:]}) }}" for i, o in enumerate(outputs)]
        yield f"        Ok({got[0] if len(got) == 1 else '(' + ', '.join(got) + ')'})"
        yield "    }"
    yield f"""
    /// The learning rate of the next step; 0 where the optimizer has no such state.
    pub fn learning_rate(&self) -> f32 {{
        unsafe {{ {prefix}_rust_rate() }}
    }}

    pub fn set_learning_rate(&mut self, rate: f32) -> Result<(), Error> {{
        checked(unsafe {{ {prefix}_rust_set_rate(rate) }})
    }}

    /// Complete steps.
    pub fn steps(&self) -> u32 {{
        unsafe {{ {prefix}_rust_steps() }}
    }}

    /// Write all trained state to `bytes`, the format of trained.bin; how many of them it takes.
    pub fn save(&mut self, bytes: &mut [u8]) -> Result<usize, Error> {{
        let mut used = 0;
        let size = bytes.len().min(u32::MAX as usize) as u32;
        checked(unsafe {{ {prefix}_rust_save(bytes.as_mut_ptr(), size, &mut used) }})?;
        Ok(used as usize)
    }}

    /// Take over the state of a `save`.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {{
        checked(unsafe {{ {prefix}_rust_load(bytes.as_ptr(), bytes.len() as u32) }})
    }}
}}

impl Drop for Session {{
    fn drop(&mut self) {{
        TAKEN.store(false, Ordering::Release);
    }}
}}
"""


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
