"""Cores: which instructions each one has, so that code for one is known to run on another, and GCC's flags for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_V6M = frozenset({"v6-m"})
_V7M = _V6M | {"v7-m"}
_V8M = _V7M | {"v8-m"}
_MICROCONTROLLERS = {
    "cortex-m0": _V6M,
    "cortex-m0plus": _V6M,
    "cortex-m1": _V6M,
    "cortex-m3": _V7M,
    "cortex-m4": _V7M | {"dsp"},
    "cortex-m7": _V7M | {"dsp"},
    "cortex-m23": _V6M | {"v8-m.base"},
    "cortex-m33": _V8M,  # with or without the DSP instructions
    "cortex-m35p": _V8M,
    "cortex-m52": _V8M | {"dsp", "v8.1-m"},
    "cortex-m55": _V8M | {"dsp", "v8.1-m"},
    "cortex-m85": _V8M | {"dsp", "v8.1-m"},
}
_V8_0_A = (34, 35, 53, 57, 72, 73)  # the others have at least Armv8.2-A
_VFPV4 = ("cortex-a5", "cortex-a7", "cortex-a12", "cortex-a15", "cortex-a17", "cortex-a32")
_BY_ARCHITECTURE = ("cortex-m52", "cortex-m85")  # GCC 12 does not know their names
LAST_32_BIT_APPLICATION_CORE = 32  # Cortex-A32; from Cortex-A34 on all have 64 bits


@dataclass(frozen=True, slots=True)
class Core:
    """A core as a device profile describes it: its name as GCC's -mcpu has it, its FPU and its vector instructions."""

    name: str
    fpu: str = "none"  # none | single | double
    simd: str = "none"  # none | dsp | helium | neon | ...

    def __str__(self) -> str:
        may_have_fpu = bool(self.features & {"dsp", "v8-m"})
        return self.name + (" without an FPU" if may_have_fpu and self.fpu == "none" else "")

    @property
    def is_microcontroller(self) -> bool:
        return self.name in _MICROCONTROLLERS

    @property
    def has_regions_of_any_size(self) -> bool:
        """Whether a region of its memory protection unit may have any multiple of 32 bytes; else powers of two."""
        return bool(self.features & {"v8-m", "v8-m.base"})

    @property
    def features(self) -> frozenset[str]:
        """The instruction sets that it has. Empty for a core that is not known here."""
        application = re.match(r"cortex-a(\d+)", self.name)
        if application:
            if int(application[1]) <= LAST_32_BIT_APPLICATION_CORE:
                return frozenset({"a32"})
            return frozenset({"a64"} if int(application[1]) in _V8_0_A else {"a64", "v8.2-a"})
        if self.name == "cortex-r52":
            return frozenset({"r32"})
        sets = _MICROCONTROLLERS.get(self.name, frozenset())
        if not sets:
            return sets
        if self.simd in ("dsp", "helium"):
            sets |= {"dsp"}
        if self.simd == "helium":
            sets |= {"helium"}
        if self.fpu != "none":
            sets |= {"vfpv4"} if self.name == "cortex-m4" else {"vfpv4", "vfpv5"}
        return sets | {"double"} if self.fpu == "double" else sets

    @property
    def multiplies_and_adds(self) -> bool:
        """Whether an instruction multiplies and adds floats with one rounding."""
        if self.features & {"a64", "r32", "vfpv4"}:
            return True
        return self.name in _VFPV4 and self.fpu != "none"

    def runs(self, other: Core) -> bool:
        """Whether code for `other` is known to run here."""
        return bool(other.features) and other.features <= self.features

    def flags(self, *, exact: bool = False) -> str:
        """GCC's. `exact`: without Helium's float instructions, which flush subnormal numbers."""
        if not self.is_microcontroller:
            return f"-mcpu={self.name}"
        if self.name in _BY_ARCHITECTURE:
            floats = "" if self.fpu == "none" else "+fp.dp" if self.fpu == "double" else "+fp"
            vectors = "" if self.simd != "helium" or not floats else "+mve" if exact else "+mve.fp"
            abi = "hard" if floats else "soft"
            return f"-march=armv8.1-m.main+dsp{vectors}{floats} -mfloat-abi={abi}"
        if "v8.1-m" in self.features:
            vectors = "+nomve" if self.simd != "helium" else "+nomve.fp" if exact else ""
            name = f"{self.name}{vectors if self.fpu != 'none' else '+nofp'}"
            return f"-mcpu={name} -mfloat-abi={'hard' if self.fpu != 'none' else 'soft'}"
        if self.fpu == "none":
            return f"-mcpu={self.name}"
        unit = "fpv4-sp-d16" if self.name == "cortex-m4" else "fpv5-d16" if self.fpu == "double" else "fpv5-sp-d16"
        chained = " -DPOETC_CHAINED" if self.name == "cortex-m7" and self.fpu == "single" else ""
        return f"-mcpu={self.name} -mfloat-abi=hard -mfpu={unit}{chained}"
