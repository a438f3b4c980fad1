"""Writes a new profile: the differences from a base, each number with a source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from poetc.devices.loading import load_profile
from poetc.devices.profile import DeviceProfile, SourceKind
from poetc.errors import UsageError
from poetc.files import read_file, write_bytes, write_text

RATES = ("contraction_mac_per_s", "elementwise_flop_per_s", "memory_bytes_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProfile:
    """The known numbers of a device; None: as the base has it.

    Throughput that is not given is the base's, scaled by the clock.
    """

    title: str
    inherits: str
    core: str | None = None
    clock_hz: int | None = None
    ram_bytes: int | None = None
    flash_bytes: int | None = None
    mac_per_s: float | None = None
    active_w: float | None = None
    idle_w: float | None = None
    source_kind: SourceKind = "estimated"
    source_text: str = "not measured; replace it with a measurement of your board"


def create_profile(new: NewProfile, path: Path, *, force: bool = False) -> DeviceProfile:
    """Write the YAML file; the profile that it is. With `force` a file of that name is replaced.

    Raises UsageError if it is not valid, and leaves the file that was there, or none.
    """
    if len(new.title.strip().splitlines()) != 1:
        raise UsageError(f"--title {new.title!r}: give one line of text")
    before = read_file(path) if path.exists() else None
    if before is not None and not force:
        raise UsageError(f"{path}: exists; choose another file with -o, or replace it with --force")
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a profile's file ends in .yaml")
    base = load_profile(new.inherits)
    write_text(path, yaml.safe_dump(_document(new, base), sort_keys=False, allow_unicode=True, width=110))
    try:
        return load_profile(path)
    except UsageError:
        if before is None:
            path.unlink()
        else:
            write_bytes(path, before)
        raise


def _document(new: NewProfile, base: DeviceProfile) -> dict[str, Any]:
    sources: dict[str, Any] = {"given": {"kind": new.source_kind, "text": new.source_text}}
    document: dict[str, Any] = {"title": new.title, "inherits": new.inherits, "sources": sources}

    def put(section: str, **values: Any) -> None:
        fields = {key: value for key, value in values.items() if value is not None}
        if fields:
            document.setdefault(section, {"source": "given"}).update(fields)

    put("cpu", core=new.core, clock_hz=new.clock_hz)
    put("memory", ram_bytes=new.ram_bytes, flash_bytes=new.flash_bytes)
    if new.ram_bytes is not None and base.memory.banks:
        document["memory"]["banks"] = dict.fromkeys(base.memory.banks)  # the base's memory map is not this board's
    put("compute", contraction_mac_per_s=new.mac_per_s)
    if base.compute.cycles is not None and (new.mac_per_s is not None or new.core not in (None, base.cpu.core)):
        document.setdefault("compute", {})["cycles"] = None  # they are of the base's core, and count before rates
    put("power", active_w=new.active_w, idle_w=new.idle_w)
    if new.clock_hz is not None and new.clock_hz != base.cpu.clock_hz.value:
        ratio = new.clock_hz / base.cpu.clock_hz.value
        text = f"that of {base.name} scaled by the clock, {new.clock_hz:,} / {int(base.cpu.clock_hz.value):,}"
        sources["scaled"] = {"kind": "derived", "text": text}
        compute = document.setdefault("compute", {"source": "given"})
        for key in RATES:
            value = getattr(base.compute, key).value * ratio
            compute.setdefault(key, {"value": float(f"{value:.6g}"), "source": "scaled"})
        overhead = base.compute.operator_overhead_ns.value / ratio
        compute["operator_overhead_ns"] = {"value": round(overhead), "source": "scaled"}
    return document
