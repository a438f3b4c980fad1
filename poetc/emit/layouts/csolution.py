"""A csolution of the CMSIS-Toolbox: a layer with the sources, a project that builds it as a library, and a solution.

The rules are those of the JSON schemas of Open-CMSIS-Pack, devtools/tools/projmgr/schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from poetc.emit.layouts import _flat as flat
from poetc.emit.layouts._contents import Contents, include_folders
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version

# The device of ARM::Cortex_DFP with a core; its flags for a unit that some of them lack.
_DEVICES = {
    "cortex-m0": "ARMCM0",
    "cortex-m0plus": "ARMCM0P",
    "cortex-m3": "ARMCM3",
    "cortex-m4": "ARMCM4",
    "cortex-m7": "ARMCM7",
    "cortex-m33": "ARMCM33",
    "cortex-m55": "ARMCM55",
    "cortex-m85": "ARMCM85",
}


def place(contents: Contents) -> dict[str, bytes | Path]:
    """Files as they are, but for images, whose bytes are in the sources; and the three descriptions."""
    files: dict[str, bytes | Path] = {**dict(flat.library(contents)), **flat.store_images(contents)}
    name = f"poetc_{contents.library_name}"
    files[f"{name}.clayer.yml"] = _yaml(_layer(contents, sorted(files)))
    files[f"{name}.cproject.yml"] = _yaml(
        {"project": {"output": {"type": "lib"}, "layers": [{"layer": f"./{name}.clayer.yml"}]}}
    )
    files[f"{name}.csolution.yml"] = _yaml(_solution(contents, name))
    files["README.md"] = readme(contents, list(_how(contents, name))).encode()
    return files


def _yaml(document: dict[str, Any]) -> bytes:
    return b"# Made by poetc.\n" + yaml.safe_dump(document, sort_keys=False, width=200).encode()


def _layer(contents: Contents, names: list[str]) -> dict[str, Any]:
    """Include paths of the sources alone are those of their group; the public ones hold for the whole project."""
    sources = [name for name in names if name.endswith((".c", ".S"))]
    public = [".", "runtime/include"]
    rooms = [f"./{room}" for room in include_folders(sources) if room not in public]
    group: dict[str, Any] = {"group": "poetc"}
    if rooms:
        group["add-path"] = rooms
    options = contents.opt_level.split()
    if options:
        group["misc"] = [{"for-compiler": compiler, "C": list(options)} for compiler in ("GCC", "AC6", "CLANG")]
    group["files"] = [{"file": f"./{name}"} for name in sources]
    return {
        "layer": {
            "type": "Training",
            "description": f"Training of {contents.title}, made by poetc",
            "language-C": "c99",
            "add-path": [".", "./runtime/include"],
            "groups": [group],
        }
    }


def _solution(contents: Contents, name: str) -> dict[str, Any]:
    core = contents.target.core
    device = _DEVICES.get("cortex-m4" if core is None else core.name, "ARMCM4")
    return {
        "solution": {
            "created-by": f"poetc@{version()}",
            "compiler": "GCC",
            "packs": [{"pack": "ARM::Cortex_DFP"}],
            "target-types": [{"type": "Board", "device": f"ARM::{device}"}],
            "build-types": [{"type": "Release", "optimize": "speed", "debug": "off"}],
            "projects": [{"project": f"./{name}.cproject.yml"}],
        }
    }


def _how(contents: Contents, name: str) -> Iterator[str]:
    module = contents.modules[0]
    yield f"A csolution for the CMSIS-Toolbox, made by poetc, {contents.numerics} numerics, for GCC, Clang and Arm"
    yield "Compiler 6. In a project of yours name the layer in its `.cproject.yml`:"
    yield from ("", "```yaml", "  layers:", f"    - layer: ./{name}/{name}.clayer.yml", "```", "")
    yield f"Its header is `{module.stem}.h`. The folder alone builds a library for a device without peripherals:"
    yield from ("", f"    cbuild {name}.csolution.yml", "")


LAYOUT = Layout(place, "name its layer in the project's .cproject.yml")
