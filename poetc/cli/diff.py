"""`poetc diff`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console


@click.command(
    short_help="What changed between two schedules, in words.",
    epilog="Example:\n\n  poetc diff old.poetc new.poetc",
)
@click.argument("before", metavar="A", type=_options.DIRECTORY)
@click.argument("after", metavar="B", type=_options.DIRECTORY)
@_options.output_options
def diff(before: Path, after: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Say what changed from the solved directory A to B.

    The problem (budget, device, operators, sizes), the totals, what is recomputed and paged, and the proof.
    """
    from poetc import locking

    result = locking.diff(before, after)
    Console(as_json=as_json, quiet=quiet, verbose=verbose).answer(result.document, result.text)
