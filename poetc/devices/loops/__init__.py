"""How often the loops of a kernel run: what its time is made of.

Each file counts what files of `poetc/runtime/kernels/` do, from the ints that a kernel is bound with: keep them in step
(tests/arm/test_counts.py). A loop is called `group.name`; loops that several kernels share have one name, so that they
are measured together.
"""

from __future__ import annotations

import re

from poetc.devices.loops import (  # noqa: F401
    _convolution,
    _depthwise,
    _fused,
    _gemm,
    _lean,
    _matmul,
    _rows,
    _turned,
    _winograd,
)
from poetc.devices.loops._machine import COUNTS, SHARED, Loops, Machine, machine_of
from poetc.devices.loops._window import share_inside
from poetc.ops import Kernel

GROUPS = SHARED | {symbol.removeprefix("poetc_op_") for symbol in COUNTS}


def group_of(kernel: Kernel) -> str:
    """Under which name a profile has what a kernel takes besides its loops. Kernels that make a batch norm again while
    they read, or take an activation's slope in, are counted by the loops of those without: they go by their names.
    """
    name = kernel.symbol.removeprefix("poetc_op_")
    if "grad_weight" in name:
        return name.replace("_norm", "")
    return re.sub(r"^batch_norm_(relu|leaky_relu|clip)_grad_(input|params)$", r"batch_norm_grad_\2", name)


def loops_of(kernel: Kernel, machine: Machine) -> Loops | None:
    """Counts by "group.name", zeros left out; None for a kernel that nothing is known of."""
    count = COUNTS.get(kernel.symbol)
    return None if count is None else {name: n for name, n in sorted(count(kernel, machine).items()) if n}


__all__ = ["GROUPS", "Loops", "Machine", "group_of", "loops_of", "machine_of", "share_inside"]
