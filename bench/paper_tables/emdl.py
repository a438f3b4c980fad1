"""The measurement study: milliseconds of a step. Cai et al., EMDL 2021."""

from __future__ import annotations

from collections.abc import Iterator

from bench.paper_tables._runs import Known, Rows, Run, answer

PUBLISHED = {1: (6698, 10468, 48274), 2: (10651, 14157, 79097), 4: (None, 27574, None)}  # MNN, TensorFlow, PyTorch


def runs(time_limit_s: float) -> Iterator[Run]:
    for batch in PUBLISHED:
        words = ("solve", "--device", "rpi3bplus", "--batch", str(batch), "--budget", "100%")
        words = (*words, "--time-limit", f"{time_limit_s:g}", "--objective", "time")
        yield Run("emdl", str(batch), words, "mobilenetv2_224")


def table(known: Known) -> Rows:
    rows = [["batch", "poetc, modelled", "MNN", "TensorFlow", "PyTorch"]]
    for batch, published in PUBLISHED.items():
        theirs = ["out of memory" if ms is None else f"{ms:,}" for ms in published]
        ours = answer(known, "emdl", str(batch))["time_ns"] / 1e6
        rows.append([str(batch), f"{ours:,.0f}", *theirs])
    return rows
