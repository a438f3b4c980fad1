"""A plug that is pulled: anything that was not synced may be lost, and one checkpoint is always whole."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from poetc.devices import load_profile
from poetc.devices.streaming import StreamedAlternatives, streamed_problem
from poetc.emit import emit
from poetc.program import Program, all_inputs, fit_input, reads_ahead, sample_inputs, streams_of
from poetc.scheduling import Paging
from tests.program.models import Case, mlp, paged_decisions, rows_case, state_paged_decisions, training_case
from tests.support.medium import RECORDER, Event, Medium, link_options, read_record
from tests.support.power import Power, PowerLoss

STEPS = 6
CUTS = int(os.environ.get("POETC_POWER_CUTS", "40"))  # `make power-loss` has more of both
FLIPS = int(os.environ.get("POETC_BIT_FLIPS", "20"))
ON_STORE = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")
TARGETS = {
    "host": ("./train", "-c", "data.bin", str(STEPS), "trained.bin"),
    "cortex-a": ("./train",),  # the program of Linux boards, compiled for this machine
}


@dataclass(frozen=True)
class Built:
    directory: Path
    words: tuple[str, ...]
    files: dict[str, bytes]  # what is there before the program starts
    expected: bytes  # trained.bin of a run that was not cut
    events: tuple[Event, ...]  # what that run wrote
    moves_rows: bool


def records(program: Program, seeds: Iterable[int]) -> bytes:
    batches = (sample_inputs(program, seed) for seed in seeds)
    return b"".join(fit_input(b, batch).tobytes() for batch in batches for b in all_inputs(program))


def run(directory: Path, words: tuple[str, ...], record: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "RECORD")}
    environment |= {"RECORD": str(record)} if record else {}
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, env=environment, check=False)


def train(directory: Path, words: tuple[str, ...], record: Path | None = None) -> str:
    done = run(directory, words, record)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_place(directory: Path, files: dict[str, bytes]) -> None:
    """`directory` holds these files, and nothing that an earlier run left."""
    for name in ("store.bin", "store.bin.new", "trained.bin", "trained.bin.new"):
        (directory / name).unlink(missing_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def streamed_case(*, overlaps: bool) -> Case:
    """Updates of large weights that read and write weight, velocity and gradient block by block.

    `overlaps`: beside their kernels, in a thread.
    """
    case = training_case(mlp(256), block_bytes=512)
    if overlaps:
        case = replace(case, problem=replace(case.problem, paging=Paging.DMA))
    offer = StreamedAlternatives(case.graph, load_profile("nrf52840"), case.problem)
    operators = list(enumerate(case.problem.operators))
    made = {}
    for k, op in operators:
        pairs = [p for p in op.in_place if p.required and case.problem.tensors[p.input].size_bytes > 1024]
        streamed = frozenset(t for p in pairs for t in (p.input, p.output))
        found = [n for n, form in enumerate(offer.forms(k, streamed)) if form.overlaps == overlaps] if streamed else []
        if found:
            made[k] = offer.priced(k, streamed, found[0])
    assert len(made) == 2 and all(len(op.writes_store) == 2 for op in made.values())
    return Case(case.graph, streamed_problem(case.problem, made))


@pytest.fixture(
    scope="module",
    params=[(t, w) for t in TARGETS for w in ("ram", "store", "streamed", "ahead", "rows")],
    ids=" ".join,
)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    target, where = request.param
    directory = tmp_path_factory.mktemp("plug")
    case = training_case(on_store=ON_STORE if where == "store" else (), block_bytes=512)
    if where in ("streamed", "ahead"):
        case = streamed_case(overlaps=where == "ahead")
    if where == "rows":
        case = rows_case()
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    decisions = state_paged_decisions(case, names) if where == "store" else None
    program = case.program(paged_decisions(case, "a") if where == "ram" else decisions)
    assert any(streams_of(i) for i in program.instructions) == (where in ("streamed", "ahead", "rows"))
    assert any(map(reads_ahead, program.instructions)) == bool(program.queues) == (where == "ahead")
    emit([program], case.graph.values, model="mlp", target=target, out_dir=directory)
    recorder = directory / "recorder.o"
    include = f"-I{directory / 'runtime' / 'include'}"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", include, "-c", RECORDER, "-o", recorder], check=True)
    options = ["CC=gcc", "CFLAGS=-O1 -Werror", f"LDFLAGS={link_options(recorder)}"]
    subprocess.run(["make", "-s", "-C", directory, *options, "train"], check=True)
    (directory / "data.bin").write_bytes(records(program, range(STEPS)))
    files = {"trained.bin": b"of an earlier run"}
    files |= {"store.img": (directory / "store.img").read_bytes()} if names else {}
    in_place(directory, files)
    words = TARGETS[target]
    train(directory, words, directory / "record")
    return Built(
        directory,
        words,
        files,
        (directory / "trained.bin").read_bytes(),
        tuple(read_record(directory / "record")),
        where == "rows",
    )


@pytest.mark.long_but("host store", "host ahead", "host rows")
def test_order_of_writes_and_syncs(built: Built) -> None:
    """Data, sync, trailer, sync: of every checkpoint; names are on the medium before what they name is relied upon."""
    ends = [i for i, e in enumerate(built.events) if e.kind == "k"]
    assert [built.events[i].offset for i in ends] == list(range(1, STEPS + 1))
    for end in ends:
        last = [e.kind for e in built.events[end - 3 : end]]
        assert last == ["s", "w", "s"], "a barrier before the trailer and one after it"
    for begin, end in pairwise(ends):
        syncs = sum(e.kind == "s" for e in built.events[begin + 1 : end])
        assert syncs == (4 if built.moves_rows else 2), "rows: one after those of before, one after the list"
    kinds = "".join(e.kind if (e.kind, e.name) != ("s", ".") else "d" for e in built.events)
    assert re.search(r"[cr]d[^cr]*k", kinds), "the store's name, then its directory, then checkpoints"
    assert kinds.endswith("srd"), "the result is whole, renamed, and its name is on the medium"


def until_the_plug_is_pulled(built: Built, power: Power) -> dict[str, bytes]:
    """The files that are there after it."""
    medium = Medium(built.files)
    with suppress(PowerLoss), power.may_go():
        for event in built.events:
            power.operate()
            medium.replay([event])
        power.operate()
    return medium.pull_the_plug(power.random)


@pytest.mark.long_but("host ram", "host store", "host streamed", "host ahead", "host rows")
@pytest.mark.power_loss(sample=CUTS, outcomes=range(1, STEPS))
def test_one_checkpoint_survives_any_cut(built: Built, power: Power) -> None:
    """At most the step that was running is lost, and what comes of the rest are the bits of a run without a cut."""
    files = until_the_plug_is_pulled(built, power)
    assert files["trained.bin"] in (built.files["trained.bin"], built.expected)
    in_place(built.directory, files)
    output = train(built.directory, built.words)
    saved = sum(e.kind == "k" for e in built.events[: power.operations - 1])
    found = re.search(r"resumed step (\d+)", output)
    step = int(found[1]) if found else 0
    assert saved <= step <= saved + 1
    assert (built.directory / "trained.bin").read_bytes() == built.expected
    power.outcomes.add(step)


@pytest.mark.power_loss(sample=FLIPS, outcomes=[0])
def test_a_bit_that_turns_over_is_never_trained_on(built: Built, power: Power) -> None:
    """After a cut, anywhere in the store: the bits of a run without it, or an error and the old result."""
    files = {name: bytearray(data) for name, data in until_the_plug_is_pulled(built, power).items()}
    if not (size := len(files.get("store.bin", b""))):
        return
    bit = power.random.randrange(8 * size)
    files["store.bin"][bit // 8] ^= 1 << bit % 8
    in_place(built.directory, {name: bytes(data) for name, data in files.items()})
    done = run(built.directory, built.words)
    expected = built.expected
    if done.returncode != 0:
        assert done.returncode == 1 and "a page of the store is damaged" in done.stdout + done.stderr, done
        expected = bytes(files["trained.bin"])
    assert (built.directory / "trained.bin").read_bytes() == expected, f"bit {bit} of {8 * size}"
    power.outcomes.add(done.returncode)


OTHER = "other data than before: from their first record"


def resume_on(built: Built, data: bytes, *, host_steps: int) -> tuple[str, bytes]:
    """Go on with these data after STEPS steps; the output, and the trained state."""
    words = tuple(str(host_steps) if word == str(STEPS) else word for word in built.words)
    old = (built.directory / "data.bin").read_bytes()
    try:
        (built.directory / "data.bin").write_bytes(data)
        output = train(built.directory, words)
    finally:
        (built.directory / "data.bin").write_bytes(old)
    return output, (built.directory / "trained.bin").read_bytes()


def test_records_are_passed_over_only_if_they_were_used(built: Built) -> None:
    """New data are used from their first record; a file that has grown, from the first record that is new."""
    used = (built.directory / "data.bin").read_bytes()
    size = len(used) // STEPS
    new = used[size : 3 * size]  # shorter than what was used, of records that it has, too

    def after_training(data: bytes) -> tuple[str, bytes]:
        in_place(built.directory, built.files)
        train(built.directory, built.words)
        return resume_on(built, data, host_steps=STEPS + 2)

    other, of_other = after_training(new)
    assert OTHER in other
    grown, of_grown = after_training(used + new)
    assert OTHER not in grown
    for output in (other, grown):
        assert re.findall(r"step (\d+)", output) == [str(STEPS), str(STEPS + 1), str(STEPS + 2)]
    assert of_other == of_grown, "the same two records, found at another place"
    assert of_other != built.expected
    swapped, _ = after_training(used[size:] + used[:size])
    assert OTHER in swapped, "as long, with another order"
