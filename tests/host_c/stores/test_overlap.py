"""Transfers beside the processor's work (`--dma`): a thread of their own, the bits of keep-all, errors of the store."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc.commands.programs import keep_all_program, numerics_of, training_program
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.measure import HostModel, StepError, compile_library, validate
from poetc.program import Call, PageIn, PageOut, Program, sample_inputs, streams_of
from poetc.scheduling import Paging
from poetc.scheduling.schedule import SolveOptions
from tests.program.models import absent_and_paged_decisions, training_case
from tests.support.small import small_model

WAIT_S = 0.05  # of a transfer, for the processor to go on
STEPS = 3


Built = tuple[Program, dict[str, np.ndarray], Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    model = ModelRequest(source=small_model(), batch=8, device="rpi4")
    options = SolveOptions(time_limit_s=6, gap=0.3)
    solved = solve(SolveRequest(model=model, budget="60%", state="store", dma=True, options=options, smallest=False))
    assert solved.graph is not None
    program = training_program(solved)
    library = compile_library([program], solved.graph.values, tmp_path_factory.mktemp("overlap"), cflags="-O1")
    return program, dict(solved.graph.values), library


@pytest.mark.long
def test_one_queue_has_the_transfers_and_nothing_else(built: Built) -> None:
    program, _, _ = built
    of_processor, of_store = program.queues
    kinds = [{type(program.instructions[step.instruction]) for step in queue} for queue in (of_processor, of_store)]
    assert kinds[1] == {PageIn, PageOut} and Call in kinds[0] and not kinds[0] & kinds[1]


class Card:
    """A store in memory. `pause` is called in each transfer."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes, self.blocks = block_bytes, dict[int, bytes]()
        self.transfers, self.fails_at = 0, frozenset[int]()

    def pause(self) -> None:
        pass

    def has_failed(self) -> bool:
        self.transfers += 1
        return self.transfers in self.fails_at

    def page_out(self, first: int, count: int, address: int) -> int:
        self.pause()
        if self.has_failed():
            return -5
        for n in range(count):
            self.blocks[first + n] = ctypes.string_at(address + n * self.block_bytes, self.block_bytes)
        return 0

    def page_in(self, first: int, count: int, address: int) -> int:
        self.pause()
        if self.has_failed():
            return -5
        for n in range(count):
            data = self.blocks.get(first + n, b"\xff" * self.block_bytes)
            ctypes.memmove(address + n * self.block_bytes, data, self.block_bytes)
        return 0


class SlowCard(Card):
    """It waits until the processor begins another step, and counts the transfers in which it did."""

    def __init__(self, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self.begun, self.overlapped = 0, 0
        self.changed = threading.Condition()

    def pause(self) -> None:
        with self.changed:
            before = self.begun
            self.overlapped += self.changed.wait_for(lambda: self.begun > before, WAIT_S)

    def observe(self) -> None:
        with self.changed:
            self.begun += 1
            self.changed.notify_all()


def test_the_processor_goes_on_while_a_slow_card_transfers(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin while a transfer lasts; in turn none does. The bits are the same."""
    program, values, library = built
    overlapped = []
    losses = []
    for of_model in (program, replace(program, queues=())):
        card = SlowCard(program.block_bytes)
        seen = HostModel._observe

        def observe(self: HostModel, *arguments: object, card: SlowCard = card, seen: object = seen) -> int:
            card.observe()
            return seen(self, *arguments)  # type: ignore[operator, no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(HostModel, "_observe", observe)
            with HostModel(library, [of_model], values, store=(card.page_out, card.page_in)) as model:
                card.overlapped = 0
                losses.append([model.run(sample_inputs(program, seed)) for seed in range(STEPS)])
                overlapped.append(card.overlapped)
    assert losses[0] == losses[1]
    assert overlapped[0] > 0 and overlapped[1] == 0, overlapped


def test_the_bits_and_the_peak_of_transfers_in_turn(built: Built) -> None:
    program, values, library = built
    one = replace(program, queues=())
    with HostModel(library, [program], values) as beside, HostModel(library, [one], values) as in_turn:
        for seed in range(STEPS):
            batch = sample_inputs(program, seed)
            assert beside.run(batch) == in_turn.run(batch)
            assert beside.gradients_crc() == in_turn.gradients_crc()
        assert beside.measure_high_water(sample_inputs(program, 0)) == program.high_water_bytes


def ordered(program: Program) -> set[tuple[int, int]]:
    """Pairs of instructions of which the first is over when the second begins."""
    before: dict[int, set[int]] = {}
    for n in range(len(program.instructions)):
        for queue in program.queues:
            for place, step in enumerate(queue):
                if step.instruction == n:
                    ends = [queue[place - 1]] if place else []
                    ends += [other[count - 1] for other, count in zip(program.queues, step.waits, strict=True) if count]
                    before[n] = {e for end in ends for e in (end.instruction, *before[end.instruction])}
    return {(earlier, n) for n, found in before.items() for earlier in found}


def test_streamed_operands_beside_transfers() -> None:
    """A streamed operator reads the card by itself, between the transfers of the other queue: the bits of keep-all."""
    model = ModelRequest(source=small_model(), batch=8, device="rpi4")
    options = SolveOptions(time_limit_s=6, gap=0.3)
    request = SolveRequest(model=model, budget="64kB", state="store", dma=True, options=options, smallest=False)
    solved = solve(request)
    program = training_program(solved)
    of_processor, of_store = ([program.instructions[s.instruction] for s in queue] for queue in program.queues)
    assert of_store and any(isinstance(i, Call) and streams_of(i) for i in of_processor)
    apart = ordered(program)
    for n, instruction in enumerate(program.instructions):
        if isinstance(instruction, Call) and streams_of(instruction):
            transfers = {k for k, other in enumerate(program.instructions) if other in of_store}
            assert all((k, n) in apart or (n, k) in apart for k in transfers), "both would use the card"
    assert solved.graph is not None
    kept = keep_all_program(solved)
    result = validate(program, kept, solved.graph.values, steps=STEPS, numerics=numerics_of(solved))
    assert not result.problems()
    assert result.peak_measured_bytes == result.peak_predicted_bytes


def test_state_is_whole_wherever_a_card_fails(tmp_path: Path) -> None:
    """State that leaves RAM for a while is that of before the step or after it, after an error of any transfer.

    Transfers of such state are the processor's own; the others go on beside it.
    """
    case = training_case()
    case = replace(case, problem=replace(case.problem, paging=Paging.DMA))
    program, values = case.program(absent_and_paged_decisions(case, "fc2.weight", "a")), dict(case.graph.values)
    queue_of = {step.instruction: n for n, queue in enumerate(program.queues) for step in queue}
    assert [queue_of[absence.begin] for absence in program.absences] == [0, 1]
    library = compile_library([program], values, tmp_path, cflags="-O1")
    batch, names = sample_inputs(program, 0), [b.name for b in program.state]

    def after(fails_at: frozenset[int], *, is_whole: bool) -> tuple[dict[str, bytes], int]:
        card = Card(program.block_bytes)
        with HostModel(library, [program], values, store=(card.page_out, card.page_in)) as model:
            before = card.transfers
            card.fails_at = frozenset(before + n for n in fails_at)
            if is_whole:
                model.run(batch)
            elif fails_at:
                with pytest.raises(StepError):
                    model.run(batch)
            return {name: model.state(name).tobytes() for name in names}, card.transfers - before

    old, new = after(frozenset(), is_whole=False)[0], after(frozenset(), is_whole=True)
    for transfer in range(1, new[1] + 1):
        state, _ = after(frozenset({transfer}), is_whole=False)
        torn = [name for name in names if state[name] not in (old[name], new[0][name])]
        assert not torn, (transfer, torn)
