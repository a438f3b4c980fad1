"""Graph → TrainingGraph: loss, backward operators, optimizer updates."""

from poetc.training._adapters import with_adapters
from poetc.training._build import build, takes_batch_statistics
from poetc.training._evaluation import evaluation
from poetc.training._micro import at_batch, batch_of, divisors, micro_batch_of
from poetc.training._options import BATCH_NORM_MODES, LOSSES, OPTIMIZERS, TrainingOptions
from poetc.training._selection import select_parameters, select_updates
from poetc.training._updates import Adapter, Channels, Update, Updates, Whole

__all__ = [
    "BATCH_NORM_MODES",
    "LOSSES",
    "OPTIMIZERS",
    "Adapter",
    "Channels",
    "TrainingOptions",
    "Update",
    "Updates",
    "Whole",
    "at_batch",
    "batch_of",
    "build",
    "divisors",
    "evaluation",
    "micro_batch_of",
    "select_parameters",
    "select_updates",
    "takes_batch_statistics",
    "with_adapters",
]
