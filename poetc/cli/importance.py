"""`poetc importance`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._choices import Value, given_options, refuse_without_effect
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.commands.options import EPOCHS, NORMALIZE, VALIDATION
from poetc.declare import Option, When, Whole
from poetc.errors import UsageError
from poetc.training import TRAINING

EPILOG = """\b
Examples:
  poetc importance model.onnx --data train.npz -o importance.yaml
  poetc solve model.onnx --device stm32f746 --budget 128kB
    --train best --importance importance.yaml
"""


# The gradient of the loss needs the loss and the model. The short trainings of --by accuracy have an optimizer, too.
USED = tuple(o for o in TRAINING if o.group in ("loss", "model") and o.name not in ("output_logits", "micro_batches"))
OF_TRIALS = tuple(o for o in TRAINING if o.group == "optimizer")
BY_ACCURACY = When("by", ("accuracy",))
JOBS = Option(
    name="jobs",
    values=Whole(1),
    group="run",
    short="-j",
    metavar="N",
    when=BY_ACCURACY,
    default_text="one a core",
    help="Processes.",
)


@command(epilog=EPILOG)
@click.argument("model", metavar="MODEL|DIR", type=_options.FILE)
@click.option("--data", required=True, metavar="DATA", help="Data as poetc train takes them.")
@click.option(
    "--by",
    type=click.Choice(["fisher", "accuracy"]),
    default="fisher",
    show_default=True,
    help="Measure; fisher: squared gradients in one pass over the data; accuracy: its rise after a short training of "
    "each update alone.",
)
@_options.declared(*(replace(option, when=BY_ACCURACY) for option in (*VALIDATION, replace(EPOCHS, default=1))))
@_options.declared(JOBS)
@click.option(
    "--shares",
    default="1/8:norm,1/4:norm,1/2:norm",
    show_default=True,
    metavar="SHARES",
    help="Shares of a weight's input channels, beside the whole weight; :norm takes those of the largest norm.",
)
@click.option(
    "--ranks", default="4", show_default=True, metavar="RANKS", help="Ranks of adapters, with commas; '' for none."
)
@click.option("--samples", type=Value(Whole(1)), metavar="N", help="The first N samples only. Default: all.")
@_options.declared(NORMALIZE)
@_options.any_range_option
@click.option(
    "-o",
    "--output",
    "out",
    type=_options.FILE,
    default=Path("importance.yaml"),
    show_default=True,
    metavar="FILE",
    help="File of the importance of each update, which you may edit.",
)
@click.option("--html", type=_options.FILE, metavar="FILE", help="Also write a page with a plot.")
@_options.batch_option
@_options.declared(*USED, *(replace(option, when=BY_ACCURACY) for option in OF_TRIALS))
@config_option
@_options.output_options
@click.pass_context
def importance(
    context: click.Context,
    /,
    model: Path,
    data: str,
    by: str,
    validation: str | None,
    validation_split: float | None,
    epochs: int,
    jobs: int | None,
    shares: str,
    ranks: str,
    samples: int | None,
    normalize: str | None,
    any_range: bool,
    out: Path,
    html: Path | None,
    batch: int | None,
    console: Console,
    **options: Any,
) -> None:
    """Measure how much the training of each parameter is worth on your data, and write the numbers to a file.

    Each weight, bias and norm is an update; so is a share of a weight's channels, and an adapter beside it. MODEL is an
    ONNX file, or a directory that `poetc solve` wrote. The number is the Fisher information: the sum of the squared
    gradients, from one pass over the data. `--train best --importance FILE` of `poetc solve` takes the best set.

    With --by accuracy each update is trained alone. Results are kept in FILE.jsonl, and the same command goes on
    where it was interrupted.
    """
    from poetc import artifact
    from poetc.cli import _text
    from poetc.commands import importance as command
    from poetc.commands.importance_by_accuracy import Trials, by_accuracy
    from poetc.commands.requests import ModelRequest
    from poetc.files import require_writable, write_text
    from poetc.planning.importance import write_importance
    from poetc.reporting import importance as page

    refuse_without_effect(context, by=by)
    if model.is_dir() and (typed := given_options(context, TRAINING)):
        artifact.require_solved(model)
        raise UsageError(f"{typed[0]}: {model} is solved already; leave the option out, or give the ONNX file")
    training = _options.training_from(options)
    asked = command.model_of_directory(model) if model.is_dir() else ModelRequest(source=model, training=training)
    if batch is not None or not model.is_dir():
        asked = replace(asked, batch=batch)
    request = command.ImportanceRequest(
        model=asked,
        data=data,
        out=out,
        shares=tuple(s.strip() for s in shares.split(",") if s.strip()),
        ranks=_ranks(ranks),
        normalize=normalize,
        any_range=any_range,
        samples=samples,
    )
    require_writable(out, html)
    with console.progress("reading the model") as progress:
        if by == "fisher":
            measured = command.fisher(request, progress, console.note)
        else:
            trials = Trials(validation=validation, validation_split=validation_split, epochs=epochs, jobs=jobs)
            measured = by_accuracy(request, trials, progress, console.note)
        write_importance(out, measured)
        if html is not None:
            write_text(html, page.html(measured))
    rows = [
        {"parameter": c.parameter, "update": page.update_text(c.update), "importance": c.importance}
        for c in measured.candidates
    ]
    document = {"out": str(out), "by": measured.by, "unit": measured.unit, "model": measured.model, "candidates": rows}
    console.answer(document, _text.importance_text(measured, str(out)))


def _ranks(text: str) -> tuple[int, ...]:
    from poetc.errors import UsageError, shortened

    try:
        ranks = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        ranks = (0,)
    if not all(1 <= rank < 2**31 for rank in ranks):
        raise UsageError(f"--ranks {shortened(text, 80)!r}: write whole numbers of at least 1, with commas")
    return ranks
