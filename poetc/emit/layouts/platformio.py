"""A PlatformIO library: library.json, all sources side by side in src/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from poetc.emit.layouts import _flat as flat
from poetc.emit.layouts._contents import Contents
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version


def place(contents: Contents) -> dict[str, bytes | Path]:
    """PlatformIO compiles every file of src/, and reads library.json."""
    files: dict[str, bytes | Path] = {**flat.one_folder(contents, "src"), **flat.store_images(contents)}
    files["library.json"] = (json.dumps(_manifest(contents), indent=2) + "\n").encode()
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    return files


def _manifest(contents: Contents) -> dict[str, object]:
    flags = [contents.numerics_flag, *([contents.opt_level] if contents.opt_level else [])]
    return {
        "name": f"poetc_{contents.library_name}",
        "version": version(),
        "description": f"Trains {contents.title} on the board: programs, weights and runtime, made by poetc.",
        "keywords": ["machine learning", "training"],
        "frameworks": "*",
        "platforms": "*",
        "headers": [f"{m.stem}.h" for m in contents.modules],
        "build": {"srcDir": "src", "includeDir": "src", "flags": flags, "libArchive": True},
    }


def _how(contents: Contents) -> Iterator[str]:
    yield f"A PlatformIO library, made by poetc, {contents.numerics} numerics. Copy this folder to `lib` of a project,"
    yield "or name it in `platformio.ini`:"
    yield from ("", "```ini", f"lib_deps = symlink:///path/to/poetc_{contents.library_name}", "```", "", "In its C:")
    yield from ("", "```c", f'#include "{contents.modules[0].stem}.h"', "```", "")


LAYOUT = Layout(place, "put it into the lib folder of the project")
