"""The report's charts as SVG. Text stays outside, in HTML, so that charts stretch to any width and stay legible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from poetc.devices.units import format_bytes, format_ns, format_pj
from poetc.errors import format_count
from poetc.reporting._facts import Category, Facts, Origin
from poetc.reporting._solved import Solved
from poetc.reporting._words import is_beyond, shorten
from poetc.scheduling import allocation_banks
from poetc.scheduling.problem import Problem

_COLUMNS = 800  # of the memory chart: more actions than that share columns
_RECTANGLES = 2000  # of the arena map
_OUTLINED = 500  # of the arena map: outlines of more would pale its colours
_SPANS = 4  # stays of a tensor that its row names
_ROWS = 60  # of the timeline
_HEIGHT = 1000

CLASSES = {
    Category.BASE: "base",
    Category.PAGE_BUFFER: "buffer",
    Category.STATE: "state",
    Category.INPUT: "input",
    Category.ACTIVATION: "activation",
    Category.GRADIENT: "gradient",
    Category.WORKSPACE: "workspace",
}
ORIGIN_CLASSES = {
    Origin.GIVEN: "kept",
    Origin.COMPUTED: "kept",
    Origin.RECOMPUTED: "recomputed",
    Origin.PAGED: "paged",
}


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """The HTML of a legend. `entries` are pairs of a CSS class, which has the colour, and a label."""
    return (
        '<ul class="legend">'
        + "".join(f'<li><span class="swatch {c}"></span>{escape(label)}</li>' for c, label in entries)
        + "</ul>"
    )


def memory_chart(solved: Solved, facts: Facts) -> str:
    """RAM during each action, stacked by category, with the budget line unless it is far above."""
    budget, trace, actions = solved.problem.budget_bytes, solved.trace, len(facts.memory)
    beyond = is_beyond(budget, trace.peak_bytes)
    full = (trace.peak_bytes if beyond else max(budget, trace.peak_bytes)) * 1.12
    columns = min(actions, _COLUMNS)
    # Actions that share a column are drawn at their fullest, so that no peak is lost.
    fullest = [
        max(
            facts.memory[i * actions // columns : max((i + 1) * actions // columns, i * actions // columns + 1)],
            key=sum,
        )
        for i in range(columns)
    ]
    layers = []
    used = [c for i, c in enumerate(Category) if any(column[i] for column in facts.memory)]
    for i, category in reversed(list(enumerate(Category))):  # the highest stack first, the others cover it
        if category not in used:
            continue
        heights = [round(_HEIGHT - sum(column[: i + 1]) * _HEIGHT / full) for column in fullest]
        layers.append(f'<path class="{CLASSES[category]}" d="{_staircase(heights)}"/>')
    y = round(_HEIGHT - budget * _HEIGHT / full)
    description = (
        f"Stacked areas over the {actions} actions of the schedule. The most in use is "
        f"{format_bytes(trace.peak_bytes)} at action {trace.peak_action}; the budget is {format_bytes(budget)}."
    )
    svg = _svg(
        "memory",
        columns,
        "RAM in use at each action",
        description,
        "".join(layers)
        + _backward_line(facts, actions, columns)
        + ("" if beyond else f'<line class="budget" x1="0" x2="{columns}" y1="{y}" y2="{y}"/>'),
    )
    at = (trace.peak_action + 0.5) / actions
    side = "left" if at < 0.5 else "right"  # the budget's label keeps out of the way of the peak's
    label = f"budget {format_bytes(budget)}" + (", above the chart" if beyond else "")
    marks = _y_mark(f"budget-label {side}", min(budget / full, 1), label) + _peak_mark(
        at, trace.peak_bytes / full, side, f"alive {format_bytes(trace.peak_bytes)}"
    )
    shown = [(CLASSES[c], c.value) for c in Category if c in used]
    return _plot(svg, marks, full, actions, facts) + legend(shown if beyond else [*shown, ("line", "budget")])


def arena_map(solved: Solved, facts: Facts) -> str:
    """Offset over actions: where in the arena every tensor lies, and when. Of an arena in banks, a lane for each."""
    plan, problem, actions = solved.plan, solved.problem, len(solved.schedule.actions)
    sizes = [use.arena_bytes for use in plan.banks] or [plan.arena_bytes]
    full = [max(size, 1) * (1.04 if not plan.banks else 1.12) for size in sizes]
    banks = allocation_banks(problem, solved.schedule, plan)
    boxes: list[tuple[int, int, str, Category]] = []  # bank, bytes times actions, rectangle
    used: set[Category] = set()
    costs = _Costs(solved, facts)
    for a, bank in zip(plan.allocations, banks, strict=True):
        segments: Sequence[tuple[int | None, int, int]] = [(None, a.start, a.end)]
        if a.tensors:
            ends = [start for _, start in a.tensors[1:]] + [a.end]
            segments = [(t, start, end) for (t, start), end in zip(a.tensors, ends, strict=True)]
        for t, start, end in segments:
            category = Category.WORKSPACE if t is None else facts.categories[t]
            used.add(category)
            top = (full[bank] - a.offset_bytes - a.size_bytes) * _HEIGHT / full[bank]
            height = a.size_bytes * _HEIGHT / full[bank]
            box = (
                f'<rect x="{start}" y="{_short(top)}" width="{end - start}" '
                f'height="{_short(height)}"><title>{escape(_allocation_title(problem, t, a.operator))}: '
                f"{format_bytes(a.size_bytes)} at {a.offset_bytes:,}, actions {start} to {end - 1}"
                f"{'' if t is None else costs.of(t)}</title></rect>"
            )
            boxes.append((bank, (end - start) * a.size_bytes, box, category))
    kept = sorted(sorted(range(len(boxes)), key=lambda i: (-boxes[i][1], i))[:_RECTANGLES])
    names = [b.name for b in problem.banks] or [""]
    plots = []
    for bank, name in enumerate(names):
        if problem.banks and not sizes[bank]:
            continue
        own = [b for b in boxes if b[0] == bank]
        where = f"the part of the arena in {name}" if name else "the arena"
        description = (
            f"{len(own)} rectangles, one for each time a tensor or workspace lies in {where}: across, the actions that "
            f"it stays; upwards, its bytes. It has {format_bytes(sizes[bank])}"
            + (f", the most ever live is {format_bytes(plan.max_live_bytes)}." if not name else ".")
        )
        drawn = ""
        for category in (c for c in Category if c in used):
            alike = "".join(boxes[i][2] for i in kept if boxes[i][0] == bank and boxes[i][3] is category)
            drawn += f'<g class="{CLASSES[category]}">{alike}</g>' if alike else ""
        svg = _svg(
            f"arena{bank or ''}",
            actions,
            f"Arena map of {name}" if name else "Arena map",
            description,
            (f'<g class="many">{drawn}</g>' if len(kept) > _OUTLINED else drawn)
            + _backward_line(facts, actions, actions),
        )
        label = f"{name}: {_bank_use(solved, bank)}" if name else f"arena {format_bytes(sizes[bank])}"
        marks = _y_mark("arena-label", sizes[bank] / full[bank], label)
        plots.append(_plot(svg, marks, full[bank], actions, facts, "lane" if name else ""))
    note = ""
    if len(boxes) > len(kept):
        note = (
            f"<p class='small'>The {len(boxes) - len(kept):,} smallest of {len(boxes):,} rectangles are not drawn.</p>"
        )
    shown = [(CLASSES[c], c.value) for c in Category if c in used]
    return "".join(plots) + legend(shown) + note


def _bank_use(solved: Solved, bank: int) -> str:
    """The peak of a bank, and its budget."""
    peak, budget = solved.trace.bank_peaks[bank], solved.problem.banks[bank].budget_bytes
    return f"peak {format_bytes(peak)} of {format_bytes(budget)}"


def timeline(solved: Solved, facts: Facts) -> str:
    """One row a tensor of the forward pass: when it was in RAM, how it came there, when it was on the store."""
    problem, actions = solved.problem, len(solved.schedule.actions)
    forward = sorted({o for op in problem.operators if op.phase in ("forward", "loss") for o in op.outputs})
    forward = [t for t in forward if facts.categories[t] is not Category.STATE]
    stays: dict[int, list[str]] = {t: [] for t in forward}
    fates: dict[int, set[Origin]] = {t: set() for t in forward}
    first: dict[int, int] = {}
    for s in facts.stays:
        if s.tensor in stays:
            first.setdefault(s.tensor, s.start)
            fates[s.tensor].add(s.origin)
            stays[s.tensor].append(
                f'<rect class="{ORIGIN_CLASSES[s.origin]}" x="{s.start}" y="0" width="{s.end - s.start}" height="10"/>'
            )
    for t, start, end in facts.store_spans:
        if t in stays:
            stays[t].insert(0, f'<rect class="stored" x="{start}" y="4" width="{end - start}" height="2"/>')
    changed = {t for t in forward if fates[t] & {Origin.RECOMPUTED, Origin.PAGED}}
    smallest = max((problem.tensors[t].size_bytes for t in forward), default=0) // 500
    rows = [t for t in forward if t in changed or problem.tensors[t].size_bytes >= smallest]
    rows.sort(key=lambda t: (t not in changed, -problem.tensors[t].size_bytes, t))
    rows = sorted(rows[:_ROWS], key=lambda t: (first.get(t, 0), t))
    counts = {
        "recomputed": sum(Origin.RECOMPUTED in f for f in fates.values()),
        "paged": sum(Origin.PAGED in f for f in fates.values()),
    }
    kept = len(forward) - len(changed)
    summary = (
        f"The forward pass makes {format_count(len(forward), 'tensor')} and keeps {kept:,} as long as needed. "
        f"Recomputed operators make {counts['recomputed']:,} again, and the store gives {counts['paged']:,} back."
    )
    lives = _lives(problem, facts, rows)
    items = "".join(_timeline_row(problem, t, fates[t], lives[t], "".join(stays[t]), actions) for t in rows)
    more = len(forward) - len(rows)
    note = (
        f"<p class='small'>Not drawn: {more:,} of the smallest tensors; those recomputed or paged come first.</p>"
        if more
        else ""
    )
    entries = [
        ("kept", "in RAM"),
        ("recomputed", "in RAM, recomputed"),
        ("paged", "in RAM, paged in"),
        ("stored", "on the store"),
    ]
    marks = _x_axis(actions, facts)
    scroll = f'<div class="rows" tabindex="0" role="region" aria-label="Timeline of tensors"><ol>{items}</ol></div>'
    return f'<p>{summary}</p>{legend(entries)}{scroll}<div class="rows-axis">{marks}</div>{note}'


def _lives(problem: Problem, facts: Facts, tensors: Sequence[int]) -> dict[int, str]:
    """Of each tensor the actions in which it is in RAM and on the store, and the costs of getting it, in words."""
    makers = {o: op for op in problem.operators for o in op.outputs}
    spans: dict[int, list[str]] = {t: [] for t in tensors}
    for s in facts.stays:
        if s.tensor in spans:
            spans[s.tensor].append(f"{s.start} to {s.end - 1}")
    stored = {t: f"; on the store from action {start} to {end - 1}" for t, start, end in facts.store_spans}
    titles: dict[int, str] = {}
    for t, parts in spans.items():
        more = f" and {format_count(len(parts) - _SPANS, 'more time')}" if len(parts) > _SPANS else ""
        cost = ""
        if t in makers:
            op = makers[t]
            cost = f"; {shorten(op.name, 90)} makes it for {format_pj(op.energy_pj)} in {format_ns(op.time_ns)}"
        if t in stored:
            tensor = problem.tensors[t]
            cost += f"; out and in cost {format_pj(tensor.page_out_pj + tensor.page_in_pj)}"
        titles[t] = f"in RAM in actions {', '.join(parts[:_SPANS])}{more}{stored.get(t, '')}{cost}"
    return titles


def _timeline_row(problem: Problem, t: int, fates: set[Origin], life: str, body: str, actions: int) -> str:
    tensor = problem.tensors[t]
    states = [w for o, w in ((Origin.RECOMPUTED, "recomputed"), (Origin.PAGED, "paged")) if o in fates] or ["kept"]
    label = f"{shorten(tensor.name, 100)}: {format_bytes(tensor.size_bytes)}, {' and '.join(states)}"
    return (
        f'<li title="{escape(f"{label}; {life}")}"><span class="name">{escape(shorten(tensor.name, 42))}</span>'
        f'<span class="size">{format_bytes(tensor.size_bytes)}</span>'
        f'<svg viewBox="0 0 {actions} 10" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{body}</svg></li>"
    )


def size_bars(rows: Sequence[tuple[str, str, int, str, str]]) -> str:
    """(class, label, bytes, remark, bytes as text): horizontal bars on one scale.

    A limit far beyond the others is cut at its end: beside it nothing else could be seen.
    """
    full = max(n for c, _, n, _, _ in rows if c != "limit") or 1
    if not any(is_beyond(n, full) for c, _, n, _, _ in rows if c == "limit"):
        full = max(full, *(n for _, _, n, _, _ in rows))
    return (
        '<ul class="bars">'
        + "".join(
            f'<li><span class="label">{escape(label)}</span><span class="track"><span class="bar {c}" '
            f'style="width:{min(max(n * 100 / full, 0.4), 100):.1f}%"></span></span>'
            f'<span class="value">{text}<span class="small"> {escape(remark)}</span></span></li>'
            for c, label, n, remark, text in rows
        )
        + "</ul>"
    )


def _allocation_title(problem: Problem, tensor: int | None, operator: int | None) -> str:
    if tensor is not None:
        return shorten(problem.tensors[tensor].name, 100)
    return f"workspace of {shorten(problem.operators[operator].name, 90)}" if operator is not None else "workspace"


class _Costs:
    """In words, the energy and time that a tensor costs in this step, and those of not keeping it in RAM."""

    def __init__(self, solved: Solved, facts: Facts) -> None:
        self.problem = solved.problem
        self.makers = {o: k for k, op in enumerate(self.problem.operators) for o in op.outputs}
        self.redone, self.moved = ({e.index: e for e in extras} for extras in (facts.redone, facts.moved))
        self._found: dict[int, str] = {}

    def of(self, tensor: int) -> str:
        if tensor not in self._found:
            self._found[tensor] = self._of(tensor)
        return self._found[tensor]

    def _of(self, tensor: int) -> str:
        spec, paid = self.problem.tensors[tensor], list[str]()
        maker, ways = self.makers.get(tensor), list[str]()
        if maker in self.redone:
            r = self.redone[maker]
            paid.append(f"made {_times(r.times[0])} more for {_amount(r.energy_pj, r.time_ns)}")
        if tensor in self.moved:
            outs, ins = map(_times, self.moved[tensor].times)
            costs = _amount(self.moved[tensor].energy_pj, self.moved[tensor].time_ns)
            paid.append(f"paged out {outs} and in {ins} for {costs}")
        if maker is not None and (op := self.problem.operators[maker]).recomputable:
            ways.append(f"remaking: {_amount(op.energy_pj, op.time_ns)}")
        if spec.pageable:
            both = spec.page_out_pj + spec.page_in_pj, spec.page_out_ns + spec.page_in_ns
            ways.append(f"paging: {_amount(*both)}")
        return "; ".join(["", " and ".join(paid) or "kept at no cost", *ways])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _amount(energy_pj: int, time_ns: int) -> str:
    return f"{format_pj(energy_pj)}, {format_ns(time_ns)}"


def _staircase(heights: Sequence[int]) -> str:
    """A stepped curve, closed at the bottom, as path data: one unit a column."""
    parts = [f"M0 {_HEIGHT}"]
    last = _HEIGHT
    for x, y in enumerate(heights):
        if y != last:
            parts.append(f"H{x}V{y}" if x else f"V{y}")
            last = y
    parts.append(f"H{len(heights)}V{_HEIGHT}Z")
    return "".join(parts)


def _svg(name: str, width: int, title: str, description: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{body}</svg>'
    )


def _plot(svg: str, marks: str, full: float, actions: int, facts: Facts, kind: str = "") -> str:
    ticks = "".join(
        f'<span class="y-tick" style="bottom:{n * 100 / full:.2f}%"><span>{_round_bytes(n)}</span></span>'
        for n in _ticks(full)
    )
    area = f"area {kind}".strip()
    return f'<div class="plot"><div class="{area}">{ticks}{svg}{marks}</div>{_x_axis(actions, facts)}</div>'


def _ticks(full: float) -> list[int]:
    """About four round values from zero."""
    unit = 1
    while unit * 10 <= full / 4:
        unit *= 10
    step = next(unit * m for m in (1, 2, 5, 10) if full / (unit * m) <= 5)
    return list(range(0, int(full) + 1, step))


def _x_axis(actions: int, facts: Facts) -> str:
    marks = f'<span style="left:0">action 0</span><span class="last">{actions:,}</span>'
    if facts.backward_action is not None:
        left = facts.backward_action * 100 / actions
        marks += f'<span class="backward-label" style="left:{min(max(left, 14), 72):.2f}%">▲ backward pass</span>'
    return f'<div class="x-axis">{marks}</div>'


def _backward_line(facts: Facts, actions: int, width: int) -> str:
    if facts.backward_action is None:
        return ""
    x = _short(facts.backward_action * width / actions)
    return f'<line class="phase" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"/>'


def _y_mark(kind: str, fraction: float, label: str) -> str:
    return f'<span class="mark {kind}" style="bottom:{fraction * 100:.2f}%">{escape(label)}</span>'


def _peak_mark(left: float, fraction: float, side: str, label: str) -> str:
    place = f'style="left:{left * 100:.2f}%;bottom:{fraction * 100:.2f}%"'
    return f'<span class="dot" {place}></span><span class="mark peak-label {side}" {place}>{escape(label)}</span>'


def _round_bytes(size_bytes: int) -> str:
    number, unit = format_bytes(size_bytes).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
