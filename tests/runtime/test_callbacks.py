"""Exceptions in Python that C calls: ctypes alone would print them and go on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import pytest

from poetc.runtime.library import callbacks

_COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def sort(compare: object) -> None:
    """qsort of the C library, which calls `compare` from C."""
    numbers = (ctypes.c_int * 8)(*range(8))
    with callbacks():
        ctypes.CDLL(None).qsort(numbers, ctypes.c_size_t(8), ctypes.c_size_t(4), _COMPARE(compare))


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt(), ValueError("a defect")])
def test_an_exception_in_a_callback_is_raised(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    calls = 0

    def compare(_a: int, _b: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return 0

    before = sys.unraisablehook
    with pytest.raises(type(error)) as raised:
        sort(compare)
    assert raised.value is error
    assert calls > 2  # C goes on to its own end
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ""


def test_a_signal_in_a_callback_is_not_lost() -> None:
    def stop(number: int, _frame: object) -> None:
        raise SystemExit(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            sort(lambda _a, _b: os.kill(os.getpid(), signal.SIGTERM) or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
