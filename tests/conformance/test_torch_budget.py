"""The activation memory budget of `torch.compile`, in a virtual environment that `bench/setup_peers budget` makes."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.conformance
ROOT = Path(__file__).resolve().parents[2]


def test_no_knapsack_of_pytorch_recomputes_less_within_the_budget() -> None:
    subprocess.run([ROOT / "bench" / "setup_peers", "budget"], check=True)
    python = ROOT / "build" / "peers" / "budget" / "bin" / "python"
    options = ("--layers", "2", "--budgets", "0.05", "0.15", "0.3", "0.5")
    ended = subprocess.run(
        [python, ROOT / "bench" / "peer_budget.py", *options], check=True, capture_output=True, text=True
    )
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    own = [r for r in rows if r["solver"] == "poetc"]
    assert len({r["network"] for r in own}) == 4
    for row in own:
        assert row["used"] <= 1 and row["least"] <= row["recomputed"]
        others = [
            r for r in rows if (r["network"], r["budget"], r["items"]) == (row["network"], row["budget"], row["items"])
        ]
        assert len({r["solver"] for r in others}) == 4
        assert all(row["recomputed"] <= r["recomputed"] for r in others if r["used"] <= 1)
    for _, group in itertools.groupby(own, key=lambda r: (r["network"], r["items"])):
        times = [r["recomputed"] for r in group]
        assert times == sorted(times, reverse=True)
