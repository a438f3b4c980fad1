"""The processors of a device: the operators that each runs, and their costs."""

from __future__ import annotations

from poetc.devices.cost import CostModel
from poetc.devices.features import Features
from poetc.devices.profile import MAIN, DeviceProfile, Power
from poetc.errors import UsageError, nearest
from poetc.ops import registry
from poetc.scheduling.problem import Elsewhere, ProcessorSpec

ALL = "all"
AUTO = "auto"  # equal cores of a device that runs Linux, in the way that is best

# sizeof(poetc_processors), rounded up; tests compare them with the compiler's.
MICROCONTROLLER_TEAM_BYTES, TEAM_BYTES = 128, 2048


def parse_processors(text: str, profile: DeviceProfile) -> tuple[str, ...]:
    """The value of --processors: names of those beside the main one.

    "main" and "" are none, "all" is every one, "auto" every equal core of a device that runs Linux.
    """
    if not text:
        return ()
    if text == AUTO:
        return equal_cores(profile)
    listed = [name.strip() for name in text.split(",")]
    if "" in listed:
        raise UsageError(f"--processors {text!r}: a name is empty; leave the option out for the main processor alone")
    if len(set(listed)) < len(listed):
        twice = next(name for name in listed if listed.count(name) > 1)
        raise UsageError(f"--processors {text}: {twice!r} stands there twice")
    names = tuple(name for name in listed if name != MAIN)
    if names == (ALL,):
        if not profile.processors:
            raise UsageError(f"--processors {ALL}: device {profile.name!r} has the main processor alone")
        return tuple(profile.processors)
    if ALL in names and ALL not in profile.processors:
        raise UsageError(f"--processors {text}: {ALL!r} stands for every processor; leave the other names out")
    for name in names:
        if name not in profile.processors:
            hint = nearest(name, profile.processors, f"it has: {', '.join((MAIN, *profile.processors))}")
            raise UsageError(f"--processors {text}: device {profile.name!r} has no processor {name!r}; {hint}")
    return names


def equal_cores(profile: DeviceProfile) -> tuple[str, ...]:
    """The cores beside the main one that are equal to it, where the device runs Linux and kernels have threads."""
    if profile.threads is None or not profile.cpu.core.startswith("cortex-a"):
        return ()
    others = profile.processors.items()
    return tuple(n for n, p in others if not (p.cpu or p.compute or p.kinds or p.precisions))


class OtherProcessor:
    """A processor beside the main one, number `number` of a Problem."""

    def __init__(self, profile: DeviceProfile, name: str, number: int) -> None:
        own = profile.processors[name]
        self.number, self.costs = number, CostModel(profile.on(name))
        self._kinds, self._precisions = frozenset(own.kinds), frozenset(own.precisions)
        for kind in sorted(self._kinds - set(registry())):
            at = f"device profile {profile.name!r}: 'processors.{name}.kinds'"
            hint = nearest(kind, registry(), "docs/reference/operators.md names all")
            raise UsageError(f"{at}: there is no operator kind {kind!r}; {hint}")
        flush = own.flush_bytes_per_s
        self.spec = ProcessorSpec(
            name=name,
            **_microwatts(own.power),
            hand_over_ns=round(own.hand_over_ns.value),
            flush_ps_per_byte=0 if flush is None else round(1e12 / flush.value),
        )

    @property
    def abilities(self) -> str:
        """The operators that it can run, in words."""
        named = (("kinds", self._kinds), ("precisions", self._precisions))
        return " and ".join(f"{what} {', '.join(sorted(names))}" for what, names in named if names) or "all"

    def cost(self, features: Features) -> Elsewhere | None:
        """Time and energy of an operator with these features here; None where this processor does not run it."""
        kind = features.cost_class.partition("/")[0]
        if self._kinds and kind not in self._kinds:
            return None
        if self._precisions and ("i8" if features.is_integer else "f32") not in self._precisions:
            return None
        cost = self.costs.operator(features)
        return Elsewhere(processor=self.number, time_ns=cost.time_ns, energy_pj=cost.energy_pj)


def team_bytes(profile: DeviceProfile, others: int) -> int:
    """RAM that `others` processors beside the main one need in any schedule: a stack each, and the fences."""
    fences = MICROCONTROLLER_TEAM_BYTES if profile.cpu.core.startswith("cortex-m") else TEAM_BYTES
    return others * int(profile.memory.stack_bytes.value) + fences if others else 0


def main_processor(profile: DeviceProfile) -> ProcessorSpec:
    """The first processor of a Problem."""
    return ProcessorSpec(name=MAIN, **_microwatts(profile.power))


def _microwatts(power: Power) -> dict[str, int]:
    return {"active_uw": round(power.active_w.value * 1e6), "idle_uw": round(power.idle_w.value * 1e6)}
