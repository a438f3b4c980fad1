"""Program, lowering, the host interpreter, the C printer, building on the host, and validation of the built code."""

from poetc.codegen._boards import BOARDS, TARGETS, Board, Target
from poetc.codegen._bundle import ProgramBundle, lower_bundle
from poetc.codegen._bundle_host import REQUESTS, BundleValidation, validate_bundle
from poetc.codegen._bundle_reference import History
from poetc.codegen._bundle_tables import switch_bytes
from poetc.codegen._check import OFFSET_LIMIT, ProgramError, check_program
from poetc.codegen._code_size import FirmwareSize, firmware_size, is_measured, kernel_bytes
from poetc.codegen._cores import Core
from poetc.codegen._emit import KIND as _EMITTED
from poetc.codegen._emit import Build, Form, Part, emit, emit_models, identity_of, initial_state, shaped
from poetc.codegen._firmware import Memory, Sections, bank_size, bank_starts
from poetc.codegen._host import HostModel, StepError, build_host, compile_library, make_library, require_compiler
from poetc.codegen._interpret import Interpreter, all_inputs, sample_inputs
from poetc.codegen._library_banks import bank_sections
from poetc.codegen._limits import (
    Limit,
    chance_loss,
    is_scaled,
    limit_of,
    looks_raw,
    require_usable,
    require_values,
    scales_itself,
)
from poetc.codegen._lower import bank_high_water, high_water, lower, lower_inference, store_blocks, without_loss
from poetc.codegen._run import (
    BoardFault,
    BoardStopped,
    Firmware,
    PowerCut,
    Run,
    build_firmware,
    check_pages,
    emulator_command,
    execute,
    fresh_store,
    rebuild,
    state_digest,
    write_records,
)
from poetc.codegen._scores import Scores, class_scores
from poetc.codegen._state_file import read_listed_state, read_state, slot_blocks, state_identity, state_in_ram_bytes
from poetc.codegen._store_file import StoreLayout, is_trained, listed_layout, state_on_store, store_layout
from poetc.codegen._targets import board_like, check_device, find_board, resolve
from poetc.codegen._timing import StepTimes, host_simd, time_program
from poetc.codegen._toolchain import Elf
from poetc.codegen._toolchain import require as require_toolchain
from poetc.codegen._validate import TensorError, Validation, validate
from poetc.codegen.layouts import LAYOUTS, OPT_LEVELS, Layout, Numerics
from poetc.codegen.layouts.makefile import GOALS, PRODUCTS

MANIFEST = _EMITTED.manifest

__all__ = [
    "BOARDS",
    "GOALS",
    "LAYOUTS",
    "MANIFEST",
    "OFFSET_LIMIT",
    "OPT_LEVELS",
    "PRODUCTS",
    "REQUESTS",
    "TARGETS",
    "Board",
    "BoardFault",
    "BoardStopped",
    "Build",
    "BundleValidation",
    "Core",
    "Elf",
    "Firmware",
    "FirmwareSize",
    "Form",
    "History",
    "HostModel",
    "Interpreter",
    "Layout",
    "Limit",
    "Memory",
    "Numerics",
    "Part",
    "PowerCut",
    "ProgramBundle",
    "ProgramError",
    "Run",
    "Scores",
    "Sections",
    "StepError",
    "StepTimes",
    "StoreLayout",
    "Target",
    "TensorError",
    "Validation",
    "all_inputs",
    "bank_high_water",
    "bank_sections",
    "bank_size",
    "bank_starts",
    "board_like",
    "build_firmware",
    "build_host",
    "chance_loss",
    "check_device",
    "check_pages",
    "check_program",
    "class_scores",
    "compile_library",
    "emit",
    "emit_models",
    "emulator_command",
    "execute",
    "find_board",
    "firmware_size",
    "fresh_store",
    "high_water",
    "host_simd",
    "identity_of",
    "initial_state",
    "is_measured",
    "is_scaled",
    "is_trained",
    "kernel_bytes",
    "limit_of",
    "listed_layout",
    "looks_raw",
    "lower",
    "lower_bundle",
    "lower_inference",
    "make_library",
    "read_listed_state",
    "read_state",
    "rebuild",
    "require_compiler",
    "require_toolchain",
    "require_usable",
    "require_values",
    "resolve",
    "sample_inputs",
    "scales_itself",
    "shaped",
    "slot_blocks",
    "state_digest",
    "state_identity",
    "state_in_ram_bytes",
    "state_on_store",
    "store_blocks",
    "store_layout",
    "switch_bytes",
    "time_program",
    "validate",
    "validate_bundle",
    "without_loss",
    "write_records",
]
