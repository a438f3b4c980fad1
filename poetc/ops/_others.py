"""Operator kinds of other distributions: modules that the entry points "poetc.operators" name."""

from __future__ import annotations

import functools

from poetc.entry_points import entry_points, load

ENTRY_POINTS = "poetc.operators"


@functools.cache
def load_others() -> None:
    """Import them once; each registers its kinds. UsageError names a package whose module cannot be imported."""
    for point in entry_points(ENTRY_POINTS):
        load(point, "operators")
