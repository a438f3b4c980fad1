"""The parts of a result that rest on guesses: numbers of a profile whose source is `estimated`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetc.devices.profile import DeviceProfile, Quantity, Store


@dataclass(frozen=True, slots=True)
class Guessed:
    """Names of the guessed numbers that decide a part of a step; empty for a part that rests on none."""

    compute_time: tuple[str, ...]
    compute_energy: tuple[str, ...]
    page_time: tuple[str, ...]
    page_energy: tuple[str, ...]
    only_power: bool  # energy is time times a guessed power, and nothing else


def guessed_numbers(profile: DeviceProfile) -> Guessed:
    """Of the main processor and the store that paging uses. Overheads of calls are left out: they are small."""
    compute, power = profile.compute, profile.power
    time: tuple[str, ...]
    if compute.loop_ns:
        loops = {group: q for group, loops in compute.loop_ns.items() for q in loops.values()}
        time = ("compute.loop_ns",) if _guesses(loops) else ()
    else:
        rates = ("contraction_mac_per_s", "elementwise_flop_per_s", "memory_bytes_per_s")
        time = _guesses({f"compute.{name}": getattr(compute, name) for name in rates})
    dynamic = {f"power.{n}": q for n in ("pj_per_mac", "pj_per_flop", "pj_per_byte") if (q := getattr(power, n))}
    energy = (*time, *_guesses({"power.active_w": power.active_w, **dynamic}))
    page_time: tuple[str, ...] = ()
    page_energy: tuple[str, ...] = ()
    chosen = profile.stores.get(profile.default_store)
    if chosen is not None:
        page_time = _guesses(
            _store(chosen, "read_latency_ns", "write_latency_ns", "read_bytes_per_s", "write_bytes_per_s")
        )
        waiting = "active_w" if chosen.cpu_during_transfer == "active" else "idle_w"
        watts = _guesses(_store(chosen, "read_w", "write_w") | {f"power.{waiting}": getattr(power, waiting)})
        page_energy = (*page_time, *watts)
    only_power = power.active_w.source.kind == "estimated" and not dynamic
    return Guessed(time, energy, page_time, page_energy, only_power)


def _store(store: Store, *names: str) -> dict[str, Quantity]:
    return {f"stores.{name}": getattr(store, name) for name in names}


def _guesses(numbers: Mapping[str, Quantity]) -> tuple[str, ...]:
    return tuple(name for name, q in numbers.items() if q.source.kind == "estimated")
