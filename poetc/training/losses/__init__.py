"""Losses, one file a family: options, operator, target, and the words of the documentation."""

import importlib
import pkgutil

from poetc.training.losses._loss import LOSSES, Loss, LossPlan, Output

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
