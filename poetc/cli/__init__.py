"""The command line: one file a command, no logic. The jobs themselves are in `poetc.commands`.

`_commands.py` lists the commands.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from poetc.cli._commands import BEGAN, Commands
from poetc.cli._errors import exit_code_of

# Thresholds of the garbage collector. Searches make and drop millions of objects without cycles. The default looks for
# cycles among all others so often that it took 40 % of the time.
COLLECTIONS = 50_000, 20, 100
EPILOG = """\b
First steps:
  poetc analyze model.onnx --batch 16
  poetc solve model.onnx --batch 16 --device rpi4 --budget 60% -o model.poetc
  poetc train model.onnx --batch 16 --data train.npz --validation-split 0.1 --epochs 10 -o trained.onnx
  poetc validate model.poetc
  poetc report model.poetc
  poetc emit model.poetc --target host -o src && make -C src
  poetc run model.poetc --on qemu:aarch64
  poetc export model.poetc --state trained.bin -o trained.onnx

\b
Exit codes: 0 ok, 1 a check failed, 2 usage or file, 3 unsupported model,
4 proven infeasible, 5 no schedule found and no proof (or a named solver has none),
70 internal error, 130 interrupted, 141 the reader of a pipe went, 143 terminated.
"""


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(None, "-V", "--version", package_name="poetc", prog_name="poetc")
@click.pass_context
def cli(context: click.Context) -> None:
    """Compile the training of a neural network for a small board.

    From an ONNX model poetc builds the whole training step. It decides for every tensor whether it is kept, recomputed
    or paged to storage. The step then fits a RAM budget at the least energy, and poetc emits the C that runs it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code; every failure is one line on stderr."""
    began, argv = time.monotonic(), list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(*COLLECTIONS)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run(argv, began)
    except BaseException as error:
        code = exit_code_of(error, argv)
    sys.exit(code)


def _run(arguments: list[str], began: float) -> int:
    completing = os.environ.get("_POETC_COMPLETE")
    if completing:
        from click.shell_completion import shell_complete

        importlib.import_module("poetc.cli.completion")  # has its own completion for bash
        return shell_complete(cli, {}, "poetc", "_POETC_COMPLETE", completing)
    # Not click's own main(): it keeps interrupts and closed pipes to itself.
    with cli.make_context("poetc", arguments) as context:
        context.meta[BEGAN] = began
        cli.invoke(context)
    sys.stdout.flush()
    return 0


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End like Ctrl-C does: with everything half-written taken away."""
    del frame
    raise SystemExit(128 + number)
