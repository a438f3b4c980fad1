"""`poetc import-state`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command

EPILOG = """\b
Examples:
  poetc import-state model.poetc --from better.onnx -o better.poetc
  poetc import-state smaller.poetc --from src/trained.bin -o smaller/trained.bin
"""


@command("import-state", epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--from",
    "source",
    type=_options.FILE,
    required=True,
    metavar="FILE",
    help="The weights: an ONNX file of the same graph, .npz or .safetensors by name, or a trained.bin.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=_options.DIRECTORY,
    required=True,
    metavar="DIR2|FILE.bin",
    help="A directory as DIR is, or a trained.bin for the program that `poetc emit` makes of DIR.",
)
@_options.force_option
@_options.output_options
def import_state(directory: Path, source: Path, out: Path, force: bool, console: Console) -> None:
    """Start from other weights: those of a new ONNX file of the same graph, or of a checkpoint.

    DIR is a directory that `poetc solve` made: schedule, proof and memory plan do not depend on the weights. The
    trained.bin of another schedule can be read, too; optimizer state comes along. Weights that do not fit are named,
    and nothing is written.
    """
    from poetc.cli import _text
    from poetc.commands import import_state as command

    with console.progress("reading the weights") as progress:
        document = command.import_state(directory, source, out, force=force, progress=progress)
    console.copies(document["copies"], out.parent if out.suffix == command.TRAINED else out)
    console.answer(document, _text.import_text(document))
