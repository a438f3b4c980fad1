"""TrainingOptions, of the declarations. `options.pyi` tells type checkers of its keywords; `make pages` writes that."""

from __future__ import annotations

import dataclasses
from typing import Any

from poetc.training._declarations import TRAINING
from poetc.training._options import Methods


def _class() -> Any:
    """A frozen dataclass with one keyword an option; a default that depends on another option is None."""
    fields = [(o.name, o.annotation, dataclasses.field(default=None if o.defaults[1] else o.default)) for o in TRAINING]
    options = dataclasses.make_dataclass("TrainingOptions", fields, bases=(Methods,), frozen=True, kw_only=True)
    options.__module__, options.__doc__ = __name__, Methods.__doc__
    return options


TrainingOptions = _class()
