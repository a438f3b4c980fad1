"""`poetc solve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._console import Console

EPILOG = """\b
Examples:
  poetc solve model.onnx --device rpi4 --budget 256MB
  poetc solve model.onnx --batch 16 --device stm32f746 --budget 60% --deadline 1.3x
  poetc solve problem.json --budget 64KiB -o solved
"""


@click.command(short_help="Find the schedule of least energy under a RAM budget.", epilog=EPILOG)
@click.argument("model", metavar="MODEL|PROBLEM.json", type=_options.FILE)
@_options.device_option
@click.option(
    "-b",
    "--budget",
    metavar="SIZE",
    help="All RAM that training may use: 256MB (10^6), 256MiB, or 60% of the keep-all peak. Default: the device's RAM.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    help="For one training step: 2.5s, 300ms, or 1.3x the time without any recomputing or paging.",
)
@click.option("--objective", type=click.Choice(["energy", "time"]), default="energy", show_default=True)
@click.option("--paging/--no-paging", default=True, show_default=True, help="May tensors go to the device's store.")
@_options.batch_option
@_options.training_options
@_options.solver_option
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="SECONDS"
)
@click.option(
    "--gap",
    type=click.FloatRange(min=0, max=1),
    default=0.0,
    show_default=True,
    metavar="FRACTION",
    help="Stop when proven to be within this fraction of the least energy: 0.01 is 1 %.",
)
@click.option(
    "-o", "--output-dir", "out", type=_options.DIRECTORY, metavar="DIR", help="Default: MODEL.poetc/ in this directory."
)
@_options.output_options
def solve(
    model: Path,
    device: str,
    batch: int | None,
    time_limit: float,
    gap: float,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Find the training schedule of least energy that fits the RAM budget, and write it to a directory.

    MODEL is an ONNX file; a PROBLEM.json is a scheduling problem of your own (docs/SPEC.md). The directory holds the
    problem, the schedule with its proof, the memory plan and the report; `poetc emit`, `validate` and `report` read it.
    """
    from poetc import pipeline
    from poetc.cli import _text
    from poetc.scheduling.schedule import SolveOptions

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    training = _options.training_from(options)
    options["out"] = options["out"] or pipeline.out_directory(model)
    request = pipeline.SolveRequest(
        model=pipeline.ModelRequest(source=model, batch=batch, device=device, training=training),
        options=SolveOptions(time_limit_s=time_limit, gap=gap),
        **options,
    )
    with console.progress("reading the model") as progress:
        result = pipeline.solve(request, progress)
    for note in result.summary["notes"]:
        console.note(note)
    console.answer(result.summary, _text.solve_text(result.summary))
