"""TrainingOptions, of the declarations. `options.pyi` tells type checkers of its keywords; `make pages` writes that."""

from __future__ import annotations

from poetc.declare import options_class
from poetc.training._declarations import TRAINING
from poetc.training._options import Methods

TrainingOptions = options_class("TrainingOptions", TRAINING, Methods, __name__)
