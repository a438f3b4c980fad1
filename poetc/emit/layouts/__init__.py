"""How emitted files lie in a directory: one module for each build system.

A module without an underscore is a layout of that name, with `-` for `_`. Its `LAYOUT` says the rest.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from poetc.declare import Registry
from poetc.emit.layouts._contents import OPT_LEVELS, Contents, Emitted, check_names
from poetc.emit.layouts._layout import Files, Layout

LAYOUTS: Registry[Layout] = Registry("--layout")
for _module in sorted(module.name for module in iter_modules(__path__)):
    if not _module.startswith("_"):
        LAYOUTS.add(_module.replace("_", "-"), import_module(f"{__name__}.{_module}").LAYOUT)
