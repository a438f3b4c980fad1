"""Encodings of saved tensors report a finite number that becomes an infinity."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import KernelError, run_kernel

EEXPONENT = -75


@pytest.mark.parametrize(("name", "most", "over"), [("f16", 65504.0, 65520.0), ("bf16", 3.3895e38, 3.4e38)])
def test_a_number_beyond_the_range_is_an_error(name: str, most: float, over: float) -> None:
    """An infinity that is given stays one."""
    x = np.array([1.0, -most, np.inf, np.nan], np.float32)
    run_kernel("Encode", {"format": name}, [x])
    x[0] = -over
    with pytest.raises(KernelError) as error:
        run_kernel("Encode", {"format": name}, [x])
    assert error.value.code == EEXPONENT
