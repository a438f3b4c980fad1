"""`poetc check`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.declare import Number, Whole

EPILOG = """\b
Examples:
  poetc check
  poetc check poetc.lock --tolerance 1% --junit poetc.xml
"""


@command(epilog=EPILOG)
@click.argument("path", metavar="[FILE]", type=_options.FILE, default=Path("poetc.lock"))
@click.option(
    "--tolerance", default="0.1%", show_default=True, metavar="PERCENT", help="Tolerance of the cost, and of the gap."
)
@click.option(
    "--patience",
    type=Value(Number(1)),
    default=4.0,
    show_default=True,
    metavar="FACTOR",
    help="Solve an entry that would fail again, with so many times its time limit. 1: do not.",
)
@click.option("--entry", "names", multiple=True, metavar="NAME", help="Check only this entry. May be repeated.")
@click.option("--solve", is_flag=True, help="Also solve entries for which everything is unchanged.")
@click.option(
    "-j",
    "--jobs",
    type=Value(Whole(1)),
    default=1,
    show_default=True,
    metavar="N",
    help="Entries that are solved at once, each in a process of its own.",
)
@click.option("--junit", type=_options.FILE, metavar="FILE.xml", help="Also write a JUnit report.")
@click.option(
    "--github/--no-github",
    default=None,
    help="Print annotations for GitHub Actions. Default: on where GITHUB_ACTIONS is set.",
)
@_options.output_options
def check(
    path: Path,
    tolerance: str,
    junit: Path | None,
    github: bool | None,
    console: Console,
    **options: Any,
) -> None:
    """Compare every entry of a lock file with the schedule of today.

    An entry is solved again if its model, profile or options, poetc's code, a library or the kind of machine changed
    since it was locked. Otherwise it passes as it is: the same computation has the same result.

    Exit code 1 when a schedule got worse than the tolerance, a budget no longer fits, or a proof is lost. It is 2
    where a file is absent or an option is wrong. A tie between
    schedules is no failure. Nor is a worse schedule for an unchanged entry whose solver the time limit stopped.
    """
    from poetc.commands import locking
    from poetc.files import require_writable, write_text

    fraction = locking.parse_tolerance(tolerance)
    require_writable(junit)
    with console.progress(str(path)) as progress:
        report = locking.check(path, tolerance=fraction, progress=progress, **options)
    if junit is not None:
        write_text(junit, locking.junit(report))
    if github if github is not None else os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(locking.github(report), err=console.as_json)
    # A failure's one object is the error's, which holds the document. Of an entry that is wrong, the error says all.
    if report.passed or not (console.as_json or report.is_one_error):
        console.answer(report.to_json(), locking.text(report))
    report.require()
