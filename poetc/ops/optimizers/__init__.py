"""Optimizers, one file each: options, state, update and its numerics."""

from poetc.entry_points import own_modules
from poetc.ops.optimizers._optimizer import OPTIMIZERS, Optimizer
from poetc.ops.optimizers._update import OfUpdatingSteps, Update

own_modules(__name__)
