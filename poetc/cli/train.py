"""`poetc train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from poetc.cli import _options, _solving
from poetc.cli._console import Console
from poetc.cli._training import Interruption, TrainingDisplay
from poetc.errors import UsageError

EPILOG = """\b
Examples:
  poetc train model.onnx --data train.npz --validation-split 0.1 --epochs 20 -o trained.onnx
  poetc train model.onnx --batch 32 --data photos/ --normalize 0..255 --augment flip,crop:4 --epochs 10 -o trained.onnx
  poetc train model.onnx --batch 16 --device rpi4 --budget 60% --data d.npz:x_train,y_train
    --validation d.npz:x_test,y_test --schedule cosine:warmup=100 --epochs 30 -o trained.onnx
  poetc train --resume -o trained.onnx
"""

data_options = _options.stacked(
    click.option(
        "--data",
        metavar="DATA",
        help="Training data: an .npz file, X.npy,Y.npy, a folder of .npy files, a .csv or .parquet table, a folder of "
        "images by class, or package.module:function. FILE:ARRAYS names its arrays: d.npz:x_train,y_train.",
    ),
    click.option("--validation", metavar="DATA", help="Data on which the model is evaluated after each epoch."),
    click.option(
        "--validation-split",
        type=_options.Number(),
        metavar="SHARE",
        help="Take this share of the data for validation, drawn by --seed, the same of each class.",
    ),
    click.option("--epochs", type=_options.Whole(1), metavar="N", help="Passes over the data."),
    click.option(
        "--normalize",
        metavar="HOW",
        help="Scale inputs: 0..255 (becomes 0..1), 0..255->-1..1, MEAN,STD (of channels: M1/M2/M3,S1/S2/S3), or auto:"
        " mean and standard deviation of the training data, by channel.",
    ),
    _options.any_range_option,
    click.option(
        "--augment",
        default="",
        metavar="HOW",
        help="Change images at random: flip (left and right), crop:PIXELS, noise:DEVIATION; several with commas.",
    ),
    click.option(
        "--seed",
        type=_options.Whole(0, _options.LARGEST_SEED),
        default=0,
        show_default=True,
        help="Seed of the order of samples, and of everything that is drawn.",
    ),
    click.option(
        "--shuffle/--no-shuffle", default=True, show_default=True, help="Take a new order of the samples in each epoch."
    ),
)

loop_options = _options.stacked(
    click.option(
        "--schedule",
        default="constant",
        show_default=True,
        metavar="SCHEDULE",
        help="Schedule of the learning rate, by updates: constant, step:every=N,factor=0.1, cosine:final=1e-5, "
        "plateau:patience=5. Each also takes warmup=N.",
    ),
    click.option(
        "--patience",
        type=_options.Whole(1),
        metavar="EPOCHS",
        help="Stop when so many epochs in a row were no better than the best.",
    ),
    click.option(
        "--ema",
        type=_options.Number(),
        metavar="DECAY",
        help="Evaluate and write an average of the weights, of which each update keeps this share (0.999).",
    ),
    click.option(
        "--metrics",
        metavar="NAMES",
        help="Metrics of the validation: accuracy, top5, confusion, mse, mae, perplexity. Default: accuracy; mae for "
        "numbers.",
    ),
    click.option(
        "--save-every",
        type=_options.Whole(1),
        metavar="STEPS",
        help="Steps between checkpoints. Default: a minute, and after each epoch.",
    ),
    click.option(
        "--elastic",
        is_flag=True,
        help="Follow the memory that Linux leaves to this process. The model is a directory of `poetc bundle`.",
    ),
)


@click.command(short_help="Train a model on data, and write it as ONNX.", epilog=EPILOG)
@click.argument("model", metavar="[MODEL|DIR]", type=_options.FILE, required=False)
@data_options
@loop_options
@click.option("-o", "--output", "out", type=_options.FILE, required=True, metavar="OUT.onnx", help="The trained model.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the training of OUT.onnx after an interruption, with the options that it was begun with. The"
    " results are the same as without the interruption.",
)
@click.option("--force", is_flag=True, help="Replace an output that exists, and an earlier training of it.")
@_solving.solve_options
@_options.output_options
@click.pass_context
def train(
    context: click.Context,
    /,
    model: Path | None,
    out: Path,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
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
    from poetc.commands import train as training

    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    given = {n: v for n, v in options.items() if context.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    if model is not None:
        given["model"] = str(model)
    if resume:
        options = training.recorded_options(out, given)
        model = Path(options.pop("model"))
    if model is None:
        raise UsageError("give a MODEL to train, or --resume to go on with one")
    request = _request(model, out, options, given, resume=resume, force=force)
    display = TrainingDisplay(console, as_json=as_json, quiet=quiet)
    with Interruption() as interruption, display:
        document = training.train(request, display, display.progress, console.note, interruption.asked)
    if document is None:
        console.note(f"the training of {out} is stopped at a checkpoint; go on with: poetc train --resume -o {out}")
        interruption.end()
    assert document is not None
    console.answer(document, _text.train_text(document))


def _request(
    model: Path, out: Path, options: dict[str, Any], given: Mapping[str, Any], *, resume: bool, force: bool
) -> Any:
    """The request, out of the options as the command line has them."""
    from poetc.commands.train import TrainRequest

    recorded = {**options, "model": str(model)}
    for name in ("data", "epochs"):
        if options[name] is None:
            raise UsageError(f"--{name} is missing (see poetc train --help)")
    mine = {
        name: options.pop(name)
        for name in (
            *("data", "validation", "validation_split", "epochs", "normalize", "any_range", "augment", "seed"),
            *("shuffle", "schedule", "patience", "ema", "metrics", "save_every", "elastic"),
        )
    }
    if model.is_dir():
        solving = sorted(set(given) & set(options))
        if solving and not resume:
            option = "--lr" if solving[0] == "learning_rate" else "--" + solving[0].replace("_", "-")
            raise UsageError(f"{option}: {model} is solved already; leave the option out, or give the ONNX file")
        return TrainRequest(source=model, out=out, resume=resume, force=force, options=recorded, **mine)
    if model.suffix == ".json":
        raise UsageError(f"{model}: a problem alone has no model in it to train; give the ONNX file")
    request = _solving.solve_request(model, options)
    return TrainRequest(source=request, out=out, resume=resume, force=force, options=recorded, **mine)
