"""The README of an emitted directory: data, store, programs, for those who did not write the compiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from poetc.emit import emit
from tests.program.models import paged_actions, state_paged_actions, training_case


def readme(target: str, directory: Path, *, on_store: bool = False, **options: object) -> str:
    case = training_case(on_store=("fc1.weight",) if on_store else (), block_bytes=512)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_actions(case, names) if names else paged_actions(case, "a"))
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
