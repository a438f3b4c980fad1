"""Floats of 8 bits with sums of 16 in chunks (Wang et al., NeurIPS 2018)."""

from poetc.training.precisions._algorithm import Algorithm, Numbers, Sums
from poetc.training.precisions._precision import declare, mixed

_LOSS_SCALE = 1024
_FP8, _FP16 = (5, 2), (6, 9)
_STORED = Numbers(floats=_FP16, rounding="stochastic")

declare(
    mixed(
        "fp8",
        Algorithm(
            weights=Numbers(floats=_FP8),
            activations=Numbers(floats=_FP8),
            errors=Numbers(floats=_FP8, times=_LOSS_SCALE),
            stored=_STORED,
            state=_STORED,
            sums=Sums(floats=_FP16, chunk=64),
            first={"activations": Numbers(floats=_FP16)},
            last={
                "weights": Numbers(floats=_FP16),
                "activations": Numbers(floats=_FP16),
                "errors": Numbers(floats=_FP16, times=_LOSS_SCALE),
            },
        ),
    )
)
