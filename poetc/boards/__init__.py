"""Boards, their cores and targets, and the compilers for them."""

from poetc.boards._boards import KIB, Board, Region, Target
from poetc.boards._cores import Core
from poetc.boards._files import BOARDS, TARGETS, own_files, own_linker_script
from poetc.boards._targets import (
    Numerics,
    board_like,
    built_for,
    check_device,
    close_names,
    find_board,
    numerics_flags,
    numerics_of_target,
    resolve,
)
from poetc.boards._toolchain import Elf, build_counter, command, compiler_prefix, read_elf, telling
from poetc.boards._toolchain import require as require_toolchain
