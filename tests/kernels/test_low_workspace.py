"""Kernels with less workspace: each smaller than the one before, and the same bits on every target."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from poetc.graph import Attribute
from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.gemm import packing as packed_operands
from poetc.ops import Kernel, spec
from tests.kernels.test_convolution_turned import CASES as TURNED
from tests.kernels.test_convolution_winograd import CASES as WINOGRAD
from tests.kernels.test_gemm_packing import LONG
from tests.ops.cases import convolution, matmul
from tests.support.kernels import (
    Case,
    Library,
    bind_kind,
    build_library,
    run_kernel,
    scalar_library,
    uniform,
    wide_library,
)


def norm_cases() -> list[Case]:
    vectors = ((40,), uniform((40,), 0.5, 1.5), (40,), (40,))
    norm: dict[str, Attribute] = {"epsilon": 1e-5, "activation": "Relu"}
    found = []
    for pads, size, kernel in (((1, 1, 1, 1), (7, 9), (3, 3)), ((0, 0, 0, 0), (7, 9), (1, 1))):
        geometry: dict[str, Attribute] = {"pads": pads, "kernel": kernel}
        x, gy, w = (2, 40, *size), (2, 21, *size), (21, 40, *kernel)
        found.append(Case("ConvGradWeight", (x, gy, *vectors), geometry | norm, gradient=False))
        found.append(Case("ConvGradWeightSgd", (w, x, gy, *vectors, (1,)), geometry | norm, gradient=False))
        found.append(Case("ConvGradWeightSgd", (w, x, gy, (1,)), geometry, gradient=False))
    return found


PRODUCTS = [
    matmul.product(13, 261, 70, False, False, bias=True, alpha=0.5, gradient=False),
    matmul.product(29, 130, 33, True, False, gradient=False),
    matmul.product(12, 129, 97, False, True, ((2,), (2,)), gradient=False),
    matmul.product(23, 300, 48, True, True, gradient=False),
    matmul.product(64, 1, 64, False, False, gradient=False),
    matmul.product(12, 129, 97, False, False, ((3, 2), ()), gradient=False),
    Case(
        "MatMulOfViews",
        ((60, 29), (60, 90)),
        {"sizes": (29, 90, 60), "a": (0, 1, 29), "b": (0, 90, 1), "y": (0, 90, 1), "shape": (29, 90), "terms": 60},
        gradient=False,
    ),
    Case("MatMulSgd", ((150, 260), (75, 150), (75, 260), (1,)), {"trans_a": True}, gradient=False),
]
CONVOLUTIONS = [
    case
    for image, weight, attributes in (
        ((3, 20, 5, 5), (23, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 24, 9, 37), (20, 12, 1, 1), {"group": 2}),
        ((2, 6, 20, 40), (5, 6, 3, 4), {"strides": (1, 2), "dilations": (2, 3), "pads": (1, 4, 3, 5)}),
        ((2, 6, 14, 14), (16, 6, 5, 5), {}),
        ((1, 130, 6, 6), (14, 130, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 64, 4, 4), (260, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 5, 14, 14), (100, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 24, 1, 131), (20, 24, 1, 5), {"strides": (1, 2), "pads": (0, 1, 0, 2)}),
    )
    for case in convolution.three(image, weight, attributes, bias=True, gradient=False)
]
PACKING = [*PRODUCTS, *CONVOLUTIONS, *LONG[1:], *norm_cases()]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_operands, "SHARE", 0)


@functools.cache
def fused_library() -> Library:
    """With the widest vectors of this machine and multiply-adds rounded once."""
    return build_library("-O1", "-march=native", "-DPOETC_FUSED")


def kernels(case: Case) -> tuple[Kernel, ...]:
    return spec(case.kind).kernels(bind_kind(case.kind, case.attributes, case.arrays()))


def check_bits(case: Case) -> int:
    """How many variants there are beside the fastest kernel."""
    arrays = [a.astype(np.float32) for a in case.arrays()]
    fastest, *others = kernels(case)
    for library in (None, wide_library(), scalar_library(), fused_library()):
        (expected,) = run_kernel(case.kind, case.attributes, arrays, lib=library)
        for kernel in others:
            (same,) = run_kernel(case.kind, case.attributes, arrays, lib=library, kernel=kernel)
            assert same.tobytes() == expected.tobytes(), kernel
    sizes = [kernel.workspace_bytes for kernel in (fastest, *others)]
    assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] >= 0
    return len(others)


@pytest.mark.usefixtures("always")
def test_packing_kernels() -> None:
    found = {str(case): check_bits(case) for case in PACKING}
    assert {case.kind for case in PACKING if found[str(case)]} >= {case.kind for case in PACKING} - {"MatMulSgd"}


def test_wide_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for operands beyond what a microcontroller holds, and products with sums of long blocks."""
    monkeypatch.setattr(packed_operands, "WIDE_SHARE", 0)
    monkeypatch.setattr(packed_operands, "PRODUCT_BYTES", 0)
    for case in (*PRODUCTS[:2], PRODUCTS[5], *CONVOLUTIONS[3:6], *norm_cases()):
        assert check_bits(case) or case.kind != "MatMulSgd"


def test_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)
    cases = [case for case in WINOGRAD if kernels(case)[1:]]
    assert len({case.kind for case in cases}) == 5
    for case in cases:
        check_bits(case)


def test_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST_BYTES", 0)
    monkeypatch.setattr(turned, "SHARE", 0)
    assert sum(check_bits(case) for case in TURNED) >= 6


def test_operators_without_workspace_have_no_variant() -> None:
    assert len(kernels(matmul.product(8, 8, 8, False, False, gradient=False))) == 1
