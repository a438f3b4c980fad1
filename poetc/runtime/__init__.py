"""The C runtime that emitted programs link against: sources shipped as package data.

The constants say what it needs of RAM besides the arena; tests compare them with what the compiler reports.
"""

from __future__ import annotations

from pathlib import Path

STACK_BYTES = (
    1024  # bound on the stack below poetc_run: its own frame, pages and the deepest kernel; drivers come on top
)
PAGE_BUFFER_BLOCKS = 1  # blocks of the store that a program which pages holds in its arena


def runtime_state_bytes(pointer_bytes: int = 4) -> int:
    """sizeof(poetc_runtime): two pointers and four counters."""
    return 2 * pointer_bytes + 16


def config_bytes(pointer_bytes: int = 4) -> int:
    """sizeof(poetc_config), if it is in RAM and not const: eight words."""
    return 8 * pointer_bytes


def runtime_directory() -> Path:
    """Where include/, src/, kernels/ and ports/ are."""
    return Path(__file__).resolve().parent
