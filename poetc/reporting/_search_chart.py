"""The best schedule and the bound over the time of the search, as SVG."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from poetc.devices.units import format_cost, format_gap
from poetc.reporting._charts import legend
from poetc.scheduling.objective import Objective

_WIDTH, _HEIGHT = 1000, 400
_MARGIN = 0.06  # of the range of costs, above and below
_TICKS = 3  # parts of the axis of costs


def chart(rows: Sequence[Mapping[str, Any]], objective: Objective) -> str:
    """`rows`: as `poetc.planning.search_log` has them, in the order of time."""
    bounds = [(float(r["seconds"]), int(r["bound"])) for r in rows if r["bound"] > 0]
    bests = [(float(r["seconds"]), int(r["best"])) for r in rows if r["best"] is not None]
    if not bounds or not bests:
        return ""
    end_s = max(float(rows[-1]["seconds"]), 1e-3)
    least, most = min(b for _, b in bounds), max(b for _, b in bests)
    margin = max(1.0, _MARGIN * (most - least))
    low, span = least - margin, most - least + 2 * margin

    def path(points: Sequence[tuple[float, int]], until_s: float) -> str:
        """A step curve: a value holds until the next one."""
        at = [(round(s * _WIDTH / end_s), round(_HEIGHT * (1 - (v - low) / span))) for s, v in points]
        return (
            f"M{at[0][0]} {at[0][1]}" + "".join(f"H{x}V{y}" for x, y in at[1:]) + f"H{round(until_s * _WIDTH / end_s)}"
        )

    # A bound about other schedules begins a curve of its own, where it is less.
    falls = [0, *(i for i in range(1, len(bounds)) if bounds[i][1] < bounds[i - 1][1]), len(bounds)]
    parts = [bounds[a:b] for a, b in itertools.pairwise(falls)]
    ends = [*(part[0][0] for part in parts[1:]), end_s]
    proven_path = "".join(path(part, until) for part, until in zip(parts, ends, strict=True))
    best, bound = bests[-1][1], bounds[-1][1]
    gap = max(0.0, 1 - bound / best) if best else 0.0
    first, last, rising, proven = (format_cost(objective, c) for c in (bests[0][1], best, bounds[0][1], bound))
    goes = f"The best schedule goes from {first} to {last}, the bound from {rising} to {proven}"
    said = f"{goes}: a gap of {format_gap(gap)}."
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="search-title '
        f'search-desc"><title id="search-title">Best schedule and bound over time</title>'
        f'<desc id="search-desc">{escape(said)}</desc>'
        f'<path class="search-best" d="{path(bests, end_s)}"/><path class="search-bound" d="{proven_path}"/></svg>'
    )
    costs = {format_cost(objective, v): v for v in (least + (most - least) * n // _TICKS for n in range(_TICKS + 1))}
    ticks = "".join(
        f'<span class="y-tick" style="bottom:{100 * (v - low) / span:.2f}%"><span>{escape(label)}</span></span>'
        for label, v in costs.items()
    )
    axis = f'<div class="x-axis"><span style="left:0">0 s</span><span class="last">{end_s:.1f} s</span></div>'
    entries = legend((("search-best", "best schedule"), ("search-bound", "bound")))
    caption = f'<p class="small">{escape(said)}</p>'
    return f'<h3>Search</h3><div class="plot"><div class="area search">{ticks}{svg}</div>{axis}</div>{entries}{caption}'
