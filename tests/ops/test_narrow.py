"""Numbers that f16 cannot hold, and operators without a form for operands in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import DType, TensorType
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
