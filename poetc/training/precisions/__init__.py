"""Precisions, one file each: the numbers of a training step, their options, and the way back to a file's numbers."""

from poetc.entry_points import own_modules
from poetc.training.precisions._algorithm import Algorithm, Numbers, read_algorithm, recorded_algorithm
from poetc.training.precisions._precision import FILE, PRECISIONS, Precision, translated

own_modules(__name__)
