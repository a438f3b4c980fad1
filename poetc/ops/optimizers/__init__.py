"""Optimizers, one file each: options, state, update and its numerics."""

import importlib
import pkgutil

from poetc.ops.optimizers._optimizer import OPTIMIZERS, Optimizer
from poetc.ops.optimizers._update import OfUpdatingSteps

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
