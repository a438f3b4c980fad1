"""Rows of a trained table on the store move alone: bits, cuts of power at every transfer, damage, other states."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from poetc.devices import load_profile
from poetc.graph import Array
from poetc.measure import HostModel, StepError, compile_library
from poetc.program import Call, Program, lower, page_blocks, sample_inputs, streams_of
from poetc.scheduling import keep_all, pack
from tests.host_c.stores.test_ahead import LostCard, states_of
from tests.program.models import make_problem, rows_case
from tests.support.power import Power

PIECE_BYTES = 8192  # of a table, with a checksum each


class Cut(LostCard):
    """It measures itself: blocks written, and the time of a card of the profile."""

    blocks_written, spent_ns = 0, 0.0
    store = load_profile("nrf52840").stores["sd"]

    def page_out(self, first: int, count: int, address: int) -> int:
        self.blocks_written += count
        rate = self.store.write_bytes_per_s.value
        self.spent_ns += self.store.write_latency_ns.value + count * self.block_bytes / rate * 1e9
        return super().page_out(first, count, address)

    def page_in(self, first: int, count: int, address: int) -> int:
        rate = self.store.read_bytes_per_s.value
        self.spent_ns += self.store.read_latency_ns.value + count * self.block_bytes / rate * 1e9
        return super().page_in(first, count, address)


@dataclass
class Rows:
    program: Program
    longest_ns: int  # of a piece, as planned
    values: dict[str, Array]
    library: Path
    card: Cut
    expected: dict[tuple[int, ...], dict[str, bytes]]  # the state after steps with these seeds

    def model(self) -> HostModel:
        return HostModel(self.library, [self.program], self.values, store=(self.card.page_out, self.card.page_in))

    def state(self, model: HostModel, steps: int = 1) -> dict[str, bytes]:
        """The checksums on the card are those of the table."""
        found = states_of(model, self.card, ["table", "fc.weight"])
        index = next(i for i, p in enumerate(self.program.pages) if p.tensor == "table")
        page, block = self.program.pages[index], self.program.block_bytes
        first = page.first_block + steps % 2 * page.block_count
        data = b"".join(self.card.blocks[first + n] for n in range(page.block_count))
        whole = page_blocks(index, steps, found["table"], block)
        assert data[: page.size_bytes] + data[-16:] == whole[: page.size_bytes] + whole[-16:]
        behind = self.program.pages[index + 1]
        sums = b"".join(self.card.blocks[behind.first_block + steps % 2 * behind.block_count + n] for n in range(1))
        pieces = (data[at : min(at + PIECE_BYTES, page.size_bytes)] for at in range(0, page.size_bytes, PIECE_BYTES))
        checksums = b"".join(crc32(piece).to_bytes(4, "little") for piece in pieces)
        assert sums.startswith(checksums)
        return found


def batch(program: Program, seed: int) -> dict[str, Array]:
    """Rows that follow each other, lie at both ends, and are named twice, also from the end."""
    inputs = sample_inputs(program, seed)
    tokens = np.random.default_rng(seed).integers(0, 600, (2, 20)).astype(np.int32)
    tokens[0, :6] = 0, 599, -1, 7 + seed, 8 + seed, 8 + seed
    tokens[1, :3] = tokens[0, 10], tokens[0, 10] - 600, 84  # row 85 lies across two pieces
    return inputs | {"tokens": tokens}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    case = rows_case()
    program, plain = case.program(), make_problem(case.graph, block_bytes=512)
    kept = lower(case.graph, plain, keep_all(plain), pack(plain, keep_all(plain)))
    values, folders = dict(case.graph.values), [tmp_path_factory.mktemp(n) for n in ("rows", "kept")]
    library, of_kept = (
        compile_library([p], values, f, cflags="-O1") for p, f in zip((program, kept), folders, strict=True)
    )
    expected = dict[tuple[int, ...], dict[str, bytes]]()
    with HostModel(of_kept, [kept], values) as model:
        for seeds in ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 1, 2, 3), (0, 2, 3)):
            model.reset()
            for seed in seeds:
                model.run(batch(kept, seed))
            expected[seeds] = {name: model.state(name).tobytes() for name in ("table", "fc.weight")}
    longest_ns = max(op.piece_ns for op in case.problem.operators)
    yield Rows(program, longest_ns, values, library, Cut(program.block_bytes), expected)


def test_only_the_rows_that_indices_name_pass(rows: Rows) -> None:
    """Those of this run and of the run before, and their checksums, with the bits of keep-all."""
    moved = next(i for i in rows.program.instructions if isinstance(i, Call) and i.kind == "GatherGradSgd")
    assert all(s.form.is_table for s in streams_of(moved) if s.operand in (0, 4))
    table = next(p for p in rows.program.pages if p.tensor == "table" and not p.is_sums)
    with rows.model() as model:
        written = []
        for seed in range(4):
            before = rows.card.blocks_written
            model.run(batch(rows.program, seed))
            written.append(rows.card.blocks_written - before)
        assert rows.state(model, 4) == rows.expected[0, 1, 2, 3]
    assert written[0] > table.block_count, "once all of the table is copied"
    assert max(written[1:]) < table.block_count


def in_pieces(rows: Rows, model: HostModel, pieces: list[int]) -> list[float]:
    """From now on a run of the model is one of pieces: their transfers, and the time of each on a card."""
    dll, memory, spent_ns = model._dll, ctypes.create_string_buffer(1024), list[float]()

    def run(runtime: object) -> int:
        dll.poetc_begin(runtime, memory)
        while True:
            before, before_ns = rows.card.transfers, rows.card.spent_ns
            code = dll.poetc_advance(runtime, memory)
            pieces.append(rows.card.transfers - before)
            spent_ns.append(rows.card.spent_ns - before_ns)
            if code:
                return 0 if code == 1 else int(code)

    dll.poetc_run = run
    return spent_ns


@pytest.fixture(params=["at once", "in pieces"])
def model(request: pytest.FixtureRequest, rows: Rows) -> Iterator[HostModel]:
    """It runs at once, or in pieces: of the blocks of the update, and of the copies before."""
    with rows.model() as model:
        if request.param == "in pieces":
            in_pieces(rows, model, [])
        yield model


@pytest.mark.power_loss(quick=4, twice=True, at_least=100)
def test_no_row_is_torn_wherever_power_goes(rows: Rows, model: HostModel, power: Power) -> None:
    """The state is that of the last whole step, and steps with other rows go on from there. So after two cuts."""
    rows.card.power = power
    if power.boot == 0:
        model.reset()
        model.run(batch(rows.program, 0))
    else:
        found = rows.state(model)
        assert found["table"] == rows.expected[0,]["table"]
        assert found["fc.weight"] in (rows.expected[0,]["fc.weight"], rows.expected[0, 2 - power.boot % 2]["fc.weight"])
        model.set_state("fc.weight", np.frombuffer(rows.expected[0,]["fc.weight"], np.float32).reshape(24, 3))
    seed = 1 + power.boot % 2
    with power.may_go():
        model.run(batch(rows.program, seed))
    assert rows.state(model, 2) == rows.expected[0, seed]
    model.run(batch(rows.program, 3))
    assert rows.state(model, 3) == rows.expected[0, seed, 3]


def test_a_row_that_is_copied_is_a_piece_of_its_own(rows: Rows) -> None:
    with rows.model() as model:
        pieces = list[int]()
        spent_ns = in_pieces(rows, model, pieces)
        for seed in range(4):
            pieces.clear()
            model.run(batch(rows.program, seed))
        assert rows.state(model, 4) == rows.expected[0, 1, 2, 3]
    assert 0.2 * rows.longest_ns < max(spent_ns) <= rows.longest_ns, "transfers alone, as the piece is planned"
    assert sum(n == 2 for n in pieces) >= 30, "a row of the run before is read, and written"


def test_a_damaged_row_is_found(rows: Rows) -> None:
    """Also one that no step has moved: its piece has a checksum. After a wrong index nothing is written."""
    page = next(p for p in rows.program.pages if p.tensor == "table" and not p.is_sums)
    with rows.model() as model:
        model.run(batch(rows.program, 0))
        wrong = batch(rows.program, 1)
        wrong["tokens"][1, 5] = 600
        with pytest.raises(StepError, match="range"):
            model.run(wrong)
        assert rows.state(model) == rows.expected[0,]
        for block in (0, 2 * PIECE_BYTES // 512 + 3):
            at = page.first_block + page.block_count + block  # slot 1
            kept = rows.card.blocks[at]
            rows.card.blocks[at] = bytes([kept[0] ^ 1]) + kept[1:]
            inputs = batch(rows.program, 1)
            inputs["tokens"][0, 0] = block * 512 // 96
            with pytest.raises(StepError, match="damaged"):
                model.run(inputs)
            rows.card.blocks[at] = kept
        model.set_state("fc.weight", np.frombuffer(rows.expected[0,]["fc.weight"], np.float32).reshape(24, 3))
        model.run(batch(rows.program, 1))
        assert rows.state(model, 2) == rows.expected[0, 1]
