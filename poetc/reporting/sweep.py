"""A sweep as one page: cost over budget with its proven bound, a plot for each model on each device.

Where updates are chosen, each budget has another training step: then the plot is of importance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from poetc.devices.units import format_bytes, format_gap, format_pj
from poetc.planning.comparison import Comparison, Row
from poetc.reporting.comparison import plot
from poetc.reporting.importance import curve
from poetc.scheduling import Objective

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Sweep</title>
<style>body{{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}}
.plot,.table{{overflow-x:auto}} h2{{overflow-wrap:anywhere}}
.plot svg{{display:block;width:100%;min-width:34rem;height:auto}}
th,td{{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap}}</style></head>
<body><h1>{title} over RAM budget</h1>
<p>Time and energy are modelled from the device profile, not measured. {line}</p>
{sections}</body></html>
"""

_IMPORTANCE = (
    "The plot shows the importance of the updates that are trained. The dotted line is a proven bound on all sets of"
    " updates without encodings of saved tensors."
)


def html(results: Sequence[Mapping[str, Any]]) -> str:
    """The page of the results of `poetc.commands.sweep`; groups without any schedule are tables of reasons alone."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["model"], result["device"]), []).append(result)
    chosen = any(r.get("importance") is not None for r in results)
    return _PAGE.format(
        title="Importance" if chosen else "Energy",
        line=(_IMPORTANCE if chosen else "The dotted line is a proven lower bound."),
        sections="".join(_section(*name, rows) for name, rows in groups.items()),
    )


def _section(model: str, device: str, results: Sequence[Mapping[str, Any]]) -> str:
    solved = sorted((r for r in results if "energy_pj" in r), key=lambda r: r["budget_bytes"])
    heading = f"<h2>{escape(model)} on {escape(device)}</h2>"
    chart = ""
    chosen = [r for r in solved if r.get("importance") is not None]
    if chosen:
        points = [(r["budget_bytes"], r["importance"], r["importance_bound"], r["importance_total"]) for r in chosen]
        chart = f'<div class="plot">{curve(points)}</div>'
    elif solved:
        chart = f'<div class="plot">{plot(_as_comparison(model, device, solved), has_legend=False)}</div>'
    rows = [
        (
            str(r["budget"] or "all RAM"),
            r["status"],
            format_pj(r["energy_pj"]),
            format_gap(r["gap"]),
            format_bytes(r["peak_bytes"]),
            importance_cell(r),
        )
        for r in solved
    ]
    rows += [
        (str(r["budget"] or "all RAM"), r["status"], r["error"], "", "", "") for r in results if "energy_pj" not in r
    ]
    cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    head = "".join(
        f"<th>{c}</th>" for c in ("budget", "status", "energy", "gap", "peak", "importance" if chosen else "")
    )
    return f'{heading}{chart}<div class="table"><table><tr>{head}</tr>{cells}</table></div>'


def importance_cell(result: Mapping[str, Any]) -> str:
    """The share of all importance, and that which no set exceeds; "" where updates were not chosen."""
    if result.get("importance") is None:
        return ""
    total = result["importance_total"] or 1.0
    return f"{result['importance'] / total:.1%} (no set above {result['importance_bound'] / total:.1%})"


def _as_comparison(model: str, device: str, solved: Sequence[Mapping[str, Any]]) -> Comparison:
    first = solved[0]
    return Comparison(
        problem=f"{model} on {device}",
        device=device,
        objective=Objective.ENERGY,
        operators=first["operators"],
        keep_all_peak_bytes=first["keep_all_peak_bytes"],
        compute_once_pj=first["compute_once_pj"],
        compute_once_ns=1,
        deadline_ns=None,
        bounds={r["budget_bytes"]: r["energy_bound_pj"] for r in solved},
        rows=tuple(
            Row(
                solver="poetc",
                budget_bytes=r["budget_bytes"],
                status=r["status"],
                seconds=r["solve_seconds"],
                energy_pj=r["energy_pj"],
            )
            for r in solved
        ),
    )
