"""`poetc report`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.commands.options import SECONDS


@command(
    epilog="Example:\n\n  poetc report model.poetc --html model.html",
)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--html", type=_options.FILE, metavar="FILE", help="Also write the page here. DIR/report.html has it already."
)
@click.option(
    "--timeline",
    type=_options.FILE,
    metavar="FILE.svg",
    help="Also draw RAM over the time of a step here, beside the one of keeping every tensor.",
)
@click.option("--trace", type=_options.FILE, metavar="FILE.json", help="Also write the step as a trace for Perfetto.")
@click.option(
    "--memory-viz",
    type=_options.FILE,
    metavar="FILE.pickle",
    help="Also write the places of tensors in RAM for pytorch.org/memory_viz.",
)
@click.option(
    "--graph",
    type=_options.FILE,
    metavar="FILE.graphml",
    help="Also write operators, tensors and all their annotations as GraphML, or as GEXF: FILE.gexf.",
)
@click.option("--curve", is_flag=True, help="Solve other budgets too, and show energy over budget in the page.")
@click.option(
    "--time-limit",
    type=Value(SECONDS),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For --curve: time of one budget. All of them take about three times as long.",
)
@_options.output_options
def report(
    directory: Path,
    html: Path | None,
    timeline: Path | None,
    trace: Path | None,
    memory_viz: Path | None,
    graph: Path | None,
    curve: bool,
    time_limit: float,
    console: Console,
) -> None:
    """Show a schedule: memory over time, the tensors that were kept, recomputed and paged, and totals."""
    from poetc.commands import report as command

    with console.progress("reading the schedule") as progress:
        curve_s = time_limit if curve else None
        pictures = {"trace": trace, "memory_viz": memory_viz, "graph": graph}
        document, text = command.report(directory, html, timeline, curve_s, progress, **pictures)
    console.answer(document, text)
