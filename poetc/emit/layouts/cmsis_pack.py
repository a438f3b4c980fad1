"""A CMSIS-Pack: poetc.NAME.pdsc and the files that it lists, with the rules of the schema PACK.xsd 1.7."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from poetc.emit.layouts import _flat as flat
from poetc.emit.layouts._contents import Contents, include_folders
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version

SCHEMA_VERSION = "1.7.36"
_SCHEMA = f"https://raw.githubusercontent.com/Open-CMSIS-Pack/Open-CMSIS-Pack-Spec/v{SCHEMA_VERSION}/schema/PACK.xsd"


def place(contents: Contents) -> dict[str, bytes | Path]:
    """The files of a CMSIS pack by name. Images become bytes in the sources, and a .pdsc describes the pack."""
    files: dict[str, bytes | Path] = {**dict(flat.library(contents)), **flat.store_images(contents)}
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    files[f"poetc.{contents.library_name}.pdsc"] = "\n".join(_description(contents, sorted(files))).encode()
    return files


def _description(contents: Contents, names: list[str]) -> Iterator[str]:
    title = f"Training of {contents.title}"
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<package schemaVersion="{SCHEMA_VERSION}" xmlns:xs="http://www.w3.org/2001/XMLSchema-instance"'
    yield f'         xs:noNamespaceSchemaLocation="{_SCHEMA}">'
    yield "  <vendor>poetc</vendor>"
    yield f"  <name>{contents.library_name}</name>"
    yield f"  <description>{title}, made by poetc</description>"
    yield "  <url></url>"
    yield "  <releases>"
    yield f'    <release version="{version()}">Made by poetc.</release>'
    yield "  </releases>"
    yield "  <components>"
    yield f'    <component Cclass="Machine Learning" Cgroup="Training" Csub="{contents.library_name}"'
    yield f'               Cversion="{version()}">'
    yield f"      <description>{title}</description>"
    yield "      <files>"
    yield from (f"        <file {attributes}/>" for attributes in _files(contents, names))
    yield "      </files>"
    yield "    </component>"
    yield "  </components>"
    yield from ("</package>", "")


def _files(contents: Contents, names: list[str]) -> Iterator[str]:
    yield 'category="doc" name="README.md"'
    rooms = include_folders(name for name in names if name.endswith((".c", ".h", ".hpp")))
    yield 'category="include" name="./"'
    yield 'category="include" name="runtime/include/"'
    for room in rooms[2:]:
        yield f'category="include" scope="private" name="{escape(room)}/"'
    public = {name for model in contents.models for name in model.files}
    for name in names:
        path = f'name="{escape(name)}"'
        if name.endswith(".c"):
            yield f'category="source" language="c" {path}'
        elif name.endswith(".S"):
            yield f'category="source" language="asm" {path}'
        elif name.endswith((".h", ".hpp")):
            public_header = name in public or name.startswith("runtime/include/")
            yield f'category="header" scope="{"public" if public_header else "private"}" {path}'
        elif name.endswith(".img"):
            yield f'category="other" {path}'


def _how(contents: Contents) -> Iterator[str]:
    module = contents.modules[0]
    yield f"A CMSIS-Pack, made by poetc, {contents.numerics} numerics, for GCC and Arm Compiler 6. Zip the files of"
    yield f"this folder as `poetc.{contents.library_name}.{version()}.pack`, or add the folder as a local pack:"
    yield from ("", "    cpackget add poetc." + contents.library_name + ".pdsc", "")
    yield f"The component is *Machine Learning, Training, {contents.library_name}*; its header `{module.stem}.h`."
    yield ""


LAYOUT = Layout(place, "add its .pdsc as a local pack")
