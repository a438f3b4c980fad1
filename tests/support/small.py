"""A model with the demonstration's inputs, outputs and kinds of layers, and a third of its operators.

Commands take a fraction of the time with it. Tests of what they write and say need no more.
"""

from __future__ import annotations

import functools
import os
import runpy
import tempfile
from pathlib import Path

from tests.support.compilers import cache_folder

NETWORKS = Path(__file__).resolve().parents[2] / "demo" / "boards" / "networks.py"


@functools.cache
def small_model() -> Path:
    """A file that is named as the demonstration's; all workers share it."""
    network = runpy.run_path(str(NETWORKS))["Network"]("digits", 8)
    network.conv(12, norm=True).relu().conv(12, norm=True).relu().pool().dense(10)
    data = network.model().SerializeToString(deterministic=True)
    path = cache_folder() / "small" / "digits.onnx"
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(exist_ok=True)
        handle, staged = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(staged, path)
    return path
