"""Products in 8 bits: every kernel of an operator has the same bits, on every kind of vectors."""

from __future__ import annotations

import platform
import subprocess

import numpy as np
import pytest

from poetc.graph import DType, TensorType
from poetc.ops import Bound, spec
from poetc.ops._integers import bits_of, rounded
from tests.ops.cases import integer
from tests.support.kernels import (
    RUNTIME,
    Case,
    bind_kind,
    compiler,
    evaluate,
    library,
    run_kernel,
    scalar_library,
    wide_library,
)

PRODUCTS = [case for case in integer.CASES if case.kind.startswith("IntegerConv")]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_kernels_with_less_workspace_have_the_same_bits(case: Case) -> None:
    inputs = case.arrays()
    expected = evaluate(case.kind, case.attributes, inputs)
    kernels = spec(case.kind).kernels(bind_kind(case.kind, case.attributes, inputs))
    sizes = [kernel.workspace_bytes for kernel in kernels]
    assert sizes == sorted(set(sizes), reverse=True)
    assert [kernel.alternative for kernel in kernels] == list(range(len(kernels)))
    for lib in (library(), wide_library(), scalar_library()):
        for kernel in kernels:
            actual = run_kernel(case.kind, case.attributes, inputs, lib=lib, kernel=kernel)
            for y, reference in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(y, reference)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="parts of AVX-512")
def test_parts_of_avx512_suffice_that_the_kernels_ask_for() -> None:
    """Each file asks for the parts whose instructions it has: a compiler may offer some parts alone."""
    source, include = RUNTIME / "kernels" / "int8" / "int8_convolution.c", [RUNTIME / "include", RUNTIME / "kernels"]
    parts = [f"-mavx512{part}" for part in ("f", "bw", "vnni", "vbmi")]
    words = [*compiler(), "-std=c99", "-O0", *parts, *(f"-I{folder}" for folder in include)]
    ended = subprocess.run([*words, "-c", str(source), "-o", "/dev/null"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_kernel_that_makes_its_sums_twice_says_so() -> None:
    x, w = TensorType((1, 8, 16, 16), DType.I8), TensorType((8, 8, 3, 3), DType.I8)
    number = TensorType((1,), DType.I32)
    op = Bound({"pads": (1, 1, 1, 1)}, (x, number, w, number))
    op = Bound(op.attributes, op.inputs, spec("IntegerConv").infer(op))
    kernels = spec("IntegerConv").kernels(op)
    assert [kernels[0].repeats, kernels[-1].repeats] == [1, 2]
    assert kernels[-1].workspace_bytes < kernels[0].workspace_bytes / 2


def test_rounding_goes_away_from_zero_and_never_down() -> None:
    """The published code divides with truncation; a shift of negative numbers would round the wrong way."""
    sums = np.array([-24, -23, -8, -7, 0, 7, 8, 23, 24, 4000, -4000])
    assert rounded(sums, 4, "nearest")[0].tolist() == [-2, -1, -1, 0, 0, 0, 1, 1, 2, 127, -127]
    assert rounded(sums, 4, "nearest")[1] == 2
    # 0b0111: the upper half 01 is not above the lower half 11; 0b1000: 10 is above 00.
    assert rounded(sums, 4, "stochastic")[0].tolist() == [-2, -1, -1, 0, 0, 0, 1, 1, 2, 127, -127]
    assert rounded(np.array([-25, 25, 3, -3]), 3, "stochastic")[0].tolist() == [-3, 3, 0, 0]


@pytest.mark.parametrize(("largest", "bits"), [(0, 0), (1, 0), (2, 1), (3, 2), (128, 7), (129, 8), (2**30, 30)])
def test_bits(largest: int, bits: int) -> None:
    assert bits_of(np.array([0, -largest])) == bits
