"""Each layout is built as its build system builds it, runs, and gives the losses of the host."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from poetc.emit import Form, emit
from poetc.measure import write_records
from tests.layouts.support import CORE, LINK, Model, bits, make_model, qemu, run, start_up, write

needs_arm = pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="make setup-arm")
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="make setup-arm")

# Logs the bits of two losses on the record of `Model`.
MAIN = """
#include "mlp_model.h"
#include "poetc_port.h"
#include <string.h>

#ifdef __cplusplus
extern "C"
#endif
int main(void)
{
    static poetc_session session;
    poetc_config config;
    uint32_t step, i;
    memset(&config, 0, sizeof config);
    config.arena = mlp_arena;
    config.arena_bytes = MLP_ARENA_BYTES;
    if (poetc_session_init(&session, &mlp_model, &config))
        return 1;
    for (step = 0; step < 2; step++) {
        union {
            float value;
            uint32_t bits;
        } loss;
        char text[] = "bits 00000000\\n";
        for (i = 0; i < mlp_train_inputs[0].size_bytes / 4; i++)
            ((float *)poetc_session_input(&session, &mlp_model.train, 0))[i] = (float)(int32_t)(i % 5) - 2.0f;
        for (i = 0; i < mlp_train_inputs[1].size_bytes / 4; i++)
            ((int32_t *)poetc_session_input(&session, &mlp_model.train, 1))[i] = (int32_t)(i % 3);
        if (poetc_session_step(&session, NULL, &loss.value))
            return 2;
        for (i = 0; i < 8; i++)
            text[5 + i] = "0123456789abcdef"[(loss.bits >> (28 - 4 * i)) & 15u];
        poetc_port_log(text);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(4)


@pytest.fixture(scope="module")
def losses(model: Model) -> list[int]:
    return model.losses(2)


def sizes(elf: Path) -> list[str]:
    return run(["arm-none-eabi-size", elf], elf.parent).splitlines()[1].split()[:3]


def symbols(elf: Path) -> list[tuple[str, str]]:
    """Size and name of every symbol. The order of linking moves them and changes the padding between them."""
    lines = run(["arm-none-eabi-nm", "-S", elf], elf.parent).splitlines()
    return sorted((line.split()[1], line.split()[3]) for line in lines if len(line.split()) == 4)


@needs_arm
@needs_cmake
def test_cmake_builds_the_firmware_of_the_makefile(model: Model, tmp_path: Path) -> None:
    out = write([model.part()], Form("cmake"), tmp_path / "cmake")
    run(["cmake", "-G", "Ninja", "-B", "build", "--toolchain", "toolchain.cmake"], out)
    run(["cmake", "--build", "build"], out)
    usual = emit([model.program], model.case.graph.values, model="mlp", target="cortex-m4f", out_dir=tmp_path / "mk")
    run(["make", "-s"], usual)
    assert symbols(out / "build" / "firmware.elf") == symbols(usual / "firmware.elf")
    assert sizes(out / "build" / "firmware.elf")[1:] == sizes(usual / "firmware.elf")[1:]
    write_records(out / "build" / "data.bin", model.program, [model.record()] * 2)
    assert bits(qemu(out / "build" / "firmware.elf")) == model.losses(2)
    run(["cmake", "-B", "build", "-DPOETC_EPOCHS=2", "-DPOETC_VALIDATION=ON"], out)
    run(["cmake", "--build", "build"], out)
    assert bits(qemu(out / "build" / "firmware.elf")) == model.losses(4)


PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(app C CXX ASM)
{way}
add_executable(app main.cpp log.cpp)
target_link_libraries(app PRIVATE poetc::model)
target_include_directories(app PRIVATE {port})
"""
LOG = '#include <stdio.h>\n#include "poetc_port.h"\nvoid poetc_port_log(const char *text) { fputs(text, stdout); }\n'


@pytest.mark.long
@needs_cmake
def test_cmake_package_in_a_project_of_cpp(model: Model, losses: list[int], tmp_path: Path) -> None:
    """As a folder, as a package in the source tree, and installed: from C++, on this machine."""
    out = write([model.part()], Form("cmake"), tmp_path / "cmake", "c99")
    port = write([model.part()], Form(), tmp_path / "mk", "cortex-m4f") / "port"
    installed = tmp_path / "prefix"
    run(["cmake", "-B", tmp_path / "alone", "-S", out, f"-DCMAKE_INSTALL_PREFIX={installed}"], tmp_path)
    run(["cmake", "--build", tmp_path / "alone", "--target", "install"], tmp_path)
    for name, way in {
        "folder": f"add_subdirectory({out} poetc_model)",
        "package": f"find_package(poetc CONFIG REQUIRED PATHS {out} NO_DEFAULT_PATH)",
        "installed": f"find_package(poetc CONFIG REQUIRED PATHS {installed} NO_DEFAULT_PATH)",
    }.items():
        project = tmp_path / name
        project.mkdir()
        (project / "CMakeLists.txt").write_text(PROJECT.format(way=way, port=port))
        (project / "main.cpp").write_text(MAIN)
        (project / "log.cpp").write_text(LOG)
        run(["cmake", "-G", "Ninja", "-B", "build"], project)
        run(["cmake", "--build", "build"], project)
        assert bits(run([project / "build" / "app"], project)) == losses


# What a module's CMakeLists.txt calls of Zephyr: cmake/modules/extensions.cmake, as far as it is used here.
ZEPHYR = """
cmake_minimum_required(VERSION 3.20)
project(zephyr C ASM)
set(CONFIG_POETC y)
add_library(zephyr_interface INTERFACE)
function(zephyr_include_directories)
    foreach(path ${ARGV})
        cmake_path(ABSOLUTE_PATH path BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
        target_include_directories(zephyr_interface INTERFACE ${path})
    endforeach()
endfunction()
macro(zephyr_library_named name)
    set(ZEPHYR_CURRENT_LIBRARY ${name})
    add_library(${name} STATIC "")
    target_link_libraries(${name} PUBLIC zephyr_interface)
endmacro()
function(zephyr_library_sources)
    target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGV})
endfunction()
function(zephyr_library_include_directories)
    target_include_directories(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGV})
endfunction()
function(zephyr_library_compile_options)
    target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGV})
endfunction()
add_compile_options(-std=gnu11 -Wall -Os -ffunction-sections -fdata-sections @CORE@)
add_subdirectory(@MODULE@ module)
add_executable(zephyr.elf main.c startup.c semihosting.c)
target_link_libraries(zephyr.elf PRIVATE poetc)
target_link_options(zephyr.elf PRIVATE @CORE@ @LINK@)
"""


@needs_arm
@needs_cmake
def test_zephyr_module(model: Model, losses: list[int], tmp_path: Path) -> None:
    """Its CMakeLists.txt calls functions that Zephyr has, and what they build runs."""
    out = write([model.part()], Form("zephyr"), tmp_path / "module")
    described = yaml.safe_load((out / "zephyr" / "module.yml").read_text())
    assert described["name"] == "poetc"
    assert (out / described["build"]["cmake"] / "CMakeLists.txt").is_file()
    options = (out / described["build"]["kconfig"]).read_text()
    assert re.match(r'config POETC\n\tbool "Training of mlp"\n', options)
    start_up(model, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    link = " ".join(LINK).replace("-Tlink.ld", f"-T{tmp_path / 'link.ld'}")
    text = ZEPHYR.replace("@CORE@", " ".join(CORE[1:])).replace("@MODULE@", str(out)).replace("@LINK@", link)
    (tmp_path / "CMakeLists.txt").write_text(text)
    words = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER=arm-none-eabi-gcc"]
    words.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    run(["cmake", "-G", "Ninja", "-B", "build", *words], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert bits(qemu(tmp_path / "build" / "zephyr.elf")) == losses


# The core of an Arduino board, as far as the sketch uses it.
ARDUINO_H = """
#pragma once
#include <stddef.h>
#include <string.h>
extern "C" void poetc_port_log(const char *text);
extern "C" void poetc_port_stop(int status);
struct Printer {
    void begin(long) {}
    void println(const char *text) { poetc_port_log(text); poetc_port_log("\\n"); }
    void println(float value, int)
    {
        static int count;
        char text[] = "bits 00000000\\n";
        unsigned bits;
        memcpy(&bits, &value, sizeof bits);
        for (int i = 0; i < 8; i++)
            text[5 + i] = "0123456789abcdef"[(bits >> (28 - 4 * i)) & 15u];
        poetc_port_log(text);
        if (++count == 2)
            poetc_port_stop(0);
    }
};
extern Printer Serial;
"""
ARDUINO_CPP = """
#include <Arduino.h>
Printer Serial;
void setup();
void loop();
extern "C" int main() { setup(); for (;;) loop(); }
"""


@needs_arm
def test_arduino_library(model: Model, losses: list[int], tmp_path: Path) -> None:
    """All sources of src/ are compiled with the core's flags, the sketch by g++, as the IDE does. Its own flags let the
    compiler fuse multiplications and additions, which the library does not.
    """
    out = write([model.part()], Form("arduino"), tmp_path / "poetc_mlp", "c99")
    properties = dict(line.split("=", 1) for line in (out / "library.properties").read_text().splitlines())
    assert properties["name"] == "poetc_mlp" and properties["includes"] == "mlp_model.h"
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= set(properties)
    assert not [p for p in (out / "src").iterdir() if p.is_dir()]  # headers in folders would not be found
    port = start_up(model, tmp_path)
    (tmp_path / "Arduino.h").write_text(ARDUINO_H)
    (tmp_path / "core.cpp").write_text(ARDUINO_CPP)
    sketch = (out / "examples" / "Train" / "Train.ino").read_text()
    # The example trains on zeros: here it gets data.
    for i, fill in enumerate(("float", "int32_t")):
        place = f"poetc_session_input(&mlp_session, &mlp_model.train, {i})"
        value = "(float)(int)(k % 5) - 2.0f" if i == 0 else "(int32_t)(k % 3)"
        loop = f"for (unsigned k = 0; k < mlp_train_inputs[{i}].size_bytes / 4; k++) (({fill} *){place})[k] = {value};"
        sketch, count = re.subn(rf"memset\({re.escape(place)}, 0, \d+\);", loop, sketch)
        assert count == 1
    (tmp_path / "sketch.cpp").write_text(f"#include <Arduino.h>\n{sketch}")
    core = [*CORE, "-Os", "-w", "-ffunction-sections", "-fdata-sections", f"-I{out / 'src'}", "-I."]
    include = [f"-I{out.parent / 'mk/runtime/include'}", f"-I{out.parent / 'mk/port'}"]
    objects = []
    for source in [*sorted((out / "src").iterdir()), *port, "core.cpp", "sketch.cpp"]:
        path = tmp_path / source
        if path.suffix not in (".c", ".cpp", ".S"):
            continue
        compiler = "arm-none-eabi-g++" if path.suffix == ".cpp" else "arm-none-eabi-gcc"
        standard = {".cpp": ["-std=gnu++11", "-fno-exceptions", "-fno-rtti"], ".c": ["-std=gnu11"], ".S": []}
        objects.append(f"{path.stem}.o")
        extra = include if path.parent == tmp_path and path.suffix == ".c" else []
        run([compiler, *standard[path.suffix], *core, *extra, "-c", path, "-o", objects[-1]], tmp_path)
    run(["arm-none-eabi-gcc", *CORE, "-o", "sketch.elf", *objects, *LINK], tmp_path)
    assert bits(qemu(tmp_path / "sketch.elf")) == losses
    listing = run(["arm-none-eabi-objdump", "-d", "sketch.elf"], tmp_path)
    assert "vmul.f32" in listing and "vfma.f32" not in listing


@pytest.mark.parametrize("names", [("mlp",), ("a", "n" * 60)])
def test_cmsis_pack(model: Model, names: tuple[str, ...], tmp_path: Path) -> None:
    """The rules of PACK.xsd, as far as the description uses it; every file is there, and every source is listed."""
    out = write([model.part(name) for name in names], Form("cmsis-pack"), tmp_path / "pack", "c99")
    (path,) = out.glob("*.pdsc")
    package = ElementTree.parse(path).getroot()
    assert [child.tag for child in package] == ["vendor", "name", "description", "url", "releases", "components"]
    vendor, name = package.findtext("vendor"), package.findtext("name")
    assert path.name == f"{vendor}.{name}.pdsc"
    assert name is not None and re.fullmatch(r"[\-_A-Za-z0-9]+", name)
    (release,) = package.iter("release")
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.attrib["version"])
    (component,) = package.iter("component")
    assert set(component.attrib) == {"Cclass", "Cgroup", "Csub", "Cversion"}
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+():/\- .]*", component.attrib["Csub"])
    assert all(len(component.attrib[key]) <= 32 for key in ("Cclass", "Cgroup", "Csub"))
    assert [child.tag for child in component] == ["description", "files"]
    listed: dict[str, dict[str, str]] = {}
    for file in component.iter("file"):
        assert set(file.attrib) <= {"category", "language", "scope", "name"}
        assert file.attrib["category"] in {"doc", "include", "header", "source", "other"}
        assert file.attrib.get("scope", "public") in {"public", "private"}
        assert (out / file.attrib["name"]).exists()
        listed[file.attrib["name"]] = dict(file.attrib)
    there = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.suffix in (".c", ".h", ".hpp", ".S", ".img")}
    assert there == {n for n, a in listed.items() if a["category"] in ("source", "header", "other")}
    includes = [f"-I{out / n}" for n, a in listed.items() if a["category"] == "include"]
    for source in sorted(there):
        if source.endswith((".c", ".S")):
            run(["gcc", "-std=c99", *includes, "-fsyntax-only", source], out)


@pytest.mark.long
def test_two_models_share_a_runtime(tmp_path: Path, model: Model) -> None:
    """Trained in turn they have the losses that each has alone; all sources are compiled, and main by g++."""
    other = make_model(5)
    out = write([model.part("first"), other.part("second")], Form(), tmp_path / "o", "c99")
    assert len(list(out.rglob("poetc.c"))) == len(list(out.rglob("matmul.c"))) == 1
    assert not (out / "model.h").exists()
    text = MAIN.replace("main(void)", "NAME(void)").replace("mlp", "MODEL").replace("MLP", "UPPER")
    turns = []
    for name in ("first", "second"):
        own = text.replace("MODEL", name).replace("UPPER", name.upper()).replace("NAME", f"train_{name}")
        (out / f"{name}.c").write_text(own)
        turns.append(f'extern "C" int train_{name}(void);\n')
    body = "int main() { int a = train_first(), b = train_second(), c = train_first(); return a + b + c; }\n"
    (out / "both.cpp").write_text('#include "first_model.h"\n#include "second_model.h"\n' + "".join(turns) + body + LOG)
    port = write([model.part()], Form(), tmp_path / "mk") / "port" / "poetc_port.h"
    shutil.copy(port, out)
    run(["make", "-s", "CFLAGS=-O1 -Werror"], out)
    words = ["-I.", "-Iruntime/include", "-Wall", "-Werror"]
    run(["gcc", *words, "-c", "first.c", "second.c"], out)
    run(["g++", *words, "both.cpp", "first.o", "second.o", "libmodel.a", "-o", "both"], out)
    one, two = model.losses(2), other.losses(2)
    assert bits(run([out / "both"], out)) == [*one, *two, *one]
    symbols = run(["nm", "both"], out)
    address = dict(re.findall(r"^([0-9a-f]+) . (\w+_arena)$", symbols, re.MULTILINE))
    assert len(address) == 2


def test_models_that_share_an_arena(tmp_path: Path, model: Model) -> None:
    other = make_model(40)
    form = Form(shared_arena=True)
    out = write([model.part("first"), other.part("second")], form, tmp_path / "o", "c99")
    run(["make", "-s", "CFLAGS=-O1"], out)
    symbols = run(["nm", "-S", out / "build" / "poetc_arena.o"], out)
    found = re.findall(r"^(\w+) (\w+) . (?:first|second)_arena$", symbols, re.MULTILINE)
    assert found == [(f"{0:016x}", f"{other.program.arena_bytes:016x}")] * 2
