"""Power loss: whatever block of a page or a checkpoint is cut, training goes on from the last complete step."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from poetc.emit import emit
from poetc.program import PageOut, all_inputs, fit_input, packed_pages, sample_inputs
from tests.program.models import Case, paged_decisions, state_paged_decisions, training_case
from tests.support.power import Power

HARNESSES = [Path(__file__).with_name(name) for name in ("power_loss.c", "checkpoints.c")]
ON_STORE = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")
Build = Callable[[Case, list], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    def make(case: Case, decisions: list) -> Path:
        directory = tmp_path_factory.mktemp("cut")
        program = case.program(decisions)
        assert any(isinstance(i, PageOut) for i in program.instructions)
        emit([program], case.graph.values, model="mlp", target="host", out_dir=directory / "src")
        (directory / "src" / "pages.bin").write_bytes(packed_pages(program, case.graph.values))
        subprocess.run(["make", "-s", "-C", directory / "src", "libmodel.a"], check=True)
        include = [f"-I{directory / 'src' / f}" for f in (".", "runtime/include")]
        warnings = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")
        for harness in HARNESSES:
            program_path = directory / "src" / harness.stem
            subprocess.run(
                ["cc", *warnings, *include, "-o", program_path, harness, directory / "src" / "libmodel.a"], check=True
            )
        return directory / "src" / "power_loss"

    return make


@pytest.fixture(scope="module")
def state_on_store(build: Build) -> Path:
    """Weights and their velocity live on the store, in two slots each."""
    case = training_case(on_store=[n for n in training_case().graph.updates if n in ON_STORE], block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    assert names
    return build(case, state_paged_decisions(case, names))


@pytest.fixture(scope="module")
def state_in_ram(build: Build) -> Path:
    case = training_case(block_bytes=64)
    return build(case, paged_decisions(case, "a"))


@pytest.fixture(params=["state_in_ram", "state_on_store"])
def program(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def checkpoints(power: Power, program: Path, *words: object) -> dict[str, int]:
    return power.program(program.with_name("checkpoints"), *words, directory=program.parent)


@pytest.mark.power_loss(at_least=1000)
def test_every_cut_resumes_at_the_last_complete_step(state_on_store: Path, power: Power) -> None:
    assert power.program(state_on_store, 50, 2, directory=state_on_store.parent)["steps_lost_at_most"] == 1


@pytest.mark.power_loss(at_least=250)
def test_cuts_that_follow_each_other(state_on_store: Path, power: Power) -> None:
    """The resumed run is cut again, 37 blocks later, and so on: more than a step, less than three."""
    assert power.program(state_on_store, 12, 2, 37, directory=state_on_store.parent)["steps_lost_at_most"] == 1


@pytest.mark.parametrize("slots", [2, 5])
@pytest.mark.power_loss(at_least=250)
def test_paged_activations(slots: int, state_in_ram: Path, power: Power) -> None:
    assert power.program(state_in_ram, 12, slots, directory=state_in_ram.parent)["steps_lost_at_most"] == 1


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("period", range(1, 9))
@pytest.mark.power_loss(at_least=100)
def test_every_period_leaves_a_whole_checkpoint(period: int, slots: int, state_in_ram: Path, power: Power) -> None:
    """Saves take the slots in turn, also where the period shares a factor with their number."""
    words = (state_in_ram, 4 * period + 1, slots, 0, period)
    assert power.program(*words, directory=state_in_ram.parent)["steps_lost_at_most"] <= period


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.power_loss(at_least=100)
def test_the_last_save_is_the_newest(slots: int, program: Path, power: Power) -> None:
    """Training, older weights, a checkpoint, training: every cut resumes at the last save, not at the highest step."""
    checkpoints(power, program, "saves", slots)


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.power_loss(at_least=2)
def test_a_training_is_rolled_back(slots: int, program: Path, power: Power) -> None:
    """To the checkpoint before the newest, wherever it is cut; the same steps lead to the same state again."""
    assert checkpoints(power, program, "rollback", slots)["cuts"] <= 9


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.power_loss(at_least=10)
def test_a_store_is_set_up(slots: int, program: Path, power: Power) -> None:
    """From nothing, or over a training; cut at any block it is done again, and trains as from the image."""
    checkpoints(power, program, "format", slots)


def printed(program: Path, *words: str) -> str:
    command = [program.with_name("checkpoints"), *words]
    return subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("slots", ["2", "3"])
def test_a_slot_that_cannot_be_read_is_none(slots: str, program: Path) -> None:
    """A driver that fails at any one block: the state of the other slot. At a block of each: its code, and no state."""
    blocks, count = printed(program, "unreadable", slots).split()
    assert blocks == "blocks" and int(count) >= 10


def test_pages_of_undone_runs_are_stale(program: Path) -> None:
    """After a rollback, a cut or a format, a store that loses a write is found out: no earlier page passes for it."""
    assert printed(program, "stale", "2") == "refused\n"


def test_a_checkpoint_of_an_older_runtime(state_in_ram: Path) -> None:
    assert printed(state_in_ram, "old") == "passed over\n"


@pytest.mark.parametrize("where", ["ram", "store"])
def test_program_of_this_machine_resumes(where: str, tmp_path: Path) -> None:
    """`train -c`: two steps, then five: the same state as five at once, whether weights live in RAM or on the store."""
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_decisions(case, names) if names else paged_decisions(case, "a"))
    emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path)
    subprocess.run(["make", "-s", "-C", tmp_path, "train"], check=True)
    batches = [sample_inputs(program, step) for step in range(5)]
    records = [b"".join(fit_input(b, batch).tobytes() for b in all_inputs(program)) for batch in batches]
    (tmp_path / "data").write_bytes(b"".join(records))

    def train(*words: object) -> str:
        command = ["./train", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def state() -> bytes:
        """What is in RAM, and of the store the pages: the newest slot of each."""
        store = (tmp_path / "store.bin").read_bytes()
        pages = [p for p in program.pages if p.image]
        starts = [(p.first_block + 5 % p.slots * p.block_count) * program.block_bytes for p in pages]
        return (tmp_path / "state").read_bytes() + b"".join(
            store[start : start + page.size_bytes] for page, start in zip(pages, starts, strict=True)
        )

    train("data", 5, "state")
    expected = state()
    (tmp_path / "store.bin").unlink()
    assert train("-c", "data", 2, "state").startswith("resumed step 0\nstep 1 ")
    assert train("-c", "data", 5, "state").startswith("resumed step 2\nstep 3 ")
    assert state() == expected
    assert train("-c", "data", 5) == "resumed step 5\n"
