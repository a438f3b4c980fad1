"""Measurements → a device profile: the time of a pass of each loop, by non-negative least squares."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from poetc.benchmark._measure import PAGE_CLASSES, Measurement
from poetc.devices import DeviceProfile, load_profile
from poetc.devices.modelled import is_modelled
from poetc.errors import UsageError
from poetc.files import write_text
from poetc.graph import Array

FOLDS = 5
NOTHING_BYTES_PER_S = 1e12
MOST_OF_WIDE = 2.0  # passes of a loop's vectors that an element alone takes, at most: elementary functions are near it
SHORTEST_NS = 200  # the resolution of the clock: shorter times weigh as much as this one


def nnls(a: Array, b: Array) -> Array:
    """argmin |a x - b| over x >= 0 (Lawson and Hanson 1974, ch. 23), with columns scaled to length 1."""
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    n = a.shape[1]
    x, passive = np.zeros(n), np.zeros(n, bool)
    for _ in range(10 * n):
        gradient = a.T @ (b - a @ x)
        gradient[passive] = -math.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10 * max(1.0, float(np.linalg.norm(b))):
            break
        passive[best] = True
        while passive.any():
            z = np.zeros(n)
            z[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
            if (z[passive] > 0).all():
                x = z
                break
            falling = passive & (z <= 0)
            ratio = np.full(n, math.inf)
            ratio[falling] = x[falling] / np.maximum(x[falling] - z[falling], 1e-300)
            first = int(np.argmin(ratio))  # the one that reaches zero first leaves, whatever rounding says
            x = x + ratio[first] * (z - x)
            passive[first] = False
            passive &= x > 0
            x[~passive] = 0.0
    return np.asarray(x / scale)


@dataclass(frozen=True, slots=True)
class ClassFit:
    """How well the operators of one class are predicted. Errors are |predicted / measured - 1|."""

    cost_class: str
    measurements: int
    median_error: float  # of measurements that the fit saw
    cross_validated_error: float  # the same, of networks that it did not see
    total_error: float  # of the class's total time, cross-validated: predicted / measured - 1


@dataclass(frozen=True, slots=True)
class Fit:
    """`loop_ns` maps "group.loop" to the time of one pass; loops that cost nothing are there with 0."""

    loop_ns: Mapping[str, float]
    classes: Mapping[str, ClassFit]
    simd: str
    first_cache_bytes: int
    cache_bytes: int


def fit(rows: Sequence[Measurement]) -> Fit:
    """The time of a pass of every loop, by relative error.

    Groups that share no kernel are fitted apart. Deterministic. Raises UsageError if the rows are of different vectors.
    """
    kinds = sorted({(row.simd, row.first_cache_bytes, row.cache_bytes) for row in rows})
    if len(kinds) > 1:
        shown = ", ".join(f"{simd} with {first} and {second} B of cache" for simd, first, second in kinds)
        raise UsageError(f"the measurements are of different processors or flags: {shown}")
    loop_ns: dict[str, float] = {}
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    held_out: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for together in _components(rows):
        group_ns = _solve(together)
        loop_ns |= group_ns
        for row, predicted in zip(together, cross_validate(together), strict=True):
            seen[row.cost_class].append((_predict(group_ns, row.loops), row.time_ns))
            held_out[row.cost_class].append((predicted, row.time_ns))
    classes = {name: _class_fit(name, seen[name], held_out[name]) for name in sorted(seen)}
    return Fit(dict(sorted(loop_ns.items())), classes, *kinds[0])


def least(runs: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """The least times of several runs: the time that other work on the machine added is left out."""
    shortest: dict[tuple[Any, ...], Measurement] = {}
    for rows in runs:
        times: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in rows:
            what = (row.network, row.operator, row.cost_class, row.simd, row.cache_bytes, tuple(row.loops.items()))
            times[what] += 1
            key = (*what, times[what])
            if key not in shortest or row.time_ns < shortest[key].time_ns:
                shortest[key] = row
    return list(shortest.values())


def _predict(loop_ns: Mapping[str, float], loops: Mapping[str, int]) -> float:
    return sum(loop_ns.get(name, 0.0) * n for name, n in loops.items())


def _components(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """Rows by the groups of loops that occur together in some row, directly or over others."""
    leader: dict[str, str] = {}

    def find(group: str) -> str:
        while (up := leader.setdefault(group, group)) != group:
            group = up
        return group

    for row in rows:
        groups = sorted({name.split(".")[0] for name in row.loops})
        for group in groups[1:]:
            leader[find(group)] = find(groups[0])
    parts: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        parts[find(min(row.loops).split(".")[0])].append(row)
    return list(parts.values())


def _solve(rows: Sequence[Measurement]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row.loops})
    index = {name: i for i, name in enumerate(names)}
    times = np.array([row.time_ns for row in rows], float)
    weights = 1 / np.sqrt(np.maximum(times, SHORTEST_NS))  # so that sums come out right
    a = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        for name, n in row.loops.items():
            a[i, index[name]] = n * weights[i]
    # Few elements are single, about as many in every row, so that they stood for whatever has no loop of its own. A
    # part of the time of a pass of the vectors is that of the single one, and the rest is not negative. Not where a
    # library computes with floats: times of passes depend on the operands there.
    tails = [(i, index[other]) for i, name in enumerate(names) if (other := _vectors_of(name)) in index]
    if rows[0].simd == "none":
        tails = []
    for single, wide in tails:
        a[:, single] += a[:, wide] / MOST_OF_WIDE
    solution = nnls(a, times * weights)
    for single, wide in tails:
        solution[wide] += solution[single] / MOST_OF_WIDE
    return dict(zip(names, map(float, solution), strict=True))


def _vectors_of(loop: str) -> str:
    """The loop over whole vectors, or registers of four, whose rest `loop` goes through one by one; "" for others."""
    group, _, kind = loop.rpartition(".")
    return f"{group}.wide" if kind == "single" else ""


def _class_fit(name: str, seen: Sequence[tuple[float, float]], held_out: Sequence[tuple[float, float]]) -> ClassFit:
    total = sum(m for _, m in held_out)
    return ClassFit(
        cost_class=name,
        measurements=len(seen),
        median_error=_median_error(seen),
        cross_validated_error=_median_error(held_out),
        total_error=sum(p for p, _ in held_out) / total - 1 if total else 0.0,
    )


def cross_validate(rows: Sequence[Measurement]) -> list[float]:
    """Each row's time, predicted from networks other than its own.

    Folds are of whole networks, those of the same shapes together.
    """
    parts = [r.network.rpartition("/")[2] for r in rows]
    names = sorted(set(parts))
    folds = min(FOLDS, len(names))
    number = {name: i % folds for i, name in enumerate(names)}
    fold = [number[part] for part in parts]
    result = [0.0] * len(rows)
    for k in range(folds):
        of_others = _solve([r for i, r in enumerate(rows) if fold[i] != k or folds == 1])
        for i, row in enumerate(rows):
            if fold[i] == k:
                result[i] = _predict(of_others, row.loops)
    return result


def _median_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Errors of |predicted - measured| relative to the measurement, or to the resolution of the clock."""
    return float(np.median([abs(p - m) / max(m, SHORTEST_NS) for p, m in pairs]))


def write_profile(
    fitted: Fit, base: DeviceProfile | str, path: Path, *, title: str, source: str, store_only: bool = False
) -> DeviceProfile:
    """A profile that inherits `base` and has the measured loops and store, or with `store_only` just the store.

    Raises UsageError, also where the measurements are of another kind of processor than `base`.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a profile's file ends in .yaml")
    parent = load_profile(base) if isinstance(base, str) else base
    _require_kin(fitted, parent)
    loops: dict[str, Any] = {"source": "bench"}
    for name, ns in fitted.loop_ns.items():
        group, loop = name.split(".", 1)
        if group not in PAGE_CLASSES:
            table = loops.setdefault(group, {})
            if ns or loop == "call":
                table[loop] = float(f"{ns:.5g}")
    document: dict[str, Any] = {
        "title": title,
        "inherits": reference(base, path),
        "sources": {"bench": {"kind": "measured", "text": source}},
    }
    if not store_only:
        for group, inherited in parent.compute.loop_ns.items():  # nothing of another machine's
            if is_modelled(inherited):
                continue
            known = loops.get(group)
            loops[group] = None if known is None else {**dict.fromkeys(inherited.keys() - known.keys()), **known}
        measured = {group: {"call": 0.0} if table == {} else table for group, table in loops.items()}
        document["compute"] = {"loop_ns": measured}
    if fitted.simd != parent.cpu.simd:
        document["cpu"] = {"simd": fitted.simd}
    if fitted.cache_bytes:
        caches = {"first_cache_bytes": fitted.first_cache_bytes, "cache_bytes": fitted.cache_bytes}
        document["memory"] = {name: {"value": size, "source": "bench"} for name, size in caches.items()}
    store: dict[str, Any] = {}
    for name, word in zip(PAGE_CLASSES, ("write", "read"), strict=True):
        if name in fitted.classes:
            store[f"{word}_latency_ns"] = round(fitted.loop_ns[f"{name}.call"])
            per_byte = fitted.loop_ns[f"{name}.byte"]  # nothing: as fast as the processor moves it
            store[f"{word}_bytes_per_s"] = float(f"{1e9 / per_byte:.5g}") if per_byte > 0 else NOTHING_BYTES_PER_S
    if checked := [fitted.loop_ns[n] for c in PAGE_CLASSES if (n := f"{c}.checked") in fitted.loop_ns]:
        cycles = sum(checked) / len(checked) * parent.cpu.clock_hz.value / 1e9
        store["checksum_cycles_per_byte"] = float(f"{cycles:.4g}")
    if store and parent.default_store:
        document["stores"] = {parent.default_store: {"source": "bench", **store}}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    write_text(path, text)
    return load_profile(path)


def _require_kin(fitted: Fit, parent: DeviceProfile) -> None:
    """A computer that measured itself knows its caches and may have any vectors; a board's are those of its profile."""
    if parent.cpu.core == "native":
        if fitted.cache_bytes == 0:
            raise UsageError(
                f"the measurements are of a board (vectors: {fitted.simd}, no caches), --like {parent.name} is of a"
                " computer: name the board's profile, such as --like qemu-mps2-an386"
            )
    elif fitted.simd != parent.cpu.simd:
        raise UsageError(
            f"the measurements are of a processor with other vectors ({fitted.simd}) than --like {parent.name}"
            f" ({parent.cpu.simd})"
        )


def reference(base: DeviceProfile | str, path: Path) -> str:
    """A profile's name, or its path relative to the file that inherits it."""
    name = base if isinstance(base, str) else base.name
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        return name
    relative = Path(os.path.relpath(name, path.parent)).as_posix()
    return relative if "/" in relative else f"./{relative}"


def fit_document(fitted: Fit) -> dict[str, Any]:
    """The part of the answer of `poetc profile fit --json` besides the file."""
    return {"classes": [asdict(f) for f in fitted.classes.values()]}


def fit_text(fitted: Fit) -> str:
    """A table of the classes with their errors."""
    lines = [f"{'operators':<28}{'measured':>9}{'median error':>14}{'cross-validated':>17}{'of the total':>14}"]
    for f in fitted.classes.values():
        errors = f"{f.median_error:>14.1%}{f.cross_validated_error:>17.1%}{f.total_error:>+14.1%}"
        lines.append(f"{f.cost_class:<28}{f.measurements:>9}{errors}")
    return "\n".join(lines)
