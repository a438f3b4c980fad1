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
from poetc.graph import TensorType
from poetc.measure import HostModel, compile_library
from poetc.program import (
    TRAILER_BYTES,
    Interpreter,
    Operand,
    Program,
    Space,
    all_inputs,
    checkpoint_block,
    fit_input,
    listed_layout,
    lower,
    manifest_of,
    read_listed_state,
    read_state,
    regions,
    sample_inputs,
    state_identity,
    state_on_store,
    store_layout,
    tensors,
)
from poetc.runtime.session import Session, SessionError
from poetc.scheduling import pack
from tests.program.models import paged_decisions, state_paged_decisions, training_case

STEPS = 3
EARLIER = Path(__file__).parents[2] / "program" / "golden" / "earlier"
ON_STORE = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")


def write_data(path: Path, program: Program) -> None:
    batches = (sample_inputs(program, step) for step in range(STEPS))
    path.write_bytes(b"".join(fit_input(b, batch).tobytes() for batch in batches for b in all_inputs(program)))


@pytest.mark.parametrize("target", ["host", "cortex-a"])
@pytest.mark.parametrize("where", ["ram", "store"])
@pytest.mark.long_but("ram-host", "store-host")
def test_all_state_is_in_the_file(where: str, target: str, tmp_path: Path) -> None:
    """Read by the manifest alone, as another program would; equal to the state of the same steps in this process."""
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_decisions(case, names) if names else paged_decisions(case, "a"))
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


# --- another schedule of the same model ---------------------------------------------------------------------------


def of_schedule(where: str) -> Program:
    """One model: all in RAM, with a page beside it, scattered over the arena, or with state on the store."""
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=64)
    if where == "scattered":
        return scattered()[0]
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    paged = paged_decisions(case, "a") if where == "paged" else None
    return case.program(state_paged_decisions(case, names) if names else paged)


SCHEDULES = ("plain", "paged", "scattered", "store")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Program, Path]]:
    folder, values = tmp_path_factory.mktemp("schedules"), training_case().graph.values
    programs = {where: of_schedule(where) for where in SCHEDULES}
    return {w: (p, compile_library([p], values, folder / w, cflags="-O1")) for w, p in programs.items()}


def started(built: tuple[Program, Path]) -> Session:
    return Session(built[1], built[1].with_name("poetc-emit.json"))


@pytest.mark.parametrize("after", SCHEDULES)
@pytest.mark.parametrize("before", SCHEDULES)
def test_another_schedule_goes_on_with_the_same_bits(
    before: str, after: str, libraries: dict[str, tuple[Program, Path]], tmp_path: Path
) -> None:
    program = libraries[before][0]
    batches = [sample_inputs(program, step) for step in range(STEPS + 1)]
    with started(libraries[before]) as first, started(libraries[after]) as second:
        for batch in batches[:STEPS]:
            first.step(batch)
        first.save(tmp_path / "trained.bin")
        second.load(tmp_path / "trained.bin")
        assert second.step(batches[STEPS]) == first.step(batches[STEPS])
        first.save(tmp_path / "a.bin")
        second.save(tmp_path / "b.bin")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


def test_the_identity_is_that_of_names_types_and_shapes(libraries: dict[str, tuple[Program, Path]]) -> None:
    identities = {state_identity(program) for program, _ in libraries.values()}
    assert len(identities) == 1
    program, first = libraries["plain"][0], libraries["plain"][0].state[0]
    wider = replace(first.operand, type=TensorType((*first.operand.type.shape, 1)))
    for other in (replace(first, name="another"), replace(first, operand=wider)):
        identities.add(state_identity(replace(program, state=(other, *program.state[1:]))))
    assert len(identities) == 3


@pytest.mark.parametrize(("before", "after"), [("plain", "paged"), ("paged", "plain"), ("paged", "scattered")])
@pytest.mark.long_but("plain-paged")
def test_the_checkpoint_of_earlier_firmware_is_found(before: str, after: str, tmp_path: Path) -> None:
    """Where all state is in RAM: on the same store, from the same block on, whatever pages there are."""
    programs, values = {w: of_schedule(w) for w in (before, after)}, training_case().graph.values
    for where, program in programs.items():
        emit([program], values, model="model", target="host", out_dir=tmp_path / where)
        subprocess.run(["make", "-s", "-C", tmp_path / where, "CC=gcc", "CFLAGS=-O1", "train"], check=True)
        write_data(tmp_path / where / "data.bin", program)

    def train(where: str, steps: int) -> str:
        words = ["./train", "-c", "data.bin", str(steps), "trained.bin"]
        return subprocess.run(words, cwd=tmp_path / where, check=True, capture_output=True, text=True).stdout

    train(before, 2)
    (tmp_path / after / "store.bin").write_bytes((tmp_path / before / "store.bin").read_bytes())
    assert "resumed step 2" in train(after, STEPS)
    train(before, STEPS)
    trained = [(tmp_path / where / "trained.bin").read_bytes() for where in programs]
    assert trained[0] == trained[1]
    layout = store_layout(programs[before], checkpoint_block([programs[before]]))
    found = state_on_store((tmp_path / after / "store.bin").read_bytes(), [layout])
    assert found == (trained[0], STEPS)


def test_a_library_of_an_earlier_poetc_is_refused_in_one_line() -> None:
    with pytest.raises(SessionError, match=r"^libmodel\.so: emitted by an earlier poetc; emit it again$"):
        Session("libmodel.so", EARLIER / "poetc-emit.json")


def test_files_of_an_earlier_poetc_are_read() -> None:
    """Written by 0.2 before state was ordered by name: the same three steps, and the same bits."""
    manifest = manifest_of(EARLIER / "poetc-emit.json")
    trained = (EARLIER / "trained.bin").read_bytes()
    state = read_listed_state(trained, manifest.state, "trained.bin")
    stored = state_on_store((EARLIER / "store.bin").read_bytes(), [listed_layout(manifest)])
    assert stored is not None and stored[1] == STEPS
    found = read_listed_state(stored[0], manifest.state, "store.bin")
    program = of_schedule("plain")
    reference = Interpreter(program, training_case().graph.values)
    for step in range(STEPS):
        reference.run(sample_inputs(program, step))
    for name, array in state.items():
        assert np.array_equal(found[name], array), name
        np.testing.assert_allclose(reference.state(name), array, rtol=1e-5, atol=1e-6, err_msg=name)
    with pytest.raises(UsageError, match="of an earlier poetc; put the poetc-emit"):
        read_state(trained, program, "trained.bin")
