"""How emitted files lie in a directory: one module for each build system.

A module without an underscore is a layout of that name, with `-` for `_`. Its `LAYOUT` says the rest.
"""

from __future__ import annotations

from poetc.declare import Registry
from poetc.emit.layouts._contents import OPT_LEVELS, Contents, Emitted, check_names
from poetc.emit.layouts._layout import Files, Layout
from poetc.entry_points import own_modules

LAYOUTS: Registry[Layout] = Registry("--layout")
for _name, _module in own_modules(__name__).items():
    LAYOUTS.add(_name.replace("_", "-"), _module.LAYOUT)
