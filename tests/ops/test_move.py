"""The kernel that moves a tensor inside the arena: its bytes, and no others, whichever way the two places overlap."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from poetc.runtime.layout import ALIGNMENT_BYTES
from tests.support.kernels import _Call, library


@pytest.mark.parametrize("size_bytes", [1, 4, 15, 16, 17, 36, 64, 100])
@pytest.mark.parametrize("units", [-7, -2, -1, 1, 3, 7])
def test_a_move_writes_the_bytes_of_its_tensor_alone(size_bytes: int, units: int) -> None:
    source, target = 8 * ALIGNMENT_BYTES, (8 + units) * ALIGNMENT_BYTES
    storage = np.zeros(32 * ALIGNMENT_BYTES, np.uint8)
    arena = storage[-storage.ctypes.data % ALIGNMENT_BYTES :][: 24 * ALIGNMENT_BYTES]
    arena[:] = np.random.default_rng(0).integers(0, 256, arena.size, np.uint8)
    expected = arena.copy()
    expected[target : target + size_bytes] = arena[source : source + size_bytes]
    refs = [place // ALIGNMENT_BYTES << 1 for place in (source, target)]
    call = _Call((ctypes.c_uint32 * 2)(*refs), (ctypes.c_int32 * 1)(size_bytes), None, arena.ctypes.data, None)
    assert library().function("poetc_op_move")(ctypes.byref(call)) == 0
    assert (arena == expected).all()
