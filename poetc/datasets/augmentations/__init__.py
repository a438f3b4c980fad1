"""Augmentation: each training batch sees its inputs changed, by numbers that the seed fixes. One file a kind."""

from poetc.datasets.augmentations._augmentation import Augmentations
from poetc.entry_points import own_modules

own_modules(__name__)
