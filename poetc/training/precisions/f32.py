"""Floats of 32 bits."""

from poetc.training.precisions._precision import Precision, declare

declare(Precision(name="f32", help="floats"))
