"""What tests of fusion share."""

from __future__ import annotations

import pytest

from poetc.passes import _fusion


@pytest.fixture
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are made again for gradients of weights."""
    monkeypatch.setattr(_fusion, "LEAST_BYTES", 0)
