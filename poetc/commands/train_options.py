"""Options of `poetc train`: its data, of which each kind declares its own, and the run."""

from __future__ import annotations

from poetc.commands.options import ANY_RANGE, EPOCHS, NORMALIZE, VALIDATION
from poetc.datasets import KINDS
from poetc.declare import LARGEST_SEED, Number, Option, Switch, Text, Whole
from poetc.training.rates import kinds

_KINDS = sorted(KINDS.values(), key=lambda kind: bool(kind.help))
_MORE = "".join(f" {kind.help}" for kind in _KINDS if kind.help)
OF_KINDS = tuple(option for kind in _KINDS for option in kind.options)
DATA = (
    Option(
        name="data",
        values=Text(),
        group="data",
        metavar="DATA",
        usual="File, folder or module:function: --help data.",
        help=f"Data: {', '.join(kind.words for kind in _KINDS)}. Or a function: package.module:function. "
        f"FILE:ARRAYS names its arrays: d.npz:x_train,y_train.{_MORE}",
    ),
    *VALIDATION,
    NORMALIZE,
    ANY_RANGE,
    Option(
        name="augment",
        values=Text(),
        group="data",
        default="",
        metavar="HOW",
        help="Change inputs at random, several ways with commas. Images: flip, crop:PIXELS, cutout:PIXELS. Signals: "
        "shift:PLACES. Any: gain:SHARE, noise:DEVIATION.",
    ),
    Option(
        name="seed",
        values=Whole(0, LARGEST_SEED),
        group="data",
        default=0,
        help="Seed of the order of samples, and of everything that is drawn.",
    ),
    Option(
        name="shuffle",
        values=Switch(has_no=True),
        group="data",
        default=True,
        help="Take a new order of the samples in each epoch.",
    ),
    *OF_KINDS,
)
RUN = (
    EPOCHS,
    Option(
        name="schedule",
        values=Text(),
        group="run",
        default="constant",
        metavar="SCHEDULE",
        help=f"Schedule of the learning rate, by updates: {', '.join(kind.example for kind in kinds())}."
        " Each also takes warmup=N.",
    ),
    Option(
        name="patience",
        values=Whole(1),
        group="run",
        metavar="EPOCHS",
        help="Stop when so many epochs in a row were no better than the best.",
    ),
    Option(
        name="ema",
        values=Number(above=True, below=1.0),
        group="run",
        metavar="DECAY",
        help="Evaluate and write an average of the weights, of which each update keeps this share (0.999).",
    ),
    Option(
        name="metrics",
        values=Text(),
        group="run",
        metavar="NAMES",
        default_text="accuracy; mae for numbers",
        help="Metrics of the validation: accuracy, top5, confusion, mse, mae, perplexity.",
    ),
    Option(
        name="save_every",
        values=Whole(1),
        group="run",
        metavar="STEPS",
        default_text="a minute, and after each epoch",
        help="Steps between checkpoints.",
    ),
    Option(
        name="log",
        values=Text(),
        group="run",
        metavar="DIR",
        help="Write losses, metrics and rates here while training runs: events for TensorBoard, and log.jsonl.",
    ),
    Option(
        name="sample",
        values=Text(),
        group="run",
        metavar="PROMPT",
        help="Show the text of a language model behind this prompt before and after the training.",
    ),
    Option(
        name="elastic",
        values=Switch(),
        group="run",
        default=False,
        help="Follow the memory that Linux leaves to this process. The model is a directory of `poetc bundle`.",
    ),
)
