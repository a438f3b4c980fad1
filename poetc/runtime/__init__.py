"""The C runtime that emitted programs link against: sources shipped as package data.

The constants are its needs of RAM besides the arena; tests compare them with the compiler's reports.
"""

from __future__ import annotations

from pathlib import Path

# Bound on the stack of poetc_run with the deepest kernel or page; the driver of the store comes on top. With -O2, GCC
# 12 reports 1536 on x86-64, 1304 on Cortex-M7, 1296 on M4F, 1192 on M55 and 1128 on M0. It reports 1680 on AArch64,
# where stacks are larger.
STACK_BYTES = 1536
WIDE_NESTED_STACK_BYTES = 2560  # more where pointers have 64 bits, for kernels of kernels that stream


def runtime_state_bytes(pointer_bytes: int = 4) -> int:
    """sizeof(poetc_runtime): two pointers and five counters."""
    return -(-(2 * pointer_bytes + 20) // pointer_bytes) * pointer_bytes


def runtime_directory() -> Path:
    """Where include/, src/, kernels/ and ports/ are."""
    return Path(__file__).resolve().parent
