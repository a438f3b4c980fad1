"""Whether the numbers of a profile are possible: mistakes that a schema does not find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetc.devices.cost import CostModel
from poetc.devices.loading import load_profile, profile_to_dict
from poetc.devices.profile import DeviceProfile
from poetc.errors import CheckFailed, UsageError
from poetc.ops import registry

_LANES = {"none": 1, "dsp": 1, "neon": 4, "helium": 4, "sse": 4, "avx2": 8, "avx512": 16}  # of float32
_LEAST_CYCLES, _MOST_CYCLES = 0.1, 20.0  # an instruction
_WIDEST = 30  # high end of a band over its low end
_CYCLES_BELIEVABLE = 1000  # a multiply-accumulate, in software even


@dataclass(frozen=True, slots=True)
class Checked:
    """`errors`: (file, message) of each profile that does not hold."""

    document: Mapping[str, Any]
    text: str
    errors: tuple[tuple[str, str], ...]

    def require(self) -> None:
        """Raise CheckFailed if something does not hold."""
        if self.errors:
            raise CheckFailed("; ".join(message for _, message in self.errors), details=self.document)


def check_profiles(names: Sequence[str | Path]) -> Checked:
    """Load each and look whether its numbers are possible."""
    rows: list[dict[str, Any]] = []
    errors: list[tuple[str, str]] = []
    for name in map(str, names):
        try:
            profile = load_profile(name)
            problems = tuple(implausible(profile))
            kinds = count_sources(profile)
        except UsageError as error:
            problems, kinds = (str(error),), {}
        rows.append({"profile": name, "valid": not problems, "problems": list(problems), "sources": kinds})
        errors += [(name, p if p.startswith(name) else f"{name}: {p}") for p in problems]
    lines = [
        f"{row['profile']}: ok  ({', '.join(f'{n} {kind}' for kind, n in row['sources'].items())})"
        for row in rows
        if row["valid"]
    ]
    return Checked({"profiles": rows, "passed": not errors}, "\n".join(lines), tuple(errors))


def implausible(profile: DeviceProfile) -> Iterator[str]:
    """The impossible numbers, one line each."""
    try:
        CostModel(profile).check_kinds(registry(), profile.name)
    except UsageError as error:
        yield str(error)
    clock, compute = profile.cpu.clock_hz.value, profile.compute
    cycles = clock / compute.contraction_mac_per_s.value
    lanes = _LANES[profile.cpu.simd] * profile.cpu.core_count.value  # of all cores, which may share an operator
    fastest = 1 / (2 * lanes)  # two vector units
    if cycles < fastest:
        yield f"'compute.contraction_mac_per_s' means {cycles:.2g} cycles a multiply-accumulate; {fastest} is the least"
    if cycles > _CYCLES_BELIEVABLE:
        yield f"'compute.contraction_mac_per_s' means {cycles:.4g} cycles a multiply-accumulate: is the unit right?"
    if compute.memory_bytes_per_s.value > 64 * clock:
        yield "'compute.memory_bytes_per_s' is more than a cache line a cycle"
    yield from _bands(profile)
    banks = [b for b in profile.memory.banks.values() if b.kind == "ram"]
    if banks and profile.ram_bytes > sum(b.size_bytes.value for b in banks):
        yield "'memory.ram_bytes' is more than its banks have together"


def _bands(profile: DeviceProfile) -> Iterator[str]:
    """Numbers of a model without a band, bands that say nothing, and cycles that no core takes."""
    for at, value in _quantities(profile_to_dict(profile), ()):
        low, high = value.get("low"), value.get("high")
        if at[:2] == ("compute", "loop_ns"):
            continue  # made of the cycles
        name = ".".join(at)
        if at[:2] == ("compute", "cycles"):
            if low is None:
                yield f"{name!r} has no band: give 'low' and 'high'"
            if at[2] == "per_instruction" and not _LEAST_CYCLES <= value["value"] <= _MOST_CYCLES:
                yield f"{name!r}: {value['value']} cycles an instruction, not {_LEAST_CYCLES} to {_MOST_CYCLES}"
        if low and high > _WIDEST * low:
            yield f"the band of {name!r}, {low} to {high}, is wider than a factor of {_WIDEST}"


def _quantities(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if isinstance(value, dict):
        if isinstance(value.get("source"), dict) and "value" in value:
            yield at, value
        else:
            for key, item in value.items():
                yield from _quantities(item, (*at, key))


def count_sources(profile: DeviceProfile) -> dict[str, int]:
    """How many numbers are measured, from a data sheet, ..., most first."""
    counted = Counter(_kinds(profile_to_dict(profile)))
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _kinds(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        source = value.get("source")
        if isinstance(source, dict) and "value" in value:
            yield source["kind"]
        else:
            for item in value.values():
                yield from _kinds(item)
