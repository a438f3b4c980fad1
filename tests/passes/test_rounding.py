"""Every number in 16 or 8 bits is the nearest one of its format, by a simulation of each operator in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc.commands.requests import ModelRequest, training_graph
from poetc.graph import Array, DType
from poetc.passes import encoded, offered
from poetc.training import TrainingOptions
from tests.commands.test_saved import network
from tests.support import rounding
from tests.support.rounding import Count, check_step, decoded, nearest


def checked(option: str, form: str, folder: Path) -> Count:
    training = TrainingOptions(precision=form) if option == "precision" else TrainingOptions()
    _, step = training_graph(ModelRequest(source=network(folder / "n.onnx"), device="host", training=training))
    if option == "saved":
        step = encoded(step, offered(step, form))
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(4, 1, 12, 12)).astype(np.float32), "target": np.array([0, 1, 4, 2], np.int32)}
    return check_step(step, batch, folder / "c")


@pytest.mark.parametrize("form", ["f16", "bf16", "int8"])
def test_saved_numbers_are_the_nearest(form: str, tmp_path: Path) -> None:
    count = checked("saved", form, tmp_path)
    assert count.checked > 1000 and count.neighbours < 3


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_numbers_of_a_precision_are_the_nearest(form: str, tmp_path: Path) -> None:
    count = checked("precision", form, tmp_path)
    assert count.checked > 10000 and count.neighbours < count.checked / 500


@pytest.mark.parametrize("option", ["saved", "precision"])
def test_a_rounding_toward_zero_is_found(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(x: Array, dtype: DType) -> Array:
        digits, least, _ = rounding.FLOATS[dtype]
        unit = np.exp2(np.maximum(np.frexp(x)[1] - 1, least) - (digits - 1.0))
        return np.trunc(x / unit) * unit

    monkeypatch.setattr(rounding, "nearest", cut)
    with pytest.raises(AssertionError):
        checked(option, "bf16", tmp_path)


def test_the_simulated_roundings_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=4000) * np.exp2(random.integers(-30, 17, 4000))
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)  # from float64 at once
    np.testing.assert_array_equal(nearest(x, DType.F16), half.astype(np.float64))
    np.testing.assert_array_equal(decoded(half.view(np.uint16), DType.F16), half.astype(np.float64))
    words = np.arange(1 << 16, dtype=np.uint16)
    floats = (words.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        wide = floats.astype(np.float64)
    np.testing.assert_array_equal(decoded(words, DType.BF16), wide)
    numbers = wide[np.isfinite(wide)]
    np.testing.assert_array_equal(nearest(numbers, DType.BF16), numbers)
    between = (np.abs(numbers) < 1e38) & (numbers > 0)
    low, high = np.sort(numbers[between])[:-1], np.sort(numbers[between])[1:]
    assert (nearest(low * 0.51 + high * 0.49, DType.BF16) == low).all()
