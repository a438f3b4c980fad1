"""`poetc compare`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poetc.cli import _options, _solving
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.commands.options import LIMITS, SEARCH
from poetc.errors import UsageError

if TYPE_CHECKING:
    from poetc.planning.comparison import Comparison, OnCell
    from poetc.planning.switch_rules import SwitchRow

EPILOG = """\b
Examples:
  poetc compare model.onnx --batch 16 --device rpi4 --budgets 80%,60%,40%
  poetc compare problem.json --budgets 64KiB,32KiB --solvers poetc,dtr,checkmate
  poetc compare model.onnx --batch 16 --device rpi4 --switch 90%:60%@50%
"""


_HELP = {
    "processors": "Processors that work beside the main one, as in `poetc solve`. Solvers that place operators use "
    "those with names; the others have the main one alone. With auto every solver has operators in turn, in the way "
    "that costs least: in threads on all equal cores, or on one.",
    "state": "Place of weights and optimizer state between steps, the same for every solver. auto: RAM where that can "
    "fit the budget, else the store. `poetc solve` places them one by one, and may need less.",
    "time_limit": "Time of one solver at one budget.",
    "gap": "Gap to stop at, as in `poetc solve`.",
}
_SHARED = {option.name: replace(option, help=_HELP.get(option.name, option.help)) for option in (*LIMITS, *SEARCH)}
_TASK = tuple(_SHARED[name] for name in ("deadline", "objective", "paging", "dma", "processors", "group", "state"))
_SEARCH = (replace(_SHARED["time_limit"], default=20.0), _SHARED["gap"])


@command(epilog=EPILOG)
@click.argument("model", metavar="MODEL|PROBLEM.json", type=_options.FILE)
@_options.device_option
@_options.budgets_option("Default: 80%,60%,40%.", default=("80%", "60%", "40%"))
@click.option(
    "--switch",
    "switches",
    metavar="BEFORE:AFTER@SHARE%",
    multiple=True,
    help="Compare four rules for a budget that changes once a share of the operators has run: ours, Melon's, Sage's, "
    "and starting the step again. May be given several times.",
)
@click.option(
    "--solvers",
    "names",
    metavar="NAME,NAME...",
    callback=_options.split_names,
    help="Solvers to compare. Default: all of `poetc solvers`.",
)
@_options.declared(*_TASK)
@_options.importance_options
@_options.batch_option
@_options.training_options
@_options.declared(*_SEARCH)
@_options.output_directory_option("Directory of tables and plot. Default: MODEL.compare/ in this directory.")
@_options.force_option
@config_option
@_options.output_options
def compare(
    model: Path,
    budgets: tuple[str, ...],
    switches: tuple[str, ...],
    names: tuple[str, ...],
    out: Path | None,
    force: bool,
    console: Console,
    **options: Any,
) -> None:
    """Solve the same problem with every published method and with poetc.

    Every schedule goes through the same checker and the same packing. The table is printed and also written to a
    directory: by default MODEL.compare/ in the current one, or the one that -o names. It holds comparison.csv,
    comparison.json, comparison.md (a summary for a page), and comparison.svg (a plot of energy over budget).

    With --switch the table shows rules for a budget that changes in mid-step, and nothing is written.
    """
    from poetc.commands import compare as command
    from poetc.commands.requests import named_after
    from poetc.reporting.comparison import document, table

    task = _solving.solve_request(model, options)
    if switches:
        if out is not None:
            raise UsageError("--switch writes no directory; leave -o away, and take --json")
        with console.progress("reading the model") as progress:
            rows = command.run_switches(task, switches, progress)
        unit = task.objective or "energy"
        console.answer({"objective": unit, "switches": [asdict(row) for row in rows]}, _switches(rows, unit))
        return
    folder = out or named_after(model, ".compare")
    command.check_folder(folder, force=force)
    with _bar(console) as on_cell:
        result = command.run(command.CompareRequest(task=task, budgets=budgets, names=names), on_cell, console.note)
    copies = command.write(result, folder, force=force)
    console.copies(copies, folder)
    answer = {**document(result), "out": str(folder), "copies": copies}
    console.answer(answer, table(result) + _remarks(result, folder, chosen=out is not None))


def _switches(rows: Sequence[SwitchRow], objective: str) -> str:
    """The costs of each rule for switches, in one table for each change of the budget."""
    from poetc.cli import _text

    unit = _text.energy if objective == "energy" else _text.duration
    parts: list[str] = []
    for change in dict.fromkeys(row.change for row in rows):
        cells = [
            (
                row.rule,
                row.reason or row.status + ("" if row.by == row.rule else f" by {row.by}"),
                *(("", "") if row.cost is None or row.redone is None else (unit(row.cost), f"{row.redone:.2%}")),
                "" if row.least_redone is None else f"{row.least_redone:.2%}",
            )
            for row in rows
            if row.change == change
        ]
        before, after = _text.size(change.before_bytes), _text.size(change.after_bytes)
        parts.append(f"{before} to {after}, after {change.share:.0%} of the operators")
        header = ("rule", "step", "done again", "at least", "outcome")
        parts.append(_text.table(header, [(name, *rest, outcome) for name, outcome, *rest in cells]) + "\n")
    parts.append("done again: cost behind the change beyond that of the new plan, as a share of its cost up to there")
    for row in rows:
        if row.cost is not None and row.by != row.rule:
            own = "no run" if row.own_cost is None else f"a run of {unit(row.own_cost)}"
            at = f"{_text.size(row.change.before_bytes)} to {_text.size(row.change.after_bytes)}"
            note = f"{at}: the run of {row.by}, with its plans, is the cheapest; {row.rule}'s own plans have {own}"
            parts.append(_text.paragraph(note))
    return "\n".join(parts)


@contextmanager
def _bar(console: Console) -> Iterator[OnCell]:
    """A progress bar over solvers x budgets on a terminal; with -v a line each."""
    if console.verbose or console.quiet or not sys.stderr.isatty():
        with console.progress("reading the model") as progress:
            yield lambda done, of, text: progress(f"{done + 1} of {of}: {text}")
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=RichConsole(stderr=True), transient=True) as live:
        task = live.add_task("reading the model", total=None)
        yield lambda done, of, text: live.update(task, completed=done, total=of, description=text)


def _remarks(result: Comparison, folder: Path, *, chosen: bool) -> str:
    """Below the table: placement of state, the reasons where no schedule was found, and where the files are."""
    from poetc.cli._text import paragraph
    from poetc.commands.compare import KIND, NAMES
    from poetc.reporting.comparison import marks, placements

    reasons = sorted(
        {f"{row.solver}: {row.reason.removeprefix(f'{row.solver}: ')}" for row in result.rows if row.reason}
    )
    notes = "".join(f"\n{paragraph(reason, 4, 2)}" for reason in reasons)
    text = "".join(f"\n\n{paragraph(sentences)}" for sentences in (placements(result), marks(result)) if sentences)
    text += f"\n\nwithout a schedule:{notes}" if notes else ""
    files = ", ".join((*NAMES, KIND.manifest))
    where = f"written to  {folder}{os.sep}  ({files}{'' if chosen else '; -o DIR chooses another place'})"
    return f"{text}\n\n{paragraph(where, 12)}"
