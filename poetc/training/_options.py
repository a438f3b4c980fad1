"""How a model is to be trained."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, cast

from poetc.errors import UsageError, shortened
from poetc.ops._integers import RESCALES, ROUNDINGS
from poetc.ops.encoding import FORMATS
from poetc.training._selection import Lora, parse_entry

LOSSES = (
    "auto",
    "cross-entropy",
    "soft-cross-entropy",
    "focal",
    "ctc",
    "triplet",
    "contrastive",
    "mse",
    "l1",
    "huber",
    "bce",
    "nll",
    "bce-probabilities",
)
OF_CLASSES = ("cross-entropy", "soft-cross-entropy", "focal", "nll", "auto")  # losses with an axis of classes
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lion")
CLIPS = ("clip_value", "clip_norm_per_tensor", "clip_norm", "clip_norm_late")
BATCH_NORM_MODES = ("train", "frozen")
PRECISIONS = ("f32", "f16", "bf16", "niti", "qas")
INTEGERS = ("niti", "qas")  # of the precisions
_SAVED_IN = dict.fromkeys(("f16", "bf16"), "floats of 16 bits") | dict.fromkeys(INTEGERS, "integers of 8 bits")
NITI_WEIGHTS = ("model", "xavier")
SAVED = ("exact", "off", *FORMATS, "auto")
_PURPOSES = {"act": "activation", "err": "error", "update": "update"}
_MOST_AXES = 8  # of a tensor
_LARGEST, _LARGEST_SEED = 2**31 - 1, 2**63 - 1
_LARGEST_FLOAT = 3.4028234e38  # of 32 bits, in which the C computes
_OWN = cast(float, None)  # the default of the optimizer takes its place
_LOSS_SCALE, _MOST_LOSS_SCALE = 1024, 2**24
_LEARNING_RATES = {"f32": 0.01, "niti": 0.0625}
_DEFAULTS = {"momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_OWN_DEFAULTS = {"rmsprop": {"momentum": 0.0}, "adagrad": {"epsilon": 1e-10}, "lion": {"beta2": 0.99}}


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


def way_out(option: str, value: str) -> str:
    """The end of the message on a wrong --precision or --saved: the choice that may have been meant, or ""."""
    name = _OTHER_NAMES.get(value.lower(), value.lower())
    choices, others = (PRECISIONS, SAVED) if option == "--precision" else (SAVED, PRECISIONS)
    if option not in ("--precision", "--saved"):
        return ""
    if name in choices:
        return f"; take {name}"
    if option == "--precision" and name == "int8":
        return "; integers of 8 bits are niti for a model of floats, and qas for a quantised one"
    if name in others:
        return f"; {name} is a choice of {'--saved' if option == '--precision' else '--precision'}"
    return ""


@dataclass(frozen=True, slots=True)
class Term:
    """A loss, of the output of that name, times a weight. One loss alone has no name."""

    kind: str
    output: str = ""
    weight: float = 1.0


def _terms(loss: str) -> tuple[Term, ...]:
    """The terms of --loss: a kind, or OUTPUT=KIND*WEIGHT with commas between them."""
    if "=" not in loss:
        return (Term(loss),)
    terms: list[Term] = []
    for part in loss.split(","):
        output, equals, rest = part.strip().rpartition("=")
        kind, times, number = rest.partition("*")
        try:
            weight = float(number) if times else 1.0
        except ValueError:
            weight = 0.0
        if not (equals and output and 0 < weight < _LARGEST_FLOAT):
            raise UsageError(f"--loss {shortened(part, 80)!r}: write OUTPUT=KIND*WEIGHT with a weight above 0")
        if output in (term.output for term in terms):
            raise UsageError(f"--loss: output {shortened(output, 80)!r} has two losses")
        terms.append(Term(kind.strip(), output, weight))
    return tuple(terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Hyperparameters as PyTorch defines them: momentum v = momentum·v + g, w -= lr·v; Adam with bias correction.

    `momentum`, the betas and `epsilon` default to the values of the optimizer's authors, or of PyTorch: None stands for
    that.
    """

    loss: str = "auto"  # or of several outputs: "OUTPUT=KIND*WEIGHT,..."
    optimizer: str = "sgd"
    learning_rate: float = _OWN
    precision: str = "f32"  # f16, bf16: stored in 16 bits; niti: integers of 8 bits; qas: a QDQ model as it is
    loss_scale: int | None = None  # f16: gradients are stored times this power of two; None: 1024
    rounding: str = ""  # niti, qas: of activations, errors and updates, "act=nearest,err=nearest,update=stochastic"
    rescale: str = "every"  # niti: sums are scanned in every step, or once in an "interval" that adapts
    niti_weights: str = "model"  # niti: of the float model, or "xavier": new ones as NITI draws them
    momentum: float = _OWN
    beta1: float = _OWN
    beta2: float = _OWN
    epsilon: float = _OWN
    alpha: float | None = None  # rmsprop: how much of the mean square stays from step to step; None: 0.99
    centered: bool | None = None  # rmsprop: divide by the deviation, not by the root of the mean square
    momentum_decay: float | None = None  # nadam: how fast its momentum grows; None: 0.004
    weight_decay: float = 0.0
    lr_for: tuple[str, ...] = ()  # "PATTERN=FACTOR": of the learning rate; of several that match the last one counts
    weight_decay_for: tuple[str, ...] = ()  # "PATTERN=VALUE": in place of `weight_decay`
    clip_value: float | None = None  # each element of a gradient is limited to [-clip_value, clip_value]
    clip_norm_per_tensor: float | None = None  # a gradient with a larger norm is scaled to this one
    clip_norm: float | None = None  # the same of all gradients together: no update comes before the last gradient
    clip_norm_late: float | None = None  # the same, by the norm of the step before
    train: str = "all"  # all | last:N | norm | bias | adapter | patterns of parameter names, separated by commas
    lora: tuple[str, ...] = ()  # "RANK[:PATTERNS][:alpha=A][:dropout=P][:seed=S]": adapters beside frozen weights
    batch_norm: str = "train"
    output: str = ""  # which output the loss is taken from; "" = the only one, or the first
    label_smoothing: float = 0.0  # of both cross-entropies
    ignore_index: int | None = None  # cross-entropy: targets with this index count for nothing
    class_weights: tuple[float, ...] = ()  # cross-entropy, focal: one a class
    focal_gamma: float | None = None  # focal: (1 - p)^gamma is the weight of a sample; None: 2
    ctc_labels: int | None = None  # ctc: labels of a sample at most; None: half of the time steps
    ctc_blank: int | None = None  # ctc: the class of no label; None: 0
    margin: float | None = None  # triplet, contrastive: distance that is to be between two classes; None: 1
    huber_delta: float = 1.0
    dropout: bool = False  # whether the model's Dropout drops anything
    dropout_seed: int = 0
    fusion: bool = True  # operators that can be one are one: same results, less memory and time (passes/_fusion.py)
    new_head: str = ""  # "N" or "N:OUTPUT": the last layer before that output gets N outputs
    head_seed: int = 0  # of its weights
    dim: tuple[str, ...] = ()  # "NAME=N": the length of a symbolic dimension of the inputs
    shape: tuple[str, ...] = ()  # "INPUT=N,N,...": the whole shape of an input
    constant: tuple[str, ...] = ()  # "NAME=VALUE": an integer input that is bound to a value
    random_weights: int | None = None  # seed of the numbers that stand for weights whose external file is absent
    class_axis: int | None = None  # of cross-entropy; None: that of the Softmax, or of the last layer's units
    output_logits: bool = False  # the step also outputs the input of its loss
    micro_batches: int | Literal["auto"] = 1  # parts of the batch whose gradients are added up before the update

    saved: str = "exact"  # saved tensors, where RAM is short: lossless encodings, or "f16", "bf16", "int8"; "off": none
    accumulate: int | None = None  # steps whose gradients are averaged before an update; None: each step updates

    def __post_init__(self) -> None:
        own = _DEFAULTS | _OWN_DEFAULTS.get(self.optimizer, {})
        for name, default in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.loss_scale is None and self.precision == "f16":
            object.__setattr__(self, "loss_scale", _LOSS_SCALE)
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", _LEARNING_RATES.get(self.precision, 0.01))
        for option, whole, least, most in (
            ("--micro-batches", 1 if self.micro_batches == "auto" else self.micro_batches, 1, _LARGEST),
            ("--ignore-index", self.ignore_index or 0, -_LARGEST - 1, _LARGEST),
            ("--dropout-seed", self.dropout_seed, 0, _LARGEST_SEED),
            ("--random-weights", self.random_weights or 0, 0, _LARGEST_SEED),
            ("--head-seed", self.head_seed, 0, _LARGEST_SEED),
            ("--class-axis", self.class_axis or 0, -_MOST_AXES, _MOST_AXES - 1),
        ):
            if not isinstance(whole, int) or not least <= whole <= most:
                raise UsageError(f"{option} {shortened(whole)}: is no whole number from {least:,} to {most:,}")
        for option, value, allowed in (
            *(("--loss", term.kind, LOSSES) for term in _terms(str(self.loss))),
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--batch-norm", self.batch_norm, BATCH_NORM_MODES),
            ("--precision", self.precision, PRECISIONS),
            ("--saved", self.saved, SAVED),
            ("--niti-weights", self.niti_weights, NITI_WEIGHTS),
            ("--rescale", self.rescale, RESCALES),
        ):
            if value not in allowed:
                raise UsageError(
                    f"{option} {shortened(value)!r}: choose from {', '.join(allowed)}{way_out(option, str(value))}"
                )
        for option, number, low, high in (
            ("--lr", self.learning_rate, 0.0, _LARGEST_FLOAT),
            ("--momentum", self.momentum, 0.0, 1.0),
            ("--alpha", self.alpha, 0.0, 1.0),
            ("--momentum-decay", self.momentum_decay, 0.0, _LARGEST_FLOAT),
            ("--beta1", self.beta1, 0.0, 1.0),
            ("--beta2", self.beta2, 0.0, 1.0),
            ("--epsilon", self.epsilon, 0.0, _LARGEST_FLOAT),
            ("--weight-decay", self.weight_decay, 0.0, _LARGEST_FLOAT),
            ("--label-smoothing", self.label_smoothing, 0.0, 1.0),
            ("--huber-delta", self.huber_delta, 0.0, _LARGEST_FLOAT),
            ("--focal-gamma", self.focal_gamma, 0.0, _LARGEST_FLOAT),
            ("--margin", self.margin, 0.0, _LARGEST_FLOAT),
            ("--ctc-labels", self.ctc_labels, 1, _LARGEST),
            ("--ctc-blank", self.ctc_blank, 0, _LARGEST),
        ):
            if number is None or (isinstance(number, float | int) and low <= number < high):
                continue
            raise UsageError(f"{option} {shortened(number)}: must be at least {low:g} and below {high:g}")
        if self.huber_delta == 0:
            raise UsageError("--huber-delta 0.0: must be above 0")
        if self.output and self.losses()[0].output:
            raise UsageError("--model-output: --loss names the outputs itself; leave one of them out")
        for option, entries in (("--lr-for", self.lr_for), ("--weight-decay-for", self.weight_decay_for)):
            for entry in entries:
                _, factor = parse_entry(option, entry)
                if option == "--lr-for" and factor == 0:
                    raise UsageError(
                        f"{option} {shortened(entry, 80)!r}: at a rate of 0 nothing moves; leave it out of --train"
                    )
        if isinstance(self.lora, str):  # one entry, from Python
            object.__setattr__(self, "lora", (self.lora,))
        for text in self.lora:
            Lora.parse(text)
        if self.accumulate is not None:
            if not (isinstance(self.accumulate, int) and 2 <= self.accumulate <= _LARGEST):
                raise UsageError(f"--accumulate {shortened(self.accumulate)}: give a whole number of at least 2")
            if self.micro_batches != 1:
                raise UsageError("--accumulate and --micro-batches: choose one of them")
            if self.clip_norm_late is not None:
                raise UsageError("--accumulate and --clip-norm-late: choose one of them; --clip-norm goes with it")
        for weight in self.class_weights:
            if not (isinstance(weight, float | int) and 0 <= weight < _LARGEST_FLOAT):
                raise UsageError(f"--class-weights: {shortened(weight)} is not a number of at least 0")
        if self.class_weights and max(self.class_weights) == 0:
            raise UsageError("--class-weights: all are 0")
        clips = {f"--{name.replace('_', '-')}": limit for name in CLIPS if (limit := getattr(self, name)) is not None}
        for option, limit in clips.items():
            if not (isinstance(limit, float | int) and 0 < limit < _LARGEST_FLOAT):
                raise UsageError(f"{option} {shortened(limit)}: must be above 0 and fit in 32 bits")
        if len(clips) > 1:
            raise UsageError(f"{' and '.join(clips)}: choose one of them")
        for option, given, optimizer in (
            ("--alpha", self.alpha is not None, "rmsprop"),
            ("--centered", self.centered is not None, "rmsprop"),
            ("--momentum-decay", self.momentum_decay is not None, "nadam"),
        ):
            if given and self.optimizer != optimizer:
                raise UsageError(f"{option} does nothing for --optimizer {self.optimizer}, only for {optimizer}")
        for option, given, losses in (
            ("--label-smoothing", self.label_smoothing != 0, ("cross-entropy", "soft-cross-entropy", "nll", "auto")),
            ("--ignore-index", self.ignore_index is not None, ("cross-entropy", "focal", "nll", "auto")),
            ("--class-weights", bool(self.class_weights), ("cross-entropy", "focal", "nll", "auto")),
            ("--class-axis", self.class_axis is not None, OF_CLASSES),
            ("--focal-gamma", self.focal_gamma is not None, ("focal",)),
            ("--margin", self.margin is not None, ("triplet", "contrastive")),
            ("--ctc-labels", self.ctc_labels is not None, ("ctc",)),
            ("--ctc-blank", self.ctc_blank is not None, ("ctc",)),
            ("--huber-delta", self.huber_delta != 1, ("huber",)),
        ):
            if given and not any(term.kind in losses for term in self.losses()):
                raise UsageError(f"{option} does nothing for --loss {self.loss}, only for {losses[0]}")

        if self.precision != "f32" and self.saved in FORMATS:
            raise UsageError(
                f"--saved {self.saved}: --precision {self.precision} saves {_SAVED_IN[self.precision]} already;"
                " leave it out"
            )
        roundings = self.roundings()
        if self.precision not in INTEGERS and self.rounding:
            raise UsageError(f"--rounding does nothing for --precision {self.precision}, only for niti and qas")
        scale = self.loss_scale
        if scale is not None and self.precision != "f16":
            raise UsageError(f"--loss-scale does nothing for --precision {self.precision}, only for f16")
        if scale is not None and (
            not isinstance(scale, int) or not 1 <= scale <= _MOST_LOSS_SCALE or scale & (scale - 1)
        ):
            raise UsageError(f"--loss-scale {shortened(scale)}: give a power of two from 1 to {_MOST_LOSS_SCALE:,}")
        if self.precision == "qas" and "stochastic" in (roundings["activation"], roundings["error"]):
            raise UsageError("--rounding: --precision qas rounds activations to nearest, and its errors are floats")
        for option, is_given in (
            ("--niti-weights", self.niti_weights != "model"),
            ("--rescale", self.rescale != "every"),
        ):
            if is_given and self.precision != "niti":
                raise UsageError(f"{option} does nothing for --precision {self.precision}, only for niti")

    def refuse(self, *fields: str, reason: str) -> None:
        """UsageError for the first of `fields` that has another value than the default."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name in fields:
            if getattr(self, name) not in (defaults[name], []):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}: {reason}; leave it out, or train with --precision f32")

    def roundings(self) -> dict[str, str]:
        """How activations, errors and updates are rounded; as NITI does unless `rounding` says otherwise."""
        found = {"activation": "nearest", "error": "nearest", "update": "stochastic"}
        for entry in filter(None, self.rounding.split(",")):
            name, _, value = entry.strip().partition("=")
            if name not in _PURPOSES or value not in ROUNDINGS:
                raise UsageError(
                    f"--rounding {shortened(entry, 80)!r}: write act=HOW,err=HOW,update=HOW, where HOW is one of"
                    f" {', '.join(ROUNDINGS)}"
                )
            found[_PURPOSES[name]] = value
        return found

    def losses(self) -> tuple[Term, ...]:
        """The parts of `loss`; the first has no output if there is one loss alone."""
        return _terms(self.loss)
