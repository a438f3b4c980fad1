"""Power loss: whatever block of a page or a checkpoint is cut, training goes on from the last complete step."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from poetc.emit import emit
from poetc.program import PageOut, all_inputs, fit_input, packed_pages, sample_inputs
from tests.program.models import Case, paged_actions, state_paged_actions, training_case

HARNESSES = [Path(__file__).with_name(name) for name in ("power_loss.c", "checkpoints.c")]
ON_STORE = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")
Build = Callable[[Case, list], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    def make(case: Case, actions: list) -> Path:
        directory = tmp_path_factory.mktemp("cut")
        program = case.program(actions)
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


def harness(program: Path, *arguments: object) -> str:
    """What the harness printed: `power_loss` with numbers, `checkpoints` with a word."""
    program = program if isinstance(arguments[0], int) else program.with_name("checkpoints")
    words = [str(program), *map(str, arguments)]
    done = subprocess.run(words, cwd=program.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cut(program: Path, *arguments: object) -> tuple[int, int]:
    """Cut points that were tried, and the most steps that one of them cost."""
    match = re.fullmatch(r"cuts (\d+) steps_lost_at_most (\d+)\n", harness(program, *arguments))
    assert match is not None
    return int(match[1]), int(match[2])


@pytest.fixture(scope="module")
def state_on_store(build: Build) -> Path:
    """Weights and their velocity live on the store, in two slots each."""
    case = training_case(on_store=[n for n in training_case().graph.updates if n in ON_STORE], block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    assert names
    return build(case, state_paged_actions(case, names))


def test_every_cut_resumes_at_the_last_complete_step(state_on_store: Path) -> None:
    cuts, lost = cut(state_on_store, 50, 2)
    assert cuts >= 1000
    assert lost == 1


def test_cuts_that_follow_each_other(state_on_store: Path) -> None:
    """The resumed run is cut again, 37 blocks later, and so on: more than a step, less than three."""
    cuts, lost = cut(state_on_store, 12, 2, 37)
    assert cuts >= 250
    assert lost == 1


@pytest.mark.parametrize("slots", [2, 5])
def test_paged_activations(slots: int, build: Build) -> None:
    case = training_case(block_bytes=64)
    cuts, lost = cut(build(case, paged_actions(case, "a")), 12, slots)
    assert cuts >= 250
    assert lost == 1


@pytest.fixture(scope="module")
def state_in_ram(build: Build) -> Path:
    case = training_case(block_bytes=64)
    return build(case, paged_actions(case, "a"))


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("period", range(1, 9))
def test_every_period_leaves_a_whole_checkpoint(period: int, slots: int, state_in_ram: Path) -> None:
    """Saves take the slots in turn, also where the period shares a factor with their number."""
    cuts, lost = cut(state_in_ram, 4 * period + 1, slots, 0, period)
    assert cuts >= 100
    assert lost <= period


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("where", ["state_in_ram", "state_on_store"])
def test_the_last_save_is_the_newest(where: str, slots: int, request: pytest.FixtureRequest) -> None:
    """Training, older weights, a checkpoint, training: every cut resumes at the last save, not at the highest step."""
    program = request.getfixturevalue(where)
    found = harness(program, "saves", slots)
    assert int(re.fullmatch(r"cuts (\d+)\n", found)[1]) >= 100  # type: ignore[index]


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("where", ["state_in_ram", "state_on_store"])
def test_a_slot_that_cannot_be_read_is_none(where: str, slots: int, request: pytest.FixtureRequest) -> None:
    """A driver that fails at any one block: the state of the other slot. At a block of each: its code, and no state."""
    program = request.getfixturevalue(where)
    found = harness(program, "unreadable", slots)
    assert int(re.fullmatch(r"blocks (\d+)\n", found)[1]) >= 10  # type: ignore[index]


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("where", ["state_in_ram", "state_on_store"])
def test_a_training_is_rolled_back(where: str, slots: int, request: pytest.FixtureRequest) -> None:
    """To the checkpoint before the newest, wherever it is cut; the same steps lead to the same state again."""
    program = request.getfixturevalue(where)
    assert re.fullmatch(r"cuts [2-9]\n", harness(program, "rollback", slots))


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("where", ["state_in_ram", "state_on_store"])
def test_a_store_is_set_up(where: str, slots: int, request: pytest.FixtureRequest) -> None:
    """From nothing, or over a training; cut at any block it is done again, and trains as from the image."""
    program = request.getfixturevalue(where)
    found = harness(program, "format", slots)
    assert int(re.fullmatch(r"cuts (\d+)\n", found)[1]) >= 10  # type: ignore[index]


@pytest.mark.parametrize("where", ["state_in_ram", "state_on_store"])
def test_pages_of_undone_runs_are_stale(where: str, request: pytest.FixtureRequest) -> None:
    """After a rollback, a cut or a format, a store that loses a write is found out: no earlier page passes for it."""
    assert harness(request.getfixturevalue(where), "stale", 2) == "refused\n"


def test_a_checkpoint_of_an_older_runtime(state_in_ram: Path) -> None:
    assert harness(state_in_ram, "old") == "passed over\n"


@pytest.mark.parametrize("where", ["ram", "store"])
def test_program_of_this_machine_resumes(where: str, tmp_path: Path) -> None:
    """`train -c`: two steps, then five: the same state as five at once, whether weights live in RAM or on the store."""
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=64)
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    program = case.program(state_paged_actions(case, names) if names else paged_actions(case, "a"))
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
