"""`poetc train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from poetc.cli import _options, _solving
from poetc.cli._choices import TYPED
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.cli._training import Interruption, TrainingDisplay
from poetc.commands.options import DATA, OF_KINDS, RUN
from poetc.errors import UsageError
from poetc.training import TRAINING

EPILOG = """\b
Examples:
  poetc train m.onnx --data d.npz --validation-split 0.1 --epochs 20 -o out.onnx
  poetc train m.onnx --batch 32 --data photos/ --normalize 0..255
    --augment flip,crop:4 --epochs 10 -o out.onnx
  poetc train m.onnx --batch 16 --device rpi4 --budget 60%
    --data d.npz:x_train,y_train --validation d.npz:x_test,y_test
    --schedule cosine:warmup=100 --epochs 30 -o out.onnx
  poetc train --resume -o out.onnx
"""


@command(epilog=EPILOG)
@click.argument("model", metavar="[MODEL|DIR]", type=_options.FILE, required=False)
@_options.declared(*DATA, *RUN)
@click.option("-o", "--output", "out", type=_options.FILE, required=True, metavar="OUT.onnx", help="The trained model.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the training of OUT.onnx after an interruption, with the options that it was begun with. The"
    " results are the same as without the interruption.",
)
@click.option("--force", is_flag=True, help="Replace an output that exists, and an earlier training of it.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show loss, validation, rate, speed, time left and RAM while training runs: a table on a terminal, elsewhere a"
    " line every few seconds.",
)
@_solving.train_options
@config_option
@_options.output_options
@click.pass_context
def train(
    context: click.Context,
    /,
    model: Path | None,
    out: Path,
    resume: bool,
    force: bool,
    watch: bool,
    console: Console,
    **options: Any,
) -> None:
    """Train MODEL on data: solve, build for this machine, train, evaluate, and write the best weights to OUT.onnx.

    MODEL is an ONNX file, or a directory that `poetc solve` wrote. All options of `poetc solve` but --infer-batch
    are understood; -o and --force mean the ONNX file. Beside it, OUT.onnx.train/ keeps checkpoints, the solved
    directory and a report with curves; with --lora also the adapters, as the Python package peft reads them.

    Evaluation is in inference mode, after each epoch. The best epoch is that of the least validation loss, or of the
    least training loss without validation data. With MODEL solved for a board, the same schedule runs here.
    """
    from poetc.cli import _text
    from poetc.commands.train import train as train_on_data
    from poetc.commands.training_directory import recorded_options

    if watch and console.quiet:
        raise UsageError("--watch does nothing with --quiet; leave one of them out")
    typed = {n: v for n, v in options.items() if context.get_parameter_source(n) in TYPED}
    if model is not None:
        typed["model"] = str(model)
    if resume:
        options = recorded_options(out, typed)
        model = Path(options.pop("model"))
    if model is None:
        raise UsageError("give a MODEL to train, or --resume to go on with one")
    request = _request(model, out, options, typed, resume=resume, force=force)
    display = TrainingDisplay(console, watch=watch)
    with Interruption() as interruption, display:
        document = train_on_data(request, display, display.progress, console.note, interruption.asked)
    if document is None:
        console.note(f"the training of {out} is stopped at a checkpoint; go on with: poetc train --resume -o {out}")
        interruption.end()
    assert document is not None
    console.answer(document, _text.train_text(document))


def _request(
    model: Path, out: Path, options: dict[str, Any], typed: Mapping[str, Any], *, resume: bool, force: bool
) -> Any:
    """The request, out of the options as the command line has them."""
    from poetc import artifact
    from poetc.commands.train import TrainRequest

    recorded = {**options, "model": str(model)}
    if options["data"] is None:  # without --epochs the data are looked at first
        more = "--data and --epochs are" if options["epochs"] is None else "--data is"
        raise UsageError(f"{more} missing (see poetc train --help)")
    mine = {name: options.pop(name) for name in (option.name for option in (*DATA, *RUN))}
    mine["texts"] = {option.name: mine.pop(option.name) for option in OF_KINDS}
    if model.is_dir():
        solving = sorted(set(typed) & set(options))
        if solving and not resume:
            artifact.require_solved(model)
            flag = next((o.flag for o in TRAINING if o.name == solving[0]), f"--{solving[0].replace('_', '-')}")
            raise UsageError(
                f"{flag}: {model} was solved with options of its own; leave it out, solve again with it, or train the"
                " ONNX file"
            )
        return TrainRequest(source=model, out=out, resume=resume, force=force, options=recorded, **mine)
    if model.suffix == ".json":
        raise UsageError(f"{model}: a problem alone has no model in it to train; give the ONNX file")
    request = _solving.solve_request(model, options)
    return TrainRequest(source=request, out=out, resume=resume, force=force, options=recorded, **mine)
