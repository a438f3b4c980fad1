"""Losses, one file a family: options, operator, target, and the words of the documentation."""

from poetc.entry_points import own_modules
from poetc.ops.losses._loss import LOSSES, Loss, LossPlan, Output
from poetc.ops.losses._operators import LossKind

own_modules(__name__)
