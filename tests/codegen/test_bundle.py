"""The emitted C of a bundle: every switch, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poetc import codegen
from poetc.codegen._bundle_host import BundleModel
from poetc.codegen._host import compile_library
from poetc.codegen._interpret import sample_inputs
from poetc.codegen.program import Move
from tests.planning.test_bundle import solved

pytestmark = pytest.mark.long


def test_every_switch_has_the_bits_and_the_peaks() -> None:
    step, _, _, bundle = solved()
    found = codegen.validate_bundle(bundle, step.values, most=len(bundle.switches), requests=1000)
    assert found.tried == len(bundle.switches) > 20
    assert found.failures == ()


def test_a_lost_step_of_a_transition_is_found() -> None:
    step, _, _, bundle = solved()
    index, switch = next(
        (i, s) for i, s in enumerate(bundle.switches) if s.instructions and not isinstance(s.instructions[-1], Move)
    )
    shorter = replace(switch, instructions=switch.instructions[:-1])
    broken = replace(bundle, switches=(*bundle.switches[:index], shorter, *bundle.switches[index + 1 :]))
    found = codegen.validate_bundle(replace(broken, switches=(shorter,)), step.values, requests=0)
    assert found.failures


def test_requests_are_refused_below_the_smallest_plan(tmp_path: Path) -> None:
    step, _, _, bundle = solved()
    library = compile_library(bundle.programs, step.values, tmp_path, bundle=bundle)
    with BundleModel(library, bundle, step.values) as model:
        model.start(0)
        least = bundle.programs[-1].arena_bytes
        assert model.request(least - 1) != 0
        assert model.request(least) == 0
        assert model.plan == 0  # until the next safe point
        model.step(sample_inputs(bundle.programs[0], 0))
        assert model.plan == 1
        assert model.request(2**31) == 0
        model.step(sample_inputs(bundle.programs[0], 0))
        assert model.plan == 0
