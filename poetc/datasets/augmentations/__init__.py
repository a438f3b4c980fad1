"""Augmentation: each training batch sees its inputs changed, by numbers that the seed fixes. One file a kind."""

import importlib
import pkgutil

from poetc.datasets.augmentations._augmentation import Augmentations

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
