"""A CMake package: `find_package(poetc)` or `add_subdirectory`, target `poetc::model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from poetc.emit._firmware import link_flags
from poetc.emit.layouts._contents import WARNINGS, Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme

STANDARD = "C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF"
CONFIG = """# find_package(poetc CONFIG REQUIRED PATHS <this folder> NO_DEFAULT_PATH) makes the target poetc::model.
if(NOT TARGET poetc::model)
    add_subdirectory("${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_BINARY_DIR}/poetc_model")
endif()
"""


def place(contents: Contents) -> dict[str, bytes | Path]:
    """Files as they are; CMakeLists.txt, the package's file, and the compiler's where it is a cross compiler."""
    files: dict[str, bytes | Path] = {
        **contents.written,
        **contents.data_sources(),
        **contents.runtime,
        **contents.port,
    }
    files["CMakeLists.txt"] = "\n".join(_lists(contents)).encode()
    files["poetc-config.cmake"] = CONFIG.encode()
    if contents.target.cross_compile:
        files["toolchain.cmake"] = "\n".join(_toolchain(contents)).encode()
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    return files


def _lists(contents: Contents) -> Iterator[str]:
    sources = library_sources(contents)
    yield f"# {contents.title}: the target poetc::model, made by poetc. Include the headers of README.md."
    yield "cmake_minimum_required(VERSION 3.16)"
    yield "project(poetc_model LANGUAGES C ASM)"
    yield ""
    yield from _call("add_library", "poetc_model STATIC", sources)
    yield "add_library(poetc::model ALIAS poetc_model)"
    yield f"set_target_properties(poetc_model PROPERTIES EXPORT_NAME model {STANDARD})"
    yield from _call(
        "target_compile_options",
        "poetc_model PRIVATE",
        [
            f"$<$<COMPILE_LANGUAGE:C>:{option}>"
            for option in (*_options(contents), *([contents.opt_level] if contents.opt_level else []))
        ],
    )
    headers = ['"$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>"']
    headers.append('"$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/runtime/include>"')
    headers.append('"$<INSTALL_INTERFACE:include/poetc>"')
    yield from _call("target_include_directories", "poetc_model PUBLIC", headers)
    rooms = [room for room in include_folders(sources) if room not in (".", "runtime/include")]
    yield from _call("target_include_directories", "poetc_model PRIVATE", rooms)
    yield from _images(contents)
    if contents.port:
        yield from ("", "# The program, where this folder is not a part of another project.")
        yield "if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)"
        yield from (f"    {line}" for line in _program(contents))
        yield "endif()"
    yield from ("", "# cmake --install makes a package for CMAKE_PREFIX_PATH.")
    yield "install(TARGETS poetc_model EXPORT poetc ARCHIVE DESTINATION lib)"
    own = [name for model in contents.models for name in model.files if name.endswith(".h")]
    public = [name for name in contents.runtime if name.startswith("runtime/include/")]
    yield from _call("install", "FILES", [*own, *public, "DESTINATION include/poetc"])
    yield "install(EXPORT poetc NAMESPACE poetc:: FILE poetc-config.cmake DESTINATION lib/cmake/poetc)"
    yield ""


def _options(contents: Contents) -> list[str]:
    return f"{WARNINGS} {contents.numerics_flag} -ffunction-sections -fdata-sections".split()


def _images(contents: Contents) -> Iterator[str]:
    """The assembler reads the images, which CMake does not see."""
    for model in contents.models:
        if model.images:
            names = ";".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{name}" for name in model.images)
            yield f'set_source_files_properties({model.module.data_source} PROPERTIES OBJECT_DEPENDS "{names}")'


def _program(contents: Contents) -> Iterator[str]:
    target, name = contents.target, "firmware.elf" if contents.target.build == "firmware" else "train"
    sources = sorted(n for n in contents.port if n.endswith((".c", ".S")))
    yield from _call("add_executable", name, sources)
    yield f"target_link_libraries({name} PRIVATE poetc_model)"
    yield f"set_target_properties({name} PROPERTIES {STANDARD})"
    # Assertions of the port name their file: as the Makefile's do, without where the folder is.
    options = [*_options(contents), "-fmacro-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/="]
    yield from _call("target_compile_options", f"{name} PRIVATE", [f"$<$<COMPILE_LANGUAGE:C>:{o}>" for o in options])
    rooms = [room for room in include_folders([*sources, *contents.port]) if room not in (".", "runtime/include")]
    if rooms:
        yield from _call("target_include_directories", f"{name} PRIVATE", rooms)
    if "device" in target.ports:
        yield "# All data are used so many times."
        yield 'set(POETC_EPOCHS 1 CACHE STRING "Epochs of training")'
        yield f"target_compile_definitions({name} PRIVATE POETC_EPOCHS=${{POETC_EPOCHS}})"
        yield "# State is saved to the store after so many steps (0: never)."
        yield f'set(POETC_CHECKPOINT_STEPS {contents.checkpoint} CACHE STRING "Steps from checkpoint to checkpoint")'
        yield f"target_compile_definitions({name} PRIVATE POETC_CHECKPOINT_STEPS=${{POETC_CHECKPOINT_STEPS}})"
    if target.build == "firmware":
        yield "# Each epoch ends with an evaluation on validation.bin, and the best state is kept."
        yield 'option(POETC_VALIDATION "Run the program evaluate, which must be there, after each epoch" OFF)'
        yield "if(POETC_VALIDATION)"
        yield "    target_compile_definitions(poetc_model PRIVATE POETC_VALIDATES)"
        yield f"    target_compile_definitions({name} PRIVATE POETC_VALIDATES)"
        yield "endif()"
        script = "${CMAKE_CURRENT_SOURCE_DIR}/link.ld"
        flags = [*link_flags(target), f"SHELL:-T {script}", "-Wl,--gc-sections,-Map=firmware.map"]
        yield from _call("target_link_options", f"{name} PRIVATE", [f'"{flag}"' for flag in flags])
        yield f'set_target_properties({name} PROPERTIES LINK_DEPENDS "{script}")'
        yield f"target_link_libraries({name} PRIVATE gcc)"
    else:
        yield f"target_link_options({name} PRIVATE -Wl,--gc-sections)"


def _toolchain(contents: Contents) -> Iterator[str]:
    target = contents.target
    yield f"# The compiler of {target.name}: cmake --toolchain toolchain.cmake. A project of yours may have its own."
    yield f"set(CMAKE_SYSTEM_NAME {'Linux' if target.hosted else 'Generic'})"
    yield f"set(CMAKE_C_COMPILER {target.cross_compile}gcc)"
    yield f"set(CMAKE_CXX_COMPILER {target.cross_compile}g++)"
    yield f"set(CMAKE_ASM_COMPILER {target.cross_compile}gcc)"
    yield "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)"
    for language in ("C", "CXX", "ASM"):
        yield f'set(CMAKE_{language}_FLAGS_INIT "{target.flags}")'
    yield ""


def _call(function: str, first: str, items: Sequence[str]) -> Iterator[str]:
    yield f"{function}({first}"
    yield from (f"    {item}" for item in items)
    yield ")"


def _how(contents: Contents) -> Iterator[str]:
    yield f"A CMake package, made by poetc, {contents.numerics} numerics. In a project of yours:"
    yield from ("", "```cmake", "add_subdirectory(path/to/this/folder poetc_model)")
    yield "# or: find_package(poetc CONFIG REQUIRED PATHS path/to/this/folder NO_DEFAULT_PATH)"
    yield from ("target_link_libraries(app PRIVATE poetc::model)", "```", "")
    yield "The project's own flags choose the core and the optimisation; those for the numerics are in the package."
    if contents.port:
        toolchain = " --toolchain toolchain.cmake" if contents.target.cross_compile else ""
        goal = "`firmware.elf`" if contents.target.build == "firmware" else "`train`"
        yield f"Alone it builds {goal}: `cmake -B build{toolchain} && cmake --build build`."
    yield ""


LAYOUT = Layout(place, "add_subdirectory, then link poetc::model", programs=True)
