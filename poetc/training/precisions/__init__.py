"""Precisions, one file each: the numbers of a training step, their options, and the way back to a file's numbers."""

import importlib
import pkgutil

from poetc.training.precisions._algorithm import Algorithm, Numbers, read_algorithm, recorded_algorithm
from poetc.training.precisions._precision import FILE, PRECISIONS, Precision, translated

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
