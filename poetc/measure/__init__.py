"""Programs that run: on this machine and on emulated boards, their checks and times."""

from poetc.measure._bundle_host import REQUESTS, BundleModel, validate_bundle
from poetc.measure._bundle_reference import History
from poetc.measure._host import HostModel, StepError, build_host, compile_library, make_library, require_compiler
from poetc.measure._quick_build import QuickBuild
from poetc.measure._run import (
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
from poetc.measure._spilled import Spilled
from poetc.measure._stack import CallGraph, library_frames
from poetc.measure._timing import host_simd, time_program
from poetc.measure._validate import Validation, first_difference, recorded, unstored_gradients, validate
