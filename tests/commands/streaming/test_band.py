"""`poetc solve --band`: the same schedule with other prices, and shares of guesses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import poetc
from poetc.commands.band import PLACES, At, better_at_home, priced_as, proven_at_least, row_of, without_price
from poetc.devices import build_problem, load_profile
from poetc.devices.guesses import guessed_numbers
from poetc.planning.planner import Planner
from poetc.reporting import band_rows, guesses
from poetc.scheduling import (
    Compute,
    Free,
    Move,
    Objective,
    OperatorSpec,
    PageIn,
    PageOut,
    Problem,
    TensorSpec,
    keep_all,
    verify,
)
from poetc.scheduling.problem import Elsewhere, ProcessorSpec, Variant
from poetc.scheduling.schedule import SolveOptions
from tests.cli.conftest import MODEL, run


def problem(cost: int, kernel: str = "", **more: object) -> Problem:
    """Two operators in a row, of `cost` each."""
    operators = [
        OperatorSpec(name="a", inputs=(), outputs=(0,), time_ns=cost, energy_pj=cost, kernel=kernel, **more),  # type: ignore[arg-type]
        OperatorSpec(name="b", inputs=(0,), outputs=(1,), time_ns=cost, energy_pj=cost),
    ]
    tensors = (TensorSpec(name="x", size_bytes=16, page_out_pj=cost), TensorSpec(name="y", size_bytes=16, final="ram"))
    return Problem(name="p", operators=tuple(operators), tensors=tensors, budget_bytes=64)


def test_a_problem_takes_the_prices_of_the_chosen_kernels() -> None:
    """The low-workspace kernel of `a` was chosen: it has the price of that one at the end of the band."""
    chosen = problem(10, "small")
    slow = Variant(workspace_bytes=0, time_ns=70, energy_pj=80, kernel="small")
    there = problem(50, "large", low_workspace=(slow,), workspace_bytes=32)
    priced = priced_as(chosen, there)
    assert [(op.time_ns, op.energy_pj) for op in priced.operators] == [(70, 80), (50, 50)]
    assert priced.tensors[0].page_out_pj == 50
    assert priced.operators[0].workspace_bytes == 0
    assert verify(chosen, keep_all(chosen)).energy_pj == 20


def test_a_kernel_that_has_no_price_is_named() -> None:
    chosen, there = problem(10, "small"), problem(50, "large", workspace_bytes=32)
    assert without_price(chosen, there) == ["a"]
    assert [op.time_ns for op in priced_as(chosen, there).operators] == [10, 50]
    assert without_price(there, replace(there, operators=there.operators[1:])) == ["a"]


def test_a_better_schedule_and_a_missed_deadline_are_said() -> None:
    plain = problem(10)
    once = keep_all(plain)
    twice = replace(once, actions=(once.actions[0], *once.actions))
    assert twice.actions[0] == once.actions[0]
    at = At("compute", "high", 3, replace(problem(20), deadline_ns=30))
    row = row_of(at, 36, 38, [("", once), ("compute low", once)])
    assert (row["cost"], row["bound"], row["gap"]) == (40, 36, pytest.approx(0.1))
    assert row["gap_with_these_choices"] == pytest.approx(0.05)
    (fixed,) = band_rows({"band": [{**row, "gap": None}]})
    assert "gap 5.0 % with these kernels and places of state" in fixed[1]
    (both,) = band_rows({"band": [row]})
    assert "gap 10.0 %, 5.0 % with these kernels and places of state; misses" in both[1]
    assert row["in_time"] is False
    assert row["better"] is None
    (line,) = band_rows({"band": [{**row, "better": {"found_at": "compute low", "cost": 30}}]})
    assert line[0] == "compute high"
    assert "misses the deadline" in line[1]
    assert "a schedule found for compute low needs 25.0 % less" in line[1]


def test_a_bound_holds_for_any_order() -> None:
    """Where the schedule found at an end has another order or there is none: nothing costs less than computing once."""
    assert [proven_at_least(bound, problem(20)) for bound in (None, 36, 44)] == [40, 40, 44]
    main, other = ProcessorSpec(name="main"), ProcessorSpec(name="core1")
    assert 0 < proven_at_least(None, replace(problem(20), processors=(main, other))) <= 40


def test_the_ends_of_a_band_count_idle_processors() -> None:
    """A schedule at an end costs the idle power of all processors, as that of the profile's own numbers does."""
    main, other = (ProcessorSpec(name=name, active_uw=2000, idle_uw=1000) for name in ("main", "core1"))
    both = tuple(
        replace(op, elsewhere=(Elsewhere(processor=1, time_ns=op.time_ns, energy_pj=op.energy_pj),))
        for op in problem(10_000).operators
    )
    asked = replace(problem(10_000), operators=both, processors=(main, other))
    found = Planner(options=SolveOptions(time_limit_s=1.0), reductions=PLACES).solve(asked)
    assert found.proof.objective == verify(asked, found.schedule).energy_pj > 20_000


def test_a_schedule_is_priced_at_both_ends(tmp_path: Path) -> None:
    limits = ("--batch", "1", "-d", "nrf52840", "--budget", "90%", "--gap", "0.9", "--time-limit", "4")
    ended = run("solve", MODEL, *limits, "--band", "-o", tmp_path / "a.poetc", "--json")
    assert ended.code == 0, ended.err
    answer = ended.json
    low, high = (row for row in answer["band"] if row["section"] == "compute")
    assert (low["end"], high["end"]) == ("low", "high")
    assert low["energy_pj"] < answer["energy_pj"] < high["energy_pj"]
    assert low["time_ns"] < answer["time_ns"] < high["time_ns"]
    for row in (low, high):
        assert row["bound"] is None or row["bound"] <= row["cost"]
        assert 0 <= row["gap_with_these_choices"] <= 1
    report = (tmp_path / "a.poetc" / "report.txt").read_text(encoding="utf-8")
    assert "At the ends of the profile's bands" in report
    assert "At the ends of the profile" in (tmp_path / "a.poetc" / "report.html").read_text(encoding="utf-8")


def test_streamed_operands_have_their_transfers_at_the_ends(tmp_path: Path) -> None:
    limits = ("--batch", "16", "-d", "stm32f746", "--budget", "10%", "--gap", "0.9", "--time-limit", "1")
    ended = run("solve", MODEL, *limits, "--band", "-o", tmp_path / "a.poetc", "--json")
    assert ended.code == 0
    answer = ended.json
    assert any(op.is_streamed for op in poetc.open_solution(tmp_path / "a.poetc").problem.operators)
    low, high = (row for row in answer["band"] if row["section"] == "compute")
    assert low["energy_pj"] < answer["energy_pj"] < high["energy_pj"]
    assert low["time_ns"] < answer["time_ns"] < high["time_ns"]


BOARD = """
title: a board
inherits: nrf52840
sources: {{s: {{kind: estimated, text: x}}}}
compute:
  source: s
  cycles: null
  contraction_mac_per_s: {macs}
  elementwise_flop_per_s: 1.0e7
  memory_bytes_per_s: 1.0e8
  operator_overhead_ns: 1000
power: {{active_w: {watts}, idle_w: {{value: 0.002, source: s}}}}
stores:
  sd: {{read_bytes_per_s: {rate}, read_latency_ns: {{value: 1000, source: s}}, read_w: {{value: 0.3, source: s}}}}
"""
BANDS = {"macs": (1.0e7, 2.0e6, 5.0e7), "watts": (0.01, 0.008, 0.02), "rate": (1.0e6, 5.0e5, 2.0e6)}


def board(folder: Path, name: str, **moved: float) -> Path:
    """A board with bands, or with plain numbers where some are moved."""
    words = {}
    for key, (value, low, high) in BANDS.items():
        more = "" if moved else f", low: {low}, high: {high}"
        words[key] = f"{{value: {moved.get(key, value)}, source: s{more}}}"
    (folder / f"{name}.yaml").write_text(BOARD.format(**words), encoding="utf-8")
    return folder / f"{name}.yaml"


def priced_by_hand(solution: poetc.Solution, device: Path) -> tuple[int, int]:
    """Energy and time of a schedule action by action: operators by a profile of plain numbers, page-ins by hand."""
    profile = load_profile(device)
    assert solution.artifact.graph is not None
    there = {op.name: op for op in build_problem(solution.artifact.graph, profile, budget_bytes=0).operators}
    store = profile.stores["sd"]
    energy_pj = time_ns = 0
    for action in solution.schedule.actions:
        if isinstance(action, Compute):
            chosen = solution.problem.operators[action.operator]
            kernels: tuple[OperatorSpec | Variant, ...] = (there[chosen.name], *there[chosen.name].low_workspace)
            (kernel,) = (k for k in kernels if k.kernel == chosen.kernel)
            energy_pj, time_ns = energy_pj + kernel.energy_pj, time_ns + kernel.time_ns
        elif isinstance(action, PageIn):
            size = solution.problem.tensors[action.tensor].footprint_bytes
            ns = store.read_latency_ns.value + size / store.read_bytes_per_s.value * 1e9
            watts = store.read_w.value + profile.power.active_w.value  # the processor polls
            energy_pj, time_ns = energy_pj + round(ns * watts * 1e3), time_ns + round(ns)
        elif isinstance(action, PageOut):
            tensor = solution.problem.tensors[action.tensor]
            ns = tensor.page_out_ns  # writes have no band
            watts = store.write_w.value + profile.power.active_w.value
            energy_pj, time_ns = energy_pj + round(ns * watts * 1e3), time_ns + ns
        elif isinstance(action, Move):
            ns = solution.problem.tensors[action.tensor].move_ns or 0  # neither has memory's speed
            energy_pj, time_ns = energy_pj + round(ns * profile.power.active_w.value * 1e3), time_ns + ns
    return energy_pj, time_ns


def test_costs_at_the_ends_are_those_of_profiles_with_plain_numbers(tmp_path: Path) -> None:
    limits = ("--batch", "4", "-d", board(tmp_path, "banded"), "--budget", "45%", "--gap", "0.9", "--time-limit", "0.5")
    assert run("solve", MODEL, *limits, "--band", "-o", tmp_path / "a.poetc").code == 0
    solution = poetc.open_solution(tmp_path / "a.poetc")
    assert any(isinstance(action, PageIn) for action in solution.schedule.actions)
    moved = {
        ("compute", "low"): {"macs": BANDS["macs"][2]},
        ("compute", "high"): {"macs": BANDS["macs"][1]},
        ("stores", "low"): {"rate": BANDS["rate"][2]},
        ("stores", "high"): {"rate": BANDS["rate"][1]},
        ("power", "low"): {"watts": BANDS["watts"][1]},
        ("power", "high"): {"watts": BANDS["watts"][2]},
    }
    rows = {(row["section"], row["end"]): row for row in solution.summary["band"]}
    assert rows.keys() == moved.keys()
    for place, numbers in moved.items():
        energy_pj, time_ns = priced_by_hand(solution, board(tmp_path, "plain", **numbers))
        assert rows[place]["energy_pj"] == pytest.approx(energy_pj, rel=1e-6), place
        assert rows[place]["time_ns"] == pytest.approx(time_ns, rel=1e-6), place
        assert rows[place]["bound"] is None or rows[place]["bound"] <= rows[place]["cost"]


def test_a_bound_holds_where_everything_costs_as_much_or_more() -> None:
    plain = problem(10)
    assert At("compute", "high", 3, problem(20)).keeps_bound_of(plain)
    assert not At("compute", "low", 3, problem(20)).keeps_bound_of(plain)  # other kernels may cost less
    assert not At("compute", "high", 3, problem(9)).keeps_bound_of(plain)
    timed = replace(plain, objective=Objective.TIME)
    assert At("power", "low", 3, timed).keeps_bound_of(timed)
    assert At("power", "low", 3, timed).changes_nothing
    assert not At("power", "low", 3, plain).changes_nothing


def test_a_schedule_that_is_better_at_home_is_said() -> None:
    plain = problem(10)
    once = keep_all(plain)
    twice = replace(once, actions=(once.actions[0], Free(0), *once.actions))
    (note,) = better_at_home(plain, [("", twice), ("stores high", once)])
    assert "found for stores high needs 33.3 % less with the profile's own numbers" in note
    assert better_at_home(plain, [("", once), ("stores high", twice)]) == []


@pytest.mark.long
def test_power_changes_nothing_in_the_time(tmp_path: Path) -> None:
    """Rows of the power's ends had gaps of their own, from a search with less time."""
    limits = (
        "--batch",
        "1",
        "-d",
        board(tmp_path, "b"),
        "--budget",
        "60%",
        "--objective",
        "time",
        "--time-limit",
        "0.5",
    )
    ended = run("solve", MODEL, *limits, "--band", "-o", tmp_path / "a.poetc", "--json")
    assert ended.code == 0, ended.err
    for row in (row for row in ended.json["band"] if row["section"] == "power"):
        assert (row["time_ns"], row["gap"]) == (ended.json["time_ns"], pytest.approx(ended.json["gap"], abs=1e-9))


def test_a_problem_has_no_bands(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}", encoding="utf-8")
    ended = run("solve", tmp_path / "p.json", "--band")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--band needs a model" in ended.err


def test_guesses_are_named() -> None:
    guessed = guessed_numbers(load_profile("cortex-m55"))  # power is a guess, times are modelled
    assert guessed.compute_time == ()
    assert guessed.compute_energy == ("power.active_w",)
    assert guessed.only_power
    known = guessed_numbers(load_profile("nrf52840"))
    assert (known.compute_energy, known.only_power) == ((), False)
    found = {"energy": 1.0, "time": 0.0, "numbers": ["power.active_w"], "energy_is_time_times_a_guess": True}
    text = guesses({"guesses": found, "objective": "energy"})
    assert text.startswith("100.0 % of the energy, 0 % of the time (power.active_w)")
    assert "--objective time" in text
    assert guesses({"guesses": {**found, "numbers": []}}) == ""


@pytest.mark.long
def test_kernels_in_threads_are_priced_in_threads(tmp_path: Path) -> None:
    limits = ("--batch", "16", "-d", "rpi4", "--processors", "all", "--no-paging", "--objective", "time")
    ended = run("solve", MODEL, *limits, "--time-limit", "0.5", "--band", "-o", tmp_path / "a.poetc", "--json")
    assert ended.code == 0, ended.err
    document = ended.json
    for section in ("compute", "threads"):
        low, high = (row["time_ns"] for row in document["band"] if row["section"] == section)
        assert document["threads"] == 4 and low < document["time_ns"] < high
