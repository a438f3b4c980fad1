"""Common to layouts whose compiler gets no flags of ours: numerics in a header, data in the sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from poetc.emit.layouts._contents import Contents

BUILD_HEADER = "poetc_build.h"
_INCLUDE_OF_FOLDER = re.compile(rb'^(\s*#\s*include\s+")[^"\n]*/', re.MULTILINE)


def build_header(contents: Contents) -> bytes:
    """The flags that results depend on, as pragmas: the first line of each source includes them."""
    lines = [
        "/* Flags of the compiler, as pragmas. Made by poetc. */",
        "#ifndef POETC_BUILD_H",
        "#define POETC_BUILD_H",
    ]
    if contents.numerics != "separate":
        lines += ["", "/* Multiply-adds round once. */", "#define POETC_FUSED 1"]
    lines += ["", "/* The compiler makes no fused multiply-add of its own: other compilers would make others. */"]
    lines += ["#if defined(__clang__)", "#pragma STDC FP_CONTRACT OFF", "#elif defined(__GNUC__)"]
    lines += ['#pragma GCC optimize("fp-contract=off")', "#endif"]
    if contents.opt_level:
        lines += ["", "#if defined(__GNUC__) && !defined(__clang__)"]
        lines += [f'#pragma GCC optimize("{contents.opt_level.removeprefix("-")}")', "#endif"]
    return "\n".join([*lines, "", "#endif", ""]).encode()


def library(contents: Contents) -> Iterator[tuple[str, bytes | Path]]:
    """Names and contents of headers and sources; those of C begin with the header of flags."""
    yield f"runtime/include/{BUILD_HEADER}", build_header(contents)
    own: dict[str, bytes | Path] = {name: text for model in contents.models for name, text in model.files.items()}
    for name, content in {**own, **contents.runtime}.items():
        if name.endswith(".c"):
            text = content.read_bytes() if isinstance(content, Path) else content
            yield name, f'#include "{BUILD_HEADER}"\n'.encode() + text
        else:
            yield name, content
    yield from contents.data_sources(inline=True).items()


def one_folder(contents: Contents, folder: str) -> dict[str, bytes]:
    """Headers and sources side by side, for builds that compile every file of one folder."""
    files = {}
    for name, content in library(contents):
        text = content.read_bytes() if isinstance(content, Path) else content
        files[f"{folder}/{PurePosixPath(name).name}"] = _INCLUDE_OF_FOLDER.sub(rb"\1", text)
    return files


def store_images(contents: Contents) -> dict[str, bytes]:
    """The files that are copied to a store and are no source code, by name."""
    return {name: data for name, data in contents.images.items() if name.endswith(".img")}
