"""The time of blocks that are read ahead, beside a simulation of the two sides block by block."""

from __future__ import annotations

import itertools

import numpy as np

from poetc import passes
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.devices.ahead import Transfers, pipelined_ns, rows_of
from poetc.devices.blocks import thirds
from poetc.devices.streaming import StreamedAlternatives
from poetc.scheduling import Paging
from tests.devices.test_streaming import DIGITS


def simulated_ns(counts: tuple[int, ...], kernels: list[int], t: Transfers) -> int:
    """One side transfers: of a block, once the kernel of the block two before is done. The other one runs kernels."""
    outer, inner = counts if len(counts) == 2 else (1, counts[0])
    each = 1 if len(counts) == 1 else 3
    blocks = list(itertools.product(range(outer), range(inner)))

    def third(block: int, count: int) -> int:
        return 2 if block == count - 1 else min(block, 1)

    store = 0
    ends: list[int] = []  # of kernels
    filled: list[int] = []
    for k in range(len(blocks) + 2):
        if k >= 2:
            store = max(store, ends[k - 2]) + t.written
        if k < len(blocks):
            o, i = blocks[k]
            store += t.read + (t.read_in_rows if i == 0 else 0) + (t.read_once if k == 0 else 0)
            filled.append(store)
            kind = third(i, inner) if each == 1 else 3 * third(o, outer) + third(i, inner)
            ends.append(max(filled[k], ends[-1] if ends else 0) + kernels[kind])
    return store + t.written_once + t.finish


def test_the_time_is_that_of_a_simulation() -> None:
    random = np.random.default_rng(0)
    bound_by = set[bool]()
    for _ in range(2000):
        counts = tuple(int(n) for n in random.integers(1, 7, int(random.integers(1, 3))))
        times = [[n for _, n in thirds(count, 1)] for count in counts]
        kernels = [int(n) for n in random.integers(0, 40, 3 ** len(counts))]
        t = Transfers(*(int(n) * int(random.integers(2)) for n in random.integers(0, 40, 6)))
        found = pipelined_ns(*rows_of(kernels, times), t)
        assert found == simulated_ns(counts, kernels, t), (counts, kernels, t)
        bound_by.add(t.read + t.written > max(kernels))
    assert bound_by == {True, False}


def test_alternatives_read_ahead_where_transfers_overlap_and_the_others_keep_their_numbers() -> None:
    """They take less time than the same blocks in turn, and twice the windows; they cost no more energy."""
    step = passes.for_small_ram(training_graph(ModelRequest(source=DIGITS, batch=16, device="rpi4"))[1], 0)
    profile = load_profile("rpi4")
    problems = [build_problem(step, profile, budget_bytes=0, paging=paging) for paging in (Paging.SYNC, Paging.DMA)]
    in_turn, ahead = (StreamedAlternatives(step, profile, problem) for problem in problems)
    compared = 0
    for k, op in enumerate(ahead.problem.operators):
        for streamed in (frozenset({t}) for t in op.inputs if ahead.is_state(t)):
            before, forms = in_turn.forms(k, streamed), ahead.forms(k, streamed)
            named = dict(zip(ahead.numbers(k, streamed), forms, strict=True))
            assert before == [named.pop(number) for number in in_turn.numbers(k, streamed)]
            assert not any(form.overlaps for form in before)
            assert all(form.overlaps for form in named.values())
            for n, form in enumerate(forms):
                if not form.overlaps:
                    continue
                if (alike := form._replace(overlaps=False)) not in before:
                    continue
                one, two = (ahead.priced(k, streamed, m) for m in (forms.index(alike), n))
                assert one.workspace_bytes < two.workspace_bytes
                assert two.time_ns <= one.time_ns + 64 and two.energy_pj <= one.energy_pj * 1.0001, (one, two)
                assert two.piece_ns <= two.time_ns
                compared += two.time_ns < one.time_ns
    assert compared > 5
