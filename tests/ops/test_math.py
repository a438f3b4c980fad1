"""The runtime's own mathematics against float64, over a sample of all arguments, in units in the last place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernels import RUNTIME, compile_shared, run_kernel, scalar_library, wide_library

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Every 9973rd float of both signs, subnormals and NaNs included, and the values where special cases lie.
SPECIAL = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1e10,
    -1e10,
    2.0**24 + 2,
    -np.inf,
    np.inf,
    np.nan,
]
SAMPLE = np.concatenate([np.arange(0, 2**32, 9973).astype(np.uint32).view(np.float32), np.float32(SPECIAL)])


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, tuple[Callable[..., Doubles], tuple[float, float], float]] = {
    # name: float64 reference, where the action is, largest error in ulp
    "sqrtf": (np.sqrt, (0, 4), 0.5),
    "expf": (np.exp, (-104, 89), 1.0),
    "expm1f": (np.expm1, (-18, 89), 1.6),
    "logf": (np.log, (0, 4), 0.9),
    "log1pf": (np.log1p, (-1, 4), 1.6),
    "tanhf": (np.tanh, (-10, 10), 1.5),
    "sigmoidf": (sigmoid, (-90, 20), 2.4),
    "erff": (np.vectorize(math.erf), (-4, 4), 1.4),
    "sinf": (lambda x: np.sin(x.astype(np.longdouble)).astype(np.float64), (-100, 100), 1.6),
    "cosf": (lambda x: np.cos(x.astype(np.longdouble)).astype(np.float64), (-100, 100), 1.6),
    "atanf": (np.arctan, (-9, 9), 1.8),
    "floorf": (np.floor, (-10, 10), 0.0),
    "ceilf": (np.ceil, (-10, 10), 0.0),
    "roundf": (np.round, (-10, 10), 0.0),
}


@pytest.fixture(scope="module")
def math_library() -> ctypes.CDLL:
    return load()


def load(*flags: str) -> ctypes.CDLL:
    loops = Path(__file__).parent.parent / "support" / "math_loops.c"
    return compile_shared([RUNTIME / "src" / "poetc_math.c", loops], *flags)


def call(library: ctypes.CDLL, name: str, x: Floats, *rest: Floats) -> Floats:
    y = np.empty_like(x)
    function = ctypes.cast(getattr(library, f"poetc_{name}"), ctypes.c_void_p)
    arrays = [ctypes.c_void_p(a.ctypes.data) for a in (x, *rest, y)]
    (library.map_binary if rest else library.map_unary)(function, *arrays, x.size)
    return y


def largest_error_ulp(actual: Floats, reference: Doubles) -> float:
    """Infinite where one is special (zero sign apart) and the other is not the same."""
    with np.errstate(over="ignore"):
        rounded = reference.astype(np.float32)
    special = ~(np.isfinite(rounded) & np.isfinite(actual))
    if not np.array_equal(actual[special], rounded[special], equal_nan=True):
        return math.inf
    unit = np.spacing(np.maximum(np.abs(rounded[~special]), np.float32(2.0**-126))).astype(np.float64)
    return float((np.abs(actual[~special] - reference[~special]) / unit).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error(math_library: ctypes.CDLL, name: str) -> None:
    reference, (low, high), limit = FUNCTIONS[name]
    x = np.concatenate([SAMPLE, np.linspace(low, high, 400_000).astype(np.float32)])
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    actual = call(math_library, name, x)
    assert largest_error_ulp(actual, expected) <= limit
    odd_or_exact = name not in ("expf", "cosf", "logf", "sigmoidf")
    zero = (x == 0) & odd_or_exact
    assert (np.signbit(actual[zero]) == np.signbit(x[zero])).all()


def test_pow(math_library: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    x = [np.exp(random.uniform(-80, 80, 500_000)), random.uniform(0.9, 1.1, 500_000), random.uniform(0, 4, 200_000)]
    y = [random.uniform(-4, 4, 500_000), random.uniform(-900, 900, 500_000), random.uniform(-4, 4, 200_000)]
    bases, exponents = np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.float32)
    sx, sy = (a.ravel() for a in np.meshgrid(np.float32(SPECIAL), np.float32(SPECIAL)))
    bases, exponents = np.concatenate([bases, sx]), np.concatenate([exponents, sy])
    with np.errstate(all="ignore"):
        expected = np.power(bases.astype(np.float64), exponents.astype(np.float64))
    assert largest_error_ulp(call(math_library, "powf", bases, exponents), expected) <= 1.3


def test_integer_square_root_equals_the_hardware(math_library: ctypes.CDLL) -> None:
    portable = load("-DPOETC_PORTABLE_SQRT")
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(SAMPLE)
    for library in (portable, math_library):
        actual = call(library, "sqrtf", SAMPLE)
        np.testing.assert_array_equal(actual, expected)  # NaNs are equal here


@pytest.mark.parametrize("flag", ["-O0", "-O3", "-DPOETC_PORTABLE_SQRT"])
def test_bits_do_not_depend_on_the_compiler(math_library: ctypes.CDLL, flag: str) -> None:
    """Of numbers: the sign and payload of a NaN are the processor's."""
    other = load(flag)
    with np.errstate(all="ignore"):
        exponents = np.float32(1.7) * np.roll(SAMPLE, 1)
    for name in (*FUNCTIONS, "powf"):
        rest = (exponents,) if name == "powf" else ()
        one, two = (call(lib, name, SAMPLE, *rest) for lib in (math_library, other))
        np.testing.assert_array_equal(np.isnan(one), np.isnan(two), err_msg=name)
        numbers = ~np.isnan(one)
        assert one[numbers].tobytes() == two[numbers].tobytes(), name


def test_gelu() -> None:
    """Far from zero too, where the polynomial is meaningless, and the same bits whatever the vectors."""
    with np.errstate(invalid="ignore"):
        finite = SAMPLE[np.abs(SAMPLE) < 1e19]  # whose square is one
    x = np.concatenate([np.linspace(-15, 15, 300_001).astype(np.float32), finite])
    wide = x.astype(np.float64)
    share = 0.5 * np.vectorize(math.erfc)(-wide / math.sqrt(2))
    slope = share + wide * np.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    one = np.ones_like(x)
    for kind, inputs, expected, error in (
        ("Gelu", [x], wide * share, 1.7e-7 * np.abs(wide) + 2e-45),
        ("GeluGrad", [x, one], slope, 1.7e-7),
    ):
        (y,) = run_kernel(kind, {}, inputs)
        assert (np.abs(y - expected) <= error).all(), kind
        for library in (wide_library(), scalar_library()):
            (same,) = run_kernel(kind, {}, inputs, lib=library)
            assert same.tobytes() == y.tobytes(), kind
