"""The scope of a lower bound: for which schedules nothing cheaper exists.

A bound is a claim about a set of schedules. `Scope` says which set, so that a planner can ask whether a bound may be
stated beside a schedule. It knows no kind of choice by its name. `poetc.reporting` puts a scope into words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias


class AnyOption(enum.Enum):
    """Every option of a choice."""

    ANY = "any"


ANY: Final = AnyOption.ANY
Option: TypeAlias = tuple[int, ...] | Literal[AnyOption.ANY]


class Repetition(enum.StrEnum):
    """How often, and where, operators of the schedules in a scope run again."""

    ANY = "any"
    STAGED = "staged"  # of earlier versions alone: at most once again a stage, in ascending order
    STAGED_FORWARD = "staged_forward"  # the same, in the backward pass alone
    CHECKMATE = "checkmate"  # Checkmate's stages (Jain et al., MLSys 2020)
    MOCCASIN = "moccasin"  # the same with at most two executions (Bartan et al., ICML 2023)
    POET = "poet"  # POET's stages (Patil et al., ICML 2022)
    LAYERS = "layers"  # a published formulation on groups of operators, each of which runs as a whole
    ONCE = "once"  # every operator once, no paging
    OTHER = "other"  # a class that only its solver can name


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A set of schedules: each choice is ANY, or the one option that all of them share.

    `order`: the operators in the order of their first executions. `choices`: the options of the other kinds of choice,
    by name in alphabetical order. A kind that the problem leaves no choice of is absent. `with_choice` adds one.
    """

    order: Option = ANY
    repetition: Repetition = Repetition.ANY
    choices: tuple[tuple[str, Option], ...] = ()

    def choice(self, name: str) -> Option | None:
        """The option of a kind of choice; None where the problem leaves no such choice."""
        return dict(self.choices).get(name)

    def with_choice(self, name: str, option: Iterable[int] | Literal[AnyOption.ANY]) -> Scope:
        """With this option of a kind of choice. A set of numbers is kept in ascending order."""
        if option is not ANY:
            option = tuple(sorted(option) if isinstance(option, frozenset) else option)
        return replace(self, choices=tuple(sorted((dict(self.choices) | {name: option}).items())))

    def only(self, names: Iterable[str]) -> Scope:
        """Without the kinds of choice that are not among `names`."""
        kept = set(names)
        return replace(self, choices=tuple((name, option) for name, option in self.choices if name in kept))

    @property
    def open(self) -> Scope:
        """The scope of all schedules with the same kinds of choice."""
        return Scope(choices=tuple((name, ANY) for name, _ in self.choices))

    @property
    def is_everything(self) -> bool:
        """Whether every schedule of the problem is in it, whatever it chooses."""
        return names_everything(self.kinds())

    def covers(self, other: Scope) -> bool:
        """Whether every schedule of `other` is in this scope."""
        names = dict(self.choices) | dict(other.choices)
        pairs = [(self.order, other.order), *((self.choice(name), other.choice(name)) for name in names)]
        return self.repetition in (Repetition.ANY, other.repetition) and all(a in (ANY, b) for a, b in pairs)

    def choices_cover(self, other: Scope) -> bool:
        """`covers` for a bound that keeps its restriction of repetitions: the claim then still names that class."""
        return self.covers(replace(other, repetition=self.repetition))

    def kinds(self) -> dict[str, str]:
        """For `--json`: each open choice as "any" or "own", the option of the schedule that the bound comes with.

        The order is "problem" where that is the problem's own.
        """
        options = {"order": self.order, **dict(self.choices)}
        named = {name: "any" if option is ANY else "own" for name, option in options.items()}
        if self.order is not ANY and self.order == tuple(range(len(self.order))):
            named["order"] = "problem"
        return {**named, "repetition": self.repetition.value}


def names_everything(kinds: Mapping[str, str]) -> bool:
    """Whether a scope with these `Scope.kinds` has every schedule of the problem, whatever it chooses."""
    return set(kinds.values()) == {"any"}
