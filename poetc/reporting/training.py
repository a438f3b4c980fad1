"""How a training went, for a report: curves over epochs, and a table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from poetc.errors import format_count
from poetc.reporting._solved import Solved
from poetc.reporting.html import html

_HEIGHT, _TICKS = 1000, 4
_ROWS = 500  # of the table: the last ones

Points = Sequence[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    colour: str  # a variable of the page's style sheet
    points: Points


def page(solved: Solved, document: Mapping[str, Any]) -> str:
    """The page of a schedule with a section on the training: `document` is the answer of `poetc train --json`."""
    return html(solved, section(document))


def section(document: Mapping[str, Any]) -> str:
    """HTML: loss, accuracy and learning rate over the epochs."""
    rows = document["epochs"]

    def curve(name: str, colour: str, key: str) -> _Curve:
        return _Curve(name, colour, [(row["epoch"], row[key]) for row in rows])

    charts = (
        ("Loss", (curve("training", "--state", "loss"), curve("validation", "--recomputed", "validation_loss")), "g"),
        ("Accuracy", (curve("validation", "--recomputed", "validation_accuracy"),), "percent"),
        ("Learning rate", (curve("last step of the epoch", "--paged", "rate"),), "g"),
    )
    best = document["best_epoch"]
    drawn = "".join(_chart(title, curves, kind, best) for title, curves, kind in charts if len(rows) > 1)
    early = " Training stopped early." if document["stopped_early"] else ""
    summary = (
        f"{format_count(len(rows), 'epoch')}, {format_count(document['steps'], 'step')}"
        f" of {format_count(document['batch'], 'sample')}, {document['step_ms']:.2f} ms "
        f"each. The weights of epoch {best} were written to {document['output']}.{early}"
    )
    panel = f"{drawn}{_sample(document)}{_table(rows, best)}"
    return f'<section id="training"><h2>Training</h2><p>{escape(summary)}</p>{panel}</section>'


def _sample(document: Mapping[str, Any]) -> str:
    """Texts behind a prompt, before and after the training; empty where none was asked for."""
    sample = document.get("sample")
    if not sample:
        return ""
    rows = "".join(f"<dt>{name}</dt><dd>{escape(sample[name])}</dd>" for name in ("prompt", "before", "after"))
    return f'<h3>Text behind a prompt</h3><dl class="texts">{rows}</dl>'


def _chart(title: str, curves: Sequence[_Curve], kind: str, best: int) -> str:
    """One chart; "" where there is nothing to draw."""
    known = [
        _Curve(c.name, c.colour, [(x, y) for x, y in c.points if y is not None and math.isfinite(y)]) for c in curves
    ]
    known = [c for c in known if c.points]
    if not known:
        return ""
    values = [y for c in known for _, y in c.points if y is not None]
    epochs = [x for c in known for x, _ in c.points]
    low, high = _range(values, kind)
    first, last = min(epochs), max(max(epochs), min(epochs) + 1)

    def across(epoch: float) -> float:
        return (epoch - first) * _HEIGHT / (last - first)

    def up(value: float) -> float:
        return _HEIGHT - (value - low) * _HEIGHT / (high - low)

    lines = "".join(
        f'<polyline style="fill:none;stroke:var({c.colour});stroke-width:2" vector-effect="non-scaling-stroke" '
        f'points="{" ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in c.points if y is not None)}"/>'
        for c in known
    )
    mark = f'<line class="phase" x1="{across(best):.1f}" x2="{across(best):.1f}" y1="0" y2="{_HEIGHT}"/>'
    described = "; ".join(
        f"{c.name} from {_shown(c.points[0][1] or 0.0, kind)} to {_shown(c.points[-1][1] or 0.0, kind)}" for c in known
    )
    name = f"training-{title.split()[0].lower()}"
    svg = (
        f'<svg viewBox="0 0 {_HEIGHT} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(described)}</desc>{mark}{lines}</svg>'
    )
    ticks = "".join(
        f'<span class="y-tick" style="bottom:{n * 100 / _TICKS:g}%"><span>'
        f"{_shown(low + (high - low) * n / _TICKS, kind)}</span></span>"
        for n in range(_TICKS + 1)
    )
    axis = f'<div class="x-axis"><span style="left:0">epoch {first}</span><span class="last">{last}</span></div>'
    legend = "".join(
        f'<li><span class="swatch" style="background:var({c.colour})"></span>{escape(c.name)}</li>' for c in known
    )
    return (
        f"<h3>{escape(title)}</h3>"
        f'<div class="plot"><div class="area" style="height:180px">{ticks}{svg}</div>{axis}</div>'
        f'<ul class="legend">{legend}</ul>'
    )


def _range(values: Sequence[float], kind: str) -> tuple[float, float]:
    """Ends of the axis: losses and rates begin at zero unless they are below it."""
    low, high = min(values), max(values)
    if kind == "percent":
        low = math.floor(low * 20) / 20
        high = min(1.0, math.ceil(high * 20) / 20)
    else:
        low = min(0.0, low)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _shown(value: float, kind: str) -> str:
    return f"{value:.1%}" if kind == "percent" else f"{value:.3g}"


def _table(rows: Sequence[Mapping[str, Any]], best: int) -> str:
    """Without the columns that no epoch has a number for; the accuracy in training where no validation has one."""

    def of(row: Mapping[str, Any], key: str, form: str) -> str:
        value = row.get(key)
        return "" if value is None else format(value, form)

    columns = [
        ("epoch", [f"{row['epoch']} (best)" if row["epoch"] == best else str(row["epoch"]) for row in rows]),
        ("loss", [of(row, "loss", ".4g") for row in rows]),
        ("val. loss", [of(row, "validation_loss", ".4g") for row in rows]),
        ("val. acc.", [of(row, "validation_accuracy", ".2%") for row in rows]),
    ]
    if not any(columns[-1][1]):
        columns.append(("accuracy", [of(row, "accuracy", ".2%") for row in rows]))
    columns += [
        ("rate", [of(row, "rate", ".3g") for row in rows]),
        ("seconds", [of(row, "seconds", ".1f") for row in rows]),
    ]
    columns = [(name, cells) for name, cells in columns if any(cells)]
    heads, lines = [name for name, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))

    head = "".join(f'<th scope="col" class="n">{name}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td class="n">{escape(cell)}</td>' for cell in line) + "</tr>" for line in lines[-_ROWS:]
    )
    more = (
        f'<p class="small">{format_count(len(rows) - _ROWS, "epoch")} before these: not shown.</p>'
        if len(rows) > _ROWS
        else ""
    )
    return (
        '<div class="table epochs" tabindex="0" role="region" aria-label="Epochs"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )
