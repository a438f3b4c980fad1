"""Options that need less RAM go with the other options of a request, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc.commands.requests import ModelRequest, SolveRequest, problem_of, training_graph
from poetc.commands.saving import has_first_rows, ways_to_save, ways_to_try
from poetc.devices import format_ns, load_profile
from poetc.training import TrainingOptions

MODEL = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"
EXCLUDED = "--saved int8: --precision niti saves integers of 8 bits already"


def refusals(saved: str = "exact", deadline: float = 0, longest_ns: int = 0) -> dict[str, str | None]:
    """By option, "slow" where none is in time; `deadline`: as a part of the time of all operators."""
    model = ModelRequest(
        source=MODEL, batch=4, device="stm32f746", training=TrainingOptions(saved=saved, train="last:2")
    )
    profile = load_profile(model.device)
    request = SolveRequest(model=model, budget="9kB", paging=False)
    problem = problem_of(request, training_graph(model)[1], profile)
    request = SolveRequest(
        model=model,
        budget="9kB",
        paging=False,
        deadline=f"{deadline * problem.compute_once_ns}ns" if deadline else None,
        longest_piece=format_ns(longest_ns) if longest_ns else None,
    )
    found = ways_to_save(request, profile, len(problem.operators), limit_s=60, search_s=0.01)
    return {w["options"]: w["refused"] or ("slow" if w["least_bytes"] is None else None) for w in found}


def test_an_option_that_the_others_exclude_is_refused_in_its_row() -> None:
    found = refusals(saved="int8")
    assert found.pop("--precision niti") == EXCLUDED
    assert len(found) >= 3 and not any(found.values())


def test_limits_of_the_request_hold_with_each_option() -> None:
    """Half the batch is quicker; no operator can be as short as a microsecond."""
    found = refusals(deadline=0.9)
    assert found["--micro-batches 4"] == "slow" and found["--batch 2"] is None
    found = refusals(longest_ns=1000)
    assert found and all((reason or "").startswith("--longest-piece 1.000 ") for reason in found.values())


def test_a_large_step_with_adapters_has_no_rows_for_a_second_process() -> None:
    adapters = TrainingOptions(lora=("8",))
    assert not has_first_rows(ModelRequest(source=MODEL, training=adapters), 2_000)
    assert has_first_rows(ModelRequest(source=MODEL), 2_000)
    assert has_first_rows(ModelRequest(source=MODEL, batch=4, training=adapters), 500)


@pytest.mark.parametrize(("batch", "parts"), [(16, 16), (64, 32), (1009, None)])
def test_a_large_batch_is_not_divided_into_single_samples(batch: int, parts: int | None) -> None:
    """80 operators a part, 3,000 in all at most; 1,009 is a prime number."""
    offers = ways_to_try(ModelRequest(source=MODEL, batch=batch), batch, 80)
    found = {options: name for name, options, _ in offers if options.startswith("--micro-batches")}
    left = "" if parts is None else "one sample at a time" if parts == batch else f"{batch // parts} samples at a time"
    assert found == ({} if parts is None else {f"--micro-batches {parts}": left})
