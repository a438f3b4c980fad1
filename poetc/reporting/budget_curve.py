"""Cost over budget, for a report: the result of `poetc.planning.curve`, as a plot and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from poetc.devices.units import format_bytes, format_gap, format_ns, format_pj
from poetc.planning import Point
from poetc.planning.comparison import Comparison, Row
from poetc.reporting.comparison import plot
from poetc.scheduling import Problem, keep_all_peak_bytes, verify

SHARES = (40, 50, 60, 70, 80, 90, 100)  # percent of the keep-all peak


def budgets(problem: Problem) -> list[int]:
    """The budgets of the curve: the problem's own, and shares of the keep-all peak."""
    peak = keep_all_peak_bytes(problem)
    return sorted({problem.budget_bytes, *(peak * share // 100 for share in SHARES)})


def section(problem: Problem, points: Sequence[Point]) -> str:
    """HTML. Budgets without a schedule are rows of reasons."""
    rows, bounds, cells = [], dict[int, int](), []
    for point in points:
        label = format_bytes(point.budget_bytes) + (" (this one)" if point.budget_bytes == problem.budget_bytes else "")
        if point.solution is None:
            cells.append((label, str(point.error).split(";")[0], "", "", ""))
            continue
        schedule = point.solution.schedule
        trace = verify(replace(point.solution.problem, budget_bytes=point.budget_bytes), schedule)
        proof = schedule.proof
        rows.append(
            Row(
                solver="poetc",
                budget_bytes=point.budget_bytes,
                status=proof.status.value,
                seconds=point.seconds,
                energy_pj=trace.energy_pj,
                time_ns=trace.time_ns,
            )
        )
        bounds[point.budget_bytes] = proof.bound
        cost = format_pj(trace.energy_pj), format_ns(trace.time_ns)
        cells.append((label, proof.status.value, *cost, format_gap(proof.gap())))
    comparison = Comparison.of(problem, bounds, rows)
    head = "".join(f"<th>{name}</th>" for name in ("budget", "status", "energy", "time", "gap"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
    chart = plot(comparison, has_legend=False) if rows else ""
    table = f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'
    note = "A step over the RAM budget, relative to computing everything once. The dotted line is a proven bound."
    return f'<section id="curve"><h2>Budget curve</h2><p>{note}</p><div class="plot">{chart}</div>{table}</section>'
