"""`poetc emit`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console

EPILOG = """\b
Example:
  poetc emit model.poetc --target host -o src
  make -C src
"""


@click.command(short_help="Write the C that trains.", epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "-t",
    "--target",
    type=click.Choice(["host", "cortex-a", "cortex-m"]),
    default="host",
    show_default=True,
    help="What it is built for.",
)
@click.option(
    "-o", "--output-dir", "out", type=_options.DIRECTORY, required=True, metavar="SRC", help="Where the C goes."
)
@_options.output_options
def emit(directory: Path, target: str, out: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Write the C that trains: from DIR, which `poetc solve` made, to SRC.

    SRC holds the step table, the initial weights, the kernels that are used, the runtime and a Makefile.
    """
    from poetc import outputs
    from poetc.cli import _text

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    with console.progress("emitting C") as progress:
        document = outputs.emit(directory, target, out, progress)
    console.answer(document, _text.emit_text(document))
