"""A comparison of solvers as a table and as a plot: cost over budget, one line a solver."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from poetc.devices.units import format_bytes, format_gap, format_ns, format_pj
from poetc.planning.comparison import Comparison, Row
from poetc.reporting.choices import scope_sentence

_HEADER = ("solver", "status", "energy", "over once", "gap", "time", "peak")
_WORDS = {
    "infeasible": "does not fit",
    "timeout": "time limit",
    "unsupported": "cannot handle the graph",
    "failed": "failed",
}
# Told apart by colour and, where the colours come round again, by dashes and marks. Ours is black and thick.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MARKS = (  # around the point
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4l4 4l-4 4l-4 -4z",
    "M0 -4l4 7h-8z",
)
_WIDTH, _LEAST_HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 44, 52


def table(comparison: Comparison) -> str:
    """A section a budget, a line a solver, at most 80 columns wide; a solver without a schedule says why in its status.
    Columns that `comparison.csv` has besides: time of the search, arena, recomputations, page transfers.
    """
    sections = []
    for budget in sorted({row.budget_bytes for row in comparison.rows}, reverse=True):
        lines = [_HEADER, *(_cells(comparison, row) for row in comparison.rows if row.budget_bytes == budget)]
        full = [line for line in lines if len(line) == len(_HEADER)]
        widths = [max(len(line[column]) for line in full) for column in range(len(_HEADER))]
        widths[0] = max(len(line[0]) for line in lines)
        share = f"{budget / comparison.keep_all_peak_bytes:.0%}" if comparison.keep_all_peak_bytes else "?"
        head = f"budget {format_bytes(budget)}, {share} of the keep-all peak"
        rows = ("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=False)).rstrip() for line in lines)
        sections.append("\n".join((head, *rows)))
    return "\n\n".join(sections)


def _cells(comparison: Comparison, row: Row) -> tuple[str, ...]:
    name = row.solver + _mark(row)
    if row.energy_pj is None or row.time_ns is None or row.peak_bytes is None:
        return name, _WORDS.get(row.status, row.status)
    return (
        name,
        row.status,
        format_pj(row.energy_pj),
        f"{row.energy_pj / max(1, comparison.compute_once_pj) - 1:+.2%}",
        "" if row.gap is None else format_gap(row.gap),
        format_ns(row.time_ns),
        format_bytes(row.peak_bytes),
    )


def markdown(comparison: Comparison) -> str:
    """A line a solver, a column a budget: the step's cost above compute once, or the reason for none."""
    once = _once(comparison)
    budgets = sorted({row.budget_bytes for row in comparison.rows}, reverse=True)
    cells: dict[str, dict[int, str]] = {}
    for row in comparison.rows:
        cost = _cost(comparison, row)
        text = _WORDS.get(row.status, row.status) if cost is None else f"+{cost / once - 1:.2%}{_mark(row)}"
        cells.setdefault(row.solver, {})[row.budget_bytes] = text
    if comparison.bounds:
        cells["*lower bound*"] = {b: f"*+{bound / once - 1:.2%}*" for b, bound in comparison.bounds.items()}
    lines = [
        "| solver | " + " | ".join(f"{b / comparison.keep_all_peak_bytes:.0%}" for b in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    lines += [f"| {name} | " + " | ".join(row.get(b, "") for b in budgets) + " |" for name, row in cells.items()]
    if comparison.placements:
        lines += ["", f"{placements(comparison)}."]
    if footnotes := marks(comparison):
        lines += ["", footnotes]
    return "\n".join(lines) + "\n"


def _once(comparison: Comparison) -> int:
    """Every operator once, in the unit of the objective, and at least 1."""
    return max(1, comparison.objective.cost(comparison.compute_once_pj, comparison.compute_once_ns))


def _cost(comparison: Comparison, row: Row) -> int | None:
    """None where the solver has no schedule."""
    if row.energy_pj is None or row.time_ns is None:
        return None
    return comparison.objective.cost(row.energy_pj, row.time_ns)


def placements(comparison: Comparison) -> str:
    """The placement of state for all schedules and bounds, in one line; empty for a problem without state to place."""
    if not comparison.placements:
        return ""
    at: dict[str, list[str]] = {}
    for budget, placement in comparison.placements.items():
        at.setdefault(_in_words(placement), []).append(f"{budget / comparison.keep_all_peak_bytes:.0%}")
    parts = [name if len(at) == 1 else f"{name} at {', '.join(budgets)}" for name, budgets in at.items()]
    text = f"Schedules, gaps and bounds are for the same placement of state with every solver: {'; '.join(parts)}"
    own = "`poetc solve` places each tensor, streams operands, and may need less"
    return f"{text}. {own}" if comparison.placement_is_open else text


def _in_words(placement: tuple[int, int]) -> str:
    on_store, in_ram = placement
    if not on_store:
        return "all in RAM"
    return f"{on_store} of {on_store + in_ram} on the store" if in_ram else "all on the store"


def document(comparison: Comparison) -> dict[str, Any]:
    """The answer of `compare --json` and the content of comparison.json."""
    members = dataclasses.asdict(replace(comparison, scopes={}))
    places = {budget: _in_words(placement) for budget, placement in sorted(comparison.placements.items())}
    members["bounds"] = [_bound_document(comparison, b, places.get(b)) for b in sorted(comparison.bounds)]
    members["state_placements"] = [{"budget_bytes": b, "state_placement": name} for b, name in places.items()]
    members["state_placement_is_open"] = members.pop("placement_is_open")
    del members["scopes"], members["placements"]
    members["rows"] = [dataclasses.asdict(row) for row in comparison.rows]
    return members


def _bound_document(comparison: Comparison, budget_bytes: int, state_placement: str | None) -> dict[str, Any]:
    scope = comparison.scopes.get(budget_bytes)
    return {
        "budget_bytes": budget_bytes,
        "bound": comparison.bounds[budget_bytes],
        "schedule_class": "" if scope is None else scope_sentence(scope),
        "scope": None if scope is None else scope.kinds(),
        "state_placement": state_placement,
    }


def table_csv(comparison: Comparison) -> str:
    """The rows of a comparison as CSV, with a head."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [f.name for f in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in comparison.rows)
    return out.getvalue()


def marks(comparison: Comparison) -> str:
    """The meaning of a mark; empty if there is none."""
    marked = any(map(_mark, comparison.rows))
    return "! The schedule fits the budget, its packed arena does not quite." if marked else ""


def _mark(row: Row) -> str:
    return " !" if row.energy_pj is not None and not row.arena_fits else ""


def plot(comparison: Comparison, *, has_legend: bool = True) -> str:
    """SVG: the objective relative to computing once, over the budget relative to keep-all's peak.

    Without a legend the picture ends with the plot, and the page around it has its heading.
    """
    once = _once(comparison)
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in comparison.rows:
        cost = _cost(comparison, row)
        points = lines.setdefault(row.solver, [])
        if cost is not None:
            points.append((row.budget_bytes / comparison.keep_all_peak_bytes, cost / once))
    bounds = [(b / comparison.keep_all_peak_bytes, bound / once) for b, bound in comparison.bounds.items()]
    drawn = {name: sorted(points) for name, points in sorted(lines.items()) if points}
    missing = [name for name, points in sorted(lines.items()) if not points]
    every = [p for points in drawn.values() for p in points] + bounds
    height = max(_LEAST_HEIGHT, _TOP + 17 * (len(drawn) + 1) + 14 * (len(missing) + 1) + 8)  # the legend's lines
    xs, ys = [x for x, _ in every] or [1.0], [y for _, y in every] or [1.0]
    low_x, high_x = min(xs) - 0.02, max(xs) + 0.02
    low_y, high_y = min(1.0, *ys), max(1.001, max(ys)) * 1.02

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        up = height - _BOTTOM - (y - low_y) / (high_y - low_y) * (height - _TOP - _BOTTOM)
        return round(across, 1), round(up, 1)

    width = _WIDTH if has_legend else _WIDTH - _RIGHT + 24
    title = f"{comparison.problem}: {comparison.objective} of a training step over the RAM budget"
    # By itself it keeps its size: on a phone it scrolls and stays legible. In a page the style sheet gives the width.
    natural = f' width="{width}" height="{height}"' if has_legend else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{natural} role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        *([f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>'] if has_legend else []),
    ]
    right, bottom = _WIDTH - _RIGHT, height - _BOTTOM
    for x in sorted(set(xs)):
        across, _ = at(x, low_y)
        parts.append(f'<line x1="{across}" y1="{_TOP}" x2="{across}" y2="{bottom}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{across}" y="{bottom + 18}" text-anchor="middle">{x:.0%}</text>')
    for y in _ticks(low_y, high_y):
        _, up = at(low_x, y)
        parts.append(f'<line x1="{_LEFT}" y1="{up}" x2="{right}" y2="{up}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{up + 4}" text-anchor="end">{y:.3g}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{height - 12}" text-anchor="middle">budget, of keep-all</text>')
    parts.append(
        f'<text transform="translate(16 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{comparison.objective}, of computing once</text>"
    )
    legend = _TOP
    if bounds:
        style = 'stroke="#000000" stroke-width="1"'
        place = legend if has_legend else None
        parts += _line([at(*p) for p in sorted(bounds)], style, "1 3", "M-5 0h10", "lower bound", right, place)
        legend += 17
    for number, (name, points) in enumerate(drawn.items()):
        turn = number // len(_COLOURS) % len(_DASHES)
        style, dash, mark = (
            f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="1.5"',
            _DASHES[turn],
            _MARKS[turn],
        )
        if name == "poetc":
            style, dash, mark = 'stroke="#000000" stroke-width="3"', "", _MARKS[0]
        parts += _line([at(*p) for p in points], style, dash, mark, name, right, legend if has_legend else None)
        legend += 17
    if missing and has_legend:
        parts.append(f'<text x="{right + 14}" y="{legend + 8}" fill="#777777">no schedule:</text>')
        for name in missing:
            legend += 14
            parts.append(f'<text x="{right + 22}" y="{legend + 8}" fill="#777777" font-size="11">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(
    points: Sequence[tuple[float, float]],
    style: str,
    dash: str,
    mark: str,
    name: str,
    right: float,
    legend: float | None,
) -> list[str]:
    """A line through points, with a mark at each that is never dashed."""
    path = " ".join(f"{x},{y}" for x, y in points)
    dashed = f'{style} stroke-dasharray="{dash}"' if dash else style

    def marked(x: float, y: float) -> str:
        return f'<path transform="translate({x} {y})" d="{mark}" fill="none" {style}/>'

    marks = "".join(marked(x, y) for x, y in points)
    drawn = f'<g><title>{escape(name)}</title><polyline points="{path}" fill="none" {dashed}/>{marks}</g>'
    if legend is None:
        return [drawn]
    return [
        drawn,
        f'<line x1="{right + 14}" y1="{legend + 4}" x2="{right + 38}" y2="{legend + 4}" {dashed}/>',
        marked(right + 26, legend + 4),
        f'<text x="{right + 44}" y="{legend + 8}">{escape(name)}</text>',
    ]


def _ticks(low: float, high: float) -> list[float]:
    """About five round values."""
    step = 1e-6
    while (high - low) / step > 8:
        for factor in (2, 2.5, 2):
            step *= factor
            if (high - low) / step <= 8:
                break
    first = int(low / step)
    return [k * step for k in range(first, first + 12) if low - 1e-9 <= k * step <= high + 1e-9]
