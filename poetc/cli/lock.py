"""`poetc lock`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options, _solving
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command

EPILOG = """\b
Examples:
  poetc lock model.onnx --batch 16 --device stm32f746 --budget 200kB
  poetc lock model.onnx --batch 16 --device rpi4 -b 50% --name "half on the Pi"
  poetc check poetc.lock
"""


@command(epilog=EPILOG)
@click.argument("model", metavar="MODEL|PROBLEM.json", type=_options.FILE)
@_solving.solve_options
@click.option(
    "-o",
    "--lock",
    "path",
    type=_options.FILE,
    default=Path("poetc.lock"),
    show_default=True,
    metavar="FILE",
    help="The lock file. Its other entries are kept.",
)
@click.option(
    "--name",
    default="",
    help="Name of the entry. An entry of the same name is replaced. Default: made from the options.",
)
@config_option
@_options.output_options
def lock(model: Path, path: Path, name: str, console: Console, **options: Any) -> None:
    """Solve, and record the result in a lock file.

    An entry holds hashes of model, profile and options, and the schedule's energy, bound, gap and bytes. `poetc check`
    solves it again and fails when it got worse.
    """
    import msgspec

    from poetc.commands import locking
    from poetc.commands.locking import entry_text

    request = _solving.solve_request(model, options)
    with console.progress("reading the model", request.options.time_limit_s) as progress:
        entry = locking.lock(request, path, name, progress)
    console.answer({"lock": str(path), **msgspec.to_builtins(entry)}, entry_text(entry, path))
