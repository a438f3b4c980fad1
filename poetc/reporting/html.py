"""The report as one self-contained HTML page: no outside resource, readable without JavaScript, light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from poetc.devices.units import format_bytes, format_enough, format_gap, format_ns, format_pj
from poetc.errors import format_count
from poetc.reporting import _bundle as tables
from poetc.reporting import _charts, _search_chart, _words
from poetc.reporting._facts import Facts, at_peak, gather
from poetc.reporting._solved import Solved
from poetc.scheduling.schedule import Compute

_VERSION = re.compile(r"@\d+$")  # of state, as an update makes it
_OPERATOR_ROWS = 1200
_PEAK_ROWS = 15
_LIST_ROWS = 12
_NAME = 100  # characters shown of a name in a table

Cell = str | tuple[str, int | float]  # The text of a cell, or the text and its key for sorting.


def html(solved: Solved, curve: str = "") -> str:
    """The page; `curve` is a section about other budgets, if there is one.

    Below 1 MB for 5,000 operators: charts and tables merge or leave out the smallest, and say so.
    """
    facts = gather(solved)
    page = Template(resources.files("poetc.reporting").joinpath("report.html").read_text(encoding="utf-8"))
    problem = solved.problem
    device = f" on {problem.device}" if problem.device else ""
    return page.substitute(
        title=escape(f"{_words.shorten(problem.name, 80)}{device}"),
        name=escape(_words.shorten(problem.name, 200)),
        subtitle=escape(_subtitle(solved)),
        verdict=escape(_words.verdict(solved)),
        cards=_cards(solved),
        sizes=_sizes(solved),
        bundle=_bundle(solved),
        curve=curve,
        memory=_charts.memory_chart(solved, facts),
        timeline=_charts.timeline(solved, facts),
        changes=_changes(solved, facts),
        arena=_charts.arena_map(solved, facts),
        arena_note=escape(_arena_note(solved)),
        proof=escape(_words.proof(solved)),
        proof_facts=_search(solved) + _proof_facts(solved),
        modelled=escape(_words.MODELLED),
        band=_band(solved),
        totals=_totals(solved),
        peak_at=escape(_peak_at(solved)),
        peak=_peak(solved, facts),
        operators=_operators(solved),
        notes=_notes(solved),
    )


def _subtitle(solved: Solved) -> str:
    problem, summary = solved.problem, solved.summary
    parts = [f"device {problem.device}" if problem.device else "", f"solver {solved.schedule.solver}"]
    parts.append(f"objective {problem.objective}")
    parts.append(f"model {_words.shorten(str(summary['model']), 80)}" if summary.get("model") else "")
    return " · ".join(p for p in parts if p)


def _cards(solved: Solved) -> str:
    problem, trace = solved.problem, solved.trace
    proof = solved.schedule.proof
    others = "another schedule" if proof.scope.is_everything else "another schedule of the proof's class"
    deadline = f"deadline {format_ns(problem.deadline_ns)}" if problem.deadline_ns is not None else "no deadline"
    keep_all = solved.summary.get("keep_all_peak_bytes")
    cards = [
        ("Peak RAM", format_bytes(_words.peak_bytes(solved)), f"of {format_bytes(problem.budget_bytes)} budget"),
        ("Energy a step", format_pj(trace.energy_pj), _more_than(trace.energy_pj, solved.compute_once_pj)),
        ("Time a step", format_ns(trace.time_ns), f"{_more_than(trace.time_ns, solved.compute_once_ns)}, {deadline}"),
        ("Longest piece", *_words.longest_piece(solved).split(": ", 1)),
        ("Proven gap", format_gap(proof.gap()), f"the most {problem.objective} that {others} could save"),
    ]
    if keep_all:
        share = _words.percent(_words.peak_bytes(solved) / keep_all)
        cards[0] = (cards[0][0], cards[0][1], f"{cards[0][2]}, {share} of keep-all")
    return "".join(
        f'<div class="card"><dt>{escape(k)}</dt><dd>{escape(v)}</dd><dd class="small">{escape(s)}</dd></div>'
        for k, v, s in cards
    )


def _more_than(value: int, once: int) -> str:
    return (
        f"+{_words.percent((value - once) / once)} over computing once"
        if once and value > once
        else "as computing once"
    )


def _sizes(solved: Solved) -> str:
    problem, summary = solved.problem, solved.summary
    keep_all = summary.get("keep_all_peak_bytes")
    packed = problem.base_bytes + solved.plan.arena_bytes
    rows = [
        ("plain", "keep-all peak", keep_all, "nothing recomputed or paged"),
        ("limit", "budget", problem.budget_bytes, _words.of_budget(problem.budget_bytes, keep_all)),
        (
            "strong",
            "peak of this schedule",
            _words.peak_bytes(solved),
            _words.of_keep_all(_words.peak_bytes(solved), keep_all),
        ),
        ("strong", "packed, with runtime and stack", packed, _words.of_keep_all(packed, keep_all)),
        *(
            ("plain", f"of it in bank {b.name}", n, f"of {format_bytes(b.budget_bytes)}")
            for b, n in zip(problem.banks, solved.trace.bank_peaks, strict=True)
        ),
        ("plain", "smallest budget found", _words.smallest_bytes(summary), "a schedule exists"),
    ]
    known = [(c, label, n, remark) for c, label, n, remark in rows if n is not None]
    used = _words.peak_bytes(solved), packed
    up = _words.rounded_up(_words.smallest_bytes(summary), problem.budget_bytes, *used)
    return _charts.size_bars([(*row, (format_enough if row[2] in up else format_bytes)(row[2])) for row in known])


def _bundle(solved: Solved) -> str:
    """The plans of a bundle and the switches between them, if it is one."""
    if not tables.plans(solved)[1]:
        return ""
    plans, switches = (
        _table(heading, header, [(row[0], *((cell, 0) for cell in row[1:])) for row in rows])
        for heading, (header, rows) in (("", tables.plans(solved)), ("Switches in mid-step", tables.switches(solved)))
    )
    note = f'<p class="small">{escape(tables.flash(solved))} {escape(tables.EXPLAINED)}</p>'
    return f'<section id="bundle"><h2>Plans for several budgets</h2>{plans}{switches}{note}</section>'


def _arena_note(solved: Solved) -> str:
    plan = solved.plan
    live = max(plan.max_live_bytes, 1)
    return (
        f"The arena takes {format_bytes(plan.arena_bytes)}, {plan.arena_bytes / live:.3f} times the most that is ever "
        f"live ({format_bytes(plan.max_live_bytes)}); no placement can take less than that. The lowest "
        f"{format_bytes(plan.state_bytes)} are state that stays from step to step."
    )


def _changes(solved: Solved, facts: Facts) -> str:
    parts = []
    if less := _words.savings_of_part(solved.summary):
        parts.append(_table("Less than a step that trains all parameters", ("", ""), less, kind="facts"))
    paged = f"Paged: {format_count(len(facts.moved), 'tensor')}"
    within = f"{_words.moves_heading(solved)}: {format_count(len(facts.relocated), 'tensor')}"
    for extras, heading, heads in (
        (facts.redone, f"Recomputed: {_words.recomputed(solved.trace.executions)}", ("operator", "times more")),
        (facts.moved, paged, ("tensor", "size", "out / in")),
        (facts.relocated, within, ("tensor", "size", "times")),
    ):
        rows: list[Sequence[Cell]] = [
            (
                e.name,
                *(() if e.size_bytes is None else ((format_bytes(e.size_bytes), e.size_bytes),)),
                (" / ".join(f"{n:,}" for n in e.times), sum(e.times)),
                (format_pj(e.energy_pj), e.energy_pj),
                (format_ns(e.time_ns), e.time_ns),
            )
            for e in extras[:_LIST_ROWS]
        ]
        if rows:
            parts.append(_table(heading, (*heads, "energy", "time"), rows, more=len(extras)))
    return "".join(parts) or "<p>Nothing is recomputed and nothing is paged: the budget does not ask for it.</p>"


def _proof_facts(solved: Solved) -> str:
    proof = solved.schedule.proof
    once = _words.compute_once(solved)
    overhead = ("gap on the overhead", format_gap(proof.overhead_gap(once)))
    rows: list[Sequence[Cell]] = [
        ("status", _words.status_of(solved)),
        (f"{solved.problem.objective} of this schedule", _words.cost(solved, proof.objective)),
        ("proven lower bound", _words.cost(solved, proof.bound)),
        ("everything computed once", _words.cost(solved, once)),
        ("gap on the total", format_gap(proof.gap())),
        *([] if once >= proof.objective > proof.bound else [overhead]),
        ("class of schedules", _words.schedule_class(solved)),
        ("found and proven by", proof.method or solved.schedule.solver),
    ]
    log = "\n".join(solved.schedule.log)
    details = f"<details><summary>Solver log</summary><pre>{escape(log)}</pre></details>" if log else ""
    return _table("", ("", ""), rows, kind="facts") + details


def _search(solved: Solved) -> str:
    """The best schedule and the bound over time, where a log was asked for."""
    rows = solved.summary.get("search") or ()
    return _search_chart.chart(rows, solved.problem.objective) if rows else ""


def _totals(solved: Solved) -> str:
    problem, trace = solved.problem, solved.trace
    computes = sum(trace.executions)
    rows: list[Sequence[Cell]] = [
        ("operators", f"{len(problem.operators):,}"),
        ("tensors", f"{len(problem.tensors):,}"),
        ("actions in the schedule", f"{len(solved.schedule.actions):,}"),
        ("kernel calls", f"{computes:,}"),
        ("recomputed", _words.recomputed(trace.executions)),
        (
            "page transfers",
            f"{trace.page_outs:,} out, {trace.page_ins:,} in; {format_bytes(trace.store_bytes)} on the store",
        ),
        ("moved within RAM", f"{format_count(trace.moves, 'time')}; {_words.moved(solved)}"),
        ("written to the store", _words.written(solved.summary, trace.written_bytes, problem.write_limit_bytes)),
        ("peak RAM", f"{_words.peak_bytes(solved):,} bytes"),
        ("alive at once", f"at most {trace.peak_bytes:,} bytes, at action {trace.peak_action:,}"),
        *(
            (f"peak in {b.name}", f"{n:,} bytes of {b.budget_bytes:,}")
            for b, n in zip(problem.banks, trace.bank_peaks, strict=True)
        ),
        ("budget", f"{problem.budget_bytes:,} bytes"),
        ("runtime and stack", f"{problem.base_bytes:,} bytes"),
        ("arena", f"{solved.plan.arena_bytes:,} bytes, of which {solved.plan.state_bytes:,} state"),
        ("energy", f"{format_pj(trace.energy_pj)} (computing once {format_pj(solved.compute_once_pj)})"),
        ("time", f"{format_ns(trace.time_ns)} (computing once {format_ns(solved.compute_once_ns)})"),
    ]
    return _table("", ("", ""), rows, kind="facts")


def _peak_at(solved: Solved) -> str:
    """The moment of the peak, in words."""
    trace, actions = solved.trace, solved.schedule.actions
    action = actions[min(trace.peak_action, len(actions) - 1)] if actions else None
    runs = _words.shorten(solved.problem.operators[action.operator].name, 90) if isinstance(action, Compute) else ""
    while_ = f" while {runs} runs" if runs else ""
    most = format_bytes(trace.peak_bytes)
    return f"At most {most} are alive at once, at action {trace.peak_action:,} of {len(actions):,}{while_}."


def _peak(solved: Solved, facts: Facts) -> str:
    resident = at_peak(solved, facts)
    rows: list[Sequence[Cell]] = [
        (name, what, (format_bytes(size), size)) for name, what, size in resident[:_PEAK_ROWS]
    ]
    new = next((t.name for t in solved.problem.tensors if _VERSION.search(t.name)), None)
    said = ""
    if new is not None:
        names = [_words.shorten(name, _NAME) for name in (new, _VERSION.sub("", new))]
        said = f'<p class="small">{escape(" is ".join(names))} after its update, in the same bytes.</p>'
    return _table("", ("tensor", "what", "size"), rows, more=len(resident)) + said


def _operators(solved: Solved) -> str:
    problem, executions = solved.problem, solved.trace.executions
    total = max(solved.trace.energy_pj, 1)
    order = sorted(range(len(executions)), key=lambda i: (-executions[i] * problem.operators[i].energy_pj, i))
    rows: list[Sequence[Cell]] = []
    for i in order[:_OPERATOR_ROWS]:
        op, n = problem.operators[i], executions[i]
        rows.append(
            (
                (str(i), i),
                op.name,
                op.kind,
                op.phase,
                (f"{n:,}", n),
                (format_pj(n * op.energy_pj), n * op.energy_pj),
                (_words.percent(n * op.energy_pj / total), n * op.energy_pj),
                (format_ns(n * op.time_ns), n * op.time_ns),
                (format_bytes(op.workspace_bytes), op.workspace_bytes),
            )
        )
    heads = ("#", "operator", "kind", "phase", "runs", "energy", "share", "time", "workspace")
    return _table("", heads, rows, more=len(order), kind="sortable")


def _band(solved: Solved) -> str:
    """How much rests on guesses, and the result at the ends of the profile's bands."""
    guessed, rows = _words.guesses(solved.summary), _words.band_rows(solved.summary)
    parts = [f'<p class="small">On guesses rest {escape(guessed)}.</p>'] if guessed else []
    if rows:
        items = "".join(f"<li>{escape(end)}: {escape(text)}</li>" for end, text in rows)
        parts.append(f"<h3>At the ends of the profile's bands</h3><ul>{items}</ul>")
    return "".join(parts)


def _notes(solved: Solved) -> str:
    notes = solved.summary.get("notes") or ()
    if not notes:
        return ""
    items = "".join(f"<li>{escape(str(note))}</li>" for note in notes)
    return f'<section id="notes"><h2>Notes</h2><ul>{items}</ul></section>'


def _table(heading: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, more: int = 0, kind: str = "") -> str:
    """`more`: how many rows there are in all. Cells with a sort value are numbers and stand to the right."""
    numeric = [isinstance(cell, tuple) for cell in rows[0]] if rows else [False] * len(heads)
    head = ""
    if any(heads):
        cells = [
            f'<th scope="col"{_number(n)}>'
            + (f'<button type="button">{escape(h)}</button>' if kind == "sortable" else escape(h))
            + "</th>"
            for h, n in zip(heads, numeric, strict=True)
        ]
        head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    body = "".join(_row(row, heads, kind) for row in rows)
    caption = f"<caption>{escape(heading)}</caption>" if heading else ""
    rest = more - len(rows)
    note = f'<p class="small">and {rest:,} more</p>' if rest > 0 else ""
    label = escape(heading or "Table")
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{label}"><table class="{kind}">{caption}{head}'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _row(row: Sequence[Cell], heads: Sequence[str], kind: str) -> str:
    cells = []
    for i, cell in enumerate(row):
        if isinstance(cell, tuple):
            says_itself = kind != "sortable" or cell[0].replace(",", "") == str(cell[1])
            value = "" if says_itself else f' data-v="{cell[1]}"'
            cells.append(f'<td class="n"{value}>{escape(cell[0])}</td>')
        elif kind == "facts" and i == 0:
            cells.append(f'<th scope="row">{escape(cell)}</th>')
        else:
            # Names of tensors and operators may break anywhere; words such as a phase may not.
            name = ' class="name"' if i <= 1 and heads[i] in ("operator", "tensor") else ""
            title = f' title="{escape(cell)}"' if name and len(cell) > _NAME else ""
            cells.append(f"<td{name}{title}>{escape(_words.shorten(cell, _NAME) if name else cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _number(numeric: bool) -> str:
    return ' class="n"' if numeric else ""
