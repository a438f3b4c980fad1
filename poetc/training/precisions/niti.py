"""Integers of 8 bits with an exponent a tensor: NITI (Wang et al., TPDS 2022)."""

from dataclasses import replace

from poetc.declare import Choice, Option
from poetc.ops._integers import RESCALES
from poetc.training._updates import Whole
from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._niti_model import file_values, integer_model
from poetc.training.precisions._niti_step import build_integer
from poetc.training.precisions._precision import ROUNDING, Precision, declare

_INT8 = Numbers(integer=8, scale="power")


def _options_of(algorithm: Algorithm) -> dict[str, str]:
    assert algorithm.gradients is not None and algorithm.stored is not None
    parts = {"act": algorithm.activations, "err": algorithm.errors, "update": algorithm.gradients}
    rounding = ",".join(f"{name}={numbers.rounding}" for name, numbers in parts.items())
    return {"rounding": rounding, "weight_bits": str(algorithm.stored.integer)}


declare(
    Precision(
        name="niti",
        help="integers of 8 bits",
        narrow="integers of 8 bits",
        options=(
            ROUNDING,
            Option(
                name="rescale",
                values=Choice(RESCALES),
                default="every",
                help="Scan the sums of a product in every step, or once in an interval that adapts.",
            ),
            Option(
                name="niti_weights",
                values=Choice(("model", "xavier")),
                default="model",
                help="First weights; model: the float model's, rounded; xavier: new random ones.",
            ),
            Option(
                name="weight_bits",
                values=Choice(("8", "24")),
                default="8",
                help="Bits of a stored weight. Products read the upper 8; with 24, small updates add up.",
            ),
        ),
        defaults={"learning_rate": 0.0625},
        updates=(Whole,),
        lower=integer_model,
        build=build_integer,
        file_values=file_values,
        algorithm=Algorithm(
            products="integers",
            weights=_INT8,
            activations=_INT8,
            errors=_INT8,
            gradients=replace(_INT8, rounding="stochastic"),
            stored=_INT8,
        ),
        options_of=_options_of,
    )
)
