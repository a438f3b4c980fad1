"""Operators that read ahead: transfers of a block beside the kernel of another one, through two windows (`--dma`)."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc import passes
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.devices.profile import DeviceProfile
from poetc.devices.streaming import StreamedAlternatives, streamed_problem
from poetc.errors import UsageError
from poetc.graph import TrainingGraph
from poetc.measure import HostModel, StepError, compile_library
from poetc.measure._host import host_sources, make_library, make_variables
from poetc.planning.streamed_operators import within
from poetc.program import (
    Call,
    PageIn,
    PageOut,
    PageSource,
    Program,
    ProgramError,
    check_program,
    check_queues,
    lower,
    reads_ahead,
    sample_inputs,
    streams_of,
)
from poetc.scheduling import (
    OperatorSpec,
    Paging,
    keep_all,
    pack,
    problem_from_json,
    problem_to_json,
    trace_of,
    validate_problem,
    verify,
)
from poetc.training import TrainingOptions
from tests.host_c.stores.test_overlap import Card
from tests.program.models import Case
from tests.support.power import Power
from tests.support.small import small_model

STEPS = 3
CUTS = min(100, int(os.environ.get("POETC_POWER_CUTS", "40")))  # `make power-loss` has more


def words(path: Path) -> Path:
    """A head of 5,000 words, streamed in blocks of classes, behind two products."""
    table = (0.2 * np.random.default_rng(0).standard_normal((5000, 64))).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["h"]),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "head"], ["y"]),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(table[:64], "w")]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 16])
    logits = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 5000])
    graph = helper.make_graph(nodes, "words", [tokens], [logits], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def in_two_windows(offer: StreamedAlternatives, k: int, op: OperatorSpec, which: int) -> OperatorSpec:
    """One of the operator's alternatives that stream the same and read ahead; itself where there is none."""
    streamed = frozenset({*op.reads_store, *op.writes_store})
    ahead = [n for n, form in enumerate(offer.forms(k, streamed)) if form.overlaps]
    return offer.priced(k, streamed, ahead[which % len(ahead)]) if ahead else op


def cases_of(step: TrainingGraph, which: int, profile: DeviceProfile | None = None) -> tuple[Case, Case]:
    """A step with everything in RAM, and the same with as much streamed as can be, read ahead where that can be."""
    profile = profile or load_profile("rpi4")
    plain = build_problem(step, profile, budget_bytes=1 << 30, paging=Paging.DMA)
    offer = StreamedAlternatives(step, profile, plain)
    made = {k: in_two_windows(offer, k, op, which) for k, op in within(offer, 0).items()}
    return Case(step, plain), Case(step, streamed_problem(plain, made))


def program_of(case: Case) -> Program:
    """Every operator once, whatever that costs."""
    schedule = keep_all(case.problem)
    trace = trace_of(case.problem, schedule)
    cost = case.problem.objective.cost(trace.energy_pj, trace.time_ns)
    schedule = replace(schedule, proof=replace(schedule.proof, objective=cost))
    verify(case.problem, schedule)
    return lower(case.graph, case.problem, schedule, pack(case.problem, schedule))


@dataclass
class Built:
    kept: Program
    program: Program
    values: dict[str, np.ndarray]
    library: Path
    of_kept: Path

    def model(self, program: Program | None = None, card: Card | None = None) -> HostModel:
        store = None if card is None else (card.page_out, card.page_in)
        return HostModel(self.library, [program or self.program], self.values, store=store)


def build(step: TrainingGraph, which: int, out: Path) -> Built:
    kept, streamed = (program_of(case) for case in cases_of(step, which))
    values, folders = dict(step.values), (out / "streamed", out / "kept")
    for folder in folders:
        folder.mkdir()
    libraries = [compile_library([p], values, f, cflags="-O1") for p, f in zip((streamed, kept), folders, strict=True)]
    return Built(kept, streamed, values, *libraries)


def step_of(source: Path, batch: int, optimizer: str, train: str = "all") -> TrainingGraph:
    training = TrainingOptions(train=train, optimizer=optimizer)
    model = ModelRequest(source=source, batch=batch, device="rpi4", training=training)
    return passes.for_small_ram(training_graph(model)[1], 0)


CASES = {
    "convolutions": lambda path: step_of(small_model(), 3, "sgd"),
    "adam": lambda path: step_of(small_model(), 2, "adam"),
    "head": lambda path: step_of(words(path / "words.onnx"), 1, "sgd", "w"),
    "tables": lambda path: step_of(words(path / "words.onnx"), 1, "momentum"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Built]:
    @functools.cache
    def make(name: str, which: int) -> Built:
        path = tmp_path_factory.mktemp("ahead")
        return build(CASES[name](path), which, path)

    return make


@pytest.fixture(scope="module", params=[(name, which) for name in CASES for which in (0, 1)], ids=str)
def built(request: pytest.FixtureRequest, made: Callable[[str, int], Built]) -> Built:
    return made(*request.param)


@pytest.mark.long_but("('convolutions', 0)")
def test_two_queues_have_the_halves(built: Built) -> None:
    calls = {n for n, i in enumerate(built.program.instructions) if reads_ahead(i)}
    of_processor, of_store = ({s.instruction for s in queue} for queue in built.program.queues)
    assert calls and calls <= of_processor and calls <= of_store
    others = [built.program.instructions[n] for n in of_store - calls]
    assert all(isinstance(i, PageIn | PageOut) for i in others)


@pytest.mark.long_but("('convolutions', 0)", "('adam', 0)", "('adam', 1)")
def test_bits_are_those_of_everything_in_ram(built: Built) -> None:
    """On two threads, and in turn. The peak is the predicted one, to the byte."""
    one = replace(built.program, queues=())
    kept = HostModel(built.of_kept, [built.kept], built.values)
    with kept, built.model() as beside, built.model(one) as in_turn:
        for seed in range(STEPS):
            batch = sample_inputs(built.kept, seed)
            loss = kept.run(batch)
            assert beside.run(batch) == loss == in_turn.run(batch)
        for binding in built.kept.state:
            expected = kept.state(binding.name).tobytes()
            assert beside.state(binding.name).tobytes() == expected == in_turn.state(binding.name).tobytes()
        for model in (beside, in_turn):
            assert model.measure_high_water(sample_inputs(built.program, 0)) == built.program.high_water_bytes


@pytest.fixture(scope="module")
def network(made: Callable[[str, int], Built]) -> Built:
    return made("convolutions", 0)


# Kernels of blocks, each of which waits for a transfer in flight, or until the time is over.
METER = """
#include <time.h>
#include "poetc.h"
int running, in_flight, has_met, met, limit_ms;
static void meet(void)
{
    const struct timespec pause = {0, 200000};
    int n;

    for (n = 0; n < 5 * limit_ms && !__atomic_load_n(&in_flight, __ATOMIC_SEQ_CST); n++)
        nanosleep(&pause, 0);
    if (__atomic_load_n(&in_flight, __ATOMIC_SEQ_CST))
        met++, __atomic_store_n(&has_met, 1, __ATOMIC_SEQ_CST);
}
"""
WRAPPED = """
int __real_{0}(const poetc_call *call);
int __wrap_{0}(const poetc_call *call)
{{
    int err;

    __atomic_store_n(&has_met, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&running, 1, __ATOMIC_SEQ_CST);
    meet();
    err = __real_{0}(call);
    __atomic_store_n(&running, 0, __ATOMIC_SEQ_CST);
    return err;
}}
"""


class MeteredCard(Card):
    """Each transfer lasts until a kernel has seen it, or until the time is over."""

    def __init__(self, block_bytes: int, library: Path, limit_ms: int) -> None:
        super().__init__(block_bytes)
        own = ctypes.CDLL(str(library))
        self.running, self.in_flight, self.has_met, self.met = (
            ctypes.c_int.in_dll(own, name) for name in ("running", "in_flight", "has_met", "met")
        )
        ctypes.c_int.in_dll(own, "limit_ms").value = limit_ms
        self.limit_s, self.is_slow = limit_ms / 1000, False
        self.waits = True  # until it has waited for nothing; no kernel runs then, before the next block

    def pause(self) -> None:
        if not self.is_slow or not (self.waits or self.running.value):
            return
        self.in_flight.value = 1
        end, before = time.monotonic() + self.limit_s, self.met.value
        while self.met.value == before and not (self.running.value and self.has_met.value) and time.monotonic() < end:
            time.sleep(0.0002)
        self.waits = time.monotonic() < end
        self.in_flight.value = 0


@pytest.mark.long
def test_kernels_run_while_a_slow_card_transfers(tmp_path: Path) -> None:
    """Beside a kernel the next block is on its way, but for a call's last one; in turn none is.

    A loaded machine may miss some.

    Bits are the same.
    """
    head = build(CASES["head"](tmp_path), 2, tmp_path)
    calls = [i for i in head.program.instructions if isinstance(i, Call) and reads_ahead(i)]
    symbols = {call.symbol for call in calls}
    sources = host_sources([head.program], head.values, tmp_path)
    (tmp_path / "meter.c").write_text(METER + "".join(map(WRAPPED.format, sorted(symbols))))
    include = f"-I{sources / 'runtime' / 'include'}"
    subprocess.run(["gcc", "-O1", "-fPIC", include, "-c", "meter.c"], check=True, cwd=tmp_path)
    options = " ".join([str(tmp_path / "meter.o"), *(f"-Wl,--wrap={s}" for s in sorted(symbols))])
    library = make_library(sources, *make_variables("-O1", "separate", 0), f"LDFLAGS={options}")
    losses, met = list[float](), list[int]()
    for program, limit_ms in ((head.program, 500), (replace(head.program, queues=()), 1)):
        card = MeteredCard(program.block_bytes, library, limit_ms)
        with HostModel(library, [program], head.values, store=(card.page_out, card.page_in)) as model:
            card.is_slow, card.met.value = True, 0
            losses.append(model.run(sample_inputs(program, 0)))
            met.append(card.met.value)
    assert losses[0] == losses[1]
    assert met[1] == 0
    read_each = [
        math.prod(c.blocks.counts) - 1
        for c in calls
        if c.blocks and any(s.source is not None and len(c.blocks.counts) - 1 in s.form.axes for s in c.blocks.streams)
    ]
    assert max(read_each) > 3 and met[0] > 0.8 * sum(read_each), (met, read_each)


def states_of(model: HostModel, card: Card, names: list[str]) -> dict[str, bytes]:
    """The last version of each tensor of state, in RAM or on the card."""
    with model.store_path.open("wb") as file:
        for block, data in card.blocks.items():
            file.seek(block * card.block_bytes)
            file.write(data)
    return {name: model.state(name).tobytes() for name in names}


class LostCard(Card):
    """Its power goes with one transfer, of which it does a part: whole blocks and the half of one."""

    power = Power()

    def has_failed(self) -> bool:
        self.transfers += 1
        return self.power.goes()

    def page_out(self, first: int, count: int, address: int) -> int:
        if self.power.is_on and self.power.operations + 1 == self.power.cut_at:
            size = (self.transfers % count * 2 + 1) * self.block_bytes // 2
            for n, at in enumerate(range(0, size, self.block_bytes)):
                new = ctypes.string_at(address + at, min(self.block_bytes, size - at))
                self.blocks[first + n] = new + self.blocks.get(first + n, b"\xff" * self.block_bytes)[len(new) :]
        return super().page_out(first, count, address)


@pytest.fixture
def lost(network: Built) -> Iterator[tuple[HostModel, LostCard]]:
    card = LostCard(network.program.block_bytes)
    with network.model(card=card) as model:
        yield model, card


@pytest.mark.power_loss(quick=4, sample=CUTS)
def test_no_weight_is_torn_wherever_the_card_loses_power(
    network: Built, lost: tuple[HostModel, LostCard], power: Power
) -> None:
    """All later transfers fail too. State on the store is that of the last whole step; in RAM, before or after.

    Cuts fall into blocks that are read ahead and into those that are written behind. After them the two sides count the
    same blocks again.
    """
    model, card = lost
    card.power = power
    batches = [sample_inputs(network.program, seed) for seed in range(2)]
    names = [b.name for b in network.kept.state]
    on_store = {p.tensor for p in network.program.pages if p.slots == 2}
    if power.boot and power.whole is not None:
        old, new = power.whole
        found = states_of(model, card, names)
        assert all(found[n] == old[n] or (found[n] == new[n] and n not in on_store) for n in names)
    model.reset()
    model.run(batches[0])
    old = states_of(model, card, names)
    with power.may_go():
        model.run(batches[1])
    new = states_of(model, card, names)
    power.whole = power.whole or (old, new)
    assert (old, new) == power.whole and on_store & {n for n in names if old[n] != new[n]}


def test_a_bad_block_that_was_read_ahead_is_found(network: Built) -> None:
    """One bit of a page that a call reads ahead. No state of the store changes, and the error names the damage."""
    page = next(
        s.page
        for i in network.program.instructions
        if reads_ahead(i)
        for s in streams_of(i)
        if s.source is PageSource.LAST_RUN and s.form.axes and s.form.size_bytes > 2000
    )
    assert page is not None
    names, of_page = [b.name for b in network.kept.state], network.program.pages[page]
    card = Card(network.program.block_bytes)
    with network.model(card=card) as model:
        model.run(sample_inputs(network.program, 0))
        old = states_of(model, card, names)
        block = of_page.first_block + (of_page.slots == 2) * of_page.block_count + 1
        card.blocks[block] = bytes([card.blocks[block][0] ^ 1]) + card.blocks[block][1:]
        with pytest.raises(StepError, match="damaged"):
            model.run(sample_inputs(network.program, 1))
        found = states_of(model, card, names)
        on_store = {p.tensor for p in network.program.pages if p.slots == 2} - {of_page.tensor}
        assert on_store and all(found[n] == old[n] for n in on_store)


def test_the_check_wants_both_halves_and_two_windows_where_blocks_are_read_ahead(network: Built) -> None:
    program = network.program
    at, call = next((n, i) for n, i in enumerate(program.instructions) if isinstance(i, Call) and reads_ahead(i))
    of_processor, of_store = program.queues
    for queues in (
        ([s for s in of_processor if s.instruction != at], of_store),
        (of_processor, [s for s in of_store if s.instruction != at]),
    ):
        with pytest.raises(ProgramError, match="both of its halves"):
            check_queues(program, queues)
    blocks = call.blocks
    assert blocks is not None

    def with_second(n: int, second_bytes: int) -> Program:
        windows = list(blocks.windows)
        windows[n] = replace(windows[n], second_bytes=second_bytes)
        wrong = replace(call, blocks=replace(blocks, windows=tuple(windows)))
        return replace(program, instructions=(*program.instructions[:at], wrong, *program.instructions[at + 1 :]))

    doubled = [n for n, s in enumerate(blocks.windows) if s.second_bytes]
    assert len(doubled) > 1
    check_program(with_second(doubled[0], blocks.windows[doubled[0]].second_bytes))
    with pytest.raises(ProgramError, match="needs the other number"):
        check_program(with_second(doubled[0], 0))
    with pytest.raises(ProgramError, match="windows overlap"):
        check_program(with_second(doubled[0], 16))


def test_a_problem_overlaps_only_where_transfers_do(network: Built) -> None:
    case = cases_of(CASES["convolutions"](Path()), 0)[1]
    with pytest.raises(UsageError, match="overlaps: takes streamed operands, and transfers that overlap compute"):
        validate_problem(replace(case.problem, paging=Paging.SYNC, idle_uw=0))
    again = problem_from_json(problem_to_json(case.problem))
    assert again == case.problem and any(op.overlaps for op in again.operators)
