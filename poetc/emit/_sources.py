"""The runtime sources that a program needs: the core, the kernels that it calls, and the files that those include."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from poetc.errors import UsageError
from poetc.ops import load_others, registry
from poetc.program import ProgramError
from poetc.runtime import runtime_directory

# A kernel is `int NAME(const poetc_call *...)`; a macro may paste its arguments into NAME.
_KERNEL = re.compile(r"\bint\s+(poetc_[\w#]+)\s*\(\s*const\s+poetc_call\s*\*\s*\w*\s*\)")
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
_INVOCATION = re.compile(r"^(\w+)\(([^()]*)", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
OTHERS = "kernels/others"  # of an emission: where files of other packages go
_FOLDERS = ("include", "src", "kernels")


@functools.cache
def kernel_files() -> dict[str, Path]:
    """The file that defines a symbol, directly or through a macro that makes kernels: of kernels/, or another package.

    UsageError for a file that is not there.
    """
    directory = runtime_directory() / "kernels"
    load_others()
    others = {s.source for s in registry().values() if s.source is not None}
    missing = next((str(path) for path in sorted(others) if not path.is_file()), None)
    if missing:
        raise UsageError(f"{missing}: the C of an operator of another package is not there; install the package again")
    paths = [*sorted(directory.rglob("*.[ch]")), *sorted(others)]
    texts = {path: path.read_text().replace("\\\n", " ") for path in paths}
    macros: dict[str, list[tuple[list[str], str]]] = {}  # macro -> its parameters and the pasted names of its kernels
    for text in texts.values():
        for macro, parameters, body in _MACRO.findall(text):
            names = [p.strip() for p in parameters.split(",")]
            macros.setdefault(macro, []).extend((names, k) for k in dict.fromkeys(_KERNEL.findall(body)))
    files: dict[str, Path] = {}
    for path, text in texts.items():
        if path.suffix != ".c":
            continue
        files.update(dict.fromkeys((k for k in _KERNEL.findall(text) if "#" not in k), path))
        for macro, arguments in _INVOCATION.findall(text):
            values = [v.strip() for v in arguments.split(",")]
            for names, pasted in macros.get(macro, ()):
                files[_paste(pasted, dict(zip(names, values, strict=False)))] = path
    return files


def _paste(pasted: str, arguments: Mapping[str, str]) -> str:
    """`poetc_op_##name##_grad` with name = relu: poetc_op_relu_grad."""
    return "".join(arguments.get(part, part) for part in pasted.split("##"))


def runtime_sources(symbols: Iterable[str], parts: Iterable[str] = ()) -> dict[str, Path]:
    """The core, the files that define `symbols`, and their includes, by their paths below the runtime's directory.

    An included `x.h` brings `x.c` along, wherever in the runtime it is. A file of another package is in kernels/others.
    Raises ProgramError for a symbol that no file has. `parts`: more files of src/ than every emission has.
    """
    root, files = runtime_directory(), kernel_files()
    missing = sorted(set(symbols) - files.keys())
    if missing:
        raise ProgramError(f"the runtime has no kernel {', '.join(missing)}")
    waiting = [
        root / "src" / f"poetc{part}.c"
        for part in ("", "_checkpoint", "_data", "_rate", "_session", "_state", "_task", "_update")
    ]
    waiting += [root / "src" / part for part in parts]
    waiting.append(root / "include" / "poetc.hpp")
    waiting += [files[s] for s in symbols]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for name in _INCLUDE.findall(path.read_text()):
            own_folder = [path.parent] if not path.is_relative_to(root) else []
            for folder in (*own_folder, *(root / folder for folder in _FOLDERS)):
                included = folder / name
                if included.exists():
                    waiting.append(included)
                implementation = (folder / name).with_suffix(".c")
                if name.endswith(".h") and implementation.exists():
                    waiting.append(implementation)
    places: dict[str, Path] = {}
    for path in sorted(reached):
        inside = path.is_relative_to(root)
        name = path.relative_to(root).as_posix() if inside else f"{OTHERS}/{path.name}"
        if name in places:
            raise UsageError(f"{path} and {places[name]} have one name; rename one of them")
        places[name] = path
    return dict(sorted(places.items()))
