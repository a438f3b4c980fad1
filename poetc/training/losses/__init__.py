"""Losses, one file a family: options, operator, target, and the words of the documentation."""

from poetc.entry_points import own_modules
from poetc.training.losses._loss import LOSSES, Loss, LossPlan, Output

own_modules(__name__)
