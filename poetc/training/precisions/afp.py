"""Integers with a power of two as scale, errors of 8 to 16 bits: Adaptive Fixed-Point (Zhang et al., CVPR 2020)."""

from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._precision import declare, mixed

_INT8 = Numbers(integer=8, scale="power")

declare(
    mixed(
        "afp",
        Algorithm(weights=_INT8, activations=_INT8, errors=Numbers(integer=8, scale="power", rises_to=16)),
    )
)
