"""Fused multiply-adds: the same bits from every compilation, and each one a single rounding."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from poetc.ops import spec
from tests.kernels.test_low_workspace import fused_library
from tests.ops.test_cases import KERNEL_CASES
from tests.support.kernels import Library, bind_kind, build_library, compile_shared, library, run_kernel, wide_library

SOURCE = """
#include "poetc_fma.h"
void each(const float *a, const float *b, const float *c, float *y, int n);
void each(const float *a, const float *b, const float *c, float *y, int n)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = POETC_FMA(a[i], b[i], c[i]);
}
"""


def emulated() -> Library:
    """Without an instruction for it, without vectors, without optimisation."""
    return build_library("-DPOETC_FUSED", "-O0")


def of_cases(lib: Library) -> list[bytes]:
    """The results of all kernels of all cases."""
    found = []
    for case in KERNEL_CASES:
        arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in case.arrays()]
        for kernel in spec(case.kind).kernels(bind_kind(case.kind, case.attributes, arrays)):
            results = run_kernel(case.kind, case.attributes, arrays, lib=lib, kernel=kernel)
            found.append(b"".join(y.tobytes() for y in results))
    return found


def test_every_kernel_has_the_bits_of_its_numerics() -> None:
    fused, separate = of_cases(fused_library()), of_cases(wide_library())
    assert of_cases(emulated()) == fused
    assert of_cases(library()) == separate
    assert sum(a != b for a, b in zip(fused, separate, strict=True)) > len(fused) // 10


@pytest.mark.long
@pytest.mark.parametrize("flags", [("-O1", "-mavx2", "-mfma"), ("-march=native", "-O3")], ids=" ".join)
def test_every_kernel_has_the_same_bits_from_other_vectors(flags: tuple[str, ...]) -> None:
    assert of_cases(build_library("-DPOETC_FUSED", *flags)) == of_cases(fused_library())


def operands() -> np.ndarray:
    """Rows a, b, c: any floats, sums that cancel, subnormal results, ties, infinities and NaN."""
    random = np.random.default_rng(5)
    bits = random.integers(0, 1 << 32, (3, 40_000), dtype=np.uint32).view(np.float32)
    near = np.exp2(random.integers(-80, 80, (3, 40_000))) * random.integers(-(1 << 24), 1 << 24, (3, 40_000))
    near = near.astype(np.float32)
    with np.errstate(over="ignore"):
        near[2, ::2] = -(near[0] * near[1])[::2]  # what the rounding took
    tiny = np.exp2(random.integers(-80, -60, (3, 40_000))) * random.integers(-(1 << 24), 1 << 24, (3, 40_000))
    tiny = tiny.astype(np.float32)
    tiny[2] = random.integers(-64, 64, 40_000) * np.float32(2.0**-149)
    special = np.array(
        [0.0, -0.0, 1.0, -1.0, 1.5, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149), 3.4e38], np.float32
    )
    grid = np.stack(np.meshgrid(special, special, special)).reshape(3, -1)
    return np.concatenate([bits, near, tiny, grid], axis=1)


def rounded(x: Fraction) -> np.float32:
    """To the nearest float, ties to even."""
    if x == 0:
        return np.float32(0)
    size = abs(x)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 24, -149)
    while Fraction(2) ** (exponent + 24) <= size:
        exponent += 1
    units = round(size / Fraction(2) ** exponent)  # Python's round is to even
    with np.errstate(over="ignore"):
        return np.float32(np.ldexp(float(units), exponent) * (1 if x > 0 else -1))


@pytest.mark.parametrize("flags", [("-O2",), ("-O3", "-march=native")], ids=" ".join)
def test_one_rounding(flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "each.c").write_text(SOURCE)
    each = compile_shared([tmp_path / "each.c"], "-DPOETC_FUSED", *flags).each
    a, b, c = operands()
    y = np.empty_like(a)
    pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in map(np.ascontiguousarray, (a, b, c))]
    each(*pointers, y.ctypes.data_as(ctypes.c_void_p), len(y))
    with np.errstate(all="ignore"):
        simple = a.astype(np.float64) * b + c  # of infinite numbers, and of NaN
    for i in [*range(0, 120_000, 40), *range(120_000, len(y))]:
        if not np.isfinite(simple[i]):
            np.testing.assert_equal(y[i], np.float32(simple[i]))
            continue
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        assert y[i] == rounded(exact), (a[i], b[i], c[i])
