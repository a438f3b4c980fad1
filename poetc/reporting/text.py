"""The report as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from poetc.devices.units import format_bytes, format_enough, format_ns, format_pj
from poetc.errors import format_count
from poetc.reporting import _bundle as tables
from poetc.reporting import _words
from poetc.reporting._facts import Category, Facts, at_peak, gather
from poetc.reporting._solved import Solved

_ROWS = 8
_BAR = 40
_COLUMNS = 80


def text(solved: Solved) -> str:
    """A page of text, no line longer than 80 characters: names are shortened."""
    facts = gather(solved)
    sections = [
        _title(solved),
        _memory(solved),
        _bundle(solved),
        _cost(solved),
        "Proof\n" + _fill(_words.proof(solved)),
        _band(solved),
        _pruned(solved),
        *_extras(solved, facts),
        _peak(solved, facts),
        _curve(solved, facts),
    ]
    notes = solved.summary.get("notes") or ()
    if notes:
        sections.append("Notes\n" + "\n".join(_fill(str(note), bullet="- ") for note in notes))
    return "\n\n".join(s for s in sections if s) + "\n"


def _title(solved: Solved) -> str:
    device = f" on {solved.problem.device}" if solved.problem.device else ""
    return f"{_words.shorten(solved.problem.name, 70)}{device}\n" + _fill(_words.verdict(solved))


def _memory(solved: Solved) -> str:
    problem, trace, plan, summary = solved.problem, solved.trace, solved.plan, solved.summary
    keep_all = summary.get("keep_all_peak_bytes")
    rows = [("budget", problem.budget_bytes), ("peak", _words.peak_bytes(solved))]
    rows.append(("packed: arena and base", problem.base_bytes + plan.arena_bytes))
    rows += [(f"peak of bank {b.name}", n) for b, n in zip(problem.banks, trace.bank_peaks, strict=True)]
    if keep_all is not None:
        rows.append(("keep-all peak", keep_all))
    smallest = _words.smallest_bytes(summary)
    if smallest is not None:
        rows.append(("smallest budget found", smallest))
    up = _words.rounded_up(smallest, *(n for _, n in rows[:3]))
    forms = {False: (format_bytes, _words.of_keep_all), True: (format_enough, _words.enough_of_keep_all)}
    cells = [
        (name, in_words(n), f"{n:,} B", of_keep_all(n, keep_all))
        for name, n in rows
        for in_words, of_keep_all in (forms[n in up],)
    ]
    return "RAM\n" + _table(cells, right=(1, 2))


def _bundle(solved: Solved) -> str:
    header, rows = tables.plans(solved)
    if not rows:
        return ""
    names, switches = tables.switches(solved)
    plans = _table([header, *rows], right=range(1, len(header)))
    ways = _table([names, *switches], right=range(1, len(names)))
    return f"Plans\n{plans}\n\nSwitches in mid-step\n{ways}\n" + _fill(f"{tables.flash(solved)} {tables.EXPLAINED}")


def _cost(solved: Solved) -> str:
    problem, trace = solved.problem, solved.trace
    rows = [
        ("energy", f"{format_pj(trace.energy_pj)} (computing once: {format_pj(solved.compute_once_pj)})"),
        ("time", f"{format_ns(trace.time_ns)} (computing once: {format_ns(solved.compute_once_ns)})"),
    ]
    if problem.deadline_ns is not None:
        rows.append(("deadline", format_ns(problem.deadline_ns)))
    rows.append(("longest piece", _words.longest_piece(solved)))
    rows.append(("recomputed", _words.recomputed(trace.executions)))
    paged = f"{trace.page_outs} out, {trace.page_ins} in; {format_bytes(trace.store_bytes)} on the store"
    rows.append(("page transfers", paged))
    if trace.moves:
        rows.append(("moved within RAM", f"{format_count(trace.moves, 'time')}: {_words.moved(solved)}"))
    if trace.written_bytes:
        rows.append(("written", _words.written(solved.summary, trace.written_bytes, problem.write_limit_bytes)))
    guessed = _words.guesses(solved.summary)
    basis = f"{_words.MODELLED} On guesses rest {guessed}." if guessed else _words.MODELLED
    return "One training step\n" + _table(rows) + "\n" + _fill(basis)


def _band(solved: Solved) -> str:
    rows = _words.band_rows(solved.summary)
    if not rows:
        return ""
    return "At the ends of the profile's bands\n" + "\n".join(
        _fill(f"{end}: {text}", bullet="- ") for end, text in rows
    )


def _pruned(solved: Solved) -> str:
    rows = _words.savings_of_part(solved.summary)
    return "Less than a step that trains all parameters\n" + _table(rows) if rows else ""


def _extras(solved: Solved, facts: Facts) -> Iterator[str]:
    """Operators that run again, tensors that are paged, and those that move within RAM."""
    for extras, labels, heading in (
        (facts.redone, ("x",), f"Recomputed: {_words.recomputed(solved.trace.executions)}, {{}} more"),
        (facts.moved, ("out", "in"), f"Paged: {format_count(len(facts.moved), 'tensor')}, {{}} for the transfers"),
        (facts.relocated, ("x",), f"{_words.moves_heading(solved)}: {_words.moved(solved)}"),
    ):
        if not extras:
            continue
        rows = [
            (
                _words.shorten(e.name),
                *(() if e.size_bytes is None else (format_bytes(e.size_bytes),)),
                *(f"{count} {word}" for count, word in zip(e.times, labels, strict=True)),
                format_pj(e.energy_pj),
                format_ns(e.time_ns),
            )
            for e in extras[:_ROWS]
        ]
        columns, total = len(rows[0]), format_pj(sum(e.energy_pj for e in extras))
        yield f"{heading.format(total)}\n" + _table([*rows, *_more(len(extras), columns)], right=range(1, columns))


def _peak(solved: Solved, facts: Facts) -> str:
    resident = at_peak(solved, facts)
    rows = [(_words.shorten(name), what, format_bytes(size)) for name, what, size in resident[:_ROWS]]
    heading = f"In RAM at the peak, action {solved.trace.peak_action} of {len(solved.schedule.actions)}\n"
    return heading + _table([*rows, *_more(len(resident), 3)], right=(2,))


def _curve(solved: Solved, facts: Facts) -> str:
    """RAM over the actions as bars, one line a twentieth of the schedule: the bytes in use at its fullest moment."""
    memory = facts.memory
    lines = min(20, len(memory))
    fixed = list(Category).index(Category.INPUT)
    budget = solved.problem.budget_bytes
    beyond = _words.is_beyond(budget, solved.trace.peak_bytes)
    full = solved.trace.peak_bytes if beyond else max(budget, solved.trace.peak_bytes)
    rows = []
    for i in range(lines):
        chunk = memory[i * len(memory) // lines : (i + 1) * len(memory) // lines]
        fullest = max(chunk, key=sum)
        state, total = sum(fullest[:fixed]), sum(fullest)
        dark, light = state * _BAR // full, total * _BAR // full
        bar = ("#" * dark + "=" * (light - dark)).ljust(min(budget, full) * _BAR // full)
        rows.append((f"{i * len(memory) // lines:>6}", bar if beyond else f"{bar}|", format_bytes(total)))
    mark = "" if beyond else f"; | budget {format_bytes(budget)}"
    heading = f"RAM over the actions (# weights, state, runtime; = the rest{mark})\n"
    return heading + _table(rows, right=(2,))


def _more(total: int, columns: int) -> list[tuple[str, ...]]:
    rest = total - _ROWS
    return [(f"and {rest} more", *[""] * (columns - 1))] if rest > 0 else []


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows as aligned columns; those with a number in `right` are flush right.

    A table that is too wide has its last column wrapped where that holds sentences, else its first one shortened.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    excess = 2 * len(widths) + sum(widths) - _COLUMNS
    if excess > 0 and (len(widths) - 1 in right or len(widths) > 2):
        widths[0] -= excess
        rows = [(_words.shorten(row[0], widths[0]), *row[1:]) for row in rows]
    indent = " " * (2 * len(widths) + sum(widths[:-1]))
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(_wrapped(("  " + "  ".join(cells)).rstrip(), indent))
    return "\n".join(lines)


def _fill(sentence: str, bullet: str = "") -> str:
    return _wrapped(f"  {bullet}{sentence}", "  " + " " * len(bullet))


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(line, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
