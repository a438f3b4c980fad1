"""`poetc report`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console


@click.command(
    short_help="What was kept, recomputed and paged: text and HTML.",
    epilog="Example:\n\n  poetc report model.poetc --html model.html",
)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--html", type=_options.FILE, metavar="FILE", help="Also write the page here. DIR/report.html has it already."
)
@_options.output_options
def report(directory: Path, html: Path | None, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show what was solved: memory over time, what was kept, recomputed and paged and when, totals."""
    from poetc import outputs

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    with console.progress("reading the schedule"):
        document, text = outputs.report(directory, html)
    console.answer(document, text)
