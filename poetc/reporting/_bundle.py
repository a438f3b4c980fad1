"""The plans of a bundle and the switches between them, as tables for the text and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poetc.devices.units import format_bytes, format_cost, format_gap, format_ns, format_pj
from poetc.reporting import _words
from poetc.reporting._solved import Solved

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the header, and the rows

EXPLAINED = (
    "A step goes over at a safe point. The wait is the longest time from a request to the end of the switch. The extra "
    "is that of a switched step beyond a step in the new plan alone. A better continuation could save at most the "
    "share in the last column, by proof."
)


def plans(solved: Solved) -> Table:
    """A row for each plan, the largest budget first; no rows where `solved` is no bundle."""
    records = _rows(solved, "plans")
    split = len({str(plan.get("micro_batches")) for plan in records}) > 1
    header = ("plan", "budget", *(("parts",) if split else ()), "peak", "packed", "energy", "time", "gap")
    traces = (solved.trace, *solved.other_traces)
    rows = [
        (
            str(number),
            format_bytes(plan["budget_bytes"]),
            *((str(plan["micro_batches"]),) if split else ()),
            format_bytes(trace.peak_bytes),
            format_bytes(plan["ram_bytes"]),
            format_pj(trace.energy_pj),
            format_ns(trace.time_ns),
            format_gap(plan["gap"]),
        )
        for number, (plan, trace) in enumerate(zip(records, traces, strict=True) if records else ())
    ]
    return header, rows


def switches(solved: Solved) -> Table:
    """A row for each pair of plans."""
    costs = [plan["cost"] for plan in _rows(solved, "plans")]

    def cost(row: Mapping[str, Any], share: str) -> str:
        return format_cost(solved.problem.objective, round(row[share] * costs[row["target"]]))

    header = ("switch", "safe points", "wait", f"extra {solved.problem.objective}, mean", "most", "to save")
    rows = [
        (
            f"{row['source']} to {row['target']}",
            f"{row['switches']} of {row['points']}",
            format_ns(row["longest_ns"]),
            *(f"{_words.percent(row[share])}, {cost(row, share)}" for share in ("mean_extra", "most_extra")),
            format_gap(row["most_gap"]),
        )
        for row in _rows(solved, "switches")
    ]
    return header, rows


def flash(solved: Solved) -> str:
    """The flash that the tables of switches take, in a sentence."""
    document = solved.summary["bundle"]
    limit = document.get("switch_flash_bytes")
    most = "" if limit is None else f" of {format_bytes(limit)} that they may take"
    return f"The tables of switches take {format_bytes(document['switch_bytes'])} of flash{most}."


def _rows(solved: Solved, name: str) -> Sequence[Mapping[str, Any]]:
    return (solved.summary.get("bundle") or {}).get(name) or ()
