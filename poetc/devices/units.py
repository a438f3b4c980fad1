"""Sizes and durations as people write them: `256MB`, `256MiB`, `737719`, `60%`; `2.5s`, `300ms`, `1.3x`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from poetc.errors import UsageError
from poetc.scheduling.objective import Objective

LONGEST = 40  # characters of a number
LARGEST = 2**63 - 1  # bytes, or nanoseconds
_SIZES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_ENERGIES = {"pJ": 1, "nJ": 10**3, "uJ": 10**6, "µJ": 10**6, "μJ": 10**6, "mJ": 10**9, "J": 10**12, "kJ": 10**15}
_DURATIONS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
# Written all in lower case a byte unit can only mean one thing; `Mb` could be megabits and is refused.
_LOWER_SIZES = {unit.lower(): factor for unit, factor in _SIZES.items()}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(\S*)\s*")


def _split(text: str, option: str, examples: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or len(match[1]) > LONGEST:
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        raise UsageError(f"{option} {shown!r} is not a number with a unit: write {examples}")
    return Fraction(match[1]), match[2]


def parse_size(text: str, *, of: int | None = None, option: str = "--budget", or_word: str = "") -> int:
    """Bytes. Decimal units are powers of 1000, `KiB MiB GiB` of 1024; `60%` and `0.6x` need `of`, the whole in bytes.
    `or_word`: another word that the option takes, which errors name.

    Fractions of a byte are dropped. Raises UsageError naming `option`.
    """
    examples = "for example 256MB, 256MiB or 737719" + ("" if of is None else ", or 60%")
    examples += f", or {or_word}" if or_word else ""
    if "=" in text:
        raise UsageError(f"{option} {text!r}: only poetc solve --budget takes budgets by bank; write {examples}")
    number, unit = _split(text, option, examples)
    if unit in ("%", "x"):
        if of is None:
            raise UsageError(
                f"{option} {text!r}: there is nothing here that it could be a percentage of; write {examples}"
            )
        size = number * of / 100 if unit == "%" else number * of
    else:
        factor = _SIZES.get(unit) or _LOWER_SIZES.get(unit)
        if factor is None:
            raise UsageError(
                f"{option} {text!r}: unknown unit {unit!r}; write {examples} (units: B kB MB GB KiB MiB GiB)"
            )
        size = number * factor
    if size < 1:
        is_part = of is not None and not unit and number > 0
        hint = f"; a part is written {float(number) * 100:g}%" if is_part else ""
        raise UsageError(f"{option} {text!r} is less than one byte{hint}")
    return _checked(size, text, option, "bytes")


def parse_duration(text: str, *, of: int | None = None, option: str = "--deadline") -> int:
    """Nanoseconds. `1.3x` needs `of`, the nanoseconds that it is a multiple of. Raises UsageError naming `option`."""
    examples = "for example 2.5s or 300ms" + ("" if of is None else ", or 1.3x")
    return _parse(text, of, option, examples, _DURATIONS, "ns us ms s min", "nanosecond")


def parse_energy(text: str, *, of: int | None = None, option: str = "--max-energy") -> int:
    """Picojoules. `1.3x` needs `of`, the picojoules that it is a multiple of. Raises UsageError naming `option`."""
    examples = "for example 2.5mJ or 300uJ" + ("" if of is None else ", or 0.6x")
    return _parse(text, of, option, examples, _ENERGIES, "pJ nJ uJ mJ J", "picojoule")


def _parse(
    text: str, of: int | None, option: str, examples: str, units: Mapping[str, int], shown: str, least: str
) -> int:
    number, unit = _split(text, option, examples)
    if unit in units:
        value = number * units[unit]
    elif unit in ("x", "X", "×"):
        if of is None:
            raise UsageError(
                f"{option} {text!r}: there is nothing here that it could be a multiple of; write {examples}"
            )
        value = number * of
    else:
        problem = f"unknown unit {unit!r}" if unit else "the unit is missing"
        raise UsageError(f"{option} {text!r}: {problem}; write {examples} (units: {shown}, x)")
    if value < 1:
        raise UsageError(f"{option} {text!r} is less than one {least}")
    return _checked(value, text, option, f"{least}s")


def parse_battery(text: str, *, option: str = "--battery") -> int:
    """Picojoules of a full battery: `2000mAh@3.7V`, `7.4Wh`, or an energy. Raises UsageError naming `option`."""
    examples = "for example 2000mAh@3.7V, 7.4Wh or 20kJ"
    charge, at, tension = text.partition("@")
    number, unit = _split(charge, option, examples)
    if at:
        volts, volt = _split(tension, option, examples)
        factor = {"mAh": Fraction(36, 10), "Ah": Fraction(3600)}.get(unit)
        if factor is None or volt != "V":
            raise UsageError(f"{option} {text!r}: not a charge at a voltage; write {examples}")
        joules = number * factor * volts
    elif unit in ("Wh", "mWh"):
        joules = number * (3600 if unit == "Wh" else Fraction(36, 10))
    elif unit in _ENERGIES:
        joules = number * Fraction(_ENERGIES[unit], 10**12)
    else:
        missing = f"a charge needs its voltage, {charge.strip()}@3.7V" if unit in ("mAh", "Ah") else "unknown unit"
        raise UsageError(f"{option} {text!r}: {missing}; write {examples}")
    if joules * 10**12 < 1:
        raise UsageError(f"{option} {text!r} is less than one picojoule")
    return _checked(joules * 10**12, text, option, "picojoules")


def _checked(number: Fraction, text: str, option: str, unit: str) -> int:
    if number > LARGEST:
        raise UsageError(f"{option} {text!r} is more than {LARGEST:,} {unit}")
    return int(number)


def format_bytes(size_bytes: int) -> str:
    """`737719` → `737.7 kB`; exact below 10 kB."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= factor and size_bytes >= 10_000:
            return f"{_three(size_bytes / factor)} {unit}"
    return f"{size_bytes:,} B"


def format_enough(size_bytes: int) -> str:
    """A budget that suffices, as an option takes it: `134240` → `134.3 kB`. `parse_size` gives no less."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= factor and size_bytes >= 10_000:
            return f"{_rounded_up(size_bytes, factor)} {unit}"
    return f"{size_bytes} B"


def format_ns(time_ns: int) -> str:
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if abs(time_ns) >= factor:
            return f"{_three(time_ns / factor)} {unit}"
    return f"{time_ns} ns"


def format_enough_ns(time_ns: int) -> str:
    """A deadline that suffices, as an option takes it: `3174369980` → `3.175 s`. `parse_duration` gives no less."""
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if time_ns >= factor:
            return f"{_rounded_up(time_ns, factor)} {unit}"
    return f"{time_ns} ns"


def format_pj(energy_pj: int) -> str:
    for factor, unit in ((10**15, "kJ"), (10**12, "J"), (10**9, "mJ"), (10**6, "µJ"), (10**3, "nJ")):
        if abs(energy_pj) >= factor:
            return f"{_three(energy_pj / factor)} {unit}"
    return f"{energy_pj} pJ"


def format_cost(objective: Objective, cost: int) -> str:
    """A cost in the unit of `objective`."""
    return {Objective.ENERGY: format_pj, Objective.TIME: format_ns}[objective](cost)


def format_gap(fraction: float) -> str:
    """`0.01231` → `1.24 %`: rounded up, as a claim is never narrower than its proof. Only no gap at all is `0 %`."""
    if not math.isfinite(fraction):
        return "unknown"
    if fraction <= 0:
        return "0 %"
    digits = 3 if fraction < 0.01 else 2
    steps = max(1, math.ceil(fraction * 10 ** (2 + digits) - 1e-6))
    whole, decimals = f"{steps / 10**digits:.{digits}f}".split(".")
    return f"{whole}.{decimals.rstrip('0') or '0'} %"


def _rounded_up(value: int, factor: int) -> str:
    """`value / factor` in four significant digits, or a little more."""
    digits = max(0, 4 - len(str(value // factor)))
    whole, rest = divmod(-(-value * 10**digits // factor), 10**digits)
    return f"{whole}.{rest:0{digits}}" if digits else str(whole)


def _three(value: float) -> str:
    """Four significant digits, never an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3}f}"
