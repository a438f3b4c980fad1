"""The options of training, each declared once.

Optimizers, losses and precisions declare their own; all others stand here. TrainingOptions consists of them
(`options.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poetc.declare import (
    LARGEST_FLOAT,
    LARGEST_SEED,
    Choice,
    Number,
    Option,
    Registry,
    Switch,
    Text,
    When,
    Whole,
    in_group,
)
from poetc.errors import UsageError, shortened
from poetc.ops.encoding import FORMATS
from poetc.ops.losses import LOSSES, Loss
from poetc.ops.optimizers import OPTIMIZERS, Optimizer
from poetc.training._selection import Lora, parse_entry
from poetc.training._terms import parse_terms
from poetc.training.precisions import FILE, PRECISIONS, Precision, read_algorithm, recorded_algorithm

SAVED = ("exact", "off", *FORMATS, "auto")
_OTHER_NAMES = {
    "fp16": "f16",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "i8": "int8",
    "fp32": "f32",
    "float32": "f32",
    "qdq": "qas",
    "lossless": "exact",
    "none": "off",
}


def _rate(entry: str) -> None:
    if parse_entry("--lr-for", entry)[1] == 0:
        raise UsageError(f"--lr-for {shortened(entry, 80)!r}: at a rate of 0 nothing moves; leave it out of --train")


def _precision_hint(value: str) -> str:
    if _OTHER_NAMES.get(value.lower(), value.lower()) == "int8":
        return "; integers of 8 bits are niti for a model of floats, and qas for a quantised one"
    return _hint(value, tuple(PRECISIONS), SAVED, "--saved")


@dataclass(frozen=True, slots=True)
class _Precision(Choice):
    """A name, or a file that describes one; its value is then the description in one line."""

    def accept(self, value: Any) -> str:
        text = str(value)
        if text.startswith("{"):
            return recorded_algorithm(text).text()
        if Path(text).suffix in (".yaml", ".yml"):
            return read_algorithm(Path(text)).text()
        return Choice.accept(self, value)


def _saved_hint(value: str) -> str:
    return _hint(value, SAVED, tuple(PRECISIONS), "--precision")


def _hint(value: str, names: tuple[str, ...], others: tuple[str, ...], other: str) -> str:
    """The name that may have been meant, or the option that takes it."""
    name = _OTHER_NAMES.get(value.lower(), value.lower())
    return f"; take {name}" if name in names else f"; {name} is a choice of {other}" if name in others else ""


_POSITIVE = Number(below=LARGEST_FLOAT)
_SHARE = Number(below=1.0)
_LIMIT = Number(above=True, below=LARGEST_FLOAT)

MODEL = in_group(
    "model",
    Option(
        name="dim",
        default=(),
        repeated=True,
        metavar="NAME=N",
        help="Length of a symbolic dimension of the inputs, by its name in the file. May be repeated.",
    ),
    Option(
        name="shape",
        default=(),
        repeated=True,
        metavar="INPUT=N,N,...",
        help="Whole shape of an input: the lengths of its symbolic dimensions. May be repeated.",
    ),
    Option(
        name="constant",
        default=(),
        repeated=True,
        metavar="NAME=VALUE",
        help="Value of an integer input, which becomes a constant: an If or a Loop on it is then known. May be "
        "repeated.",
    ),
    Option(
        name="output",
        default="",
        spelling="--model-output",
        metavar="NAME",
        help="The output that the loss is taken from, if there are several.",
    ),
    Option(
        name="new_head",
        default="",
        metavar="N[:OUTPUT]",
        help="Replace the last layer, the one that makes OUTPUT, by one with N outputs and new weights.",
    ),
    Option(
        name="head_seed",
        values=Whole(0, LARGEST_SEED),
        default=0,
        metavar="SEED",
        help="Seed of the weights that --new-head draws.",
    ),
    Option(
        name="random_weights",
        values=Whole(0, LARGEST_SEED),
        metavar="SEED",
        help="Train seeded numbers where the file of external weights is absent; such a model is refused otherwise.",
    ),
    Option(
        name="output_logits",
        values=Switch(),
        default=False,
        help="The training step also outputs the input of its loss: logits or a prediction. It stays in RAM until the "
        "step ends.",
    ),
)


def _owned(choices: Iterable[Optimizer | Loss | Precision]) -> tuple[dict[str, Option], dict[str, list[str]]]:
    """By name the options of these, and the choices that each belongs to."""
    owners: dict[str, list[str]] = {}
    options: dict[str, Option] = {}
    for choice in choices:
        for option in choice.options:
            owners.setdefault(option.name, []).append(choice.name)
            if options.setdefault(option.name, option) != option:
                raise ValueError(f"{choice.name} declares {option.flag} unlike {owners[option.name][0]}")
    return options, owners


def _of_losses() -> Iterator[Option]:
    """The options of all losses, each with those that have it."""
    options, owners = _owned(LOSSES.values())
    for name, option in options.items():
        may_be_auto = any(LOSSES[owner].may_be_auto for owner in owners[name])
        yield replace(option, group="loss", when=When("loss", (*owners[name], *(("auto",) if may_be_auto else ()))))


def _of(choices: Registry[Optimizer] | Registry[Precision]) -> Iterator[Option]:
    """The options of all optimizers or precisions, each with those that have it and with their own defaults."""
    by, (options, owners) = choices.word.removeprefix("--"), _owned(choices.values())
    for name, option in options.items():
        own = _own_defaults(choices, name)
        yield replace(option, group=by, when=When(by, tuple(owners[name])), defaults=(by, own) if own else ("", {}))


def _own_defaults(choices: Registry[Optimizer] | Registry[Precision], name: str) -> dict[str, Any]:
    """The defaults that choices have of the option `name` for themselves."""
    return {c.name: c.defaults[name] for c in choices.values() if name in c.defaults}


@dataclass(frozen=True, slots=True)
class _Loss(Choice):
    """A loss, or several by output."""

    def accept(self, value: Any) -> str:
        for term in parse_terms(str(value)):
            Choice.accept(self, term.kind)
        return str(value)


LOSS = (
    Option(
        name="loss",
        values=_Loss(("auto", *LOSSES)),
        group="loss",
        default="auto",
        joins=True,
        usual="Loss: cross-entropy, mse, ...; auto: by the output.",
        help="Loss; auto chooses it by the output. For several outputs: OUTPUT=LOSS*WEIGHT,OUTPUT=LOSS*WEIGHT,... or "
        "the option once for each.",
    ),
    *_of_losses(),
)


OPTIMIZER = in_group(
    "optimizer",
    Option(
        name="optimizer",
        values=Choice(tuple(OPTIMIZERS)),
        default="sgd",
        usual="Rule of the update: sgd, momentum, adam, ...",
        help="Optimizer: the rule that updates the parameters.",
    ),
    Option(
        name="learning_rate",
        values=_POSITIVE,
        default=0.01,
        defaults=("precision", _own_defaults(PRECISIONS, "learning_rate")),
        spelling="--lr",
        usual="Learning rate. Default: 0.01.",
        help="Learning rate. With --precision niti the power of two counts.",
    ),
    Option(
        name="weight_decay",
        values=_POSITIVE,
        default=0.0,
        help="Share of a weight that is added to its gradient; adamw and lion take it off the weight.",
    ),
    *_of(OPTIMIZERS),
    Option(
        name="lr_for",
        values=Text(_rate),
        default=(),
        repeated=True,
        metavar="PATTERN=FACTOR",
        help="Learning rate of parameters that match, as a multiple of --lr; patterns as for --train. May be repeated;"
        " of those that match the last one counts.",
    ),
    Option(
        name="weight_decay_for",
        values=Text(lambda entry: parse_entry("--weight-decay-for", entry)),
        default=(),
        repeated=True,
        metavar="PATTERN=VALUE",
        help="Weight decay of parameters that match, in place of --weight-decay: '*bias,*norm*=0'. May be repeated.",
    ),
    Option(
        name="clip_value",
        values=_LIMIT,
        metavar="X",
        help="Limit every element of the gradients to [-X, X].",
    ),
    Option(
        name="clip_norm_per_tensor",
        values=_LIMIT,
        metavar="NORM",
        help="Scale each gradient whose norm is larger to NORM.",
    ),
    Option(
        name="clip_norm",
        values=_LIMIT,
        metavar="NORM",
        help="Scale all gradients to NORM if their norm together is larger. No update comes before the last gradient.",
    ),
    Option(
        name="clip_norm_late",
        values=_LIMIT,
        metavar="NORM",
        help="Scale all gradients as --clip-norm does, by the norm of the step before. No gradient waits for others.",
    ),
    Option(
        name="accumulate",
        values=Whole(2),
        metavar="N",
        help="Average the gradients of N steps, and update in the last of them. A total a gradient is held in between.",
    ),
)

PRECISION = in_group(
    "precision",
    Option(
        name="precision",
        values=_Precision(tuple(PRECISIONS), _precision_hint),
        default="f32",
        usual="Numbers: f32, f16, bf16, or niti, qas: integers.",
        help="Numbers of a training step; "
        f"{'; '.join(f'{p.name}: {p.help}' for p in PRECISIONS.values() if not p.rounds_factors)}. "
        f"The others are published algorithms of mixed precision; {FILE} describes one.",
    ),
    *_of(PRECISIONS),
    Option(
        name="saved",
        values=Choice(SAVED, _saved_hint),
        default="exact",
        help="Encodings of saved tensors where RAM is short: lossless (exact), lossy too (f16, bf16, int8), "
        "as the budget asks for (auto), none (off).",
    ),
)

UPDATES = (
    Option(
        name="train",
        group="updates",
        default="all",
        usual="Parameters: all, last:N, bias, fc*, best, ...",
        metavar="all|last:N|norm|bias|adapter|best|PATTERNS",
        help="Parameters that are trained: all, the last N layers, norms, biases, adapters, or those that match"
        " (fc*,conv1.weight). Commas join sets, all,!mask leaves mask out, & takes the part that two sets share."
        " A share of channels is fc*@1/4. best: the set of the most importance, see --importance.",
    ),
    Option(
        name="lora",
        values=Text(Lora.parse),
        group="updates",
        default=(),
        repeated=True,
        metavar="RANK[:PATTERNS][:alpha=A][:dropout=P][:rslora][:dora]",
        help="Freeze weights, and train adapters of that rank beside them: beside all, or those that match (*query*,"
        " q_proj). The head of a language model has none unless it is named."
        " --train names other parameters that are trained. May be repeated; the last one that matches counts.",
    ),
    Option(
        name="batch_norm",
        values=Choice(("train", "frozen", "restore")),
        group="model",
        default="train",
        help="Statistics of batch norms; train: of the batch; frozen: the model's own; restore: of the batch, where"
        " norms that an exporter folded are put back.",
    ),
    Option(
        name="dropout",
        values=Switch(has_no=True),
        group="model",
        default=False,
        help="Whether the model's Dropout drops anything in training.",
    ),
    Option(
        name="dropout_seed",
        values=Whole(0, LARGEST_SEED),
        group="model",
        default=0,
        help="Seed of the elements that it drops, of other numbers that the model draws, and of stochastic rounding.",
    ),
)

MEMORY = in_group(
    "memory",
    Option(
        name="frozen",
        values=Choice(("as-is", "f32", "f16", "bf16", "int8", "int4")),
        default=None,
        default_text="as-is",
        when=When("precision", tuple(p.name for p in PRECISIONS.values() if not (p.is_integer or p.rounds_factors))),
        help="Form of frozen matrices in RAM and on the store; as-is: the codes that the file holds. Products decode"
        " them a tile at a time. int8 and int4 round blocks of 32 numbers, and a note states the error.",
    ),
    Option(
        name="fusion",
        values=Switch(has_no=True),
        default=True,
        help="Compute operators as one where that is possible: the same results with less memory and time. Without "
        "fusion every gradient is a tensor of its own.",
    ),
    Option(
        name="micro_batches",
        values=Whole(1, word="auto"),
        default=1,
        metavar="N|auto",
        help="Run the batch in N parts, one after the other, and add up their gradients. auto takes the number that "
        "needs the least energy.",
    ),
)

TRAINING = (*LOSS, *OPTIMIZER, *PRECISION, *UPDATES, *MODEL, *MEMORY)
