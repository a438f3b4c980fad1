"""`poetc solve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from poetc.cli import _options, _solving
from poetc.cli._commands import BEGAN
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command

EPILOG = """\b
Examples:
  poetc solve model.onnx --device rpi4 --budget 256MB
  poetc solve model.onnx --batch 16 -d stm32f746 -b 60% --deadline 1.3x
  poetc solve problem.json --budget 64KiB -o solved
"""


@command(epilog=EPILOG)
@click.argument("model", metavar="MODEL|PROBLEM.json", type=_options.FILE)
@_solving.solve_options
@_options.infer_batch_option
@_options.milp_options
@click.option(
    "--longest-piece",
    metavar="TIME",
    help="The longest time, as modelled, for which a step may not be interrupted: 5ms. Operators that take longer run "
    "in blocks, and transfers that do are left out.",
)
@click.option(
    "--band",
    is_flag=True,
    help="Price the schedule where the profile's numbers are at the ends of their bands, and solve there too. "
    "Takes up to the time limit once more.",
)
@click.option(
    "--log",
    type=_options.FILE,
    metavar="FILE.jsonl",
    help="Log of the search, a line of JSON an event: seconds, stage, best schedule, bound, gap. "
    "The page of `poetc report DIR --html PAGE` plots it.",
)
@_options.output_directory_option("Directory of the answer. Default: MODEL.poetc/ in this directory.")
@_options.force_option
@config_option
@_options.output_options
def solve(
    model: Path,
    console: Console,
    **options: Any,
) -> None:
    """Find the training schedule of least energy that fits the RAM budget, and write it to a directory.

    MODEL is an ONNX file, or a scheduling problem of your own, PROBLEM.json (docs/reference/formats.md). The directory
    holds the problem, the schedule with its proof, the memory plan and the report. `poetc emit`, `validate` and
    `report` read it.

    Where the directory is there already, only its files that poetc wrote and you did not change are replaced. Where it
    holds the schedule of another model, the command stops, unless --force is given.
    """
    from poetc.cli import _text
    from poetc.commands import requests
    from poetc.commands import solve as command

    options["out"] = options["out"] or requests.out_directory(model)
    request = replace(_solving.solve_request(model, options), began=click.get_current_context().meta.get(BEGAN))
    with console.progress("reading the model", request.options.time_limit_s) as progress:
        result = command.solve(request, progress)
    console.notes(result.summary["notes"])
    console.copies(result.summary["copies"], options["out"])
    console.answer(result.summary, _text.solve_text(result.summary))
