"""The costs of operators, page transfers and moves within RAM on a device: integers in nanoseconds and picojoules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from poetc.devices.features import DEPTHWISE, Features
from poetc.devices.machine import machine_of
from poetc.devices.profile import DeviceProfile, Quantity, Store
from poetc.errors import UsageError, nearest
from poetc.kernels.loops import groups
from poetc.ops import registry, spec
from poetc.runtime.layout import page_bytes

T = TypeVar("T")

# Cycles of integer kernels on a core without an FPU. QEMU counted the instructions on a Cortex-M0; 1.4 cycles for each
# are an estimate. docs/results/integer.md has the counts.
SOFT_MAC, SOFT_DEPTHWISE, SOFT_FLOP = 8.0, 80.0, 56.0


@dataclass(frozen=True, slots=True)
class Cost:
    time_ns: int
    energy_pj: int


class CostModel:
    """The profile's numbers as plain floats, ready to be applied to many operators."""

    def __init__(self, profile: DeviceProfile) -> None:
        compute, power = profile.compute, profile.power
        self._ns_per_mac = 1e9 / compute.contraction_mac_per_s.value
        self._ns_per_flop = 1e9 / compute.elementwise_flop_per_s.value
        self._ns_per_byte = 1e9 / compute.memory_bytes_per_s.value
        self._overhead_ns = float(compute.operator_overhead_ns.value)
        self._efficiency = {kind: float(q.value) for kind, q in compute.efficiency.items()}
        self._loop_ns = compute.loop_ns
        self._ns: dict[str, float | None] = {}  # by loop, since operators have most of theirs in common
        self.machine = machine_of(profile.cpu)
        self._ns_per_cycle = 1e9 / profile.cpu.clock_hz.value
        self._active_pj_per_ns = power.active_w.value * 1000  # 1 W = 1 nJ/ns = 1000 pJ/ns
        self._idle_pj_per_ns = power.idle_w.value * 1000
        self._pj_per_mac = _value(power.pj_per_mac)
        self._pj_per_flop = _value(power.pj_per_flop)
        self._pj_per_byte = _value(power.pj_per_byte)

    def check_kinds(self, known: Iterable[str], device: str) -> None:
        """UsageError for an entry of `efficiency` or `loop_ns` that no operator kind and no loop matches."""
        known = sorted(known)
        for key in (*self._efficiency, *sorted(set(self._loop_ns) - groups())):
            kind = key.removesuffix(DEPTHWISE)
            if kind not in known:
                hint = nearest(kind, [*known, *sorted(groups())], "docs/reference/operators.md names all")
                raise UsageError(f"device profile {device!r}: there is no operator kind {key!r}; {hint}")

    def operator(self, f: Features) -> Cost:
        """The cost of one execution: the measured time of its loops, if they were measured; else the roofline."""
        times = [self._ns_of(name) for name in f.loops]
        if None not in times:
            time = sum(ns * n for ns, n in zip(times, f.loops.values(), strict=True) if ns is not None)
        elif f.is_integer and self.machine.is_soft:  # its rates are those of floats that a library emulates
            per_mac = SOFT_DEPTHWISE if f.cost_class.endswith(DEPTHWISE) else SOFT_MAC
            time = self._overhead_ns + (per_mac * f.macs + SOFT_FLOP * f.flops) * self._ns_per_cycle
        else:
            arithmetic = f.macs * self._ns_per_mac + f.flops * self._ns_per_flop
            roof = max(arithmetic, f.bytes_moved * self._ns_per_byte)
            efficiency = _of_class(self._efficiency, f.cost_class) or 1.0
            time = self._overhead_ns + roof / efficiency
        time_ns = round(time)
        dynamic = f.macs * self._pj_per_mac + f.flops * self._pj_per_flop + f.bytes_moved * self._pj_per_byte
        return Cost(time_ns, round(time_ns * self._active_pj_per_ns + dynamic))

    def _ns_of(self, name: str) -> float | None:
        """Of one round of the loop `group.loop`; 0 where the profile has none of that name in the group.

        None where it does not have the group.
        """
        if name not in self._ns:
            group, _, loop = name.partition(".")
            self._ns[name] = _value(self._loop_ns[group].get(loop)) if group in self._loop_ns else None
        return self._ns[name]

    def move(self, size_bytes: int) -> Cost:
        """The cost of moving so many bytes within RAM: read once, written once."""
        moved = 2 * size_bytes
        time_ns = round(self._overhead_ns + moved * self._ns_per_byte)
        return Cost(time_ns, round(time_ns * self._active_pj_per_ns + moved * self._pj_per_byte))

    def page(self, store: Store, size_bytes: int, *, write: bool, waits: bool = True) -> Cost:
        """The cost of moving a tensor of `size_bytes` and its trailer, in whole blocks.

        `waits`: the processor waits for it, and draws power meanwhile.
        """
        moved = page_bytes(size_bytes, int(store.block_bytes.value))
        return self.stream(store, moved, size_bytes, 1, write=write, waits=waits)

    def waiting_uw(self, store: Store) -> int:
        """The power of the processor while it waits for a transfer."""
        return round(1000 * self._waiting_pj_per_ns(store))

    def stream(
        self, store: Store, moved_bytes: int, data_bytes: int, transfers: int, *, write: bool, waits: bool = True
    ) -> Cost:
        """The cost of so many transfers of `moved_bytes` together, whole blocks, with `data_bytes` to be checked."""
        latency, rate, watts = (
            (store.write_latency_ns, store.write_bytes_per_s, store.write_w)
            if write
            else (store.read_latency_ns, store.read_bytes_per_s, store.read_w)
        )
        waited_ns = round(transfers * latency.value + moved_bytes * 1e9 / rate.value)
        checked_ns = round(data_bytes * _value(store.checksum_cycles_per_byte) * self._ns_per_cycle)
        waiting = self._waiting_pj_per_ns(store) if waits else 0.0
        energy = waited_ns * (watts.value * 1000 + waiting) + checked_ns * self._active_pj_per_ns
        return Cost(waited_ns + checked_ns, round(energy))

    def _waiting_pj_per_ns(self, store: Store) -> float:
        return self._active_pj_per_ns if store.cpu_during_transfer == "active" else self._idle_pj_per_ns


def _of_class(numbers: Mapping[str, T], kind: str) -> T | None:
    """The entry of a profile for a cost class, else for its kind, else for the kind that this one costs like."""
    plain = kind.removesuffix(DEPTHWISE)
    like = spec(plain).cost_like if plain in registry() else ""
    return next((numbers[k] for k in (kind, plain, like + kind[len(plain) :], like) if k in numbers), None)


def _value(quantity: Quantity | None) -> float:
    return 0.0 if quantity is None else float(quantity.value)
