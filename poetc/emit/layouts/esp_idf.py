"""An ESP-IDF component: CMakeLists.txt with idf_component_register, idf_component.yml, Kconfig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version


def place(contents: Contents) -> dict[str, bytes | Path]:
    """Files as they are, with those that the build of ESP-IDF reads."""
    files: dict[str, bytes | Path] = {**contents.written, **contents.data_sources(), **contents.runtime}
    files["CMakeLists.txt"] = "\n".join(_lists(contents)).encode()
    files["idf_component.yml"] = "\n".join(_manifest(contents)).encode()
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    return files


def _lists(contents: Contents) -> Iterator[str]:
    sources = library_sources(contents)
    public = [".", "runtime/include"]
    yield f"# {contents.title}: an ESP-IDF component, made by poetc."
    yield "idf_component_register("
    yield "    SRCS"
    yield from (f'        "{source}"' for source in sources)
    yield "    INCLUDE_DIRS"
    yield from (f'        "{folder}"' for folder in public)
    private = [folder for folder in include_folders(sources) if folder not in public]
    if private:
        yield "    PRIV_INCLUDE_DIRS"
        yield from (f'        "{folder}"' for folder in private)
    yield "    )"
    for option in f"{contents.numerics_flag} {contents.opt_level}".split():
        yield f"target_compile_options(${{COMPONENT_LIB}} PRIVATE $<$<COMPILE_LANGUAGE:C>:{option}>)"
    for model in contents.models:
        if model.images:
            names = ";".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{name}" for name in model.images)
            yield f'set_source_files_properties({model.module.data_source} PROPERTIES OBJECT_DEPENDS "{names}")'
    yield ""


def _manifest(contents: Contents) -> Iterator[str]:
    yield f'version: "{version()}"'
    yield f'description: "Trains {contents.title} on the board: programs, weights and runtime, made by poetc."'
    yield "dependencies:"
    yield '  idf: ">=5.0"'
    yield ""


def _how(contents: Contents) -> Iterator[str]:
    yield f"An ESP-IDF component, made by poetc, {contents.numerics} numerics. Copy this folder to `components` of a"
    yield f"project, as `components/poetc_{contents.library_name}`, or name its parent in `EXTRA_COMPONENT_DIRS`. A"
    yield "component that uses it says so:"
    yield from ("", "```cmake", "idf_component_register(SRCS main.c")
    yield from (f"    PRIV_REQUIRES poetc_{contents.library_name})", "```", "", "In its C:")
    yield from ("", "```c", f'#include "{contents.modules[0].stem}.h"', "```", "")
    yield "The arena is in `.bss`. `--section arena=.ext_ram.bss` puts it into PSRAM."
    yield ""


LAYOUT = Layout(place, "put it into the components folder of the project")
