"""The initial state in flash: pieces without long runs of zeros, which `poetc_init` sets."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from poetc.graph import Fill
from poetc.program import Page, initial_pages, packed_state, packed_state_bytes, regions, state_image, store_image
from tests.program.models import mlp, state_paged_decisions, training_case


@pytest.mark.parametrize(("optimizer", "share"), [("sgd", 1.1), ("momentum", 0.6), ("adam", 0.45)])
def test_zeros_of_the_state_are_left_out(optimizer: str, share: float) -> None:
    case = training_case(mlp(hidden=40), optimizer)
    program, values = case.program(), case.graph.values
    image, found = packed_state(program, values), np.full(program.state_bytes, 0xA5, np.uint8)
    for region in regions(program):
        found[region.arena_offset_bytes : region.arena_offset_bytes + region.size_bytes] = 0
    at = 0
    while True:
        place, size = struct.unpack_from("<II", image, at)
        if size == 0:
            break
        assert place % 16 == size % 16 == 0
        found[place : place + size] = np.frombuffer(image, np.uint8, size, at + 16)
        at += 16 + size
    assert at + 16 == len(image) == packed_state_bytes(program, values) <= share * program.state_bytes
    drawn = Fill("normal", value=0.1, seed_name="w")
    random = {**values, **{b.name: drawn for b in program.state if b.operand.type.dtype.numpy == np.float32}}
    assert packed_state_bytes(program, random) == len(packed_state(program, random)) >= len(image)
    expected = np.frombuffer(state_image(program, values), np.uint8)
    for region in regions(program):
        part = slice(region.arena_offset_bytes, region.arena_offset_bytes + region.size_bytes)
        assert np.array_equal(found[part], expected[part])


def test_pages_of_the_state_are_found_without_comparing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a language model there are thousands."""
    names = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")
    case = training_case(on_store=names, block_bytes=64)
    program = case.program(state_paged_decisions(case, list(names)))
    compared, equal = [], Page.__eq__
    monkeypatch.setattr(Page, "__eq__", lambda a, b: compared.append(a) or equal(a, b))
    assert sorted(r.page for r in regions(program) if r.page is not None) == [0, 1, 2] and not compared


def test_an_image_of_the_store_holds_one_page_beside_it() -> None:
    """A language model's pages are most of its bytes."""
    names = ("fc1.weight", "fc1.weight:velocity", "fc2.weight")
    case = training_case(mlp(hidden=40_000), on_store=names)
    program, values = case.program(state_paged_decisions(case, list(names))), case.graph.values
    store_image(program, values)  # modules that are imported once
    tracemalloc.start()
    image = store_image(program, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    page = max(len(data) for _, data in initial_pages(program, values))
    assert len(image) >= 4 * page and peak < len(image) + 3 * page
    for number, data in initial_pages(program, values):
        start = program.pages[number].first_block * program.block_bytes
        assert image[start : start + len(data)] == data
