"""Prices of streamed operators: counted block by block here, and by their repetition in the product."""

from __future__ import annotations

import itertools
from pathlib import Path

from poetc import passes
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.devices.blocks import Blocks, Stream
from poetc.devices.streaming import Streaming
from poetc.planning.streaming import within

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


def offered() -> Streaming:
    step = passes.for_small_ram(training_graph(ModelRequest(source=DIGITS, batch=3, device="nrf52840"))[1], 0)
    profile = load_profile("nrf52840")
    return Streaming(step, profile, build_problem(step, profile, budget_bytes=0))


def written(stream: Stream, blocks: Blocks, size: int) -> int:
    """Blocks of the store, each piece of each block by itself."""
    extents = [axis.extent for axis in blocks.cut.axes]
    found = 0
    sizes = list(zip(extents, blocks.units, strict=True))
    begins = [range(0, e, n) if a in stream.axes else (0,) for a, (e, n) in enumerate(sizes)]
    for begin in itertools.product(*begins):
        ranges = [(b, min(b + n, e)) for b, (e, n) in zip(begin, sizes, strict=True)]
        rows, piece, first = stream.pieces(ranges, extents)
        found += sum(
            -(-(at + piece) // size) - at // size for at in range(first, first + rows * stream.pitch, stream.pitch)
        )
    return found * size


def test_blocks_of_the_store_that_are_written_are_those_of_every_piece() -> None:
    offer = offered()
    within(offer, 0)
    compared = 0
    for blocks in itertools.chain(*offer._forms.values()):
        for stream in blocks.streams:
            if stream.writes and not stream.in_ram and stream.has_edges(blocks.units, blocks.counts, offer.block_bytes):
                assert offer._written_bytes(stream, blocks) == written(stream, blocks, offer.block_bytes), blocks
                compared += max(blocks.counts) > 3
    assert compared > 10


def test_only_what_is_chosen_is_priced() -> None:
    """Prices take longer than the blocks themselves."""
    offer = offered()
    made = within(offer, 0)
    assert sum(op.cut != "" for op in made.values()) > 10
    assert len(offer._prices) <= len(made)
    assert all(op.time_ns > 0 for op in made.values())
