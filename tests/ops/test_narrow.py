"""Numbers that f16 cannot hold, and operators without a form for operands in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import Attribute, DType, TensorType
from poetc.ops import Bound, spec
from tests.support.kernels import KernelError, evaluate, run_kernel

EEXPONENT = -75


@pytest.mark.parametrize("number", [65520.0, -1e9, np.inf, np.nan])
def test_a_number_that_is_no_finite_one_of_f16_is_an_error(number: float) -> None:
    x = np.zeros((3, 7), np.float32)
    x[2, 5] = number
    with pytest.raises(KernelError) as error:
        run_kernel("Narrow", {"dtype": "f16"}, [x])
    assert error.value.code == EEXPONENT
    found, expected = (f("Narrow", {"dtype": "bf16"}, [x]) for f in (run_kernel, evaluate))
    assert found[0].tobytes() == expected[0].tobytes()


def test_the_scale_decides_which_numbers_are_too_large() -> None:
    x = np.full((9,), 60.0, np.float32)
    run_kernel("Narrow", {"dtype": "f16", "scale": 10}, [x])
    with pytest.raises(KernelError):
        run_kernel("Narrow", {"dtype": "f16", "scale": 11}, [x])


def test_a_product_reports_it_too() -> None:
    """Before anything reads the result."""
    a, b = np.full((8, 40), 100.0, np.float32), np.full((40, 8), 100.0, np.float32)
    attributes = {"of": "MatMul", "dtype": "f16", "forms": (2, 2, 1), "scales": (0, 0, 0)}
    with pytest.raises(KernelError) as error:
        run_kernel("Narrowed", attributes, [a, b])
    assert error.value.code == EEXPONENT


PRODUCT = ((4, 6), (6, 5), {"of": "MatMul", "forms": (2, 2, 0)})
FEW_ROWS = ((8, 6), (6, 9), {"of": "MatMul", "forms": (2, 2, 0)})
CONVOLUTION = ((2, 3, 4, 4), (2, 3, 3, 3), {"of": "Conv", "forms": (2, 2, 0), "pads": (1, 1, 1, 1)})


@pytest.mark.parametrize("descends", [False, True], ids=["product", "descent"])
@pytest.mark.parametrize(("left", "right", "attributes"), [PRODUCT, FEW_ROWS, CONVOLUTION])
def test_an_operand_that_is_rounded_to_an_infinity_is_an_error(
    left: tuple[int, ...], right: tuple[int, ...], attributes: dict[str, Attribute], descends: bool
) -> None:
    """A gradient in 32 bits times the loss scale: no weight may move by it."""
    given = {**attributes, "dtype": "f16", "scales": (0, 10, 0)}
    x, large = np.ones(left, np.float32), np.ones(right, np.float32)
    large.ravel()[-1] = 64.0  # times 2^10 it is no number of f16
    kind, inputs = "Narrowed", [x, large]
    if descends:
        if given["of"] == "Conv":
            given |= {"of": "ConvGradWeight", "kernel": (2, 2), "pads": (0, 0, 0, 0)}
            large = np.ones((2, 2, 3, 3), np.float32)
            large[0, 0, 0, 0] = 64.0
        weight = evaluate("Narrowed", given, [x, large])[0]
        kind, inputs = "NarrowedSgd", [np.zeros(weight.shape, np.float32), x, large, np.ones(1, np.float32)]
    with pytest.raises(KernelError) as error:
        run_kernel(kind, given, inputs)
    assert error.value.code == EEXPONENT
    run_kernel(kind, {**given, "scales": (0, 9, 0)}, inputs)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"of": "Softmax", "axis": -1, "forms": (1, 1), "scales": (0, 0)}, "Softmax has no form"),
        ({"of": "Relu", "forms": (1,), "scales": (0,)}, "must name 2 operands"),
        ({"of": "Relu", "forms": (0, 1), "scales": (0, 0)}, "operand 0"),
        ({"of": "Relu", "forms": (1, 1), "scales": (25, 0)}, "a scale of 2\\^25"),
    ],
)
def test_forms_that_do_not_fit(attributes: dict[str, object], message: str) -> None:
    types = (TensorType((2, 3), DType.F16),)
    with pytest.raises(ValueError, match=message):
        spec("Narrowed").infer(Bound({"dtype": "f16", **attributes}, types))  # type: ignore[dict-item]
