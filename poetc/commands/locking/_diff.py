"""The differences between two schedules, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from poetc.artifact import Artifact
from poetc.devices import format_bytes, format_gap, format_ns, format_pj
from poetc.scheduling import Compute, Move, PageIn, PageOut, Problem, verify
from poetc.scheduling.schedule import Schedule

NAMES = 6  # shown in a sentence


@dataclass(frozen=True, slots=True)
class Difference:
    """`sentences` is empty if the schedules do the same; `document` is the answer for `--json`."""

    sentences: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return "\n".join(self.sentences) if self.sentences else "The schedules do the same."


def diff_artifacts(a: Artifact, b: Artifact) -> Difference:
    problem = [*_problem_changes(a.problem, b.problem)]
    totals = _totals(a, b)
    actions = {kind: _counted(a, b, kind) for kind in ("recomputed", "paged out", "paged in", "moved within RAM")}
    sentences = [*problem, *_total_words(totals), *_action_words(actions), *_proof_words(a.schedule, b.schedule)]
    if not sentences:
        first = _first_difference(a, b)
        if first is not None:
            sentences.append(f"Only the order differs, first at action {first}: a tie.")
    document = {
        "same": not sentences,
        "problem": problem,
        "totals": {name: {"before": x, "after": y} for name, (x, y) in totals.items()},
        "actions": {
            kind: {name: {"before": x, "after": y} for name, (x, y) in changes.items()}
            for kind, changes in actions.items()
        },
        "sentences": sentences,
    }
    return Difference(tuple(sentences), document)


# --- the problem ------------------------------------------------------------------------------------------------------


def _problem_changes(a: Problem, b: Problem) -> Iterator[str]:
    if a.name != b.name:
        yield f"The model changed from {a.name} to {b.name}."
    if a.device != b.device:
        yield f"The device changed from {a.device or 'none'} to {b.device or 'none'}."
    if a.budget_bytes != b.budget_bytes:
        yield f"The budget {changed(a.budget_bytes, b.budget_bytes, format_bytes)}."
    if a.deadline_ns != b.deadline_ns:
        shown = [format_ns(p.deadline_ns) if p.deadline_ns is not None else "none" for p in (a, b)]
        yield f"The deadline changed from {shown[0]} to {shown[1]}."
    if a.write_limit_bytes != b.write_limit_bytes:
        shown = ["none" if p.write_limit_bytes is None else format_bytes(p.write_limit_bytes) for p in (a, b)]
        yield f"The limit on bytes written to the store changed from {shown[0]} to {shown[1]}."
    if a.objective != b.objective:
        yield f"The objective changed from {a.objective} to {b.objective}."
    if a.paging != b.paging:
        yield f"Paging changed from {a.paging.value} to {b.paging.value}."
    for what, xs, ys in (
        ("operator", [o.name for o in a.operators], [o.name for o in b.operators]),
        ("tensor", [t.name for t in a.tensors], [t.name for t in b.tensors]),
    ):
        gone, new = _missing(xs, ys), _missing(ys, xs)
        if gone:
            yield f"{_count(len(gone), what)} went: {_list(gone)}."
        if new:
            yield f"{_count(len(new), what)} came: {_list(new)}."
    sizes = {t.name: t.size_bytes for t in a.tensors}
    resized = [t.name for t in b.tensors if sizes.get(t.name, t.size_bytes) != t.size_bytes]
    if resized:
        yield f"{_count(len(resized), 'tensor')} changed in size: {_list(resized)}."
    workspaces = {o.name: o.workspace_bytes for o in a.operators}
    moved = [o for o in b.operators if workspaces.get(o.name, o.workspace_bytes) != o.workspace_bytes]
    if moved:
        shown = [f"{o.name} ({workspaces[o.name]:,} → {o.workspace_bytes:,} bytes)" for o in moved]
        yield f"{_count(len(moved), 'operator')} changed in workspace: {_list(shown)}."
    costs = {o.name: (o.time_ns, o.energy_pj) for o in a.operators}
    repriced = [o.name for o in b.operators if costs.get(o.name, (o.time_ns, o.energy_pj)) != (o.time_ns, o.energy_pj)]
    if repriced:
        yield f"{_count(len(repriced), 'operator')} cost something else: {_list(repriced)}."


def _missing(xs: Iterable[str], ys: Iterable[str]) -> list[str]:
    present = set(ys)
    return [x for x in xs if x not in present]


# --- totals -----------------------------------------------------------------------------------------------------------


def _totals(a: Artifact, b: Artifact) -> dict[str, tuple[int, int]]:
    x, y = (verify(s.problem, s.schedule) for s in (a, b))
    return {
        "energy_pj": (x.energy_pj, y.energy_pj),
        "time_ns": (x.time_ns, y.time_ns),
        "peak_bytes": (int(a.summary["peak_bytes"]), int(b.summary["peak_bytes"])),
        "arena_bytes": (a.plan.arena_bytes, b.plan.arena_bytes),
    }


def _total_words(totals: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    labels = {
        "energy_pj": ("Energy", format_pj),
        "time_ns": ("Time", format_ns),
        "peak_bytes": ("The peak", format_bytes),
        "arena_bytes": ("The packed arena", format_bytes),
    }
    for key, (x, y) in totals.items():
        if x != y:
            name, show = labels[key]
            yield f"{name} {changed(x, y, show)}."


def changed(x: int, y: int, show: Any) -> str:
    """How a number changed, as `show` writes it."""
    change = f" ({(y - x) / x:+.1%})" if x else ""
    shown = (show(x), show(y))
    if shown[0] == shown[1]:
        shown = (f"{x:,}", f"{y:,}")
    return f"{'rose' if y > x else 'fell'} from {shown[0]} to {shown[1]}{change}"


# --- the work done ----------------------------------------------------------------------------------------------------


def _counts(solved: Artifact, kind: str) -> Counter[str]:
    problem, schedule = solved.problem, solved.schedule
    if kind == "recomputed":
        runs = Counter(problem.operators[s.operator].name for s in schedule.actions if isinstance(s, Compute))
        return Counter({name: n - 1 for name, n in runs.items() if n > 1})
    wanted = {"paged out": PageOut, "paged in": PageIn, "moved within RAM": Move}[kind]
    moved = (s for s in schedule.actions if isinstance(s, PageOut | PageIn | Move) and isinstance(s, wanted))
    return Counter(problem.tensors[s.tensor].name for s in moved)


def _counted(a: Artifact, b: Artifact, kind: str) -> dict[str, tuple[int, int]]:
    x, y = _counts(a, kind), _counts(b, kind)
    return {name: (x[name], y[name]) for name in sorted(x.keys() | y.keys()) if x[name] != y[name]}


def _action_words(actions: Mapping[str, Mapping[str, tuple[int, int]]]) -> Iterator[str]:
    for kind, changes in actions.items():
        groups = {
            "now": [n for n, (x, y) in changes.items() if x == 0],
            "no longer": [n for n, (x, y) in changes.items() if y == 0],
        }
        for when, names in groups.items():
            if names:
                yield f"{when.capitalize()} {kind}: {_list(names)}."
        others = [(n, x, y) for n, (x, y) in changes.items() if x and y]
        if others:
            yield f"{kind.capitalize()} another number of times: {_list(f'{n} ({x} → {y})' for n, x, y in others)}."


def _proof_words(a: Schedule, b: Schedule) -> Iterator[str]:
    x, y = a.proof, b.proof
    if x.status != y.status:
        yield f"The proof's status changed from {x.status.value} to {y.status.value}."
    before, after = format_gap(x.gap()), format_gap(y.gap())
    if before != after:
        yield f"The proven gap {'rose' if y.gap() > x.gap() else 'fell'} from {before} to {after}."
    if a.solver != b.solver:
        yield f"The solver changed from {a.solver} to {b.solver}."


def _first_difference(a: Artifact, b: Artifact) -> int | None:
    for i, (x, y) in enumerate(zip(a.schedule.actions, b.schedule.actions, strict=False)):
        if x != y:
            return i
    lengths = len(a.schedule.actions), len(b.schedule.actions)
    return None if lengths[0] == lengths[1] else min(lengths)


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
