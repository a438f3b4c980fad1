"""How often the loops of a kernel run, of which its time is made.

Each file counts the loops of files of `poetc/runtime/kernels/`, from the parameters of a kernel: keep them in step
(tests/arm/test_counts.py). A loop is called `group.name`; loops that several kernels share have one name, so that they
are measured together.
"""

from __future__ import annotations

import functools

from poetc.devices.loops._classes import CLASSES, OTHER, class_of_group, class_of_source
from poetc.devices.loops._machine import BESIDES, COUNTS, SHARED, Loops, Machine, machine_of
from poetc.devices.loops._window import share_inside
from poetc.entry_points import own_modules
from poetc.ops import Kernel

own_modules(__name__, "_")

GROUPS = SHARED | set(BESIDES.values())


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
