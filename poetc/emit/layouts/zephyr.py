"""A Zephyr module: zephyr/module.yml, CMakeLists.txt, Kconfig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poetc.emit.layouts._contents import Contents, include_folders, library_sources
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme

MODULE = """name: poetc
build:
  cmake: .
  kconfig: zephyr/Kconfig
"""


def place(contents: Contents) -> dict[str, bytes | Path]:
    """Files as they are, with those that Zephyr's build reads."""
    files: dict[str, bytes | Path] = {**contents.written, **contents.data_sources(), **contents.runtime}
    files["CMakeLists.txt"] = "\n".join(_lists(contents)).encode()
    files["zephyr/module.yml"] = MODULE.encode()
    files["zephyr/Kconfig"] = "\n".join(_options(contents)).encode()
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    return files


def _lists(contents: Contents) -> Iterator[str]:
    sources = library_sources(contents)
    yield f"# {contents.title}: a Zephyr module, made by poetc."
    yield "if(CONFIG_POETC)"
    yield "    zephyr_include_directories(. runtime/include)"
    yield "    zephyr_library_named(poetc)"
    yield "    zephyr_library_sources("
    yield from (f"        {source}" for source in sources)
    yield "    )"
    yield f"    zephyr_library_include_directories({' '.join(include_folders(sources))})"
    for option in f"{contents.numerics_flag} {contents.opt_level}".split():
        yield f"    zephyr_library_compile_options($<$<COMPILE_LANGUAGE:C>:{option}>)"
    for model in contents.models:
        if model.images:
            names = ";".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{name}" for name in model.images)
            yield "    set_source_files_properties("
            yield f'        {model.module.data_source} PROPERTIES OBJECT_DEPENDS "{names}"'
            yield "    )"
    yield from ("endif()", "")


def _options(contents: Contents) -> Iterator[str]:
    yield "config POETC"
    yield f'\tbool "Training of {contents.title}"'
    yield "\timply FPU if CPU_HAS_FPU"
    yield "\thelp"
    yield "\t  Programs, weights and runtime that poetc made: README.md of the module."
    yield "\t  Threads that train need FPU_SHARING where others use the FPU too."
    yield ""


def _how(contents: Contents) -> Iterator[str]:
    module = contents.modules[0]
    yield f"A Zephyr module, made by poetc, {contents.numerics} numerics. In an application's `CMakeLists.txt`, before"
    yield "`find_package(Zephyr)`:"
    yield from ("", "```cmake", "list(APPEND ZEPHYR_EXTRA_MODULES /path/to/this/folder)", "```", "")
    yield "In its `prj.conf`: `CONFIG_POETC=y`. In its C:"
    yield from ("", "```c", f'#include "{module.stem}.h"', "```", "")


LAYOUT = Layout(place, "add it to ZEPHYR_EXTRA_MODULES, and CONFIG_POETC=y to prj.conf")
