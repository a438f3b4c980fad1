"""Floats of 7 bits with scales of groups and tensors: multi-level scaling (Zhong et al., 2020, arXiv 2006.02804)."""

from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._precision import declare, mixed

_ELEMENTS = Numbers(floats=(2, 4), scale="real", groups=True, rounding="stochastic")
_WHOLE = Numbers(floats=(7, 11))  # as many bits as exact products have
_ENDS = {"weights": _WHOLE, "activations": _WHOLE, "errors": _WHOLE}

declare(
    mixed(
        "mls",
        Algorithm(weights=_ELEMENTS, activations=_ELEMENTS, errors=_ELEMENTS, first=_ENDS, last=_ENDS),
    )
)
