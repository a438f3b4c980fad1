"""`poetc analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.errors import UsageError


@command(
    short_help="Show the needs of training MODEL: memory, operators, smallest budget.",
    epilog="Example:\n\n  poetc analyze model.onnx --batch 16 --device stm32f746 --optimizer momentum",
)
@click.argument("model", type=_options.FILE)
@_options.device_option
@_options.batch_option
@_options.training_options
@click.option(
    "--parameters", is_flag=True, help="Also list every tensor that was taken for a weight or a constant, and why."
)
@click.option(
    "--facts",
    is_flag=True,
    help="Also list the facts about the model that its file does not say, each with its evidence.",
)
@click.option(
    "--largest-batch",
    is_flag=True,
    help="In place of the analysis: the largest batch for which a schedule is found, and a batch that none exceeds.",
)
@click.option(
    "-b", "--budget", metavar="SIZE", help="RAM for --largest-batch, such as 256MB. Default: the device's RAM."
)
@click.option(
    "--deadline-per-sample",
    metavar="TIME",
    help="The longest time of a step for each of its samples, for --largest-batch: 20ms, or 1.1x the time without any "
    "recomputing or paging.",
)
@config_option
@_options.output_options
def analyze(
    model: Path,
    device: str,
    batch: int | None,
    parameters: bool,
    facts: bool,
    largest_batch: bool,
    budget: str | None,
    deadline_per_sample: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Show the operators and the memory that training MODEL, an ONNX file, takes.

    Operators, parameters, multiply-accumulates and saved bytes of the training step. It also prints the keep-all peak,
    and the smallest budget for which a schedule was found. A model with operators that poetc does not train is refused
    with all of them listed (exit code 3).

    With --largest-batch it searches for the largest batch within --budget, and proves which batch is too large.
    """
    from poetc.cli import _text
    from poetc.commands import analyze as command
    from poetc.commands.requests import ModelRequest

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    request = ModelRequest(source=model, batch=batch, device=device, training=_options.training_from(options))
    if largest_batch:
        from poetc.commands import largest_batch as search

        asked = search.LargestBatchRequest(model=request, budget=budget, deadline_per_sample=deadline_per_sample)
        with console.progress("reading the model") as progress:
            answer = search.largest_batch(asked, progress=progress)
        console.answer(answer, search.text_of(answer))
        return
    for option, value in (("--budget", budget), ("--deadline-per-sample", deadline_per_sample)):
        if value is not None:
            raise UsageError(f"{option} does nothing without --largest-batch")
    with console.progress("reading the model") as progress:
        analysis = command.analyze(request, progress=progress)
        if parameters:
            analysis["parameter_table"] = command.parameter_table(request)
        if facts:
            analysis["facts"] = command.fact_table(request)
    for note in analysis["notes"]:
        console.note(note)
    console.answer(analysis, _text.analyze_text(analysis))
