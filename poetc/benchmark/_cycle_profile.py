"""A device profile with times of the kernels by a pipeline model: `poetc profile fit --cycles`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import yaml

from poetc.benchmark._pipeline import ClassCycles, Model, measure_class_cycles, missing_model, model_of, tool_for
from poetc.benchmark._profile_fit import reference
from poetc.boards import Core
from poetc.devices import DeviceProfile, load_profile
from poetc.devices.cost import CostModel
from poetc.devices.features import features_of
from poetc.devices.machine import machine_of
from poetc.devices.modelled import with_modelled_loops
from poetc.devices.profile import Cycles, Quantity, Source
from poetc.errors import UsageError
from poetc.files import write_text
from poetc.graph import DType, Role, TensorType
from poetc.ops import Builder

# Emulated boards whose profiles count the cycles of kernels by a core's table, or their instructions; nearest first.
_COUNTED = ("qemu-virt-a72", "qemu-virt-a76", "qemu-mps3-an547", "qemu-mps2-an500", "qemu-mps2-an386")
_COUNTED_SOFT = ("qemu-mps2-an385", "qemu-mps2-an385-m0")
# The band beyond the quartiles of a class's loops, of a model of this core and of the nearest one's; likewise of a
# table.
_EXACT, _NEAREST = 0.9, 0.75
# Cycles of a load from the second level of cache: https://www.7-cpu.com/cpu/Cortex-A53.html, .../Cortex-A57.html,
# .../Cortex-A72.html and .../Cortex-A76.html. Half is taken as hidden by the prefetcher.
_SECOND_CYCLES = {"cortex-a53": 15, "cortex-a57": 21, "cortex-a72": 21, "cortex-a76": 11}
_LINE_BYTES = 64
_SIDE, _ELEMENTS = 96, 4096  # of the product and of the sum whose rates stand for kernels that have no counted loops


def fit_cycles(
    base: str,
    path: Path,
    *,
    title: str = "",
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[DeviceProfile, Mapping[str, ClassCycles], str]:
    """Write a profile that inherits `base` and has the model's cycles; it, the cycles and the source's text.

    `note` hears of a better model that is not installed. Raises UsageError, and leaves no file, where there is no
    model, compiler or llvm-mca for the core.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a profile's file ends in .yaml")
    parent = load_profile(base)
    core = Core(parent.cpu.core, parent.cpu.fpu, parent.cpu.simd)
    model = model_of(core.name)
    counted = counted_like(parent)
    classes = measure_class_cycles(core, parent.cpu.numerics, progress)
    text = _source_text(core.name, counted.cpu.core, model)
    own = model.exact if model is not None else counted.cpu.core == core.name
    section = _section(parent, counted.name, classes, own)
    rates = _rates(parent, counted, section, text)
    document: dict[str, Any] = {
        "title": title or f"{parent.title}, modelled",
        "inherits": reference(base, path),
        "sources": {
            "pipeline": {"kind": "modelled", "text": text},
            "waits": {"kind": "derived", "text": _WAITS},
        },
        "compute": {
            **{key: {**value, "source": "pipeline"} for key, value in rates.items()},
            "cycles": section,
        },
    }
    if missing := missing_model(core.name):
        note(missing)
    write_text(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None))
    return load_profile(path), classes, text


_WAITS = (
    "half of the latency of the second cache for each line of 64 bytes (7-cpu.com), and the bandwidth of RAM;"
    " low: hidden by prefetching, high: the whole latency, and half of the bandwidth"
)


def counted_like(profile: DeviceProfile) -> DeviceProfile:
    """The emulated board that counts the loops of the same kernels. Raises UsageError if there is none."""
    machine = machine_of(profile.cpu)
    boards = [load_profile(name) for name in (_COUNTED_SOFT if machine.is_soft else _COUNTED)]
    kin = [b for b in boards if machine_of(b.cpu) == machine and (b.cpu.simd == "neon") == (profile.cpu.simd == "neon")]
    same = [b for b in kin if b.cpu.core.removesuffix("plus") == profile.cpu.core.removesuffix("plus")]
    if not kin:
        raise UsageError(f"the loops of the kernels were counted on no board like {profile.cpu.core}")
    return (same or kin[-1:])[0]


def _source_text(core: str, counted: str, model: Model | None) -> str:
    if model is None:
        nearest = "" if core == counted else f", the nearest to {core}"
        return f"cycles by Arm's table of the {counted}{nearest}, counted on an emulated board"
    nearest = "" if model.exact else f" the nearest to {core},"
    return f"llvm-mca {tool_for(model)[1]}, {model.scheduler} model,{nearest} on the innermost loops of the kernels"


def _section(profile: DeviceProfile, counted: str, classes: Mapping[str, ClassCycles], own: bool) -> dict[str, Any]:
    """`own`: the model or table is of this very core."""
    slack = _EXACT if own else _NEAREST
    table: dict[str, Any] = {"source": "pipeline"}
    for name, c in classes.items():
        table[name] = {"value": _short(c.per_instruction), "low": _short(c.low * slack), "high": _short(c.high / slack)}
    section: dict[str, Any] = {"counted": counted, "per_instruction": table}
    clock_hz, memory = profile.cpu.clock_hz.value, profile.memory
    if memory.cache_bytes is not None and memory.first_cache_bytes is not None:
        if (latency := _SECOND_CYCLES.get(profile.cpu.core)) is not None:
            whole = latency * 1e9 / clock_hz / _LINE_BYTES
            section["second_ns_per_byte"] = {
                "value": _short(whole / 2), "low": 0.0, "high": _short(whole), "source": "waits"
            }  # fmt: skip
        far = 1e9 / profile.compute.memory_bytes_per_s.value
        section["far_ns_per_byte"] = {
            "value": _short(far), "low": _short(far / 2), "high": _short(2 * far), "source": "waits"
        }  # fmt: skip
    return section


def _rates(
    profile: DeviceProfile, counted: DeviceProfile, section: Mapping[str, Any], text: str
) -> dict[str, dict[str, float]]:
    """The roofline's rates of a product and of a sum as the model prices them, for kernels without counted loops."""
    source = Source(kind="modelled", text=text)
    per = {
        name: Quantity(value=q["value"], low=q["low"], high=q["high"], source=source)
        for name, q in section["per_instruction"].items()
        if name != "source"
    }
    bare = msgspec.structs.replace(
        profile.compute, loop_ns={}, cycles=Cycles(counted=counted.name, per_instruction=per)
    )
    costs = CostModel(with_modelled_loops(msgspec.structs.replace(profile, compute=bare), counted, profile.name))
    builder = Builder()
    square, line = TensorType((_SIDE, _SIDE), DType.F32), TensorType((_ELEMENTS,), DType.F32)
    for name, kind in (("a", square), ("b", square), ("x", line), ("y", line)):
        builder.add_tensor(name, kind, Role.INPUT)
    builder.emit1("MatMul", ["a", "b"])
    builder.emit1("Add", ["x", "y"])
    product, total = (
        costs.operator(features_of(op, builder.tensors, costs.machine)).time_ns for op in builder.operators
    )
    return {
        "contraction_mac_per_s": {"value": _short(_SIDE**3 * 1e9 / product)},
        "elementwise_flop_per_s": {"value": _short(_ELEMENTS * 1e9 / total)},
    }


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def cycles_document(classes: Mapping[str, ClassCycles]) -> dict[str, Any]:
    """The part of the answer of `poetc profile fit --cycles --json` besides the file."""
    return {"classes": {name: asdict(c) for name, c in classes.items()}}


def cycles_text(classes: Mapping[str, ClassCycles]) -> str:
    """A table of cycles an instruction."""
    lines = [f"{'kernels':<16}{'cycles an instruction':>22}{'low':>8}{'high':>8}{'loops':>8}"]
    for name, c in classes.items():
        lines.append(f"{name:<16}{c.per_instruction:>22.2f}{c.low:>8.2f}{c.high:>8.2f}{c.loops:>8}")
    return "\n".join(lines)
