"""Rounding to few bits beside enumerations of all numbers; sums in chunks beside a loop; stochastic rounding's mean."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from tests.ops.cases.few_bits import FLOATS, INTEGERS
from tests.support.kernels import KernelError, evaluate, run_kernel

Floats, Doubles = npt.NDArray[np.float32], npt.NDArray[np.float64]


def eighths() -> Doubles:
    """All finite floats of 1, 5, 2 bits: the upper bytes of half precision."""
    words = np.arange(256, dtype=np.uint16) << 8
    found = words.view(np.float16).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def nearest(x: Floats, numbers: Doubles) -> None:
    """No number of the format is closer to x than its rounded value."""
    y = run_kernel("FewBits", FLOATS["fp8"], [x])[0].astype(np.float64)
    assert np.isin(np.abs(y), numbers).all()
    least = np.abs(x.astype(np.float64)[:, None] - numbers[None]).min(axis=1)
    np.testing.assert_array_equal(np.abs(y - x.astype(np.float64)), least)


def test_floats_of_8_bits_are_those_of_an_enumeration() -> None:
    numbers = eighths()
    random = np.random.default_rng(1)
    x = random.standard_normal(5000) * 2.0 ** random.integers(-20, 16, 5000)
    nearest(np.clip(x, numbers[0], numbers[-1]).astype(np.float32), numbers)
    ties = (numbers[1:] + numbers[:-1]) / 2
    y = run_kernel("FewBits", FLOATS["fp8"], [ties.astype(np.float32)])[0]
    places = np.searchsorted(numbers, y.astype(np.float64)) - np.searchsorted(numbers, 0.0)
    assert (places % 2 == 0).all()  # the even mantissa


def test_a_scale_of_the_largest_magnitude_uses_all_integers() -> None:
    x = np.linspace(-0.37, 0.37, 255).astype(np.float32)
    q, scale = run_kernel("FewBits", {**INTEGERS[8], "scale": "real"}, [x])
    np.testing.assert_array_equal(q * 128, np.arange(-127, 128))
    np.testing.assert_allclose(q * scale, x, rtol=1e-5)


def test_stochastic_rounding_is_right_on_average() -> None:
    x = np.linspace(-0.9, 0.9, 64).astype(np.float32)
    grid = {**INTEGERS[4], "rounding": "stochastic", "seed": 3}
    steps = 2000
    found = [run_kernel("FewBits", grid, [x, np.array([k], np.int32)])[0] for k in range(steps)]
    error = np.mean(found, axis=0) - np.clip(x, -0.875, 0.875)
    assert np.abs(error).max() < 4 * 0.125 / 2 / math.sqrt(steps)


@pytest.mark.parametrize("kind", ["FewBits", "AdaptBits"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_is_an_error(kind: str, number: float) -> None:
    x = np.array([1.0, number, 2.0], np.float32)
    attributes, inputs = (dict(INTEGERS[8]), [x]) if kind == "FewBits" else ({"most": 16}, [np.zeros(5, np.float32), x])
    with pytest.raises(KernelError) as error:
        run_kernel(kind, attributes, inputs)
    assert error.value.code == -75
    with pytest.raises(ValueError, match="finite"):
        evaluate(kind, attributes, inputs)


def rounded(x: float) -> float:
    """To 10 significant bits, halves to the even number."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, 10)), exponent - 10)


def test_sums_in_chunks_are_those_of_a_loop() -> None:
    """Numbers of few bits: a sum of two has no more than a double holds."""
    random = np.random.default_rng(5)
    a, b = (random.integers(1, 8, s) * 2.0 ** random.integers(-3, 2, s) for s in ((3, 150), (150, 4)))
    expected = np.zeros((3, 4))
    for i in range(3):
        for j in range(4):
            total = 0.0
            for first in range(0, 150, 64):
                part = 0.0
                for k in range(first, min(first + 64, 150)):
                    part = rounded(part + a[i, k] * b[k, j])
                total = rounded(total + part)
            expected[i, j] = total
    given = {"of": "MatMul", "dtype": "bf16", "forms": (0, 0, 0), "scales": (0, 0, 0), "chunk": 64, **FLOATS["fp16"]}
    found = run_kernel("NarrowedChunks", given, [a.astype(np.float32), b.astype(np.float32)])[0]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(expected, a @ b)  # the rounding shows
