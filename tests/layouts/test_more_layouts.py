"""Layouts for ESP-IDF, PlatformIO and Rust: built by real tools, run, with the losses of the host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from poetc.emit import Form
from poetc.emit.layouts import LAYOUTS
from poetc.errors import UsageError
from poetc.measure import write_records
from tests.layouts.support import CORE, LINK, Model, bits, make_model, qemu, run, start_up, write
from tests.layouts.test_layouts import LOG, MAIN, needs_arm, needs_cmake

needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo")


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(4)


@pytest.fixture(scope="module")
def losses(model: Model) -> list[int]:
    return model.losses(2)


# The functions of ESP-IDF that a component's CMakeLists.txt calls (tools/cmake/component.cmake), as far as used here.
IDF = """
cmake_minimum_required(VERSION 3.20)
project(app C ASM)
function(idf_component_register)
    cmake_parse_arguments(own "" "" "SRCS;INCLUDE_DIRS;PRIV_INCLUDE_DIRS;REQUIRES;PRIV_REQUIRES" ${ARGN})
    if(own_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "no argument of idf_component_register: ${own_UNPARSED_ARGUMENTS}")
    endif()
    add_library(__idf_poetc STATIC ${own_SRCS})
    target_include_directories(__idf_poetc PUBLIC ${own_INCLUDE_DIRS})
    target_include_directories(__idf_poetc PRIVATE ${own_PRIV_INCLUDE_DIRS})
    set(COMPONENT_LIB __idf_poetc PARENT_SCOPE)
endfunction()
add_compile_options(-std=gnu17 -Wall -Os -ffunction-sections -fdata-sections @CORE@)
add_subdirectory(@COMPONENT@ component)
add_executable(app.elf main.c startup.c semihosting.c)
target_link_libraries(app.elf PRIVATE __idf_poetc)
target_link_options(app.elf PRIVATE @CORE@ @LINK@)
"""


@needs_arm
@needs_cmake
def test_esp_idf_component(model: Model, losses: list[int], tmp_path: Path) -> None:
    """The real cmake reads the component, with IDF's function in place; what it builds runs on an emulated board."""
    out = write([model.part()], Form("esp-idf"), tmp_path / "poetc_mlp")
    manifest = yaml.safe_load((out / "idf_component.yml").read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifest["version"]) and manifest["dependencies"] == {"idf": ">=5.0"}
    start_up(model, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    link = " ".join(LINK).replace("-Tlink.ld", f"-T{tmp_path / 'link.ld'}")
    text = IDF.replace("@CORE@", " ".join(CORE[1:])).replace("@COMPONENT@", str(out)).replace("@LINK@", link)
    (tmp_path / "CMakeLists.txt").write_text(text)
    words = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER=arm-none-eabi-gcc"]
    words.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    run(["cmake", "-G", "Ninja", "-B", "build", *words], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert bits(qemu(tmp_path / "build" / "app.elf")) == losses


def test_platformio_library(model: Model, losses: list[int], tmp_path: Path) -> None:
    """All sources of src/ are compiled as PlatformIO does: one folder of headers, the flags of library.json."""
    out = write([model.part()], Form("platformio"), tmp_path / "poetc_mlp", "c99")
    manifest = json.loads((out / "library.json").read_text())
    assert manifest["name"] == "poetc_mlp" and re.fullmatch(r"\d+\.\d+\.\d+", manifest["version"])
    source = out / manifest["build"]["srcDir"]
    assert all((source / header).is_file() for header in manifest["headers"])
    assert not [path for path in source.iterdir() if path.is_dir()]
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "log.c").write_text(LOG.replace("log.cpp", "log.c"))
    port = write([model.part()], Form(), tmp_path / "mk", "cortex-m4f") / "port"
    files = [*source.glob("*.c"), *source.glob("*.S"), "main.c", "log.c"]
    flags = [*manifest["build"]["flags"], "-O1", "-w", f"-I{source}", f"-I{port}"]
    run(["gcc", *flags, *files, "-lm", "-o", "app"], tmp_path)
    assert bits(run([tmp_path / "app"], tmp_path)) == losses


def test_csolution(model: Model, losses: list[int], tmp_path: Path) -> None:
    """Solution, project and layer name each other; the layer's files and paths alone build what runs."""
    out = write([model.part()], Form("csolution", opt_level="-O1"), tmp_path / "poetc_mlp", "cortex-m4f")
    named = {kind: yaml.safe_load((out / f"poetc_mlp.{kind}.yml").read_text()) for kind in ("csolution", "cproject")}
    solution, project = named["csolution"]["solution"], named["cproject"]["project"]
    assert [p["project"] for p in solution["projects"]] == ["./poetc_mlp.cproject.yml"]
    assert solution["target-types"] == [{"type": "Board", "device": "ARM::ARMCM4"}]
    assert re.fullmatch(r"poetc@\d+\.\d+\.\d+", solution["created-by"])
    assert project["output"] == {"type": "lib"}
    text = (out / project["layers"][0]["layer"]).read_text()
    layer = yaml.safe_load(text)["layer"]
    assert set(layer) == {"type", "description", "language-C", "add-path", "groups"} and "&id" not in text
    (group,) = layer["groups"]
    flags = next(m["C"] for m in group["misc"] if m["for-compiler"] == "GCC")
    files = [entry["file"] for entry in group["files"]]
    assert {Path(f).as_posix() for f in files} == {
        p.relative_to(out).as_posix() for p in out.rglob("*") if p.suffix in (".c", ".S")
    }
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "log.c").write_text(LOG.replace("log.cpp", "log.c"))
    port = write([model.part()], Form(), tmp_path / "mk", "cortex-m4f") / "port"
    words = ["gcc", f"-std={layer['language-C']}", *flags, "-w", f"-I{port}"]
    words += [f"-I{out / folder}" for folder in (*layer["add-path"], *group["add-path"])]
    run([*words, *(out / f for f in files), "main.c", "log.c", "-lm", "-o", "app"], tmp_path)
    assert bits(run([tmp_path / "app"], tmp_path)) == losses


# adb, whose phone is a folder, and taskset, which only says what it was asked for.
ADB = """#!/bin/sh
set -eu
case $1 in
push) cp "$2" "$3" ;;
pull) cp "$2" "$3" ;;
shell) exec sh -c "$2" ;;
esac
"""
TASKSET = '#!/bin/sh\necho "mask $1" >&2\nshift\nexec qemu-aarch64 "$@"\n'


@needs_arm
def test_android(model: Model, losses: list[int], tmp_path: Path) -> None:
    """One static program runs in an emulated 64-bit Arm, on the cores of a kind, and its state comes back."""
    out = write([model.part()], Form("android"), tmp_path / "phone", "cortex-a")
    write_records(out / "data.bin", model.program, [model.record()] * 2)
    for core, frequency in enumerate((1800000, 1800000, 2400000, 2800000, 2800000)):
        file = tmp_path / "cores" / f"cpu{core}" / "cpufreq" / "cpuinfo_max_freq"
        file.parent.mkdir(parents=True)
        file.write_text(f"{frequency}\n")
    (tmp_path / "bin").mkdir()
    for name, text in (("adb", ADB), ("taskset", TASKSET)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CORES": str(tmp_path / "cores"),
        "FOLDER": str(tmp_path / "data"),
    }
    for kind, mask in (("big", "18"), ("little", "3")):
        words = ["sh", str(out / "push-and-run.sh"), kind]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"cores: 2 of {kind}" in done.stdout and f"mask {mask}\n" in done.stderr
        assert bits(done.stdout) == losses
        shutil.rmtree(tmp_path / "data")  # its checkpoint: training would go on
    assert (out / "trained.bin").stat().st_size > 0
    assert "INTERP" not in run(["aarch64-linux-gnu-readelf", "-l", "train"], out)
    wrong = subprocess.run(
        ["sh", str(out / "run-on-phone.sh"), "fast"], env=environment, capture_output=True, text=True
    )
    assert wrong.returncode == 2 and "big, little or all" in wrong.stderr
    with pytest.raises(UsageError, match="host is no 64-bit Arm with Linux; use cortex-a"):
        write([model.part()], Form("android"), tmp_path / "host", "host")


TEST_RS = """
use poetc_mlp::Session;

#[test]
fn trains_saves_and_loads() {
    let mut session = Session::take().unwrap().unwrap();
    assert!(Session::take().is_none());
    let x = core::array::from_fn(|i| (i % 5) as f32 - 2.0);
    let y = core::array::from_fn(|i| (i % 3) as i32);
    let first = session.step(&x, &y).unwrap();
    let mut saved = vec![0; 1 << 16];
    let size = session.save(&mut saved).unwrap();
    let second = session.step(&x, &y).unwrap();
    println!("bits {:08x}", first.to_bits());
    println!("bits {:08x}", second.to_bits());
    assert_eq!(session.steps(), 2);
    session.load(&saved[..size]).unwrap();
    assert_eq!(session.step(&x, &y).unwrap().to_bits(), second.to_bits());
    assert!(session.load(&saved[..size - 1]).is_err());
    assert!(session.save(&mut [0; 8]).is_err());
    assert!(session.step(&x, &core::array::from_fn(|_| 99)).is_err());
    drop(session);
    let mut again = Session::take().unwrap().unwrap();
    assert_eq!(again.step(&x, &y).unwrap().to_bits(), first.to_bits());
}
"""

THREADS_RS = """
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn one_session_at_a_time() {
    let holders = AtomicUsize::new(0);
    let twice = AtomicUsize::new(0);
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| while Instant::now() < end {
                if let Some(session) = poetc_mlp::Session::take() {
                    twice.fetch_add(holders.fetch_add(1, SeqCst), SeqCst);
                    holders.fetch_sub(1, SeqCst);
                    drop(session);
                }
            });
        }
    });
    assert_eq!(twice.load(SeqCst), 0);
}
"""


@needs_cargo
def test_rust_crate(model: Model, losses: list[int], tmp_path: Path) -> None:
    """Cargo builds the crate and runs a test of it on this machine, without a network."""
    out = write([model.part()], Form("rust"), tmp_path / "crate", "c99")
    (out / "tests").mkdir()
    (out / "tests" / "session.rs").write_text(TEST_RS)
    (out / "tests" / "threads.rs").write_text(THREADS_RS)
    words = ["cargo", "test", "--offline", "--quiet", "--", "--nocapture"]
    done = subprocess.run(words, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bits(done.stdout) == losses
    assert "warning" not in done.stderr


def test_what_a_crate_cannot_hold_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a crate holds one model"):
        write([model.part("a"), model.part("b")], Form("rust"), tmp_path / "o", "c99")
    assert not (tmp_path / "o").exists()


def test_every_layout_is_a_file(tmp_path: Path, model: Model) -> None:
    """A layout of that name writes a directory with a README."""
    for name in LAYOUTS:
        out = write([model.part()], Form(name), tmp_path / name, "cortex-a" if name == "android" else "c99")
        assert (out / "README.md").is_file()
        assert LAYOUTS[name].next_step or name == "makefile"
