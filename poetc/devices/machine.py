"""The features of a profile's core that decide how often the loops of kernels run."""

from __future__ import annotations

import re

from poetc.devices.profile import Cpu
from poetc.kernels.machine import Machine

_LANES = {"sse": 4, "avx2": 8, "avx512": 16}
_INTEGER_TERMS = {"dsp": 4}
_LAST_32_BIT = 32  # Cortex-A32
_WITHOUT_SDOT = (34, 35, 53, 57, 72, 73)  # Armv8.0-A


def machine_of(cpu: Cpu) -> Machine:
    """As poetc_vector.h chooses, with numerics that are the same everywhere: without Helium and 32-bit Neon."""
    number = re.match(r"cortex-a(\d+)", cpu.core)
    if cpu.simd == "neon" and (number is None or int(number[1]) > _LAST_32_BIT):
        return Machine(4, 12, 2, is_neon=True, has_dot=number is not None and int(number[1]) not in _WITHOUT_SDOT)
    lanes = _LANES.get(cpu.simd, 1)
    if lanes == 1:
        terms = _INTEGER_TERMS.get(cpu.simd, 16)
        return Machine(1, 4, 4, cpu.fpu == "none", terms, has_helium=cpu.simd == "helium")
    return Machine(lanes, 12 if lanes == 16 else 6, 2)
