"""`poetc analyze --largest-batch`: found by search, bounded by proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poetc.artifact import Artifact
from poetc.commands.largest_batch import MOST_BATCH, LargestBatchRequest, largest_batch, last_batch, text_of
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.errors import UsageError
from poetc.scheduling import SolveOptions
from tests.cli.conftest import Ended

Run = Callable[..., Ended]


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_last_number_is_found_by_doubling_and_halving(last: int) -> None:
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= last

    assert last_batch(holds, 0) == last
    assert len(asked) <= 16 and last_batch(holds, 0, 5) == min(last, 5)


def test_the_largest_batch_trains_and_the_next_of_the_bound_does_not(model: Path) -> None:
    request = LargestBatchRequest(model=ModelRequest(source=model, device="stm32f746"), budget="180kB")
    answer = largest_batch(request, search_s=2.0)
    largest, most = answer["largest_batch"], answer["largest_batch_bound"]
    assert 1 <= answer["keep_all_batch"] < largest <= most
    assert answer["ram_bytes"] <= answer["budget_bytes"] == 180_000

    def solved(batch: int) -> Artifact:
        asked = ModelRequest(source=model, device="stm32f746", batch=batch)
        options = SolveOptions(time_limit_s=5, gap=0.5)
        return solve(SolveRequest(model=asked, budget="180kB", options=options))

    assert solved(largest).summary["ram_bytes"] <= 180_000
    larger = solved(most + 1)
    assert larger.graph is not None
    streamed = any(op.cut for op in larger.problem.operators)
    small = any("small_ram" in op.attributes for op in larger.graph.operators)
    assert streamed or small, "without streamed operands, or kernels for little RAM, it is too large"


@pytest.mark.long
def test_a_deadline_a_sample_makes_it_smaller_or_equal(model: Path) -> None:
    request = LargestBatchRequest(model=ModelRequest(source=model, device="stm32f746"), budget="180kB")
    free = largest_batch(request, search_s=1.0)["largest_batch"]
    soon = LargestBatchRequest(model=request.model, budget="180kB", deadline_per_sample="1.01x")
    assert 1 <= largest_batch(soon, search_s=1.0)["largest_batch"] <= free


def test_what_has_no_effect_or_no_answer_is_refused(poetc: Run, model: Path) -> None:
    lone = poetc("analyze", model, "--batch", "4", "--budget", "180kB")
    assert (lone.code, "--budget does nothing without --largest-batch" in lone.err) == (2, True)
    both = poetc("analyze", model, "--batch", "4", "--largest-batch")
    assert (both.code, "--batch and --largest-batch exclude each other" in both.err) == (2, True)
    tiny = poetc("analyze", model, "--largest-batch", "--budget", "1kB", "-d", "stm32f746", "--json")
    assert (tiny.code, tiny.json["status"]) == (4, "infeasible")
    with pytest.raises(UsageError):
        largest_batch(LargestBatchRequest(model=ModelRequest(source=model), budget="50%"))


def test_batches_that_are_not_tried_are_not_called_too_large() -> None:
    answer = {"largest_batch": MOST_BATCH, "largest_batch_bound": None, "keep_all_batch": MOST_BATCH}
    text = text_of({**answer, "ram_bytes": 5, "budget_bytes": 9})
    assert "proven: no" not in text and "batches above 65,536 are not tried" in text
