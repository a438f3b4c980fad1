"""Energy and the smallest external RAM, with SRAM alone, with PSRAM alone, and with both.

    python -m bench.banks SECONDS MODEL:BATCH:SRAM...     rows of a table; SRAM as in 200kB

MODEL is a network of demo/boards/networks.py, or an ONNX file. The device is the teensy41, without paging.
docs/results/banks.md has the tables.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.integers import network
from poetc.commands.requests import ModelRequest, SolveRequest, with_any_weights
from poetc.commands.solve import solve
from poetc.devices import parse_size
from poetc.errors import PoetcError
from poetc.scheduling.schedule import SolveOptions

DEVICE, SRAM, PSRAM, PSRAM_BYTES = "teensy41", "ocram", "psram", 8_388_608
STEPS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)  # times the bytes that the SRAM lacks for the least RAM that is found


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


def row(model: Path, name: str, batch: int, sram: str, seconds: float) -> list[str]:
    budgets = (f"{SRAM}={sram}", f"{PSRAM}={PSRAM_BYTES}", f"{SRAM}={sram},{PSRAM}={PSRAM_BYTES}")
    alone, external, both = (summary(model, batch, budget, seconds) for budget in budgets)
    known = both or external
    assert known is not None
    once = known["compute_once_pj"]
    cells = [name, str(batch), sram, f"{known['keep_all_peak_bytes'] / 1000:,.0f}"]
    for found in (alone, external, both):
        if found is None:
            cells.append("does not fit")
        else:
            cells.append(f"+{found['energy_pj'] / once - 1:.1%} (gap {found['gap']:.1%})")
    least = known["min_budget_bytes"]
    lacking = least - parse_size(sram)
    smallest = "none" if alone is not None else "not found"
    for factor in STEPS if alone is None else ():
        size = max(16_384, int(lacking * factor))
        if summary(model, batch, f"{SRAM}={sram},{PSRAM}={size}", seconds) is not None:
            smallest = f"{size / 1000:,.0f} kB"
            break
    return [*cells, f"{least / 1000:,.0f} kB", smallest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("cases", nargs="+")
    arguments = parser.parse_args()
    head = ("network", "batch", "SRAM", "keep-all, kB", "SRAM alone", "PSRAM alone", "both")
    print("| " + " | ".join((*head, "external RAM without SRAM", "with it")) + " |", flush=True)
    print("|" + "---|" * 9)
    with tempfile.TemporaryDirectory() as scratch:
        for case in arguments.cases:
            name, batch, sram = case.split(":")
            path = network(name, Path(scratch)) if not name.endswith(".onnx") else Path(name)
            print("| " + " | ".join(row(path, Path(name).stem, int(batch), sram, arguments.seconds)) + " |", flush=True)


if __name__ == "__main__":
    main()
