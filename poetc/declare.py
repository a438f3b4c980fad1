"""Options, declared once: by the operator, loss, optimizer, ... that they belong to.

An `Option` has a name, a type with a range, a default, a help text and a group. `when` names the choice that it depends
on. The command line, the keywords of the Python API, checks, help and pages of the documentation read it.
A `Registry` holds the things that a user chooses by name; each brings its own options.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from poetc.errors import UsageError, nearest, shortened

LARGEST = 2**31 - 1  # the largest number that counters of the emitted C hold
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 3.4028234e38  # of 32 bits, in which the C computes


class Values(Protocol):
    """The values that an option takes."""

    @property
    def annotation(self) -> str:
        """The type of a value as Python writes it, such as `int | Literal["auto"]`."""

    def accept(self, value: Any) -> Any:
        """The value of a text of the command line, or of a value from Python. Raises ValueError that says why not."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, or `word` where there is one; `power_of_two`: only these."""

    least: int = 0
    most: int = LARGEST
    word: str = ""
    power_of_two: bool = False

    @property
    def annotation(self) -> str:
        return f'int | Literal["{self.word}"]' if self.word else "int"

    def accept(self, value: Any) -> int | str:
        if self.word and value == self.word:
            return self.word
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if not isinstance(number, int) or not self.least <= number <= self.most:
            also = f", nor {self.word}" if self.word else ""
            raise ValueError(f"{shortened(value)} is no whole number from {self.least:,} to {self.most:,}{also}")
        if self.power_of_two and number & (number - 1):
            raise ValueError(f"{shortened(value)} is no power of two from {self.least:,} to {self.most:,}")
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` to `most`; `above`: not `least` itself; `below`: less than that."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False
    below: float = math.inf
    annotation: str = "float"

    def accept(self, value: Any) -> float:
        try:
            number = float(value) if isinstance(value, str) else value
        except ValueError:
            number = math.nan
        if not isinstance(number, float | int):
            number = math.nan
        inside = self.least < number if self.above else self.least <= number
        if not (inside and number <= self.most and number < self.below and math.isfinite(number)):
            least = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
            most = f" and at most {self.most:g}" if self.most < math.inf else ""
            most += f" and below {self.below:g}" if self.below < math.inf else ""
            raise ValueError(f"{shortened(value)} is no finite number {least}{most}")
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `names`. `hint` says of a wrong one how to go on."""

    names: tuple[str, ...]
    hint: Callable[[str], str] = field(default=lambda value: "", repr=False)
    annotation: str = "str"

    def accept(self, value: Any) -> str:
        if str(value) not in self.names:
            hint = self.hint(str(value))
            near = nearest(str(value), self.names) if not hint else f"choose from {', '.join(self.names)}{hint}"
            raise ValueError(f"{shortened(value)!r}: {near}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text. `check` raises UsageError for one that cannot be read."""

    check: Callable[[str], object] | None = None
    annotation: str = "str"

    def accept(self, value: Any) -> str:
        if self.check is not None:
            self.check(str(value))
        return str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false. `has_no`: the command line has --no-NAME, too."""

    has_no: bool = False
    annotation: str = "bool"

    def accept(self, value: Any) -> bool:
        return bool(value)


@dataclass(frozen=True, slots=True)
class When:
    """The condition of an option: option `name` has one of `values`, or any value at all where `values` is empty."""

    name: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"--{self.name.replace('_', '-')} {', '.join(self.values)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`name`: in Python. `help`: sentences. `group`: the heading of its help; by default that of its owner.

    `defaults`: by the value of another option, in place of `default`: ("optimizer", {"lion": 0.99}).
    """

    name: str
    values: Values = Text()
    help: str
    group: str = ""
    default: Any = None
    defaults: tuple[str, Mapping[str, Any]] = ("", {})
    when: When | None = None
    repeated: bool = False  # the value is a tuple
    joins: bool = False  # repeated on the command line, one text with commas in Python
    usual: str = ""  # its line of the short help; "": not there
    spelling: str = ""  # on the command line; default: --name
    short: str = ""  # -b
    metavar: str = ""
    default_text: str = ""  # of a default that depends

    @property
    def flag(self) -> str:
        return self.spelling or f"--{self.name.replace('_', '-')}"

    @property
    def annotation(self) -> str:
        """The type of the option's value as Python writes it."""
        if self.repeated:
            return f"tuple[{self.values.annotation}, ...]"
        return f"{self.values.annotation} | None" if self.default is None else self.values.annotation

    def default_in(self, chosen: Mapping[str, Any]) -> Any:
        """The default where other options have these values."""
        owner, values = self.defaults
        return values.get(str(chosen.get(owner)), self.default)

    def is_given(self, values: Mapping[str, Any]) -> bool:
        """Whether it has another value than every default that it can have here."""
        value = values[self.name]
        return value not in (None, (), []) and value not in (self.default, self.default_in(values))

    def has_effect(self, chosen: Mapping[str, Collection[str]]) -> bool:
        """Whether it does something. `chosen`: by the name of the option that decides, the values that it has."""
        if self.when is None or self.when.name not in chosen:
            return True
        values = chosen[self.when.name]
        return not set(self.when.values).isdisjoint(values) if self.when.values else bool(values)

    def accept(self, value: Any) -> Any:
        """The value, checked. Raises UsageError that names the option."""
        try:
            if self.repeated:
                entries = (value,) if isinstance(value, str) else value
                return tuple(self.values.accept(entry) for entry in entries)
            return self.values.accept(value)
        except ValueError as error:
            raise UsageError(f"{self.flag} {error}") from None


def in_group(group: str, *options: Option) -> tuple[Option, ...]:
    return tuple(dataclasses.replace(option, group=group) for option in options)


def require_effect(options: Iterable[Option], chosen: Mapping[str, Collection[str]]) -> None:
    """UsageError for the first of these options, which somebody gave, that has no effect; `chosen` as `has_effect`."""
    for option in options:
        if option.has_effect(chosen):
            continue
        assert option.when is not None
        name, values = option.when.name, option.when.values
        if not values:
            raise UsageError(f"{option.flag} does nothing without {option.when}")
        *others, last = values
        only = f"{', '.join(others)} and {last}" if others else last
        has = ", ".join(chosen[name])
        raise UsageError(f"{option.flag} does nothing for --{name} {has}, only for {only}")


T = TypeVar("T")


class Registry(Generic[T]):
    """Things that a user chooses by name. `word`: the option, as --optimizer."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Raises ValueError where the name is taken."""
        if name in self._entries:
            raise ValueError(f"{self.word} {name} is declared twice")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise UsageError(f"{self.word} {shortened(name)!r}: {nearest(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[T]:
        return list(self._entries.values())
