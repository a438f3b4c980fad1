"""The features of a processor that decide how often a kernel's loops run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poetc.kernels.kernel import Kernel

Loops = dict[str, int]  # "group.loop" → how often its body runs in one execution


@dataclass(frozen=True, slots=True)
class Machine:
    """`lanes` floats a vector, `rows` x `vectors` vectors a register block (kernels/gemm/poetc_gemm_pack.h).

    One lane: scalars, by calls of a library if `is_soft`. Packed `integer_terms` are filled up to a multiple
    (kernels/int8/poetc_int8_sums.h): 4 with SMLAD, 16 elsewhere. `is_neon`: 64-bit Arm.
    With `has_helium` integers go in its vectors; `has_dot`: SDOT adds up 16 of their products.
    """

    lanes: int
    rows: int
    vectors: int
    is_soft: bool = False
    integer_terms: int = 16
    is_neon: bool = False
    has_helium: bool = False
    has_dot: bool = False

    @property
    def integer_columns(self) -> int:
        """Columns of a register block of integers."""
        return 4 if self.lanes > 1 else 2

    @property
    def integer_rows(self) -> int:
        """Rows of a register block of integers."""
        return 4 if self.is_neon else 2

    @property
    def integer_lanes(self) -> int:
        """Products of integers that an instruction adds up."""
        return 1 if self.lanes == 1 else 16 if self.lanes >= 8 or self.has_dot else 8

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def has_fours(self) -> bool:
        """Scalars in the FPU of a Cortex-M, which loads and stores four and more at once."""
        return self.lanes == 1 and not self.is_soft

    @property
    def half(self) -> int:
        """Columns of a narrow block; 0 where there is none."""
        return self.vectors // 2 * self.lanes if self.lanes > 1 else 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rows of the register blocks, largest first."""
        return (12, 8, 4, 2, 1) if self.rows >= 12 else (6, 4, 2, 1) if self.rows >= 6 else (4, 3, 2, 1)


Count = Callable[[Kernel, Machine], Loops]
COUNTS: dict[str, Count] = {}
BESIDES: dict[str, str] = {}  # of a kernel: the group in which a profile has its time besides its loops
_SHARED = """gemm put transpose planes pixels windows spread fill strip clear copy gaps tiles pairs slide gather filter
taps correlate segment outer inner
rank_one walk memcpy descend direct winograd
int8_errors int8_gather int8_lines int8_pixels int8_plane int8_product int8_requantize int8_scan int8_start int8_taps
int8_values int8_weights int8_widen int8_windows"""
SHARED = frozenset(_SHARED.split())


def counts(*symbols: str, without: str = "") -> Callable[[Count], Count]:
    """A decorator: the function counts the loops of the kernels `symbols`, which it gets with a kernel and a machine.

    The time outside of the loops is looked up by a kernel's name, from which the part `without` is taken out.
    """

    def register(count: Count) -> Count:
        for symbol in symbols:
            COUNTS[f"poetc_op_{symbol}"] = count
            BESIDES[f"poetc_op_{symbol}"] = symbol.replace(without, "") if without else symbol
        return count

    return register


def add(into: Loops, more: Mapping[str, int], times: int = 1) -> None:
    for name, count in more.items():
        if count:
            into[name] = into.get(name, 0) + times * count
