"""The features of a profile's core that decide how often the loops of kernels run."""

from __future__ import annotations

from poetc.devices.profile import Cpu
from poetc.kernels.machine import Machine

_LANES = {"sse": 4, "avx2": 8, "avx512": 16}
_INTEGER_TERMS = {"dsp": 4}


def machine_of(cpu: Cpu) -> Machine:
    """As poetc_vector.h chooses, with numerics that are the same everywhere: without Helium and 32-bit Neon."""
    if cpu.simd == "neon" and not cpu.core.startswith(("cortex-a7", "cortex-a8", "cortex-a9")):
        return Machine(4, 12, 2, is_neon=True)
    if cpu.core in ("cortex-a72", "cortex-a73", "cortex-a76", "cortex-a78"):
        return Machine(4, 12, 2, is_neon=True)
    lanes = _LANES.get(cpu.simd, 1)
    if lanes == 1:
        terms = _INTEGER_TERMS.get(cpu.simd, 16)
        return Machine(1, 4, 4, cpu.fpu == "none", terms, has_helium=cpu.simd == "helium")
    return Machine(lanes, 12 if lanes == 16 else 6, 2)
