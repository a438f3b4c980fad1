"""Program, lowering, the host interpreter, the C printer, building on the host, and validation of what was built."""

from poetc.codegen._boards import BOARDS, TARGETS, Board, Target
from poetc.codegen._check import ProgramError, check_program
from poetc.codegen._emit import emit
from poetc.codegen._firmware import Memory
from poetc.codegen._host import HostModel, StepError, build_host, compile_library
from poetc.codegen._interpret import Interpreter, interpret, sample_inputs
from poetc.codegen._lower import high_water, lower, lower_inference, store_blocks
from poetc.codegen._validate import TensorError, Validation, validate

__all__ = [
    "BOARDS",
    "TARGETS",
    "Board",
    "HostModel",
    "Interpreter",
    "Memory",
    "ProgramError",
    "StepError",
    "Target",
    "TensorError",
    "Validation",
    "build_host",
    "check_program",
    "compile_library",
    "emit",
    "high_water",
    "interpret",
    "lower",
    "lower_inference",
    "sample_inputs",
    "store_blocks",
    "validate",
]
