"""Integers of 8 bits with one real scale a tensor: Octo (Zhou et al., USENIX ATC 2021), without its added layers."""

from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._precision import declare, mixed

_INT8 = Numbers(integer=8, scale="real")
_CLIPPED = Numbers(integer=8, scale="real", range=0.95)

declare(mixed("octo", Algorithm(weights=_INT8, activations=_INT8, errors=_CLIPPED)))
