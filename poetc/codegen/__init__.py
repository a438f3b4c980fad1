"""Program, lowering, the host interpreter, the C printer, building on the host, and validation of what was built."""

from poetc.codegen._check import ProgramError, check_program
from poetc.codegen._interpret import Interpreter, interpret, sample_inputs
from poetc.codegen._lower import high_water, lower, lower_inference, store_blocks

__all__ = [
    "Interpreter",
    "ProgramError",
    "check_program",
    "high_water",
    "interpret",
    "lower",
    "lower_inference",
    "sample_inputs",
    "store_blocks",
]
