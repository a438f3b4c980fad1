"""Options that several commands share, and the values made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from poetc.errors import UsageError, shortened
from poetc.training import (
    BATCH_NORM_MODES,
    LOSSES,
    NITI_WEIGHTS,
    OPTIMIZERS,
    PRECISIONS,
    RESCALES,
    SAVED,
    TrainingOptions,
    way_out,
)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
DIRECTORY = click.Path(path_type=Path, file_okay=True, dir_okay=True)


def stacked(*decorators: Decorator) -> Decorator:
    """One decorator out of several; their options are listed in the order given."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


LARGEST = 2**31 - 1  # The largest number that counters of the emitted C hold.
LARGEST_SEED = 2**63 - 1


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number from `least` to `most`, or `word` where there is one."""

    name = "integer"

    def __init__(self, least: int = 0, most: int = LARGEST, word: str = "") -> None:
        self.least, self.most, self.word = least, most, word

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int | str:
        if self.word and value == self.word:
            return self.word
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if not self.least <= number <= self.most:
            also = f", nor {self.word}" if self.word else ""
            text = f"{shortened(value)} is no whole number from {self.least:,} to {self.most:,}{also}"
            self.fail(text, parameter, context)
        return number


class Number(click.ParamType):  # type: ignore[type-arg]
    """A finite number from `least` to `most`; `above`: not `least` itself."""

    name = "number"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        inside = self.least < number if self.above else self.least <= number
        if not (inside and number <= self.most and math.isfinite(number)):
            least = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
            most = f" and at most {self.most:g}" if self.most < math.inf else ""
            self.fail(f"{shortened(value)} is no finite number {least}{most}", parameter, context)
        return number


def complete_device(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of devices; files where none begins so."""
    del context, parameter
    from poetc.devices import list_profiles

    names = [CompletionItem(name) for name in list_profiles() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def _complete_solver(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    from poetc.solvers import available

    return [CompletionItem(name) for name in available() if name.startswith(incomplete)]


device_option = click.option(
    "-d",
    "--device",
    default="host",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=complete_device,
    help="Device profile: a name from `poetc profile list`, or a YAML file.",
)

solver_option = click.option(
    "--solver",
    default="poetc",
    show_default=True,
    metavar="NAME",
    shell_complete=_complete_solver,
    help="Solver to use: `poetc solvers` lists them.",
)

batch_option = click.option(
    "--batch",
    type=Whole(1),
    metavar="N",
    help="Rows of a training batch; needed where the model leaves its shapes open.",
)

dim_options = stacked(
    click.option(
        "--dim",
        multiple=True,
        metavar="NAME=N",
        help="Length of a symbolic dimension of the inputs, by its name in the file. May be repeated.",
    ),
    click.option(
        "--shape",
        multiple=True,
        metavar="INPUT=N,N,...",
        help="Whole shape of an input: the lengths of its symbolic dimensions. May be repeated.",
    ),
)

constant_option = click.option(
    "--constant",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of an integer input, which becomes a constant: an If or a Loop on it is then known. May be repeated.",
)

infer_batch_option = click.option(
    "--infer-batch",
    type=Whole(1),
    metavar="N",
    help="Rows of a prediction and of an evaluation. Default: the rows of a training batch.",
)

state_option = click.option(
    "--state",
    type=click.Choice(["auto", "ram", "store"]),
    default="auto",
    show_default=True,
    help="Place of weights and optimizer state between steps: in RAM, or on the store, which is read in each step. "
    "With auto it is chosen one by one, together with the schedule.",
)

importance_options = stacked(
    click.option(
        "--importance",
        type=click.Path(),
        metavar="FILE",
        help="For --train best: the importance of updates, as poetc importance writes it. The set with the most that "
        "fits budget, deadline, flash and --max-energy is trained.",
    ),
    click.option(
        "--importance-at-least",
        metavar="X",
        help="For --train best: take the set of least energy with this importance, a number or 80% of that of all.",
    ),
    click.option(
        "--max-energy",
        metavar="ENERGY",
        help="For --train best: the most energy of a training step, 2.5mJ, or 0.6x of training everything.",
    ),
)

_DEFAULTS = TrainingOptions()


class _Loss(click.Choice):  # type: ignore[type-arg]
    """One of the losses, or several by the outputs that they are taken from."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        return str(value) if "=" in str(value) else str(super().convert(value, parameter, context))


def _one_loss(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str:
    """The losses of all outputs as one text. A loss without an output may be given once."""
    if len(values) > 1 and not all("=" in value for value in values):
        raise UsageError("--loss is given twice; for several outputs write OUTPUT=LOSS each time")
    return ",".join(values)


class _Format(click.Choice):  # type: ignore[type-arg]
    """A choice of number formats; the message on a wrong one names the choice that may have been meant."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        way = way_out(parameter.opts[0], str(value)) if parameter is not None and value not in self.choices else ""
        if way:
            self.fail(
                f"{shortened(value)!r} is not one of {', '.join(map(repr, self.choices))}{way}", parameter, context
            )
        return str(super().convert(value, parameter, context))


class _Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas or spaces between them, or a text file that holds them."""

    name = "numbers"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        text, where = str(value), ""
        if Path(text).is_file():
            where = f"{shortened(text, 80)}: "
            try:
                text = Path(text).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                raise UsageError(f"--class-weights: {where}not a text file that can be read") from None
        words = text.replace(",", " ").split()
        if not words:
            raise UsageError(f"--class-weights: {where}there are no numbers")
        try:
            return tuple(float(word) for word in words)
        except ValueError:
            found = next(word for word in words if not _is_number(word))
            raise UsageError(f"--class-weights: {where}{shortened(found)!r} is neither a number nor a file") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A time limit: a number above 0 that has an end."""

    name = "seconds"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise UsageError(f"--time-limit {shortened(value)}: must be a number of seconds above 0")
        return seconds


training_options = stacked(
    click.option(
        "--loss",
        type=_Loss(LOSSES),
        default=(_DEFAULTS.loss,),
        show_default=True,
        multiple=True,
        callback=_one_loss,
        help="Loss; auto chooses it by the output. For several outputs: OUTPUT=LOSS*WEIGHT,OUTPUT=LOSS*WEIGHT,... or "
        "the option once for each.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(OPTIMIZERS),
        default=_DEFAULTS.optimizer,
        show_default=True,
        help="Optimizer: the rule that updates the parameters.",
    ),
    click.option(
        "--lr",
        "learning_rate",
        type=Number(),
        help="Learning rate. Default: 0.01; with --precision niti 0.0625, of which the power of two counts.",
    ),
    click.option(
        "--precision",
        type=_Format(PRECISIONS),
        default=_DEFAULTS.precision,
        show_default=True,
        help="Numbers of a training step; f32: floats; f16, bf16: activations and gradients stored in 16 bits; "
        "niti: integers of 8 bits; qas: a QDQ model.",
    ),
    click.option(
        "--loss-scale",
        type=Whole(1),
        metavar="N",
        help="For --precision f16: gradients are stored times N, a power of two. Default: 1024.",
    ),
    click.option(
        "--rounding",
        default=_DEFAULTS.rounding,
        metavar="act=HOW,err=HOW,update=HOW",
        help="For --precision niti: rounding of activations, errors and updates, each nearest or stochastic; "
        "for qas: of updates. Default: "
        "nearest for the first two, stochastic for updates.",
    ),
    click.option(
        "--rescale",
        type=click.Choice(RESCALES),
        default=_DEFAULTS.rescale,
        show_default=True,
        help="For --precision niti: scan the sums of a product in every step, or once in an interval that adapts.",
    ),
    click.option(
        "--niti-weights",
        type=click.Choice(NITI_WEIGHTS),
        default=_DEFAULTS.niti_weights,
        show_default=True,
        help="For --precision niti: first weights; model: the float model's, rounded; xavier: new random ones.",
    ),
    click.option(
        "--saved",
        type=_Format(SAVED),
        default=_DEFAULTS.saved,
        show_default=True,
        help="Encodings of saved tensors where RAM is short: lossless (exact), lossy too (f16, bf16, int8), "
        "as the budget asks for (auto), none (off).",
    ),
    click.option("--momentum", type=Number(), help="For momentum (default 0.9) and rmsprop (default 0: none)."),
    click.option("--beta1", type=Number(), help="For adam, adamw, nadam, lion. Default: 0.9."),
    click.option("--beta2", type=Number(), help="For adam, adamw, nadam (default 0.999) and lion (default 0.99)."),
    click.option("--epsilon", type=Number(), help="For all optimizers that divide. Default: 1e-8; adagrad 1e-10."),
    click.option("--alpha", type=Number(), help="For rmsprop: share of the mean square that stays. Default: 0.99."),
    click.option(
        "--centered",
        is_flag=True,
        default=None,
        help="For rmsprop: divide by the standard deviation, not by the root of the mean square.",
    ),
    click.option(
        "--momentum-decay", type=Number(), help="For nadam: speed at which its momentum grows to beta1. Default: 0.004."
    ),
    click.option(
        "--weight-decay",
        type=Number(),
        default=_DEFAULTS.weight_decay,
        show_default=True,
        help="Share of a weight that is added to its gradient; adamw and lion take it off the weight.",
    ),
    click.option(
        "--lr-for",
        multiple=True,
        metavar="PATTERN=FACTOR",
        help="Learning rate of parameters that match, as a multiple of --lr; patterns as for --train. May be repeated;"
        " of those that match the last one counts.",
    ),
    click.option(
        "--weight-decay-for",
        multiple=True,
        metavar="PATTERN=VALUE",
        help="Weight decay of parameters that match, in place of --weight-decay: '*bias,*norm*=0'. May be repeated.",
    ),
    click.option(
        "--clip-value", type=Number(above=True), metavar="X", help="Limit every element of the gradients to [-X, X]."
    ),
    click.option(
        "--clip-norm-per-tensor",
        type=Number(above=True),
        metavar="NORM",
        help="Scale each gradient whose norm is larger to NORM.",
    ),
    click.option(
        "--clip-norm",
        type=Number(above=True),
        metavar="NORM",
        help="Scale all gradients to NORM if their norm together is larger. No update comes before the last gradient.",
    ),
    click.option(
        "--clip-norm-late",
        type=Number(above=True),
        metavar="NORM",
        help="Scale all gradients as --clip-norm does, by the norm of the step before. No gradient waits for others.",
    ),
    click.option(
        "--train",
        default=_DEFAULTS.train,
        show_default=True,
        metavar="all|last:N|norm|bias|adapter|best|PATTERNS",
        help="Parameters that are trained: all, the last N layers, norms, biases, adapters, or those that match"
        " (fc*,conv1.weight). Commas join sets, all,!mask leaves mask out, & takes the part that two sets share."
        " A share of channels is fc*@1/4. best: the set of the most importance, see --importance.",
    ),
    click.option(
        "--lora",
        multiple=True,
        metavar="RANK[:PATTERNS][:alpha=A][:dropout=P]",
        help="Freeze weights, and train adapters of that rank beside them: beside all, or those that match (*query*)."
        " --train names other parameters that are trained. May be repeated; the last one that matches counts.",
    ),
    click.option(
        "--batch-norm",
        type=click.Choice(BATCH_NORM_MODES),
        default=_DEFAULTS.batch_norm,
        show_default=True,
        help="Statistics of batch norms; train: of the batch; frozen: the model's own.",
    ),
    click.option(
        "--label-smoothing",
        type=Number(),
        default=_DEFAULTS.label_smoothing,
        show_default=True,
        help="Share of a target that is spread over all classes, for the cross-entropies.",
    ),
    click.option(
        "--ignore-index",
        type=Whole(-LARGEST - 1),
        metavar="CLASS",
        help="For cross-entropy: the class whose targets count for nothing.",
    ),
    click.option(
        "--class-axis",
        type=Whole(-8, 7),
        metavar="AXIS",
        help="Axis of the output that holds the classes. Default: that of its Softmax, or of the last layer's units; "
        "poetc train asks the target's shape where they leave it open.",
    ),
    click.option(
        "--class-weights",
        type=_Numbers(),
        default=(),
        metavar="W,W,...|FILE",
        help="For cross-entropy and focal: weight of a target of each class, or a text file of such numbers.",
    ),
    click.option("--focal-gamma", type=Number(), help="For focal: the exponent of 1 - p. Default: 2."),
    click.option(
        "--ctc-labels",
        type=Whole(-LARGEST - 1),
        metavar="N",
        help="For ctc: most labels of a sample. Default: half of the time steps.",
    ),
    click.option(
        "--ctc-blank",
        type=Whole(-LARGEST - 1),
        metavar="CLASS",
        help="For ctc: the class that is no label. Default: 0.",
    ),
    click.option(
        "--margin",
        type=Number(),
        metavar="D",
        help="For triplet and contrastive: the distance that is to be between two classes. Default: 1.",
    ),
    click.option(
        "--huber-delta",
        type=Number(),
        default=_DEFAULTS.huber_delta,
        show_default=True,
        help="For huber: the error where squared becomes linear.",
    ),
    click.option(
        "--dropout/--no-dropout",
        default=_DEFAULTS.dropout,
        show_default=True,
        help="Whether the model's Dropout drops anything in training.",
    ),
    click.option(
        "--dropout-seed",
        type=Whole(0, LARGEST_SEED),
        default=_DEFAULTS.dropout_seed,
        show_default=True,
        help="Seed of the elements that it drops.",
    ),
    click.option(
        "--new-head",
        default=_DEFAULTS.new_head,
        metavar="N[:OUTPUT]",
        help="Replace the last layer, the one that makes OUTPUT, by one with N outputs and new weights.",
    ),
    click.option(
        "--head-seed",
        type=Whole(0, LARGEST_SEED),
        metavar="SEED",
        default=_DEFAULTS.head_seed,
        show_default=True,
        help="Seed of the weights that --new-head draws.",
    ),
    dim_options,
    constant_option,
    click.option(
        "--random-weights",
        type=Whole(0, LARGEST_SEED),
        metavar="SEED",
        help="Train seeded numbers where the file of external weights is absent; such a model is refused otherwise.",
    ),
    click.option(
        "--fusion/--no-fusion",
        default=_DEFAULTS.fusion,
        show_default=True,
        help="Compute operators as one where that is possible: the same results with less memory and time. Without "
        "fusion every gradient is a tensor of its own.",
    ),
    click.option(
        "--output-logits",
        is_flag=True,
        help="The training step also outputs the input of its loss: logits or a prediction. It stays in RAM until the "
        "step ends.",
    ),
    click.option(
        "--micro-batches",
        type=Whole(1, word="auto"),
        default=_DEFAULTS.micro_batches,
        show_default=True,
        metavar="N|auto",
        help="Run the batch in N parts, one after the other, and add up their gradients. auto takes the number that "
        "needs the least energy.",
    ),
    click.option(
        "--accumulate",
        type=Whole(1),
        metavar="N",
        help="Average the gradients of N steps, and update in the last of them. A total a gradient is held in between.",
    ),
    click.option(
        "--model-output",
        "output",
        default="",
        metavar="NAME",
        help="The output that the loss is taken from, if there are several.",
    ),
)

numerics_option = click.option(
    "--numerics",
    type=click.Choice(["portable", "fast"]),
    default="portable",
    show_default=True,
    help="portable: the same bits on every board; fast: each uses its fused multiply-add, and a Cortex-M55 its Helium.",
)

checkpoint_option = click.option(
    "--checkpoint",
    type=Whole(),
    metavar="N",
    help="Firmware saves its state to the store after every N steps, and resumes from there; 0: never. Default: 1 on"
    " boards with a store of their own, 0 on others.",
)

any_range_option = click.option(
    "--any-range",
    is_flag=True,
    help="Train on inputs that look unscaled too: beyond 16, and whole or of one sign. Default: refuse them, unless the"
    " model itself scales them.",
)


def output_directory_option(help: str) -> Decorator:
    """The option -o of a command that writes a directory beside its model unless told otherwise."""
    return click.option("-o", "--output-dir", "out", type=DIRECTORY, metavar="DIR", help=help)


force_option = click.option(
    "--force",
    is_flag=True,
    help="Replace files that you changed too, and keep a copy of each, NAME.orig. By default the command names "
    "them and stops.",
)

output_options = stacked(
    click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors on stderr."),
    click.option("-v", "--verbose", is_flag=True, help="Print every stage on stderr, one line each."),
    click.option("--debug", is_flag=True, expose_value=False, help="Print a traceback if something fails."),
)


def training_from(options: dict[str, Any]) -> TrainingOptions:
    """Take the options of `training_options` out of a command's options."""
    names = [name for name in TrainingOptions.__dataclass_fields__ if name in options]
    return TrainingOptions(**{name: options.pop(name) for name in names})
