"""Kernels that pack their operands.

Their size is bound by that of the operands, and their results are those of low-workspace kernels, with the same bits
whatever the vectors' width and the workspace's size.
"""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import Attribute
from poetc.kernels.gemm import packing as packed_operands
from poetc.kernels.gemm.selection import PackedProduct, PackedSgdProduct
from poetc.ops import spec
from tests.ops.cases import convolution, matmul
from tests.support.kernels import Case, bind_kind, check_kernel, evaluate, run_kernel, scalar_library, wide_library

CASES = [*convolution.CASES, *matmul.CASES]

# Sizes around the register blocks of all targets, sums of several blocks, images that share a register block.
LARGE = [
    matmul.product(13, 261, 70, False, False, bias=True, alpha=0.5, gradient=False),
    matmul.product(29, 130, 33, True, False, gradient=False),
    matmul.product(12, 129, 97, False, True, ((2,), (2,)), gradient=False),
    matmul.product(23, 300, 48, True, True, gradient=False),
    *(
        case
        for image, weight, attributes in (
            ((3, 20, 5, 5), (23, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((2, 7, 19, 23), (13, 7, 5, 3), {"strides": (2, 1), "pads": (2, 0, 1, 1)}),
            ((2, 24, 9, 37), (20, 12, 1, 1), {"group": 2}),
            ((2, 6, 20, 40), (5, 6, 3, 4), {"strides": (1, 2), "dilations": (2, 3), "pads": (1, 4, 3, 5)}),
            ((2, 3, 61, 47), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
            ((2, 3, 60, 45), (3, 1, 3, 3), {"group": 3, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
            ((1, 4, 9, 70), (4, 1, 5, 4), {"group": 4, "strides": (1, 3), "dilations": (2, 2), "pads": (4, 3, 1, 2)}),
            ((1, 2, 5, 6), (2, 1, 3, 3), {"group": 2, "pads": (3, 3, 3, 3)}),
            ((1, 3, 8, 16), (3, 1, 3, 3), {"group": 3, "strides": (1, 2), "pads": (1, 3, 1, 1)}),
            ((2, 2, 14, 16), (2, 1, 3, 3), {"group": 2, "strides": (1, 2), "pads": (3, 0, 2, 3)}),
            ((1, 2, 9, 16), (2, 1, 3, 3), {"group": 2, "strides": (2, 2), "pads": (0, 1, 1, 6)}),
            # windows of five columns; strides whose phases see few taps, or none; the first pixel of two taps or one
            ((2, 2, 11, 23), (2, 1, 5, 5), {"group": 2, "pads": (2, 2, 2, 2)}),
            ((1, 2, 13, 19), (2, 1, 5, 5), {"group": 2, "strides": (2, 2), "pads": (2, 1, 2, 3)}),
            ((2, 2, 15, 22), (2, 1, 5, 3), {"group": 2, "strides": (2, 2), "pads": (1, 1, 2, 1)}),
            ((2, 2, 21, 18), (2, 1, 3, 3), {"group": 2, "strides": (2, 2), "pads": (0, 0, 1, 1)}),
            ((1, 2, 9, 35), (2, 1, 3, 3), {"group": 2, "strides": (2, 2), "pads": (1, 2, 1, 2)}),
            ((2, 2, 7, 5), (2, 1, 7, 3), {"group": 2, "strides": (3, 1), "pads": (1, 0, 0, 1)}),
            ((1, 2, 8, 9), (2, 1, 2, 2), {"group": 2, "strides": (3, 3), "pads": (0, 1, 1, 0)}),
            ((1, 2, 7, 12), (2, 1, 3, 3), {"group": 2, "strides": (3, 2), "dilations": (3, 2), "pads": (2, 4, 3, 1)}),
            # far more padding than the window is wide
            ((1, 2, 3, 4), (2, 1, 3, 3), {"group": 2, "strides": (2, 2), "pads": (1, 12, 1, 12)}),
            ((1, 2, 6, 9), (2, 1, 3, 3), {"group": 2, "pads": (1, 20, 1, 20)}),
            # columns of one pixel: what is copied four at a time would reach beyond the next row
            ((2, 2, 5, 1), (2, 1, 3, 3), {"group": 2, "strides": (3, 3), "pads": (2, 2, 1, 1)}),
            ((2, 2, 6, 1), (2, 1, 3, 1), {"group": 2}),
            # of few channels, whose padded images are read in place of packed windows
            ((2, 1, 28, 28), (6, 1, 5, 5), {"pads": (2, 2, 2, 2)}),
            ((2, 6, 14, 14), (16, 6, 5, 5), {}),
            ((1, 3, 17, 33), (29, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((1, 7, 11, 47), (25, 7, 3, 4), {"pads": (2, 1, 1, 3), "dilations": (2, 1)}),
            ((1, 8, 9, 31), (26, 4, 3, 3), {"group": 2, "pads": (1, 2, 0, 1)}),
            # whose rows the output shares: masks of one row, of several, of parts of rows; many outputs
            ((1, 5, 14, 14), (100, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((3, 16, 8, 8), (98, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((5, 6, 4, 4), (112, 6, 5, 5), {"pads": (2, 2, 2, 2)}),
            ((1, 4, 6, 40), (97, 4, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
            ((2, 4, 16, 16), (99, 4, 1, 5), {"pads": (0, 1, 0, 3)}),
            ((1, 3, 7, 9), (96, 3, 3, 3), {"pads": (3, 0, 0, 2)}),
            ((1, 30, 3, 21), (20, 30, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((1, 130, 6, 6), (14, 130, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
            # pixels that lie apart: gathered over images, results put back every second, third or fourth column
            ((3, 9, 13, 11), (17, 9, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
            ((2, 6, 10, 71), (10, 3, 3, 4), {"group": 2, "strides": (3, 3), "dilations": (2, 1), "pads": (2, 1, 0, 3)}),
            ((2, 5, 9, 70), (7, 5, 2, 3), {"strides": (1, 4), "pads": (1, 2, 0, 5)}),
            # rows so short that several of their even or odd pixels are summed up at once
            ((3, 6, 8, 8), (9, 6, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
            ((2, 5, 13, 15), (9, 5, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
            ((5, 7, 9, 16), (10, 7, 5, 4), {"strides": (3, 2), "dilations": (1, 2), "pads": (1, 2, 4, 3)}),
            # eights of pixels of a row, two columns apart, of one image or two
            ((2, 5, 11, 32), (9, 5, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
            ((3, 6, 5, 19), (14, 6, 2, 5), {"strides": (1, 2), "pads": (0, 0, 1, 0)}),
            # single pixels, every second one: sixteen are part of a row, one, two or four; the last row is used or not
            ((1, 32, 9, 63), (13, 32, 1, 1), {"strides": (2, 2)}),
            ((2, 64, 16, 31), (14, 32, 1, 1), {"strides": (2, 2), "group": 2}),
            ((3, 96, 15, 15), (10, 96, 1, 1), {"strides": (2, 2)}),
            ((5, 32, 12, 7), (29, 32, 1, 1), {"strides": (3, 2)}),
            ((3, 32, 8, 8), (11, 32, 1, 1), {"strides": (1, 2)}),
            ((5, 12, 7, 9), (11, 12, 3, 3), {}),
            ((1, 64, 4, 4), (260, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
            ((1, 128, 8, 8), (70, 64, 1, 1), {"group": 2, "strides": (2, 2)}),
        )
        for case in convolution.three(image, weight, attributes, bias=True, gradient=False)
    ),
]

# So few pixels that weights are read once, in long pieces of rows; sums so long that only their bits are compared.
LONG = [
    *convolution.three((1, 64, 4, 4), (770, 64, 3, 3), {"pads": (1, 1, 1, 1)}, bias=True, gradient=False),
    *convolution.three((1, 290, 7, 7), (62, 290, 3, 3), {"pads": (1, 1, 1, 1)}, bias=True, gradient=False),
    Case(
        "ConvGradWeightSgd",
        ((91, 190, 3, 3), (1, 190, 4, 5), (1, 91, 4, 5), (1,)),
        {"pads": (1, 1, 1, 1), "kernel": (3, 3)},
        gradient=False,
    ),
]

# Few rows, or few terms: products without workspace.
LOW_WORKSPACE = [
    matmul.product(1, 261, 70, False, False, bias=True, alpha=0.5, gradient=False),
    matmul.product(7, 43, 150, False, False, gradient=False),
    matmul.product(1, 33, 1300, False, True, bias=True, gradient=False),
    matmul.product(6, 35, 147, False, True, ((2,), (2,)), gradient=False),
    matmul.product(41, 130, 1, True, False, gradient=False),
    matmul.product(42, 53, 8, True, False, gradient=False),
    matmul.product(23, 37, 6, True, True, gradient=False),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_operands, "SHARE", 0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", [*CASES, *LARGE, *LOW_WORKSPACE], ids=str)
def test_packed(case: Case) -> None:
    rtol, atol = (2e-5, 2e-5) if case in LARGE + LOW_WORKSPACE else (case.rtol, case.atol)
    check_kernel(case.kind, case.attributes, case.arrays(), rtol, atol)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", [*LARGE, *LONG, *LOW_WORKSPACE], ids=str)
def test_bits_do_not_depend_on_vectors_or_workspace(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = case.arrays()
    (first,) = run_kernel(case.kind, case.attributes, arrays)
    for other in (wide_library(), scalar_library()):
        (same,) = run_kernel(case.kind, case.attributes, arrays, lib=other)
        assert same.tobytes() == first.tobytes()
    monkeypatch.setattr(packed_operands, "SHAPES", ((1, 64),))
    monkeypatch.setattr(packed_operands, "DEEP_BYTES", 1 << 40)
    (small,) = run_kernel(case.kind, case.attributes, arrays)
    assert small.tobytes() == first.tobytes()
    monkeypatch.setattr(packed_operands, "WIDE_SHARE", 0)
    for library in (None, wide_library(), scalar_library()):
        (same,) = run_kernel(case.kind, case.attributes, arrays, lib=library)
        assert same.tobytes() == first.tobytes()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "case",
    [
        matmul.product(13, 261, 70, False, False, bias=True, alpha=0.5, gradient=False),
        matmul.product(31, 150, 137, False, True, bias=True, gradient=False),
        matmul.product(26, 600, 300, False, False, ((2,), (2,)), gradient=False),
        matmul.product(29, 127, 133, True, False, gradient=False),
        matmul.product(14, 66, 45, True, True, gradient=False),
        Case("MatMulSgd", ((29, 133), (127, 29), (127, 133), (1,)), {"trans_a": True}, gradient=False),
    ],
    ids=str,
)
def test_bits_of_large_products(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sums are of longer blocks."""
    monkeypatch.setattr(packed_operands, "PRODUCT_BYTES", 0)
    monkeypatch.setattr(packed_operands, "WHOLE_BYTES", 0)
    arrays = case.arrays()
    check_kernel(case.kind, case.attributes, arrays, 2e-5, 2e-5)
    (first,) = run_kernel(case.kind, case.attributes, arrays)
    parameters = spec(case.kind).kernel(bind_kind(case.kind, case.attributes, arrays)).parameters
    assert isinstance(parameters, PackedProduct | PackedSgdProduct) and 64 < parameters.terms <= 256
    for panels in ((8,), (2,), (1,)):
        monkeypatch.setattr(packed_operands, "PRODUCT_PANELS", panels)
        for library in (None, wide_library(), scalar_library()):
            (same,) = run_kernel(case.kind, case.attributes, arrays, lib=library)
            assert same.tobytes() == first.tobytes()


@pytest.mark.usefixtures("always")
def test_every_eligible_kind_packs() -> None:
    kinds = {
        case.kind
        for case in LARGE
        if spec(case.kind).kernel(bind_kind(case.kind, case.attributes, case.arrays())).symbol.endswith("_packed")
    }
    assert kinds == {"MatMul", "Conv", "ConvGradInput", "ConvGradWeight"}


@pytest.mark.parametrize(("size", "packs"), [(8, False), (16, False), (96, True), (192, True)])
def test_workspace_is_a_small_part_of_the_operands(size: int, packs: bool) -> None:
    a = np.zeros((size, size), np.float32)
    kernel = spec("MatMul").kernel(bind_kind("MatMul", {}, [a, a]))
    assert (kernel.workspace_bytes > 0) == packs
    assert kernel.workspace_bytes * 2 <= 3 * a.nbytes


def test_wide_workspaces_are_no_larger_than_what_a_thread_has() -> None:
    """Or the operator would be done by one thread alone."""
    image, weight = np.zeros((2, 512, 14, 14), np.float32), np.zeros((512, 512, 3, 3), np.float32)
    attributes: dict[str, Attribute] = {"pads": (1, 1, 1, 1), "strides": (2, 2), "input_size": (28, 28)}
    kernel = spec("ConvGradInput").kernel(bind_kind("ConvGradInput", attributes, [image, weight]))
    assert kernel.symbol.endswith("_packed")
    assert 0 < kernel.workspace_bytes <= 4 * packed_operands.THREAD_FLOATS


@pytest.mark.usefixtures("always")
def test_long_sums_stay_accurate() -> None:
    """Weight gradients sum over all pixels of a batch, forward products over thousands of channels."""
    random = np.random.default_rng(5)
    x = random.uniform(0, 1, (4, 8, 48, 48)).astype(np.float32)
    gy = random.uniform(0, 1, (4, 6, 48, 48)).astype(np.float32)
    attributes = {"pads": (1, 1, 1, 1), "kernel": (3, 3)}
    (actual,) = run_kernel("ConvGradWeight", attributes, [x, gy])
    (expected,) = evaluate("ConvGradWeight", attributes, [x.astype(np.float64), gy.astype(np.float64)])
    np.testing.assert_allclose(actual, expected, rtol=5e-6)
    a, b = (random.uniform(0, 1, shape).astype(np.float32) for shape in ((5, 20000), (20000, 9)))
    (product,) = run_kernel("MatMul", {}, [a, b])
    np.testing.assert_allclose(product, a.astype(np.float64) @ b.astype(np.float64), rtol=5e-6)
