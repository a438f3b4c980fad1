"""The emitted C of a bundle: every switch, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import poetc
from poetc import codegen
from poetc.codegen._bundle_host import BundleModel
from poetc.codegen._host import compile_library
from poetc.codegen._interpret import sample_inputs
from poetc.codegen.program import Move
from poetc.commands.validate import validate_switches
from tests.cli.conftest import MODEL
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


def test_a_bundle_of_several_micro_batches_has_the_bits_of_the_parts_that_ran(tmp_path: Path) -> None:
    """Plans of other numbers of micro-batches, as Sage accumulates: written, read, and every way of adding up."""
    model = poetc.load(MODEL, batch=8, training=poetc.TrainingOptions(micro_batches="auto", batch_norm="frozen"))
    solution = model.bundle(device="stm32f746", budgets=("100%", "50%", "30%"), gap=0.1, time_limit_s=4)
    counts = [plan["micro_batches"] for plan in solution.summary["bundle"]["plans"]]
    assert len(set(counts)) > 1
    solution.save(tmp_path / "parts.bundle")
    found = validate_switches(tmp_path / "parts.bundle", 10)
    assert found.problems == ()
    assert found.document["histories"] > 1


def test_batch_statistics_are_not_split() -> None:
    model = poetc.load(MODEL, batch=8, training=poetc.TrainingOptions(micro_batches="auto"))
    solution = model.bundle(device="stm32f746", budgets=("100%", "70%"), gap=0.1, time_limit_s=3)
    assert {plan["micro_batches"] for plan in solution.summary["bundle"]["plans"]} == {1}
    assert any("the batch is not split" in note for note in solution.summary["notes"])
