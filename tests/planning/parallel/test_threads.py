"""Both ways of using equal cores: each is priced, the cheaper one is taken, and the report names the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import poetc
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.devices.threads import Threads, in_threads, threads_of
from poetc.errors import UsageError
from poetc.scheduling import Paging, Problem, ProcessorSpec, verify
from tests.support.problems import ProblemBuilder

CORES = ("core1", "core2", "core3")
DIGITS = Path(__file__).resolve().parents[3] / "demo" / "digits.onnx"


def test_the_price_of_threads() -> None:
    """By hand: two cores of 3 and 2 W, which idle at 1 and 0.5 W; a kernel of 100 ns in two threads and one alone."""
    builder = ProblemBuilder(Random(0), paging=False)
    x, y = builder.tensor("x", 1, initial="ram"), builder.tensor("y", 1, final="ram")
    builder.operator("large", (x,), (y,), cost=100)
    z = builder.tensor("z", 1, final="ram")
    builder.operator("small", (y,), (z,), cost=10)
    plain = replace(builder.problem("by hand"), paging=Paging.NONE)
    operators = tuple(replace(o, energy_pj=3000 * o.time_ns) for o in plain.operators)
    plain = replace(plain, operators=operators, base_bytes=7)
    processors = (
        ProcessorSpec(name="main", active_uw=3_000_000, idle_uw=1_000_000),
        ProcessorSpec(name="core1", active_uw=2_000_000, idle_uw=500_000),
    )
    both = replace(plain, processors=processors, base_bytes=9)
    found = in_threads(both, plain, Threads(2, 1.6, 5, frozenset({"large"})))
    large, small = found.operators
    assert (large.time_ns, large.energy_pj) == (5 + 62, 67 * 5000)
    assert (small.time_ns, small.energy_pj) == (10, 10 * 3500)
    assert (found.processors, found.base_bytes) == ((), 7)


def digits(profile: str = "rpi4", processors: tuple[str, ...] = CORES) -> tuple[Threads | None, Problem]:
    _, step = training_graph(ModelRequest(source=DIGITS, batch=16))
    device = load_profile(profile)
    problem = build_problem(step, device, budget_bytes=device.ram_bytes, processors=processors)
    return threads_of(problem, step, device), problem


def test_threads_are_for_equal_cores_and_large_kernels() -> None:
    threads, problem = digits()
    assert threads is not None and threads.count == 4 and threads.speedup == pytest.approx(1 + 3 * 0.8)
    assert 0 < len(threads.split) < len(problem.operators)
    assert digits("stm32h745", ("m4",))[0] is None
    assert digits(processors=())[0] is None


def test_the_shortest_step_runs_in_threads_and_names_the_other_way(tmp_path: Path) -> None:
    solved = poetc.load(DIGITS, batch=16).solve(
        device="rpi4", processors="all", paging=False, time_limit_s=2.0, objective="time"
    )
    (note,) = [n for n in solved.summary["notes"] if n.startswith("cores: ")]
    assert note.startswith("cores: kernels in 4 threads, ") and "; operators side by side: " in note
    assert solved.summary["threads"] == 4
    artifact = solved.artifact
    assert not artifact.problem.processors
    side_ns = 1e6 * float(note.rpartition(": ")[2].removeprefix("at least ").split()[0])
    assert 0 < artifact.schedule.proof.bound <= solved.summary["time_ns"] < side_ns
    assert verify(artifact.problem, artifact.schedule).time_ns == solved.summary["time_ns"]
    solved.emit(tmp_path / "src", target="cortex-a")
    assert "\nTHREADS = 4\n" in (tmp_path / "src" / "Makefile").read_text()


def test_an_efficiency_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    sources = "sources: {guess: {kind: estimated, text: none}}"
    path.write_text(
        f"inherits: rpi4\n{sources}\nthreads: {{efficiency: {{value: 1.5, low: 1.2, high: 1.6, source: guess}}}}\n"
    )
    with pytest.raises(UsageError, match=r"'threads\.efficiency' is 1\.5, it must be above 0, at most 1"):
        load_profile(path)
