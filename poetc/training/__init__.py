"""Graph → TrainingGraph: loss, backward operators, optimizer updates."""

from poetc.training._build import build
from poetc.training._options import BATCH_NORM_MODES, LOSSES, OPTIMIZERS, TrainingOptions
from poetc.training._selection import select_parameters

__all__ = ["BATCH_NORM_MODES", "LOSSES", "OPTIMIZERS", "TrainingOptions", "build", "select_parameters"]
