"""C of programs: tables, firmware, and the layouts of a directory that a build system reads."""

from poetc.boards import Numerics
from poetc.emit._bundle_tables import switch_bytes
from poetc.emit._code_size import FirmwareSize, firmware_size, is_measured, kernel_bytes
from poetc.emit._code_size import columns as size_columns
from poetc.emit._cprint import comment, floating, identifier, identifiers, integer, string
from poetc.emit._dead_lines import without_dead_lines
from poetc.emit._emit import KIND as _EMITTED
from poetc.emit._emit import (
    Build,
    Form,
    Part,
    emit,
    emit_models,
    initial_state,
    shaped,
    share_layout,
)
from poetc.emit._firmware import Memory, Sections, bank_size, bank_starts, checkpoint_steps, used_blocks
from poetc.emit._library_banks import bank_sections
from poetc.emit._manifest import describe
from poetc.emit._module import Module, header
from poetc.emit._sources import kernel_files, runtime_sources
from poetc.emit._unused_kernels import without_unused
from poetc.emit.layouts import LAYOUTS, OPT_LEVELS
from poetc.emit.layouts.makefile import GOALS, PRODUCTS

MANIFEST = _EMITTED.manifest
