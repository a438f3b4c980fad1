"""The scope of a lower bound: for which schedules nothing cheaper exists.

A bound is a claim about a set of schedules. `Scope` says which set, one field a kind of choice, so that a planner can
ask whether a bound may be stated beside a schedule. `poetc.reporting` puts a scope into words.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import Final, Literal


class AnyOption(enum.Enum):
    """Every option of a choice."""

    ANY = "any"


ANY: Final = AnyOption.ANY


class Repetition(enum.StrEnum):
    """How often, and where, operators of the schedules in a scope run again."""

    ANY = "any"
    STAGED = "staged"  # poetc's staged MILP: at most once again a stage, in ascending order
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

    `order`: the operators in the order of their first executions. `state`: the tensors of state that live on the store
    between steps. `kernels`: the number of the kernel that each operator runs, 0 for the fastest. `saved`: the numbers
    of the encodings of saved tensors. `processors`: the processor of each operator. `banks`: the bank of each tensor.
    `streaming`: the streamed operators: of each its number, units of a block, and the tensors that it streams.
    They are None where the problem leaves no such choice. Another kind of choice is another field, None by default.
    """

    order: tuple[int, ...] | Literal[AnyOption.ANY] = ANY
    repetition: Repetition = Repetition.ANY
    state: frozenset[int] | Literal[AnyOption.ANY] | None = None
    kernels: tuple[int, ...] | Literal[AnyOption.ANY] | None = None
    saved: tuple[int, ...] | Literal[AnyOption.ANY] | None = None
    processors: tuple[int, ...] | Literal[AnyOption.ANY] | None = None
    banks: tuple[int, ...] | Literal[AnyOption.ANY] | None = None
    streaming: tuple[int, ...] | Literal[AnyOption.ANY] | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every schedule of the problem is in it, whatever it chooses."""
        return self.repetition is Repetition.ANY and all(
            option is ANY or option is None for _, option in self._options()
        )

    def covers(self, other: Scope) -> bool:
        """Whether every schedule of `other` is in this scope."""
        pairs = zip(self._options(), other._options(), strict=True)
        return self.repetition in (Repetition.ANY, other.repetition) and all(a in (ANY, b) for (_, a), (_, b) in pairs)

    def choices_cover(self, other: Scope) -> bool:
        """`covers` for a bound that keeps its restriction of repetitions: the claim then still names that class."""
        return self.covers(replace(other, repetition=self.repetition))

    def kinds(self) -> dict[str, str]:
        """For `--json`: each open choice as "any" or "own", the option of the schedule that the bound comes with.

        The order is "problem" where that is the problem's own.
        """
        named = {name: "any" if option is ANY else "own" for name, option in self._options() if option is not None}
        if self.order is not ANY and self.order == tuple(range(len(self.order))):
            named["order"] = "problem"
        return {**named, "repetition": self.repetition.value}

    def _options(self) -> list[tuple[str, object]]:
        """Each choice with its option."""
        return [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "repetition"]


EVERYTHING: Final = Scope(state=ANY, kernels=ANY, saved=ANY, processors=ANY, banks=ANY, streaming=ANY)
