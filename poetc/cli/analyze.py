"""`poetc analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command


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
@config_option
@_options.output_options
def analyze(
    model: Path,
    device: str,
    batch: int | None,
    parameters: bool,
    facts: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Show the operators and the memory that training MODEL, an ONNX file, takes.

    Operators, parameters, multiply-accumulates and saved bytes of the training step. It also prints the keep-all peak,
    and the smallest budget for which a schedule was found. A model with operators that poetc does not train is refused
    with all of them listed (exit code 3).
    """
    from poetc.cli import _text
    from poetc.commands import analyze as command
    from poetc.commands.requests import ModelRequest

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    request = ModelRequest(source=model, batch=batch, device=device, training=_options.training_from(options))
    with console.progress("reading the model") as progress:
        analysis = command.analyze(request, progress=progress)
        if parameters:
            analysis["parameter_table"] = command.parameter_table(request)
        if facts:
            analysis["facts"] = command.fact_table(request)
    for note in analysis["notes"]:
        console.note(note)
    console.answer(analysis, _text.analyze_text(analysis))
