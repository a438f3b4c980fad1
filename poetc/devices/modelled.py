"""Times of the kernels' loops from counted instructions and a model of the core's pipeline; ends of bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from poetc.devices.machine import machine_of
from poetc.devices.profile import Cycles, DeviceProfile, Quantity, Source, SourceKind
from poetc.errors import UsageError
from poetc.kernels.classes import CLASSES, OTHER, class_of_group

End = Literal["low", "high"]
_FETCHED = ("second", "far", "far_written")
_MEMORY = ("byte", *_FETCHED)  # loops that count bytes, not instructions
_MODELLED: SourceKind = "modelled"
_SPEEDS = ("_per_s", "efficiency")  # ends of keys whose numbers make a device quicker


def is_modelled(loops: Mapping[str, Quantity]) -> bool:
    """Whether the times of a group were made here."""
    return any(q.source.kind == _MODELLED for q in loops.values())


def with_modelled_loops(profile: DeviceProfile, counted: DeviceProfile, where: str) -> DeviceProfile:
    """The profile with `loop_ns` for every group that `counted` has and that it does not have itself.

    Raises UsageError, which begins with `where`.
    """
    cycles = profile.compute.cycles
    assert cycles is not None
    if machine_of(profile.cpu) != machine_of(counted.cpu):
        raise UsageError(
            f"{where}: {counted.name} counts the loops of another kind of core than {profile.cpu.core};"
            " write 'cycles: null' in 'compute', or run poetc profile fit --cycles"
        )
    unknown = sorted(set(cycles.per_instruction) - set(CLASSES))
    if unknown or OTHER not in cycles.per_instruction:
        said = f"there is no class of kernels {unknown[0]!r}" if unknown else f"the class {OTHER!r} is missing"
        raise UsageError(f"{where}: 'compute.cycles.per_instruction': {said}; classes: {', '.join(CLASSES)}")
    measured = {group: loops for group, loops in profile.compute.loop_ns.items() if not is_modelled(loops)}
    priced = {
        group: _group(group, loops, profile, cycles)
        for group, loops in counted.compute.loop_ns.items()
        if group not in measured
    }
    compute = msgspec.structs.replace(profile.compute, loop_ns={**priced, **measured})
    return msgspec.structs.replace(profile, compute=compute)


def _group(group: str, loops: Mapping[str, Quantity], profile: DeviceProfile, cycles: Cycles) -> dict[str, Quantity]:
    one = cycles.per_instruction.get(class_of_group(group), cycles.per_instruction[OTHER])
    fetch = cycles.fetch_cycles_per_instruction
    ends = [_ends(one), _ends(fetch) if fetch else (0.0, 0.0, 0.0)]
    clock_hz = profile.cpu.clock_hz.value
    low, value, high = (sum(parts) * 1e9 / clock_hz for parts in zip(*ends, strict=True))
    source = Source(kind=_MODELLED, text=f"instructions counted in QEMU ({cycles.counted}), {one.source.text}")
    loop_ns = {
        name: Quantity(value=n * value, low=n * low, high=n * high, source=source)
        for name, q in loops.items()
        if name not in _MEMORY and (n := q.value) is not None
    }
    for name, waited in (("second", cycles.second_ns_per_byte), *((f, cycles.far_ns_per_byte) for f in _FETCHED[1:])):
        if waited is not None:
            text = Source(kind=_MODELLED, text=waited.source.text, url=waited.source.url)
            loop_ns[name] = msgspec.structs.replace(waited, source=text)
    return loop_ns


def _ends(q: Quantity) -> tuple[float, float, float]:
    low, high = (q.value if end is None else end for end in (q.low, q.high))
    return low, q.value, high


def at_end(profile: DeviceProfile, section: str, end: End) -> DeviceProfile:
    """The profile with every number of a section at the end of its band that makes the device quick or slow.

    `low`: the least time and energy; `high`: the most. Numbers without a band stay. Rates, whose keys end in
    `_per_s`, and efficiencies have their most at the low end.
    """
    part = getattr(profile, section)
    return msgspec.structs.replace(profile, **{section: _moved(part, "", end)})


def _moved(value: Any, key: str, end: End) -> Any:
    if isinstance(value, Quantity):
        if value.low is None or value.high is None:
            return value
        least = (end == "low") != key.endswith(_SPEEDS)
        return msgspec.structs.replace(value, value=value.low if least else value.high)
    if isinstance(value, msgspec.Struct):
        fields = {f.encode_name: _moved(getattr(value, f.name), f.name, end) for f in msgspec.structs.fields(value)}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, dict):
        return {name: _moved(item, key if key.endswith(_SPEEDS) else name, end) for name, item in value.items()}
    return value


def bands(profile: DeviceProfile, section: str) -> int:
    """Of a section: how many numbers have a band."""
    return _count(getattr(profile, section))


def _count(value: Any) -> int:
    if isinstance(value, Quantity):
        return int(value.low is not None and value.low != value.high)
    if isinstance(value, msgspec.Struct):
        return sum(_count(getattr(value, f.name)) for f in msgspec.structs.fields(value))
    return sum(map(_count, value.values())) if isinstance(value, dict) else 0
