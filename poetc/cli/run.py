"""`poetc run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.declare import Whole

EPILOG = """\b
Examples:
  poetc run model.poetc --on qemu:mps2-an386 --steps 20
  poetc run model.poetc --on qemu:lm3s6965evb --data digits.npz --json
"""


def _complete_board(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    from poetc.commands import run as running

    return [CompletionItem(name) for name in running.board_names() if name.startswith(incomplete)]


@command(epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--on",
    required=True,
    metavar="qemu:BOARD|qemu:DIR|host",
    shell_complete=_complete_board,
    help="host, this machine, or qemu: and a board, or the folder of a board of your own. Boards:"
    f" {', '.join(_options.file_names('boards/boards', 'yaml'))}.",
)
@click.option(
    "--steps",
    type=Value(Whole(1)),
    metavar="N",
    help="Number of training steps. Default: one pass over the data.",
)
@click.option(
    "--data",
    type=_options.FILE,
    metavar="D.npz[:X,Y]",
    help="An array of samples for each input of the model, and `target`; or the arrays named behind the colon. Default:"
    " random data.",
)
@_options.any_range_option
@_options.numerics_option
@_options.checkpoint_option
@click.option(
    "--gradients",
    is_flag=True,
    help="Also print a checksum of the gradients of every step. Fused gradients are no tensors and are left out "
    "(solve --no-fusion keeps all).",
)
@click.option(
    "--keep",
    type=_options.DIRECTORY,
    metavar="DIR",
    help="Directory to keep the build (src) and the data, card and state of the run (run) in. Files of an earlier "
    "--keep that you did not change are replaced.",
)
@_options.force_option
@_options.output_options
def run(directory: Path, console: Console, **options: Any) -> None:
    """Build the firmware of DIR, train on the emulated board, and measure.

    Memory, instructions, cycles and pages are counted from outside the program. Exit code 1 when the measured peak is
    not the predicted one. It is 1 as well when the board traps an access past the budget, or the program stops with an
    error.
    """
    from poetc.cli._run_text import run_text
    from poetc.commands import run as running

    request = running.RunRequest(directory=directory, **options)

    def on_step(step: int, loss: float) -> None:
        if not console.quiet:
            click.echo(f"step {step} loss {loss:.6f}", err=console.as_json)

    with console.progress("reading the schedule") as progress:
        document = running.run(request, progress, on_step, console.note)
    if request.keep is not None:
        console.copies(document["copies"], request.keep)
    console.answer(document, run_text(document))
    running.require(document)
