"""An emitted libmodel.so through ctypes: the runtime's structures, its codes, and memory for the arena.

Like session.py beside it, this file needs numpy alone and is copied into packages.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import json
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
PathLike = Union[str, "os.PathLike[str]"]

ALIGNMENT_BYTES = 64  # of the arena: a cache line; POETC_ALIGN divides it
PART_BYTES = 1 << 16  # of memory that is compared at once
NONE = 0xFFFFFFFF  # POETC_NONE
EIO, EINVAL, ENUMBER, ERANGE, ECORRUPT, ENOENT = -5, -22, -33, -34, -84, -2


class SessionError(RuntimeError):
    """A function of the runtime failed; `code` is its result, 0 where it was not called."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


# --- the runtime's structures, as in poetc.h, poetc_checkpoint.h and poetc_session.h ----------------------------------


class Store(ctypes.Structure):
    _fields_ = [
        ("page_out", ctypes.c_void_p),
        ("page_in", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("flash", ctypes.c_void_p),
        ("store", Store),
        ("observer", ctypes.c_void_p),
        ("observer_context", ctypes.c_void_p),
    ]


class Runtime(ctypes.Structure):
    _fields_ = [
        ("config", ctypes.c_void_p),
        ("program", ctypes.c_void_p),
        ("run_count", ctypes.c_uint32),
        ("sequence", ctypes.c_uint32),
        ("instruction", ctypes.c_uint32),
        ("page_ins", ctypes.c_uint32),
        ("page_outs", ctypes.c_uint32),
        ("version_offset", ctypes.c_uint32),
    ]


class _Checkpoint(ctypes.Structure):
    _fields_ = [
        ("first_block", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("buffer", ctypes.c_void_p),
        ("identity", ctypes.c_uint32),
        ("records", ctypes.c_uint32),
        ("records_crc", ctypes.c_uint32),
        ("words", ctypes.c_uint32 * 8),
        ("saves", ctypes.c_uint32),
        ("next_slot", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
    ]


class _Flaw(ctypes.Structure):
    _fields_ = [("input", ctypes.c_uint32), ("element", ctypes.c_uint32), ("value", ctypes.c_int32)]


class Scores(ctypes.Structure):
    """poetc_scores, in poetc_data.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("instruction", "scores", "labels", "before", "classes", "after")),
        ("ignored", ctypes.c_int32),
    ]


class Hits(ctypes.Structure):
    """poetc_hits, in poetc_data.h."""

    _fields_ = [
        ("program", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("score_count", ctypes.c_uint32),
        ("hits", ctypes.c_uint32),
        ("samples", ctypes.c_uint32),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("program", "inputs", "limits", "outputs")),
        *((name, ctypes.c_uint32) for name in ("input_count", "output_count")),
    ]


class ModelStructure(ctypes.Structure):
    """The beginning of poetc_model, in poetc_session.h."""

    _fields_ = [
        *((name, _Entry) for name in ("train", "infer", "evaluate")),
        *((name, ctypes.c_void_p) for name in ("state_image", "constants", "regions")),
        *((name, ctypes.c_uint32) for name in ("region_count", "identity", "emission")),
    ]


class SessionStructure(ctypes.Structure):
    _fields_ = [
        ("config", Config),
        ("runtime", Runtime),
        ("model", ctypes.c_void_p),
        ("checkpoint", _Checkpoint),
        ("backup", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("run_context", ctypes.c_void_p),
        ("slice", ctypes.c_void_p),
        ("now_us", ctypes.c_void_p),
        ("now_context", ctypes.c_void_p),
        ("flaw", _Flaw),
        ("is_begun", ctypes.c_uint8),
        ("is_lost", ctypes.c_uint8),
    ]


SINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
SOURCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)


_CALLING = threading.RLock()


@contextlib.contextmanager
def callbacks() -> Iterator[None]:
    """Around a call of C that calls Python: an exception in there, such as Ctrl-C's, is raised once C has returned.

    ctypes alone prints it and goes on.
    """
    raised: list[BaseException] = []

    def keep(unraisable: Any) -> None:
        if unraisable.exc_value is not None and "ctypes callback" in (unraisable.err_msg or ""):
            raised.append(unraisable.exc_value)
        else:
            before(unraisable)

    with _CALLING:
        before, sys.unraisablehook = sys.unraisablehook, keep
        try:
            yield
        finally:
            sys.unraisablehook = before
    if raised:
        raise raised[0]


class _Closed:
    """In place of a library that is no longer mapped: a call into it would end the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        raise SessionError(f"{self._path}: the session is closed")


class Library:
    """A libmodel.so, and the parts that every model's library has.

    SessionError if it cannot be loaded on this machine.
    """

    dll: Any

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            raise SessionError(f"{self.path}: no such library; build it with `make libmodel.so` in its folder")
        try:
            self.dll = ctypes.CDLL(str(self.path), use_errno=True)
        except OSError as error:
            raise SessionError(
                f"{self.path}: cannot be loaded on this machine ({error}); `make clean libmodel.so` in its folder"
                " builds it here"
            ) from None
        self.dll.poetc_loss.restype = ctypes.c_float
        self.dll.poetc_error_text.restype = ctypes.c_char_p

    def close(self) -> None:
        """Give the library back to the machine; nothing of it may run any more. A second call does nothing."""
        if not isinstance(self.dll, _Closed):
            handle, self.dll = self.dll._handle, _Closed(self.path)
            _ctypes.dlclose(handle)

    def text(self, code: int) -> str:
        """The runtime's sentence on a code."""
        return str(self.dll.poetc_error_text(code).decode())

    def address(self, symbol: str) -> int:
        """SessionError if the library has no such symbol."""
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(self.dll, symbol))
        except ValueError:
            raise SessionError(f"{self.path}: no library of this model: it has no {symbol}") from None

    def open_store(self, store: Store, path: PathLike, block_bytes: int) -> int:
        """Page to the file `path`; a code."""
        return int(self.dll.poetc_host_open(ctypes.byref(store), os.fsencode(path), ctypes.c_uint32(block_bytes)))

    def close_store(self, store: Store) -> int:
        """A code; nothing to do where no store is open."""
        return int(self.dll.poetc_host_close(ctypes.byref(store))) if store.context else 0


class Processors:
    """The threads that execute the queues of a library's main program; a runtime of it must outlive them.

    SessionError where they do not start.
    """

    def __init__(self, library: Library, runtime: Runtime, queues: str) -> None:
        self._dll = library.dll
        size_bytes = ctypes.c_uint32.from_address(library.address("poetc_processors_bytes")).value
        self.memory = ctypes.create_string_buffer(size_bytes)
        self.run = ctypes.cast(self._dll.poetc_processors_run, ctypes.c_void_p).value
        address = ctypes.c_void_p(library.address(queues))
        code = self._dll.poetc_processors_begin(self.memory, ctypes.byref(runtime), address)
        if code:
            raise SessionError(f"{library.path}: its processors do not start: {library.text(code)}", code)
        self._end = weakref.finalize(self, self._dll.poetc_processors_end, self.memory)

    def end(self) -> None:
        """Stop the threads; a second call does nothing."""
        self._end()


def aligned(size_bytes: int, guard_bytes: int = 0) -> tuple[Array, int]:
    """Memory that nobody has touched, and the place in it where `size_bytes` begin.

    They are aligned to `ALIGNMENT_BYTES`, with at least `guard_bytes` on either side.
    """
    memory = np.empty(size_bytes + 2 * guard_bytes + ALIGNMENT_BYTES, np.uint8)
    return memory, guard_bytes + (-(memory.ctypes.data + guard_bytes)) % ALIGNMENT_BYTES


def touched_bytes(memory: Array, pattern: int) -> int:
    """End of the last byte that is not `pattern`, 0 if all are. Compares a part at a time: arenas are large."""
    for end in range(memory.size, 0, -PART_BYTES):
        part = memory[max(0, end - PART_BYTES) : end][::-1] != pattern
        first = int(part.argmax())
        if part[first]:
            return end - first
    return 0


def read_manifest(path: PathLike) -> dict[str, Any]:
    """A poetc-emit.json. SessionError if it is none that a session can use."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise SessionError(f"{path}: no JSON") from None
    if not isinstance(document, dict) or "session" not in document:
        raise SessionError(f"{path}: no manifest of emitted C that a session can use; emit it again")
    return document
