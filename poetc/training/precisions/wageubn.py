"""Integers of 8 bits, gradients without scale, weights of 24 bits: WAGEUBN (Yang et al., Neural Networks 2020)."""

from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._precision import declare, mixed

_SHIFTED = Numbers(integer=8, scale="nearest-power")
_STATISTICS, _NORM, _NORM_GRADIENT = (Numbers(integer=bits, clips=False) for bits in (16, 8, 15))
_WHOLE = Numbers(floats=(7, 11))  # as many bits as exact products have

declare(
    mixed(
        "wageubn",
        Algorithm(
            weights=Numbers(integer=8),
            activations=_SHIFTED,
            errors=_SHIFTED,
            gradients=Numbers(integer=8, scale="nearest-power", rounding="stochastic", unit=2.0**-7),
            stored=Numbers(integer=24),
            first={"weights": _WHOLE, "activations": _WHOLE, "errors": _WHOLE},
            last={"weights": _WHOLE, "activations": _WHOLE, "errors": _WHOLE},
            norms={
                "statistics": _STATISTICS,
                "normalised": _NORM,
                "parameters": _NORM,
                "gradients": _NORM_GRADIENT,
            },
        ),
    )
)
