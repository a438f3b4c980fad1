"""Errors about steps that stream operands: budgets that they name work, and times are those of streams."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import poetc
from poetc.commands import small_ram
from poetc.commands import solve as solve_command
from poetc.commands.bundle import bundle
from poetc.commands.requests import ModelRequest, SolveRequest, training_graph
from poetc.commands.solve import solve
from poetc.devices import build_problem, load_profile
from poetc.devices.streaming import StreamedAlternatives
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Planner
from poetc.planning.streamed_operators import within
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions
from tests.planning.streaming.test_streamed_models import _text
from tests.support.small import small_model

DEVICE = "nrf52840"


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> SolveRequest:
    """A table of 384 kB and two weights of 98 kB."""
    path = _text(tmp_path_factory.mktemp("model") / "text.onnx", 2000, 48)
    model = ModelRequest(source=path, device=DEVICE, training=TrainingOptions(optimizer="sgd"))
    return SolveRequest(model=model, options=SolveOptions(time_limit_s=10, gap=0.05))


def test_a_budget_that_is_named_works(request_: SolveRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that `--budget least` finds, though kernels are chosen by the budget."""
    with pytest.raises(InfeasibleError, match="without streaming no schedule needs less") as failed:
        solve(replace(request_, budget="9000"))
    (named,) = map(int, re.findall(r"known to work is (\d+) bytes", str(failed.value)))
    assert failed.value.details["min_budget_bytes"] == named
    assert solve(replace(request_, budget="least")).summary["budget_bytes"] == named
    assert solve(replace(request_, budget=str(named))).summary["peak_bytes"] <= named
    # Nothing is found for kernels of this budget: those of the least workspace have a schedule in it.
    tried = []

    def fails(planner: Planner, problem: object) -> None:
        tried.append(problem)
        raise LimitError("nothing", details={"min_budget_bytes": 10 * named})

    monkeypatch.setattr(Planner, "solve", fails)
    found = solve(replace(request_, budget=str(named + 100)))
    assert len(tried) == 2 and found.summary["peak_bytes"] <= named
    with pytest.raises(LimitError, match=f"no schedule was found for {named - 100} bytes; .* is {named} bytes"):
        solve(replace(request_, budget=str(named - 100)))
    assert solve_command.in_least_ram is small_ram.in_least_ram


def test_a_deadline_is_compared_with_the_time_of_streams(request_: SolveRequest) -> None:
    """Every operator once takes 363 ms with all operands in RAM, which 60,000 bytes have no room for."""
    said = []
    for deadline in ("10ms", "2s"):
        with pytest.raises(
            LimitError, match=rf"60000 bytes within the deadline of {deadline[:-1].rstrip('m')}"
        ) as failed:
            solve(replace(request_, budget="60000", deadline=deadline))
        said.append(re.search(r"streamed through windows, takes ([\d.]+) s; allow more", str(failed.value)))
    assert said[0] and said[1] and said[0][1] == said[1][1]
    longer = f"{1.05 * float(said[0][1]):.3f}s"
    assert solve(replace(request_, budget="60000", deadline=longer)).summary["time_ns"] <= 1.05e9 * float(said[0][1])


@pytest.mark.long
def test_blocks_are_smaller_where_others_take_too_long(request_: SolveRequest) -> None:
    """Also where that is no gain: the floor is the lower one of both."""
    step, profile = training_graph(request_.model)[1], load_profile(DEVICE)
    problem = build_problem(step, profile, budget_bytes=60_000)
    plain, found = StreamedAlternatives(step, profile, problem), 0
    for k, op in within(plain, 0).items():
        streamed = frozenset({*op.reads_store, *op.writes_store})
        least = min(plain.priced(k, streamed, n).piece_ns for n in range(len(plain.forms(k, streamed))))
        offer = StreamedAlternatives(step, profile, problem, longest_ns=least - 1)
        for n in range(len(offer.forms(k, streamed))):
            assert 0 < offer.priced(k, streamed, n).piece_ns < least and offer.is_little(k, streamed)
            found += 1
        assert not plain.is_little(k, streamed)
    assert found > 5
    short = replace(request_, longest_piece="8ms", budget="1000")
    with pytest.raises((InfeasibleError, LimitError)) as failed:
        solve(short)
    named = re.search(r"known to work is (\d+) bytes", str(failed.value))
    assert named and int(named[1]) < 210_000
    solved = solve(replace(short, budget=named[1], options=SolveOptions(time_limit_s=15, gap=0.5)))
    assert solved.summary["longest_piece"]["time_ns"] <= 8_000_000


def test_steps_that_cannot_stream_say_so(request_: SolveRequest) -> None:
    """The plans of a bundle, and operators on 16 bits, whose error names the one that needs most."""
    with pytest.raises(InfeasibleError, match="the plans of a bundle stream no operands"):
        bundle(replace(request_, out=None), ["300kB", "100kB"])
    training = TrainingOptions(optimizer="sgd", precision="bf16")
    narrow = replace(request_.model, source=small_model(), batch=1, training=training)
    with pytest.raises(
        (InfeasibleError, LimitError), match=r"Narrowed '.*' needs most, and has no blocks \(operators on 16"
    ):
        solve(replace(request_, model=narrow, budget="2000"))
    plain = replace(narrow, training=TrainingOptions(optimizer="sgd"))
    with pytest.raises((InfeasibleError, LimitError)) as failed:
        solve(replace(request_, model=plain, budget="2000"))
    assert "no blocks" not in str(failed.value)


def _device(path: Path, changed: dict[str, str], *, has_store: bool = True) -> str:
    """A copy of the board's profile with these words replaced, or without its store."""
    text = (Path(poetc.__file__).parents[1] / "profiles" / f"{DEVICE}.yaml").read_text()
    for before, after in changed.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text if has_store else text.partition("stores:")[0])
    return str(path)


def test_a_store_that_is_too_small_or_missing_is_named(request_: SolveRequest, tmp_path: Path) -> None:
    """With the tensor that needs most of it, and the RAM that does without streams."""

    def refusal(device: str) -> str:
        asked = replace(request_, model=replace(request_.model, device=device), budget="60000")
        with pytest.raises((InfeasibleError, LimitError)) as failed:
            solve(asked)
        return str(failed.value)

    said = refusal(_device(tmp_path / "small.yaml", {"4_000_000_000": "20_000"}))
    assert re.search(r"the store has 20000 bytes, and streams need \d+ of it, most of them for 'table", said)
    assert "without streaming no schedule needs less than" in said
    none = refusal(_device(tmp_path / "none.yaml", {"default_store: sd": ""}, has_store=False))
    assert re.search(r"smallest budget known to work is \d+ bytes", none) and "without streaming" not in none
    assert "; device 'none' has no store, so no operand streams; " in none
