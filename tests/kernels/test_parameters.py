"""Parameters of kernels: the numbers that C gets, by name and in its order."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import pytest

from poetc.kernels import Parameters
from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters
from poetc.kernels.gemm.selection import PackedProduct, Product, Strides
from poetc.kernels.operators.parameters import Elements, Pieces, Walk
from poetc.ops import Kernel, spec
from tests.ops.cases import convolution
from tests.support.kernels import RUNTIME, bind_kind


@dataclass(frozen=True, slots=True)
class Nested(Parameters):
    count: int
    is_wide: bool
    sizes: tuple[int, ...]
    inner: Elements


def test_fields_lie_in_their_order() -> None:
    assert Nested(7, True, (3, 4), Elements(9)).ints() == (7, 1, 3, 4, 9)
    assert Kernel("poetc_op_step_count").ints == ()


def test_numbers_that_c_reads_first() -> None:
    """Ranks, and how many pieces or loops follow."""
    assert Walk((2, 3), ((3, 1), (0, 1))).ints() == (2, 2, 3, 3, 1, 0, 1)
    assert Pieces(5, (16, 32, 48)).ints() == (5, 3, 16, 32, 48)
    assert Product(2, 3, 4, False, True, False, ((5, 6, 7),)).ints() == (2, 3, 4, 0, 1, 0, 1, 5, 6, 7)
    packed = PackedProduct(2, 3, 4, True, Strides(4, 1, 3, 1, 3, 8, 9), ((5, 6, 7, 8),), 100, 64)
    assert packed.ints() == (2, 3, 4, 1, 4, 1, 3, 1, 3, 8, 9, 1, 5, 6, 7, 8, 100, 64)
    assert packed.matrices == 5


def test_a_convolution_is_described_as_in_c() -> None:
    text = (RUNTIME / "kernels" / "convolution" / "poetc_convolution.h").read_text()
    body = re.sub(
        r"/\*.*?\*/|#ifdef.*?#endif", "", re.findall(r"typedef struct \{(.*?)\} convolution;", text, re.DOTALL)[0]
    )
    members = [name.strip() for line in re.findall(r"int32_t ([^;]*);", body) for name in line.split(",")]
    ours = [field.name for field in fields(Convolution)]
    assert [name.replace("bias_or_norm", "has_bias") for name in ours] == members


def test_a_record_of_another_kind_is_refused() -> None:
    (case, *_) = convolution.three((1, 4, 5, 5), (4, 4, 3, 3), {}, bias=False, gradient=False)
    kernel = spec(case.kind).kernel(bind_kind(case.kind, case.attributes, case.arrays()))
    assert kernel.parameters_as(ConvolutionParameters).convolution.taps == 9
    with pytest.raises(TypeError, match="poetc_op_conv has ConvolutionParameters, not Walk"):
        kernel.parameters_as(Walk)
