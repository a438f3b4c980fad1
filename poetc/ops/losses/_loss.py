"""The declaration of a loss, and the plan of one for an output of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from poetc.declare import Option, Registry
from poetc.graph import Attribute, Fact, Graph, Operator, TensorType
from poetc.ops._builder import Builder

_LEAST = 1e-30  # probability


@dataclass(frozen=True, slots=True)
class LossPlan:
    kind: str  # operator kind
    source: str  # the tensor that the loss reads (logits, prediction)
    target: TensorType
    attributes: dict[str, Attribute]
    note: str
    labels: str = ""  # the input of the model that the target takes the place of
    output: str = ""  # of the model; "" where there is one loss
    weight: float = 1.0  # Its weight in the sum.
    of_probabilities: bool = False  # the source holds probabilities: the loss reads their logarithms or log-odds
    is_batch_first: bool = False  # the target, whatever the axes of the output
    samples: Fact | None = None  # the axis of the samples in the target, where the output has a fact about it

    def emit(self, b: Builder, source: str, target: str) -> str:
        """The loss of `source`, this plan's or that of a part of the batch."""
        if self.of_probabilities:
            source = _log_of(b, source) if self.kind == "CrossEntropy" else _log_odds(b, source)
        return b.emit1(self.kind, [source, target], self.attributes, hint="loss")


def _log_of(b: Builder, p: str) -> str:
    """log p; a probability of 0 counts as the least number that has a finite slope."""
    return b.emit1("Log", [b.emit1("Clip", [p], {"min": _LEAST, "max": 1.0})])


def _log_odds(b: Builder, p: str) -> str:
    """The number whose sigmoid is p."""
    rest = b.emit1("Affine", [p], {"alpha": -1.0, "beta": 1.0})
    return b.emit1("Sub", [_log_of(b, p), _log_of(b, rest)])


@dataclass(frozen=True, slots=True)
class Output:
    """The output `name` of `graph`, made by `last` behind its views, and the training options."""

    graph: Graph
    name: str
    last: Operator | None
    note: str
    options: Any
    loss: str

    @property
    def softmax(self) -> Operator | None:
        """The softmax that computes the output; the loss reads its input, the logits."""
        return self.last if self.last is not None and self.last.kind in ("Softmax", "LogSoftmax") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """`help` and `target`: in words, for the documentation. `plan`: its operator for an output.

    `may_be_auto`: --loss auto may choose it. `compares_rows`: rows of a batch are compared with each other.
    """

    name: str
    help: str
    target: str
    plan: Callable[[Output], LossPlan]
    options: tuple[Option, ...] = ()
    may_be_auto: bool = False
    compares_rows: bool = False


LOSSES: Registry[Loss] = Registry("--loss")


def declare(*losses: Loss) -> None:
    """Add losses to the choices of --loss."""
    for loss in losses:
        LOSSES.add(loss.name, loss)
