"""Every tensor can be found by its full name: in model.h beside its identifier, and in poetc-emit.json."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from poetc.emit import Module, describe, emit, header
from poetc.program import Program
from poetc.runtime import runtime_directory
from tests.program.models import paged_decisions, state_paged_decisions, training_case

SCOPE = "StatefulPartitionedCall/mobilenet/expanded_conv_13/depthwise/BatchNorm/FusedBatchNormV3/" * 3
ENDS = ("ReadVariableOp", "ReadVariableOp:velocity", "ReadVariableOp_1", "\u00e9*/??/", "\u00e8*/??/", "n" * 5000)


def renamed(program: Program) -> Program:
    """With names as TensorFlow makes them, alike for hundreds of characters."""
    names = [SCOPE + end for end in ENDS]
    state = [replace(b, name=name) for b, name in zip(program.state, names, strict=False)]
    inputs = [replace(b, name=name) for b, name in zip(program.inputs, reversed(names), strict=False)]
    return replace(
        program, state=(*state, *program.state[len(state) :]), inputs=(*inputs, *program.inputs[len(inputs) :])
    )


def test_long_names_are_told_apart_and_whole(tmp_path: Path) -> None:
    case = training_case()
    module = Module("net", (renamed(case.program(paged_decisions(case, "a"))),))
    text = header(module, 0)
    (tmp_path / "model.h").write_text(text)
    (tmp_path / "a.c").write_text('#include "model.h"\n')
    words = ["gcc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-c", "a.c"]
    subprocess.run([*words, f"-I{runtime_directory() / 'include'}"], cwd=tmp_path, check=True)

    said = describe(module, 0)
    found = dict(re.findall(r"#define (\w+)_OFFSET \d+u /\* (.*) \[.*\] \*/", text))
    assert {row["name"] for row in said["state"]["tensors"]} == {b.name for b in module.programs[0].state}
    for row in said["state"]["tensors"]:
        identifier = row["identifier"]
        assert json.loads(f'"{found[identifier]}"') == row["name"]  # what may not stand in a comment is escaped
        assert f"{list(row['shape'])} */" in text and f"#define {identifier}_BYTES {row['size_bytes']}u\n" in text
        assert f"#define {identifier}_OFFSET {row['place']['offset_bytes']}u " in text
    for row in said["accessors"]["train"]:
        assert f"*{row['identifier']}(void *arena)\n{{\n" in text
        assert f"arena + {row['offset_bytes']}u);" in text
    assert said["accessors"]["train"][0]["name"] == module.programs[0].inputs[0].name == SCOPE + ENDS[-1]
    rows = [*said["state"]["tensors"], *said["accessors"]["train"]]
    assert len({row["identifier"].upper() for row in rows}) == len(rows)
    assert "..." not in text


def test_state_on_the_store_has_its_names_too(tmp_path: Path) -> None:
    names = ["fc1.weight", "fc1.weight:velocity"]
    case = training_case(on_store=names)
    program = case.program(state_paged_decisions(case, names))
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    rows = {row["name"]: row for row in json.loads((out / "poetc-emit.json").read_text())["state"]["tensors"]}
    text = (out / "model.h").read_text()
    for name in names:
        place = rows[name]["place"]
        where = f"block {place['first_block']}, {place['slots']} x {place['slot_blocks']}"
        assert f"/* {where}: {name} {rows[name]['shape']} */" in text
        assert rows[name]["identifier"] is None
    assert rows["fc2.weight"]["identifier"] == "MLP_STATE_FC2_WEIGHT"


def test_versions_are_those_of_the_runtime(tmp_path: Path) -> None:
    """A model beside another version of the runtime does not compile."""
    case = training_case()
    emit([case.program()], case.graph.values, model="m", target="host", out_dir=tmp_path / "o")
    words = ["gcc", "-std=c99", "-fsyntax-only", "-Iruntime/include", "-I.", "model.c"]
    subprocess.run(words, cwd=tmp_path / "o", check=True)
    header = tmp_path / "o" / "runtime" / "include" / "poetc.h"
    text = header.read_text()
    assert f'#define POETC_VERSION "{version("poetc")}"' in text
    header.write_text(re.sub(r"(#define POETC_TABLES )\d+", r"\g<1>1", text))
    done = subprocess.run(words, cwd=tmp_path / "o", capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "emit both again" in done.stderr
