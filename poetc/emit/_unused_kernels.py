"""Kernels that no program calls are left out of a build for this machine, so that the compiler does not meet them.

A file of kernels holds a family, such as all activations, and a model has few of them. A declaration as `static`, ahead
of all others, makes a function internal to its file (C99, 6.2.2). The compiler drops an internal function that nothing
calls before it optimises anything. The code of the others stays as it is, and so do their bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from poetc.emit._sources import kernel_files

_WORD = re.compile(r"\w+")
_DECLARATION = re.compile(r"^\s*(?:extern\b|int\s+\w+\s*\(\s*const poetc_call\b)[^;{]*;", re.MULTILINE)
_PREFIX, _NARROW = "poetc_op_", "poetc_op_narrow_"


def without_unused(runtime: Mapping[str, Path], used: Collection[str]) -> dict[str, bytes | Path]:
    """The files of the runtime by their names in an emission, of whose kernels programs call `used` alone.

    A kernel stays where another file names it, or where one of narrow/ calls it, whose macro completes the name.
    """
    used = {*used, *(symbol.replace(_NARROW, _PREFIX) for symbol in used)}
    defined: dict[Path, list[str]] = {}
    for symbol, path in kernel_files().items():
        defined.setdefault(path, []).append(symbol)
    texts = {name: path.read_text() for name, path in runtime.items() if name.endswith((".c", ".h"))}
    # By kernel, the files that name it. Headers declare kernels, and a function in one may call another.
    naming: dict[str, set[str]] = {symbol: set() for symbols in defined.values() for symbol in symbols}
    for name, text in texts.items():
        identifiers = set(_WORD.findall(_DECLARATION.sub("", text) if name.endswith(".h") else text))
        for symbol in identifiers & naming.keys():
            naming[symbol].add(name)
    files: dict[str, bytes | Path] = dict(runtime)
    for name, text in texts.items():
        unused = sorted(s for s in defined.get(runtime[name], ()) if s not in used and not naming[s] - {name})
        if unused:
            declared = ", ".join(f"{symbol}(const struct poetc_call *)" for symbol in unused)
            head = f"struct poetc_call;\n__attribute__((unused)) static int {declared};\n#line 1\n"
            files[name] = (head + text).encode()
    return files
