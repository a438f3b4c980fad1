"""trained.bin: all state in one file, wherever it lives, found by what poetc-emit.json says."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.errors import UsageError
from poetc.measure import HostModel, compile_library
from poetc.program import Operand, Program, Space, all_inputs, lower, sample_inputs
from poetc.program._interpret import fit_input
from poetc.program._state_file import TRAILER_BYTES, read_state, regions, tensors
from poetc.scheduling import pack
from tests.program.models import paged_actions, state_paged_actions, training_case

STEPS = 3
ON_STORE = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")


def write_data(path: Path, program: Program) -> None:
    batches = (sample_inputs(program, step) for step in range(STEPS))
    path.write_bytes(b"".join(fit_input(b, batch).tobytes() for batch in batches for b in all_inputs(program)))


@pytest.mark.parametrize("target", ["host", "cortex-a"])
@pytest.mark.parametrize("where", ["ram", "store"])
def test_all_state_is_in_the_file(where: str, target: str, tmp_path: Path) -> None:
    """Read by the manifest alone, as another program would; equal to the state of the same steps in this process."""
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_actions(case, names) if names else paged_actions(case, "a"))
    values = case.graph.values
    emit([program], values, model="model", target=target, out_dir=tmp_path / "src")
    subprocess.run(["make", "-s", "-C", tmp_path / "src", "CC=gcc", "CFLAGS=-O2", "train"], check=True)
    write_data(tmp_path / "src" / "data.bin", program)
    words = ["./train", "data.bin", str(STEPS), "trained.bin"] if target == "host" else ["./train"]
    subprocess.run(words, cwd=tmp_path / "src", check=True, capture_output=True)
    data = (tmp_path / "src" / "trained.bin").read_bytes()
    manifest = json.loads((tmp_path / "src" / "poetc-emit.json").read_text())
    found = {
        t["name"]: np.frombuffer(data, t["dtype"], int(np.prod(t["shape"])), t["offset_bytes"]).reshape(t["shape"])
        for t in manifest["state"]["tensors"]
    }
    with HostModel(compile_library([program], values, tmp_path / "library"), [program], values) as model:
        for step in range(STEPS):
            model.run(sample_inputs(program, step))
        assert set(model.state_names()) == set(found) >= {"fc1.weight", "fc2.weight", "fc1.weight:velocity"}
        for name, array in found.items():
            assert np.array_equal(array, model.state(name)), name
        model.save(tmp_path)
    assert (tmp_path / "trained.bin").read_bytes() == data, "poetc run writes the same file"
    places = {t["name"]: t["place"]["memory"] for t in manifest["state"]["tensors"]}
    assert {name for name, place in places.items() if place == "store"} == set(names)
    assert manifest["record"]["size_bytes"] * STEPS == (tmp_path / "src" / "data.bin").stat().st_size
    assert [t["name"] for t in manifest["record"]["tensors"]] == [b.name for b in all_inputs(program)]


def test_gaps_between_state_take_no_room(tmp_path: Path) -> None:
    """State that the packing scattered over the arena is one piece in the file."""
    program = training_case().program()
    spread, offset = [], 0
    for binding in program.state:
        spread.append(replace(binding, operand=replace(binding.operand, offset_bytes=offset)))
        offset += -(-binding.operand.type.size_bytes // 16) * 16 + 160
    scattered = replace(program, state=tuple(spread), state_bytes=offset, arena_bytes=offset)
    assert len(regions(scattered)) == len(spread) > 3
    assert sum(r.size_bytes for r in regions(scattered)) == sum(r.size_bytes for r in regions(program))
    assert [t.offset_bytes for t in tensors(scattered)] == [t.offset_bytes for t in tensors(program)]
    assert all(isinstance(b.operand, Operand) and b.operand.space is Space.ARENA for b in spread)


def scattered() -> tuple[Program, Program]:
    """A program with 512 bytes before each state tensor, where nothing lies; and the same without."""
    case = training_case()
    plan = pack(case.problem, case.schedule())
    homes = sorted(a.offset_bytes for a in plan.allocations if a.offset_bytes < plan.state_bytes)

    def raised(offset: int) -> int:
        return offset + 512 * sum(home <= offset for home in set(homes))

    moved = replace(
        plan,
        allocations=tuple(replace(a, offset_bytes=raised(a.offset_bytes)) for a in plan.allocations),
        arena_bytes=raised(plan.arena_bytes),
        state_bytes=raised(plan.state_bytes - 1) + 1,
    )
    return lower(case.graph, case.problem, case.schedule(), moved), case.program()


def test_scattered_state_takes_no_more_flash_and_no_larger_checkpoints(tmp_path: Path) -> None:
    """And trains, stops and goes on with the same bits."""
    programs, values = scattered(), training_case().graph.values
    assert programs[0].state_bytes > 2 * programs[1].state_bytes
    assert len(regions(programs[0])) > 3
    results = []
    for program, name in zip(programs, ("scattered", "packed"), strict=True):
        out = tmp_path / name
        emit([program], values, model="model", target="host", out_dir=out)
        flags = "CFLAGS=-O1 -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
        subprocess.run(["make", "-s", "-C", out, "CC=gcc", flags, "train"], check=True)
        write_data(out / "data.bin", program)
        for steps in (2, STEPS):  # the second run goes on from the checkpoint of the first
            words = ["./train", "-c", "data.bin", str(steps), "trained.bin"]
            said = subprocess.run(words, cwd=out, check=True, capture_output=True, text=True).stdout
        assert "resumed step 2" in said and said.count("loss") == STEPS - 2
        data = (out / "trained.bin").read_bytes()
        state = {name: array.tobytes() for name, array in read_state(data, program, "trained.bin").items()}
        results.append((state, (out / "store.bin").stat().st_size, said))
    assert results[0] == results[1]


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    case = training_case()
    program = case.program()
    with HostModel(compile_library([program], case.graph.values, tmp_path), [program], case.graph.values) as model:
        model.save(tmp_path)
    data = (tmp_path / "trained.bin").read_bytes()
    assert set(read_state(data, program, "x")) == {b.name for b in program.state}
    for wrong, message in (
        (data[:-1], "no trained state of this model"),
        (b"", "no trained state of this model"),
        (data[:5] + bytes([data[5] ^ 4]) + data[6:], "its checksum does not hold"),
        (bytes(len(data)), "no trained state"),
    ):
        with pytest.raises(UsageError, match=message):
            read_state(wrong, program, "x")
    assert len(data) == sum(r.size_bytes for r in regions(program)) + TRAILER_BYTES
