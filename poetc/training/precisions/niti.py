"""Integers of 8 bits with an exponent a tensor: NITI (Wang et al., TPDS 2022)."""

from poetc.declare import Choice, Option
from poetc.ops._integers import RESCALES
from poetc.training._updates import Whole
from poetc.training.precisions._niti_model import file_values, integer_model
from poetc.training.precisions._niti_step import build_integer
from poetc.training.precisions._precision import ROUNDING, Precision, declare

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
                group="precision",
                default="every",
                help="Scan the sums of a product in every step, or once in an interval that adapts.",
            ),
            Option(
                name="niti_weights",
                values=Choice(("model", "xavier")),
                group="precision",
                default="model",
                help="First weights; model: the float model's, rounded; xavier: new random ones.",
            ),
            Option(
                name="weight_bits",
                values=Choice(("8", "24")),
                group="precision",
                default="8",
                help="Bits of a stored weight. Products read the upper 8; with 24, small updates add up.",
            ),
        ),
        defaults={"learning_rate": 0.0625},
        updates=(Whole,),
        lower=integer_model,
        build=build_integer,
        file_values=file_values,
    )
)
