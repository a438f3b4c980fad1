"""`poetc analyze`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.commands.options import OF_KINDS
from poetc.declare import Whole
from poetc.errors import UsageError

EVERY = "all"  # as a device


@command(
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
@click.option("--data", metavar="DATA", help="Training data, as poetc train takes it: they say the steps of an epoch.")
@_options.declared(*OF_KINDS)
@click.option(
    "--epochs",
    type=Value(Whole(1)),
    metavar="N",
    help="Passes over the data, for time, energy and wear of a run.",
)
@click.option(
    "--battery",
    metavar="ENERGY",
    help="A full battery, 2000mAh@3.7V, 7.4Wh or 20kJ: how many steps and which share of a run it has energy for.",
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
    data: str | None,
    epochs: int | None,
    battery: str | None,
    console: Console,
    **options: Any,
) -> None:
    """Show the costs of training MODEL, an ONNX file, before it is trained: RAM, flash, time, energy and wear.

    Operators, parameters, multiply-accumulates and saved bytes of the training step. It also prints the keep-all peak,
    and the smallest budget for which a schedule was found. A model with operators that poetc does not train is refused
    with all of them listed (exit code 3).

    A table compares three budgets: the smallest, the smallest within 5 % more time, and keep-all. Each has its band and
    the share that rests on guesses. A second table has the options that would save RAM, time or energy. With --data and
    --epochs it also shows an epoch and the run. With --device all there is a row for each board instead.

    With --largest-batch it searches for the largest batch within --budget, and proves which batch is too large for
    schedules that hold every operand whole. Streamed operands, which poetc solve takes then, cost transfers.
    """
    from poetc.cli import _estimate_text, _text
    from poetc.commands import analyze as command
    from poetc.commands import estimate as estimating
    from poetc.commands.requests import ModelRequest

    texts = {option.name: options.pop(option.name) for option in OF_KINDS}
    if data is None and (typed := [o.flag for o in OF_KINDS if texts[o.name] != o.default]):
        raise UsageError(f"{typed[0]} does nothing without --data")
    request = ModelRequest(source=model, batch=batch, device=device, training=_options.training_from(options))
    if largest_batch:
        from poetc.commands import largest_batch as search

        of_analysis = {"--data": data, "--epochs": epochs, "--battery": battery}
        of_analysis |= {"--parameters": parameters or None, "--facts": facts or None}
        if typed := [option for option, value in of_analysis.items() if value is not None]:
            raise UsageError(f"{typed[0]} does nothing with --largest-batch, which comes in place of the analysis")
        asked = search.LargestBatchRequest(model=request, budget=budget, deadline_per_sample=deadline_per_sample)
        with console.progress("reading the model") as progress:
            answer = search.largest_batch(asked, progress=progress)
        console.answer(answer, search.text_of(answer))
        return
    for option, value in (("--budget", budget), ("--deadline-per-sample", deadline_per_sample)):
        if value is not None:
            raise UsageError(f"{option} does nothing without --largest-batch")
    asked_for = estimating.EstimateRequest(model=request, data=data, texts=texts, epochs=epochs, battery=battery)
    if device == EVERY:
        if parameters or facts:
            raise UsageError("--device all shows boards alone: leave --parameters and --facts out, or name one device")
        with console.progress("reading the model") as progress:
            estimates = estimating.every_board(replace(asked_for, model=replace(request, device="host")), progress)
        console.notes(estimates["notes"])
        console.answer(estimates, _estimate_text.boards_text(estimates))
        return
    with console.progress("reading the model"):
        asked_for = estimating.with_facts_of_data(asked_for, console.note)
    with estimating.BackgroundWays(asked_for.model) as background:
        with console.progress("reading the model") as progress:
            analysis, known = command.analyze_parts(
                asked_for.model, estimating.SEARCH_S, progress, on_problem=background.begin
            )
            steps, _ = estimating.steps_of(asked_for, known.step), asked_for.battery_pj  # faults come before any answer
            if parameters:
                analysis["parameter_table"] = command.parameter_table(request)
            if facts:
                analysis["facts"] = command.fact_table(request)
        console.notes(analysis["notes"])
        console.first(f"{_text.analyze_text(analysis)}\n")
        with console.progress("estimating") as progress:
            analysis["estimate"] = estimating.estimate(asked_for, known, steps, progress, background)
    console.answer(analysis, _estimate_text.estimate_text(analysis["estimate"]))
