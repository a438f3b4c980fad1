"""Tables and a bar of memory for notebooks, as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def memory_bar(peak_bytes: int, budget_bytes: int, keep_all_bytes: int) -> str:
    """Peak and budget against keep-all, as one bar."""
    whole = max(keep_all_bytes, budget_bytes, 1)
    peak, budget = (round(400 * n / whole, 1) for n in (peak_bytes, budget_bytes))
    legend = "blue: peak; red: budget; grey: up to the keep-all peak"
    return (
        f'<svg width="400" height="14" role="img" aria-label="{legend}"><title>{legend}</title>'
        '<rect width="400" height="14" fill="#ddd"/>'
        f'<rect width="{peak}" height="14" fill="#4a7ebb"/>'
        f'<rect x="{min(budget, 398)}" width="2" height="14" fill="#c0392b"/></svg>'
        f"<div><small>{legend}</small></div>"
    )
