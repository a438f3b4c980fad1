"""The memory timeline: RAM over the time of a training step, keep-all above and the schedule below, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from poetc.devices import format_bytes, format_ns
from poetc.reporting._facts import Category, categorize, memory_by_category
from poetc.reporting._solved import Solved
from poetc.reporting._words import overhead
from poetc.scheduling import all_in_ram, keep_all
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Compute, Free, Move, PageIn, PageOut, Schedule

COLOURS = {
    Category.BASE: "#8b929b",
    Category.PAGE_BUFFER: "#b08900",
    Category.STATE: "#3b6fb6",
    Category.INPUT: "#7fb2e5",
    Category.ACTIVATION: "#2a9d8f",
    Category.GRADIENT: "#e08e45",
    Category.WORKSPACE: "#c4c9d0",
}
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 800, 190, 14, 14, 34, 56  # of the picture, in its own units
BOTTOM = 78
LEGEND_COLUMNS = 4
COLUMNS = 600  # narrower spans of time than one column share it, drawn at their fullest action

Span = tuple[int, tuple[int, ...]]  # nanoseconds and bytes by category


def memory_timeline(solved: Solved) -> str:
    """The memory timeline of a solved problem.

    A step whose saved tensors are encoded is another one than that of keep-all: its first panel says so.

    Both panels have one scale of time and one of bytes; the budget is a dashed line.
    """
    problem = solved.problem
    plain = all_in_ram(problem)
    kept = _spans(plain, keep_all(plain))
    peak, whole = max(sum(memory) for _, memory in kept), solved.summary.get("keep_all_peak_bytes", 0)
    other = f", with the choices of this schedule (without them {format_bytes(whole)})" if whole > peak else ""
    panels = [
        (f"Every tensor kept{other}", kept),
        ("Schedule of poetc" if solved.schedule.solver == "poetc" else solved.schedule.solver,
         _spans(problem, solved.schedule)),
    ]  # fmt: skip
    longest = max(sum(time for time, _ in spans) for _, spans in panels) or 1
    highest = max(sum(memory) for _, spans in panels for _, memory in spans)
    used = [c for i, c in enumerate(Category) if any(memory[i] for _, spans in panels for _, memory in spans)]
    body = [
        part
        for number, (title, spans) in enumerate(panels)
        for part in _panel(title, spans, TOP + number * (PANEL + GAP), longest, highest, problem.budget_bytes)
    ]
    height = TOP + 2 * PANEL + GAP + BOTTOM
    for place, category in enumerate(used):
        row, column = divmod(place, LEGEND_COLUMNS)
        x, y = LEFT + column * (WIDTH - LEFT) // LEGEND_COLUMNS, height - 34 + 20 * row
        body.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{COLOURS[category]}"/>')
        body.append(f'<text x="{x + 15}" y="{y}" class="small">{escape(category.value)}</text>')
    peaks = [max(sum(memory) for _, memory in spans) for _, spans in panels]
    description = (
        f"RAM over time. With every tensor kept{other} a training step needs {format_bytes(peaks[0])}; the schedule "
        f"needs {format_bytes(peaks[1])} within a budget of {format_bytes(problem.budget_bytes)}"
        f"{f', and takes {cost}' if (cost := overhead(solved)) else ''}."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description">\n'
        f'<title id="title">Memory timeline of a training step</title>\n'
        f'<desc id="description">{escape(description)}</desc>\n'
        "<style>text { font: 14px sans-serif; fill: #1c1f24 } .small { font-size: 12px; fill: #586069 } "
        ".limit { fill: #b3261e }</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _spans(problem: Problem, schedule: Schedule) -> list[Span]:
    """Time and memory of each action that takes time, and of those that take none as the instants that they are."""
    memory = memory_by_category(problem, schedule, categorize(problem))
    spans = []
    for action, held in zip(schedule.actions, memory, strict=True):
        match action:
            case Compute(index):
                time_ns = problem.operators[index].time_ns
            case PageOut(t):
                time_ns = problem.tensors[t].page_out_ns
            case PageIn(t):
                time_ns = problem.tensors[t].page_in_ns
            case Move(t):
                time_ns = problem.tensors[t].move_ns or 0
            case Free():
                time_ns = 0
        spans.append((time_ns, held))
    return spans


def _columns(spans: Sequence[Span], longest_ns: int) -> list[tuple[int, ...]]:
    """Bytes by category for each column of the picture that the schedule reaches, at the column's fullest action."""
    total = sum(time for time, _ in spans)
    count = max(1, round(total * COLUMNS / longest_ns))
    fullest: list[tuple[int, ...]] = [()] * count
    now = 0
    for time, memory in spans:
        first = min(now * count // max(total, 1), count - 1)
        now += time
        last = min((now * count - 1) // max(total, 1), count - 1)
        for column in range(first, max(first, last) + 1):
            fullest[column] = max(fullest[column], memory, key=lambda m: (sum(m), m))
    return fullest


def _panel(title: str, spans: Sequence[Span], top: int, longest_ns: int, highest: int, budget: int) -> list[str]:
    columns = _columns(spans, longest_ns)
    unit_x, unit_y = (WIDTH - LEFT - RIGHT) / COLUMNS, PANEL / highest
    peak = max(sum(memory) for _, memory in spans)
    time_ns = sum(time for time, _ in spans)
    parts = [
        f'<text x="{LEFT}" y="{top - 10}">{escape(title)}: peak {format_bytes(peak)}, '
        f"{format_ns(time_ns)} a step (modelled)</text>"
    ]
    for i, category in reversed(list(enumerate(Category))):  # the highest stack first, the others cover it
        if any(memory[i] for memory in columns):
            path, last = [f"M{LEFT} {top + PANEL}"], None
            for column, memory in enumerate(columns):
                y = round(top + PANEL - sum(memory[: i + 1]) * unit_y, 1)
                if y != last:
                    path.append(f"H{LEFT + column * unit_x:.1f}V{y}")
                    last = y
            path.append(f"H{LEFT + len(columns) * unit_x:.1f}V{top + PANEL}Z")
            parts.append(f'<path fill="{COLOURS[category]}" d="{"".join(path)}"/>')
    y = round(top + PANEL - budget * unit_y, 1)
    if budget <= highest:
        parts.append(
            f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#b3261e" stroke-width="2" stroke-dasharray="6 4"/>'
        )
        label = f"budget {format_bytes(budget)}"
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{y - 5}" text-anchor="end" class="small limit">{label}</text>')
    parts.append(f'<path d="M{LEFT} {top + PANEL}H{WIDTH - RIGHT}" stroke="#586069"/>')
    end = LEFT + len(columns) * unit_x
    anchor = "end" if end > WIDTH / 2 else "start"
    parts.append(
        f'<text x="{end:.1f}" y="{top + PANEL + 16}" text-anchor="{anchor}" class="small">{format_ns(time_ns)}</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{top + PANEL + 16}" class="small">0</text>')
    return parts
