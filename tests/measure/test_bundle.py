"""The emitted C of a bundle: every switch, on this machine."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

import poetc
from poetc import measure
from poetc.commands.validate import validate_switches
from poetc.graph import Array, TrainingGraph, graph_from_json, graph_to_json
from poetc.measure import BundleModel, StepError, compile_library
from poetc.program import Move, PageIn, PageOut, ProgramSwitch, lower_bundle, sample_inputs
from tests.cli.conftest import MODEL
from tests.planning.test_bundle import solved

pytestmark = pytest.mark.long


def test_every_switch_has_the_bits_and_the_peaks() -> None:
    step, _, _, bundle = solved()
    found = measure.validate_bundle(bundle, step.values, most=len(bundle.switches), requests=1000)
    assert found.tried == len(bundle.switches) > 20
    assert found.failures == ()


def test_plans_that_were_read_from_files_have_the_same_parts() -> None:
    """Each of them has a graph of its own."""
    step, switching, _, _ = solved()
    arrays: dict[str, Array] = {}
    document = graph_to_json(step, arrays)
    read = [graph_from_json(document, arrays) for _ in range(2)]
    steps = [graph for graph in read if isinstance(graph, TrainingGraph)]
    plans = [(s.problem, s.schedule, s.plan) for s in switching.bundle.solutions]
    assert lower_bundle(steps, plans, []).parts == (0, 0)


def test_a_lost_step_of_a_transition_is_found() -> None:
    step, _, _, bundle = solved()
    index, switch = next(
        (i, s) for i, s in enumerate(bundle.switches) if s.instructions and not isinstance(s.instructions[-1], Move)
    )
    shorter = replace(switch, instructions=switch.instructions[:-1])
    broken = replace(bundle, switches=(*bundle.switches[:index], shorter, *bundle.switches[index + 1 :]))
    found = measure.validate_bundle(replace(broken, switches=(shorter,)), step.values, requests=0)
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
    model = poetc.load(MODEL, batch=16, training=poetc.TrainingOptions(micro_batches="auto", batch_norm="frozen"))
    # Without a store, a third of the RAM holds no step of the whole batch.
    solution = model.bundle(device="stm32f746", budgets=("100%", "33%"), paging=False, gap=0.3, time_limit_s=10)
    counts = [plan["micro_batches"] for plan in solution.summary["bundle"]["plans"]]
    assert len(set(counts)) > 1
    solution.save(tmp_path / "parts.bundle")
    found = validate_switches(tmp_path / "parts.bundle", 10)
    assert found.problems == ()
    assert found.document["histories"] > 1


@pytest.mark.long
def test_the_largest_plan_may_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poetc.training, "divisors", lambda batch: (2, 4))
    model = poetc.load(MODEL, batch=8, training=poetc.TrainingOptions(micro_batches="auto", batch_norm="frozen"))
    solution = model.bundle(device="stm32f746", budgets=("100%", "70%"), gap=0.5, time_limit_s=2)
    assert {plan["micro_batches"] for plan in solution.summary["bundle"]["plans"]} <= {2, 4}


def test_batch_statistics_are_not_split() -> None:
    model = poetc.load(MODEL, batch=8, training=poetc.TrainingOptions(micro_batches="auto"))
    solution = model.bundle(device="stm32f746", budgets=("100%", "70%"), gap=0.1, time_limit_s=3)
    assert {plan["micro_batches"] for plan in solution.summary["bundle"]["plans"]} == {1}
    assert any("the batch is not split" in note for note in solution.summary["notes"])


def test_a_store_that_fails_in_a_switch_leaves_each_tensor_old_or_new(tmp_path: Path) -> None:
    """Every transfer of a step with a switch fails once: state is that of a failed step, and training goes on."""
    step, _, _, bundle = solved()
    library = compile_library(bundle.programs, step.values, tmp_path, bundle=bundle)
    pages = [s for s in bundle.switches if any(isinstance(i, PageIn | PageOut) for i in s.instructions)]
    assert pages
    block_bytes = bundle.programs[0].block_bytes
    blocks: dict[int, bytes] = {}
    left = -1  # transfers until one fails; negative: none does

    def fails() -> bool:
        nonlocal left
        left -= 1
        return left == -1

    def page_out(first: int, count: int, address: int) -> int:
        if left >= 0 and fails():
            return -5
        for k in range(count):
            blocks[first + k] = ctypes.string_at(address + k * block_bytes, block_bytes)
        return 0

    def page_in(first: int, count: int, address: int) -> int:
        if left >= 0 and fails():
            return -5
        data = b"".join(blocks.get(first + k, bytes(block_bytes)) for k in range(count))
        ctypes.memmove(address, data, len(data))
        return 0

    batch = sample_inputs(bundle.programs[0], 0)
    names = [b.name for b in bundle.programs[0].state]
    with BundleModel(library, bundle, step.values, store=(page_out, page_in)) as model:

        def state() -> dict[str, bytes]:
            return {name: model.state(name).tobytes() for name in names}

        for switch in pages[:: max(1, len(pages) // 4)]:
            in_switch = 0
            for number in range(1000):
                left = -1
                model.start(switch.source)
                old = state()
                went: list[int] = []

                def ask(plan: int, index: int, switch: ProgramSwitch = switch) -> None:
                    if plan == switch.source and index == switch.at - 1:
                        model.request(bundle.programs[switch.target].arena_bytes)

                model.on_instruction, model.on_switch = ask, went.append
                left = number
                try:
                    model.step(batch)
                except StepError as error:
                    assert error.code == -5
                else:
                    break  # there are no more transfers
                in_switch += not went and model.at >= switch.at
                found, left = state(), -1
                model.on_instruction = None
                model.step(batch)  # goes on regardless
                model.start(switch.source)
                model.step(batch)
                new = state()
                assert all(found[name] in (old[name], new[name]) for name in names)
            else:
                raise AssertionError("the step does not end")
            assert in_switch > 0
