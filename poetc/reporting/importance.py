"""The importance of updates as a table for a terminal, and as a page with a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from poetc.devices.units import format_bytes
from poetc.planning.importance import Importance, update_text
from poetc.reporting._words import shorten
from poetc.training import Whole

__all__ = ["curve", "html", "rows", "update_text"]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Importance of updates</title>
<style>body{{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}} .plot,.table{{overflow-x:auto}}
.plot svg{{display:block;width:100%;min-width:44rem;height:auto}} h2{{overflow-wrap:anywhere}}
th,td{{padding:.1rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left;max-width:22rem;overflow:hidden;text-overflow:ellipsis}}</style></head>
<body><h1>Importance of updates</h1>
<p>{name}. Method: {by}. Unit: {unit}. The numbers of a set of updates add up; one update of a parameter counts.</p>
<div class="plot">{chart}</div>
<div class="table"><table><tr>{head}</tr>{body}</table></div></body></html>
"""
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f", "#edc948", "#76b7b2")
_ROW, _LABEL, _WIDTH = 14, 300, 900  # of the plot
_APART = 70  # of the labels of budgets, at least


def columns(importance: Importance) -> list[str]:
    """The kinds of updates, whole parameters first."""
    whole = update_text(Whole())
    return sorted(
        {update_text(c.update) for c in importance.candidates}, key=lambda text: (text != whole, _order(text))
    )


def _order(text: str) -> tuple[int, float, str]:
    number = text.removeprefix("lora:").partition(":")[0]
    above, slash, below = number.partition("/")
    try:
        return (0, -int(above) / int(below), text) if slash else (1, float(number), text)
    except ValueError:
        return 2, 0.0, text


def rows(importance: Importance) -> list[tuple[str, dict[str, float]]]:
    """Each parameter with the importance of its updates, in the order of the model."""
    by_parameter: dict[str, dict[str, float]] = {}
    for candidate in importance.candidates:
        by_parameter.setdefault(candidate.parameter, {})[update_text(candidate.update)] = candidate.importance
    return list(by_parameter.items())


def html(importance: Importance) -> str:
    """The page: bars for each parameter, and the table."""
    names = columns(importance)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("parameter", *names))
    body = "".join(
        f'<tr><td title="{escape(parameter)}">{escape(shorten(parameter, 48))}</td>'
        + "".join(f"<td>{f'{values[n]:.4g}' if n in values else ''}</td>" for n in names)
        + "</tr>"
        for parameter, values in rows(importance)
    )
    return _PAGE.format(
        name=escape(importance.name or "A model"),
        by=escape(importance.by),
        unit=escape(importance.unit or "the file's own"),
        chart=svg(importance),
        head=head,
        body=body,
    )


def svg(importance: Importance) -> str:
    """A bar for each parameter: the largest importance of its updates, and marks for the others."""
    names, parameters = columns(importance), rows(importance)
    most = max((c.importance for c in importance.candidates), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL - 10) / most
    parts: list[str] = []
    for k, (parameter, values) in enumerate(parameters):
        y = 24 + k * _ROW
        label = escape(shorten(parameter, 46))
        parts.append(f'<text x="{_LABEL - 6}" y="{y + 10}" text-anchor="end" font-size="10">{label}</text>')
        for name, value in sorted(values.items(), key=lambda entry: -entry[1]):
            width = max(0.0, value) * scale
            title = f"{parameter} {name}: {value:.4g}"
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{_colour(names, name)}">'
                f"<title>{escape(title)}</title></rect>"
            )
    x = _LABEL
    for name in names:
        parts.append(f'<rect x="{x}" y="6" width="10" height="10" fill="{_colour(names, name)}"/>')
        parts.append(f'<text x="{x + 14}" y="15" font-size="11">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    height = 30 + _ROW * len(parameters)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
        f"<title>Importance of each update</title>{''.join(parts)}</svg>"
    )


def _colour(names: Sequence[str], name: str) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)]


def curve(points: Sequence[tuple[int, float, float, float]]) -> str:
    """SVG: importance over budget as a share of that of all updates, with the bound on all sets dotted.

    `points`: (budget in bytes, importance of the best set, bound, importance of all updates), by budget.
    """
    width, height, left, right, top, bottom = 700, 320, 70, 44, 24, 50
    low, high = points[0][0], max(points[-1][0], points[0][0] + 1)

    def at(budget: int, part: float) -> tuple[float, float]:
        across = left + (budget - low) / (high - low) * (width - left - right)
        return round(across, 1), round(height - bottom - part * (height - top - bottom), 1)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
        ' font-size="12"><title>Importance of the updates over the RAM budget</title>'
    ]
    for tenth in range(0, 11, 2):
        _, up = at(low, tenth / 10)
        parts.append(f'<line x1="{left}" y1="{up}" x2="{width - right}" y2="{up}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{left - 6}" y="{up + 4}" text-anchor="end">{tenth / 10:.0%}</text>')
    labelled = math.inf
    for budget, *_ in reversed(points):
        across, down = at(budget, 0)
        if labelled - across < _APART:
            continue
        labelled = across
        parts.append(f'<text x="{across}" y="{down + 18}" text-anchor="middle">{format_bytes(budget)}</text>')
    for column, style in ((2, 'stroke="#000000" stroke-dasharray="1 3"'), (1, 'stroke="#4e79a7" stroke-width="2"')):
        places = [at(point[0], point[column] / (point[3] or 1.0)) for point in points]
        line = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline fill="none" {style} points="{line}"/>')
        if column == 1:
            parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="#4e79a7"/>' for x, y in places]
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">RAM budget</text></svg>'
    )
    return "".join(parts)
