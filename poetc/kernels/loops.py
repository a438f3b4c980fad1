"""How often the loops of a kernel run, of which its time is made.

Each folder counts the loops of the C files of its name in `poetc/runtime/kernels/`, from the parameters of a kernel:
keep them alike (tests/arm/test_counts.py). A loop is called `group.name`; loops that several kernels share have one
name, so that they are measured together.
"""

from __future__ import annotations

import functools

from poetc.entry_points import own_modules
from poetc.kernels import convolution, convolution_turned, convolution_winograd, depthwise, gemm, int8, operators
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import BESIDES, COUNTS, SHARED, Loops, Machine

FAMILIES = (convolution, convolution_turned, convolution_winograd, depthwise, gemm, int8, operators)
for _family in FAMILIES:
    own_modules(_family.__name__, "loops")  # each registers its counts


def groups() -> frozenset[str]:
    """The names under which profiles may have times of kernels."""
    return SHARED | set(BESIDES.values())


def group_of(kernel: Kernel) -> str:
    """The name under which a profile has the time of a counted kernel besides its loops."""
    return BESIDES[kernel.symbol]


def loops_of(kernel: Kernel, machine: Machine) -> Loops | None:
    """Counts by "group.name", zeros left out; None for a kernel that nothing is known of."""
    counted = _counted(kernel, machine)
    return None if counted is None else dict(counted)


@functools.lru_cache(maxsize=4096)
def _counted(kernel: Kernel, machine: Machine) -> Loops | None:
    """Kept, since networks repeat their layers, and choices among training steps their operators."""
    count = COUNTS.get(kernel.symbol)
    return None if count is None else {name: n for name, n in sorted(count(kernel, machine).items()) if n}
