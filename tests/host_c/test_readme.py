"""The README of an emitted directory: data, store, programs, for those who did not write the compiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from poetc.emit import emit
from poetc.program import all_inputs
from tests.program.models import computes, paged_decisions, state_paged_decisions, training_case


def readme(target: str, directory: Path, *, on_store: bool = False, **options: object) -> str:
    case = training_case(on_store=("fc1.weight",) if on_store else (), block_bytes=512)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_decisions(case, names) if names else paged_decisions(case, "a"))
    emit([program], case.graph.values, model="mlp", target=target, out_dir=directory, **options)  # type: ignore[arg-type]
    return (directory / "README.md").read_text()


def test_records_are_described_to_the_byte(tmp_path: Path) -> None:
    case = training_case(block_bytes=512)
    text = readme("cortex-m3", tmp_path / "fw")
    for name in case.graph.inputs:
        type = case.graph.tensors[name].type
        shape = " x ".join(map(str, type.shape))
        assert f"- `{name}`: {shape} of {type.dtype.name.lower()}, {type.size_bytes} bytes" in text
    assert "`data.bin`" in text
    assert "`trained.bin`" in text
    assert "./train [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA" in readme("host", tmp_path / "host")


def test_a_session_trains_as_the_readme_of_a_library_says(tmp_path: Path) -> None:
    """Its lines stand as they are in a program, which provides the arrays, and the losses are those of poetc_run."""
    case = training_case(block_bytes=512)
    program = case.program(computes(case))
    emit([program], case.graph.values, model="mlp", target="c99", out_dir=tmp_path)
    session, plain = re.findall(r"```c\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    arrays = "".join(
        f"static {'int32_t' if b is program.target else 'float'} {name}[{b.operand.type.elements}];\n"
        for name, b in zip(("input_1", "target"), all_inputs(program), strict=True)
    )
    begin = plain[plain.index("poetc_config") : plain.index("err = poetc_init")].replace("poetc_runtime runtime;", "")
    (tmp_path / "main.c").write_text(
        f'#include "model.h"\n#include "poetc_session.h"\n#include <stdio.h>\n{arrays}'
        + "".join(line + "\n" for line in plain.splitlines() if line.startswith("static uint8_t arena"))
        + f"int main(void)\n{{\nint err;\nfloat loss;\n{begin}\n{session}\n"
        '    printf("%d %f\\n", err, (double)loss);\n    return err;\n}\n'
    )
    subprocess.run(["make", "-s", "-C", tmp_path, "CFLAGS=-O1"], check=True)
    folders = ("-I.", "-Iruntime/include")
    words = ["gcc", "-Wall", *folders, "main.c", *tmp_path.glob("lib*.a"), "-o", "main"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert re.fullmatch(r"0 \d+\.\d+\n", done.stdout), done.stdout


def test_trained_state_is_read_as_the_readme_says(tmp_path: Path) -> None:
    """The example runs as it stands, on the file that a training program leaves, with state on the store."""
    text = readme("host", tmp_path, on_store=True)
    assert "\n1 on the store" in text
    example = re.search(r"^    import json.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert example is not None
    subprocess.run(["make", "-s", "-C", tmp_path, "CFLAGS=-O1", "train"], check=True)
    record = json.loads((tmp_path / "poetc-emit.json").read_text())["record"]
    (tmp_path / "data.bin").write_bytes(bytes(record["size_bytes"]))
    subprocess.run(["./train", "data.bin", "1", "trained.bin"], cwd=tmp_path, check=True, capture_output=True)
    code = f"{textwrap.dedent(example[0])}print(sorted(arrays), arrays['fc1.weight'].shape)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "fc1.weight" in done.stdout and "(20, 6)" in done.stdout


def test_store_is_described_where_there_is_one(tmp_path: Path) -> None:
    card = readme("cortex-m3", tmp_path / "a", on_store=True, board="lm3s6965evb")
    assert "the SD card" in card
    assert "The firmware writes the initial ones itself" in card
    assert "After every step the state is saved" in card
    assert "-DPOETC_CHECKPOINT_STEPS=1" in card
    assert "CHECKPOINT_STEPS ?= 1\n" in (tmp_path / "a" / "Makefile").read_text()
    file = readme("cortex-m3", tmp_path / "b", checkpoint=0)
    assert "of `store.bin`" in file
    assert "the state is saved" not in file
    assert "./train -c DATA" in readme("host", tmp_path / "c")
