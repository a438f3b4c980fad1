"""`poetc diff`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command


@command(
    epilog="\b\nExamples:\n  poetc diff old.poetc new.poetc\n  poetc diff old.lock poetc.lock",
)
@click.argument("before", metavar="A", type=_options.DIRECTORY)
@click.argument("after", metavar="B", type=_options.DIRECTORY)
@_options.output_options
def diff(before: Path, after: Path, console: Console) -> None:
    """List the changes from A to B: two directories of `poetc solve`, or two lock files.

    Of directories it compares the problem (budget, device, operators, sizes), the totals, recomputations, transfers and
    the proof. Of lock files it compares the options, costs, sizes, counts and proofs, entry by entry.
    """
    from poetc.commands import locking

    result = locking.diff(before, after)
    console.answer(result.document, result.text)
