"""`poetc bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options, _solving
from poetc.cli._choices import Value
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.declare import Whole

EPILOG = """\b
Examples:
  poetc bundle model.onnx --batch 16 -d stm32f746 --budgets 320kB,256kB,192kB
  poetc bundle model.onnx -d rpi4 --budgets 100%,75%,50% -o model.bundle
  poetc bundle model.onnx -d stm32h743 --points 6 --switch-flash 64kB
  poetc bundle model.onnx --batch 16 --budgets 100%,50%,30% --micro-batches auto
  poetc validate model.bundle --switch all
  poetc emit model.bundle --target host -o src
"""


@command(epilog=EPILOG)
@click.argument("model", metavar="MODEL", type=_options.FILE)
@_options.device_option
@_options.budgets_option("One plan each.")
@click.option(
    "--points",
    type=Value(Whole(2, 16)),
    metavar="N",
    help="Instead: N budgets at equal distances, from keep-all's peak down to the least RAM that is found.",
)
@click.option(
    "--switch-flash",
    metavar="SIZE",
    help="The most flash that the tables of switches may take. Default: every safe point is kept.",
)
@_solving.problem_options
@_options.infer_batch_option
@_options.output_directory_option("Directory of the answer. Default: MODEL.bundle/ in this directory.")
@_options.force_option
@config_option
@_options.output_options
def bundle(
    model: Path,
    budgets: tuple[str, ...],
    points: int | None,
    switch_flash: str | None,
    console: Console,
    **options: Any,
) -> None:
    """Solve MODEL for several RAM budgets, and for going over from one plan to another in mid-step.

    All plans share one state. A training step gives the same bits, whichever plans it goes through. The C that `poetc
    emit` writes changes plans when `poetc_request_budget` is called, at the next safe point.

    With --micro-batches auto each plan has the number of parts that costs least. A step goes on in smaller parts when
    the budget falls. Then bits depend on the parts that ran. A batch whose statistics count is not split.

    `poetc validate DIR --switch all` takes every switch on this machine. The time limit is that of one plan.
    """
    from poetc.cli import _text
    from poetc.commands import bundle as command
    from poetc.commands import requests

    options["out"] = options["out"] or requests.named_after(model, ".bundle")
    request = _solving.solve_request(model, options)
    with console.progress("reading the model") as progress:
        result = command.bundle(request, budgets, points=points, switch_flash=switch_flash, progress=progress)
    console.notes(result.summary["notes"])
    console.copies(result.summary["copies"], options["out"])
    console.answer(result.summary, _text.bundle_text(result.summary))
