"""An Arduino library: library.properties, all sources side by side in src/, an example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poetc.emit._module import Module
from poetc.emit.layouts import _flat as flat
from poetc.emit.layouts._contents import Contents
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.emit.layouts._version import version
from poetc.program import all_inputs


def place(contents: Contents) -> dict[str, bytes | Path]:
    """The IDE compiles every file of src/ and looks for headers there alone."""
    files: dict[str, bytes | Path] = {**flat.one_folder(contents, "src"), **flat.store_images(contents)}
    files["library.properties"] = "\n".join(_properties(contents)).encode()
    files["examples/Train/Train.ino"] = "\n".join(_sketch(contents)).encode()
    files["README.md"] = readme(contents, list(_how(contents))).encode()
    return files


def _properties(contents: Contents) -> Iterator[str]:
    yield f"name=poetc_{contents.library_name}"
    yield f"version={version()}"
    yield "author=poetc"
    yield "maintainer=poetc"
    yield f"sentence=Trains {contents.title} on the board."
    yield "paragraph=Programs, weights and runtime of training steps, made by poetc."
    yield "category=Data Processing"
    yield "url=https://example.com/poetc"
    yield "architectures=*"
    yield f"includes={','.join(f'{m.stem}.h' for m in contents.modules)}"
    yield ""


def _sketch(contents: Contents) -> Iterator[str]:
    """Trains the models in turn."""
    yield f"// Trains {contents.title}: one step of each model in a round of loop()."
    yield from (f"#include <{m.stem}.h>" for m in contents.modules)
    yield ""
    if contents.shared_arena:
        yield "// The models share an arena: one of them trains at a time. Here it is the first."
    modules = contents.modules[:1] if contents.shared_arena else contents.modules
    yield from (f"static poetc_session {m.prefix}_session;" for m in modules)
    yield ""
    yield "static void begin(poetc_session *session, const poetc_model *model, void *arena, size_t arena_bytes) {"
    yield "    poetc_config config = poetc_config();"
    yield "    config.arena = arena;"
    yield "    config.arena_bytes = arena_bytes;"
    if any(m.store_blocks for m in modules):
        yield "    // config.store: two functions of yours that move whole blocks, see poetc.h"
    yield "    int err = poetc_session_init(session, model, &config);"
    yield "    if (err)"
    yield "        Serial.println(poetc_error_text(err));"
    yield "}"
    yield ""
    yield "void setup() {"
    yield "    Serial.begin(115200);"
    for m in modules:
        yield f"    begin(&{m.prefix}_session, &{m.description}, {m.arena}, {m.prefix.upper()}_ARENA_BYTES);"
    yield "}"
    yield ""
    yield "void loop() {"
    yield "    float loss;"
    yield "    int err;"
    for m in modules:
        yield ""
        yield from _step(m)
    yield "}"
    yield ""


def _step(module: Module) -> Iterator[str]:
    train = module.programs[0]
    yield "    // The inputs of a step; put data of your own here."
    for i, binding in enumerate(all_inputs(train)):
        place = f"poetc_session_input(&{module.prefix}_session, &{module.description}.train, {i})"
        yield f"    memset({place}, 0, {binding.operand.type.size_bytes});"
    yield f"    err = poetc_session_step(&{module.prefix}_session, NULL, &loss);"
    yield "    if (err)"
    yield "        Serial.println(poetc_error_text(err));"
    yield "    else"
    yield "        Serial.println(loss, 6);"


def _how(contents: Contents) -> Iterator[str]:
    yield f"An Arduino library, made by poetc, {contents.numerics} numerics. Copy this folder to `libraries` of the"
    yield "sketchbook, or zip it for *Sketch, Include Library, Add .ZIP Library*. *File, Examples* then has `Train`."
    yield "Another library that poetc made has the same runtime: `poetc emit A B --layout arduino` makes one library of"
    yield "several models."
    yield ""


LAYOUT = Layout(place, "copy it to the folder of Arduino's libraries")
