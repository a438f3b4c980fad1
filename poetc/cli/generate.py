"""`poetc generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.commands.options import CHAT, DRAWING, TEMPLATE
from poetc.declare import Whole

EPILOG = """\b
Examples:
  poetc generate tuned.onnx --prompt "Which board?" --chat
  poetc generate tuned.onnx --prompt "Once upon" --tokens 100 --top-p 0.9
"""


@command(epilog=EPILOG)
@click.argument("source", metavar="MODEL|DIR", type=_options.FILE)
@click.option("--prompt", required=True, metavar="TEXT", help="The beginning of the text.")
@_options.declared(CHAT)
@click.option(
    "--tokens",
    type=Value(Whole(1, 4096)),
    default=64,
    show_default=True,
    metavar="N",
    help="Write at most N tokens.",
)
@_options.declared(*DRAWING)
@click.option(
    "--cache/--no-cache", default=True, help="Keep keys and values, or compute the whole text for each token."
)
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json. Default: the one beside the model.")
@_options.declared(TEMPLATE)
@_options.output_options
def generate(source: Path, console: Console, **values: Any) -> None:
    """Write the text that a language model puts behind a prompt, to see the effect of a training.

    MODEL is an ONNX file, or a directory that `poetc solve` wrote. The model runs in the reference numerics: exact,
    for looking and not for serving.
    """
    from poetc.commands import generate as command

    with console.progress("reading the tokenizer") as progress:
        document = command.generate(command.GenerateRequest(source=source, **values), progress)
    console.notes(document["notes"])
    console.answer(document, document["text"])
