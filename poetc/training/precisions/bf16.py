"""Activations and gradients as bfloat16; the pass `poetc.passes._narrow` rewrites the step."""

from poetc.training.precisions._precision import Precision, declare

declare(Precision(name="bf16", help="bfloat16", narrow="floats of 16 bits"))
