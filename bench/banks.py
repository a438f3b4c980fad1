"""Energy and the smallest external RAM, with SRAM alone, with PSRAM alone, and with both.

    python -m bench.banks energy SECONDS MODEL:BATCH:SRAM...   rows of a table; SRAM as in 200kB
    python -m bench.banks bounds MODEL:BATCH:SRAM...           the bounds alone, above computing everything once

MODEL is a network of demo/boards/networks.py, or an ONNX file. The device is the teensy41, without paging.
docs/results/banks.md has the tables.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench._command import Rows, main
from bench.precisions import network
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem, with_any_weights
from poetc.commands.solve import solve
from poetc.devices import parse_size
from poetc.errors import PoetcError
from poetc.scheduling import Paging, Problem
from poetc.scheduling.schedule import SolveOptions
from poetc.solvers.banks import placement_bound, relaxed

DEVICE, SRAM, PSRAM, PSRAM_BYTES = "teensy41", "ocram", "psram", 8_388_608
LEAST_PSRAM_BYTES = 16_384
TRIALS = 4  # of sizes of the PSRAM


def summary(model: Path, batch: int, budget: str, seconds: float) -> dict[str, Any] | None:
    request = SolveRequest(
        model=with_any_weights(ModelRequest(source=model, batch=batch, device=DEVICE)),
        budget=budget,
        paging=False,
        state="ram",
        options=SolveOptions(time_limit_s=seconds, gap=0.001),
    )
    try:
        return dict(solve(request).summary)
    except PoetcError as error:
        print(f"{model.stem} {budget}: {error}", file=sys.stderr)
        return None


def _row(model: Path, name: str, batch: int, sram: str, seconds: float) -> list[str]:
    budgets = (f"{SRAM}={sram}", f"{PSRAM}={PSRAM_BYTES}", f"{SRAM}={sram},{PSRAM}={PSRAM_BYTES}")
    alone, external, both = (summary(model, batch, budget, seconds) for budget in budgets)
    known = both or external
    assert known is not None
    once = _problem(model, batch, sram).compute_once_pj  # with the fastest kernels
    cells = [name, str(batch), sram, f"{known['keep_all_peak_bytes'] / 1000:,.0f}"]
    for found in (alone, external, both):
        if found is None:
            cells.append("does not fit")
        else:
            cells.append(f"+{found['energy_pj'] / once - 1:.1%} (gap {found['gap']:.1%})")
    least = known["min_budget_bytes"]
    lacking = least - parse_size(sram)
    smallest = "none"
    if alone is None:
        found = least_psram(model, batch, sram, lacking, both, seconds / 2)
        smallest = "not found" if found is None else f"{found / 1000:,.0f} kB"
    return [*cells, f"{least / 1000:,.0f} kB", smallest]


def _problem(model: Path, batch: int, sram: str) -> Problem:
    _, _, _, problem = read_problem(
        SolveRequest(
            model=with_any_weights(ModelRequest(source=model, batch=batch, device=DEVICE)),
            budget=f"{SRAM}={sram},{PSRAM}={PSRAM_BYTES}",
            paging=False,
            state="ram",
        )
    )
    return replace(problem, paging=Paging.NONE)


def _bounds(model: Path, name: str, batch: int, sram: str) -> list[str]:
    """How far two bounds are above computing everything once in the cheapest memory."""
    problem = _problem(model, batch, sram)
    once = problem.compute_once_pj
    found = (relaxed(problem).compute_once_pj, placement_bound(problem, time_limit_s=60.0).least)
    return [name, str(len(problem.operators)), *(f"+{bound / once - 1:.1%}" for bound in found)]


def least_psram(
    model: Path, batch: int, sram: str, lacking: int, both: dict[str, Any] | None, seconds: float
) -> int | None:
    """The smallest PSRAM beside the SRAM that a bisection finds a schedule for; None without one to begin with.

    A size counts as its schedule uses it. `lacking`: the bytes that the SRAM lacks for the least RAM that is known.
    """
    if both is None:
        return None
    low, high = max(LEAST_PSRAM_BYTES, lacking), int(both["banks"][1]["peak_bytes"])
    sizes = [low, *[0] * TRIALS]  # first the least, then halves
    for size in sizes:
        size = size or (low + high) // 2
        if size >= high:
            break
        found = summary(model, batch, f"{SRAM}={sram},{PSRAM}={size}", seconds)
        if found is None:
            low = size
        else:
            high = int(found["banks"][1]["peak_bytes"])
    return high


def energy(seconds: float, cases: tuple[str, ...]) -> Rows:
    head = ("network", "batch", "SRAM", "keep-all, kB", "SRAM alone", "PSRAM alone", "both")
    yield *head, "external RAM without SRAM", "with it"
    for path, name, batch, sram in _cases(cases):
        yield _row(path, name, batch, sram, seconds)


def bounds(cases: tuple[str, ...]) -> Rows:
    yield "network", "operators", "each alone", "waiting tensors compete"
    for case in _cases(cases):
        yield _bounds(*case)


def _cases(cases: tuple[str, ...]) -> Iterator[tuple[Path, str, int, str]]:
    with tempfile.TemporaryDirectory() as scratch:
        for name, batch, sram in (case.split(":") for case in cases):
            yield network(name, Path(scratch)), Path(name).stem, int(batch), sram


if __name__ == "__main__":
    main(energy, bounds)
