"""Floats of 16 bits, from the ONNX file to the bits of the compiled C, and to a trained file."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetc
from poetc.training import TrainingOptions
from tests.commands.test_saved import network


def solved(folder: Path, precision: str, **options: object) -> poetc.Solution:
    training = TrainingOptions(precision=precision, **options)  # type: ignore[arg-type]
    model = poetc.load(network(folder / "network.onnx", 2), training=training)
    return model.solve(device="stm32f746", budget="88%", paging=False, gap=0.3, time_limit_s=2)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_a_budget_changes_no_bit(precision: str, tmp_path: Path) -> None:
    solution = solved(tmp_path, precision)
    assert solution.summary["recomputes"]
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"]
    assert found["max_grad_rel_error"] < 1e-4  # of the interpreter: products have its bits
    assert found["narrow_rounding"] == {"f16": 2.0**-11, "bf16": 2.0**-8}[precision]
