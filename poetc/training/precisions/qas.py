"""A QDQ model on its own codes, with quantisation-aware scaling (Lin et al., NeurIPS 2022)."""

from typing import Any

from poetc.errors import UsageError
from poetc.training._updates import Channels, Whole
from poetc.training.precisions._precision import ROUNDING, Precision, declare
from poetc.training.precisions._qas_model import file_values, quantized_model


def _check(options: Any) -> None:
    roundings = options.roundings()
    if "stochastic" in (roundings["activation"], roundings["error"]):
        raise UsageError("--rounding: --precision qas rounds activations to nearest, and its errors are floats")


declare(
    Precision(
        name="qas",
        help="codes of a QDQ model",
        narrow="integers of 8 bits",
        options=(ROUNDING,),
        reads_codes=True,
        depends_on_parts=True,
        updates=(Whole, Channels),
        check=_check,
        lower=quantized_model,
        file_values=file_values,
    )
)
