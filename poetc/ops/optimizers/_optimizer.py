"""The declaration of an optimizer: its name, its options, its state and its update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poetc.declare import LARGEST_FLOAT, Number, Option, Registry
from poetc.graph import Attribute, TensorType

_SHARE, _POSITIVE = Number(below=1.0), Number(below=LARGEST_FLOAT)


# Options that several optimizers have.
MOMENTUM = Option(name="momentum", values=_SHARE, default=0.9, help="Share of the velocity that stays.")
BETA1 = Option(name="beta1", values=_SHARE, default=0.9, help="Share of the mean gradient that stays.")
BETA2 = Option(name="beta2", values=_SHARE, default=0.999, help="Share of the mean square that stays.")
EPSILON = Option(
    name="epsilon", values=_POSITIVE, default=1e-8, help="Added to the root that a gradient is divided by."
)


@dataclass(frozen=True, slots=True)
class Shared:
    """A scalar that all parameters share, such as a power of beta: 1 at first, updated by `kind` once a step."""

    name: str
    kind: str
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Rule:
    """The update of one parameter: its kind, its state by name, its attributes beside weight_decay.

    A state has the type of the parameter, unless `types` says otherwise.
    """

    kind: str
    states: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    types: Mapping[str, TensorType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """`help` and `state`: its update, and its state a parameter, in words. `rule`: the update of a parameter of a type.

    `defaults`: of options that others have with another default. `counts_steps`: its updates read the number of the
    step. `shared`: a state for all parameters.
    """

    name: str
    help: str
    state: str
    rule: Callable[[Any, TensorType], Rule]
    options: tuple[Option, ...] = ()
    defaults: Mapping[str, float] = field(default_factory=dict)
    counts_steps: bool = False
    shared: Callable[[Any], Shared] | None = None


OPTIMIZERS: Registry[Optimizer] = Registry("--optimizer")


def declare(optimizer: Optimizer) -> None:
    """Add an optimizer to the choices of --optimizer."""
    OPTIMIZERS.add(optimizer.name, optimizer)
