"""Every core that is named: built, run where QEMU has it or one that runs its code, with the bits of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from poetc.codegen import BOARDS, build_firmware, build_host, execute, sample_inputs, state_digest
from poetc.codegen.program import Program
from tests.codegen.models import Case
from tests.layouts.support import make_model

GENERIC = sorted(name for name, board in BOARDS.items() if board.target.startswith("generic-"))


def test_each_named_core_has_a_board() -> None:
    names = {BOARDS[name].target.removeprefix("generic-") for name in GENERIC}
    assert names == {"m23", "m33", "m85", "a7", "a55", "a76"}


def on_host(case: Case, program: Program, steps: int) -> tuple[list[float], str]:
    with build_host([program], case.graph.values) as model:
        losses = [model.run(sample_inputs(program, step)) for step in range(steps)]
        return losses, state_digest({name: model.state(name) for name in model.state_names()})


@pytest.mark.long
@pytest.mark.parametrize("name", GENERIC)
def test_it_has_the_bits_of_the_host(name: str, tmp_path: Path) -> None:
    if shutil.which(BOARDS[name].qemu[0]) is None:
        pytest.skip("make setup-arm")
    model = make_model(4)
    firmware = build_firmware(model.program, model.case.graph.values, name, tmp_path)
    run = execute(firmware, [dict(sample_inputs(model.program, step)) for step in range(2)])
    assert (list(run.losses), run.state_sha256) == on_host(model.case, model.program, 2)
