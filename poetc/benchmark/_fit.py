"""Measurements → a device profile: a non-negative least-squares fit for each class of operators."""

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
from poetc.devices.features import Features
from poetc.errors import UsageError
from poetc.files import write_text
from poetc.graph import Array

FOLDS = 5
TERMS = ("overhead_ns", "ns_per_mac", "ns_per_flop", "ns_per_byte", "ns_per_row")
SHORTEST_NS = 200  # what the clock resolves: shorter times weigh as much as this one


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
    """Coefficients of one class, in the order of TERMS, and how well they predict."""

    cost_class: str
    coefficients: tuple[float, ...]
    measurements: int
    median_error: float  # |predicted / measured - 1| of measurements that the fit saw
    cross_validated_error: float  # the same, of networks that it did not see
    total_error: float  # of the class's total time, cross-validated: predicted / measured - 1

    def predict(self, features: Features) -> float:
        """Nanoseconds."""
        return float(np.dot(_row(features), self.coefficients))


@dataclass(frozen=True, slots=True)
class Fit:
    classes: Mapping[str, ClassFit]

    def predict(self, features: Features) -> float | None:
        """Nanoseconds; None for a class that was not measured."""
        fitted = self.classes.get(features.cost_class) or self.classes.get(features.cost_class.split("/")[0])
        return None if fitted is None else fitted.predict(features)


def fit(rows: Sequence[Measurement]) -> Fit:
    """Fit every class that was measured, by relative error. Deterministic."""
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.cost_class].append(row)
    return Fit({name: _fit_class(name, groups[name]) for name in sorted(groups)})


def _row(f: Features) -> tuple[float, ...]:
    return (1.0, float(f.macs), float(f.flops), float(f.bytes_moved), float(f.rows))


def _solve(rows: Sequence[Measurement]) -> Array:
    a = np.array([_row(r.features) for r in rows])
    if rows[0].cost_class in PAGE_CLASSES:
        a[:, [1, 2, 4]] = 0.0
    times = np.array([r.time_ns for r in rows], float)
    weights = 1 / np.maximum(times, SHORTEST_NS)
    return nnls(a * weights[:, None], times * weights)


def _errors(coefficients: Array, rows: Sequence[Measurement]) -> list[tuple[float, float]]:
    """(predicted, measured) of each."""
    return [(float(np.dot(_row(r.features), coefficients)), float(r.time_ns)) for r in rows]


def _fit_class(name: str, rows: Sequence[Measurement]) -> ClassFit:
    coefficients = _solve(rows)
    held_out = cross_validate(rows)
    total = sum(m for _, m in held_out)
    return ClassFit(
        cost_class=name,
        coefficients=tuple(float(c) for c in coefficients),
        measurements=len(rows),
        median_error=_median_error(_errors(coefficients, rows)),
        cross_validated_error=_median_error(held_out),
        total_error=sum(p for p, _ in held_out) / total - 1 if total else 0.0,
    )


def cross_validate(rows: Sequence[Measurement]) -> list[tuple[float, float]]:
    """(predicted, measured) of each row, predicted from networks other than its own; folds are of whole networks."""
    names = sorted({r.network for r in rows})
    if len(names) < 2:
        return _errors(_solve(rows), rows)
    fold = {name: i % min(FOLDS, len(names)) for i, name in enumerate(names)}
    result: list[tuple[float, float]] = []
    for k in sorted(set(fold.values())):
        result += _errors(_solve([r for r in rows if fold[r.network] != k]), [r for r in rows if fold[r.network] == k])
    return result


def _median_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Of |predicted - measured| relative to the measurement, or to what the clock resolves."""
    return float(np.median([abs(p - m) / max(m, SHORTEST_NS) for p, m in pairs]))


def write_profile(fitted: Fit, base: DeviceProfile | str, path: Path, *, title: str, source: str) -> DeviceProfile:
    """A profile that inherits `base` and has the fitted kernels and the measured store. Raises UsageError."""
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a profile's file ends in .yaml")
    parent = load_profile(base) if isinstance(base, str) else base
    kernels: dict[str, Any] = {
        name: {term: float(f"{c:.5g}") for term, c in zip(TERMS, f.coefficients, strict=True) if c or term == TERMS[0]}
        for name, f in fitted.classes.items()
        if name not in PAGE_CLASSES
    }
    document: dict[str, Any] = {
        "title": title,
        "inherits": _reference(base, path),
        "sources": {"bench": {"kind": "measured", "text": source}},
        "compute": {"source": "bench", "kernels": kernels},
    }
    store: dict[str, Any] = {}
    for name, word in zip(PAGE_CLASSES, ("write", "read"), strict=True):
        if name in fitted.classes:
            overhead, _, _, per_byte, _ = fitted.classes[name].coefficients
            store[f"{word}_latency_ns"] = round(overhead)
            if per_byte > 0:
                store[f"{word}_bytes_per_s"] = float(f"{1e9 / per_byte:.5g}")
    if store and parent.default_store:
        document["stores"] = {parent.default_store: {"source": "bench", **store}}
    write_text(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))
    return load_profile(path)


def _reference(base: DeviceProfile | str, path: Path) -> str:
    """A profile's name, or its path relative to the file that inherits it."""
    name = base if isinstance(base, str) else base.name
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        return name
    relative = Path(os.path.relpath(name, path.parent)).as_posix()
    return relative if "/" in relative else f"./{relative}"


def fit_document(fitted: Fit) -> dict[str, Any]:
    """What `poetc profile fit --json` prints besides the file."""
    return {"classes": [asdict(f) for f in fitted.classes.values()]}


def fit_text(fitted: Fit) -> str:
    """A table of the classes with their errors."""
    lines = [f"{'operators':<28}{'measured':>9}{'median error':>14}{'cross-validated':>17}{'of the total':>14}"]
    for f in fitted.classes.values():
        errors = f"{f.median_error:>14.1%}{f.cross_validated_error:>17.1%}{f.total_error:>+14.1%}"
        lines.append(f"{f.cost_class:<28}{f.measurements:>9}{errors}")
    return "\n".join(lines)
