"""Tensors that are moved within RAM, on boards: the bits of the host, old and new places that overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc import measure
from poetc.emit import Memory
from poetc.program import Call, Move, sample_inputs
from tests.arm.conftest import run_host
from tests.program.models import training_case


@pytest.mark.parametrize("board", ["mps2-an385-m0", "mps2-an386", "raspi3b"])
def test_trains_with_tensors_that_are_moved_about(board: str, tmp_path: Path) -> None:
    case = training_case(optimizer="sgd", block_bytes=512)
    program = case.wandering(3)
    moves = [i for i in program.instructions if isinstance(i, Move)]
    shifts = [m.operand.offset_bytes - m.source.offset_bytes for m in moves]
    near = [s for s, m in zip(shifts, moves, strict=True) if abs(s) < m.operand.type.size_bytes]
    assert min(near) < 0 < max(near)
    batches = [dict(sample_inputs(program, step)) for step in range(3)]
    with measure.build_host([program], case.graph.values) as model:
        expected = run_host(model, batches)
    memory = Memory(65536, 4096)
    firmware = measure.build_firmware(program, case.graph.values, board, tmp_path, memory=memory)
    run = measure.execute(firmware, batches)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == program.high_water_bytes
    counted = {c.name: c for c in run.counts if c.kind == "move"}
    assert counted.keys() == {m.operand.tensor for m in moves}
    assert sum(c.times for c in counted.values()) == len(moves) * len(batches)
    # Unit by unit: a loop over bytes would take several instructions for each.
    largest = max(moves, key=lambda m: m.operand.type.size_bytes).operand
    size, count = largest.type.size_bytes, counted[largest.tensor]
    assert size >= 256 and count.instructions / count.times < 100 + 1.5 * size
    assert any(isinstance(i, Call) for i in program.instructions)
