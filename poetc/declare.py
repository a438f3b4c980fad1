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
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from poetc.errors import UsageError, shortened

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
            raise ValueError(f"{shortened(value)!r}: choose from {', '.join(self.names)}{self.hint(str(value))}")
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
class Numbers:
    """Numbers of at least 0 with commas or spaces between them, or a text file that holds them."""

    annotation: str = "tuple[float, ...]"

    def accept(self, value: Any) -> tuple[float, ...]:
        items, where = [], ""
        if isinstance(value, str):
            text = value
            if Path(text).is_file():
                where = f"{shortened(text, 80)}: "
                try:
                    text = Path(text).read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    raise ValueError(f"{where}not a text file that can be read") from None
            items = text.replace(",", " ").split()
            if not items:
                raise ValueError(f"{where}there are no numbers")
        numbers = tuple(map(_number, items)) if items else tuple(value)
        for number, word in zip(numbers, items or numbers, strict=True):
            if number is None:
                raise ValueError(f"{where}{shortened(word)!r} is neither a number nor a file")
            if not (isinstance(number, float | int) and 0 <= number < LARGEST_FLOAT):
                raise ValueError(f"{shortened(word)} is not a number of at least 0")
        return tuple(number for number in numbers if number is not None)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class When:
    """The condition of an option: option `name` has one of `values`, or any value at all where `values` is empty."""

    name: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"--{self.name.replace('_', '-')} {', '.join(self.values)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`name`: in Python. `help`: sentences. `group`: the heading of its help.

    `defaults`: by the value of another option, in place of `default`: ("optimizer", {"lion": 0.99}).
    """

    name: str
    values: Values
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


def flag_of(options: Iterable[Option], name: str) -> str:
    """The spelling of the option `name` on the command line."""
    return next((o.flag for o in options if o.name == name), f"--{name.replace('_', '-')}")


def resolved(options: Collection[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, checked, with defaults in place of None. Raises UsageError for a wrong value."""
    checked = {o.name: None if values[o.name] is None else o.accept(values[o.name]) for o in options}
    missing = {o.name: o.default_in(checked) for o in options if checked[o.name] is None}
    return {name: missing.get(name, value) for name, value in checked.items()}


def require_effect(options: Iterable[Option], values: Mapping[str, Any], chosen: Mapping[str, Collection[str]]) -> None:
    """UsageError for an option with a value of its own that has no effect.

    `chosen`: by the name of the option that decides, the values that it has.
    """
    for option in options:
        if option.when is not None and has_own_value(option, values) and not has_effect(option, chosen):
            raise UsageError(no_effect(option, ", ".join(chosen[option.when.name])))


def has_effect(option: Option, chosen: Mapping[str, Collection[str]]) -> bool:
    """Whether the option does something where the options that decide have the values `chosen`."""
    when = option.when
    if when is None or when.name not in chosen:
        return True
    return not set(when.values).isdisjoint(chosen[when.name]) if when.values else bool(chosen[when.name])


def no_effect(option: Option, has: str) -> str:
    """The message on an option that has no effect where the option that it depends on is `has`."""
    assert option.when is not None
    if not option.when.values:
        return f"{option.flag} does nothing without {option.when}"
    *others, last = option.when.values
    only = f"{', '.join(others)} and {last}" if others else last
    return f"{option.flag} does nothing for --{option.when.name} {has}, only for {only}"


def require_given(options: Collection[Option], values: Mapping[str, Any]) -> None:
    """The same, where an option depends on another of `options` that is given."""
    set_options = {o.name: ("given",) if has_own_value(o, values) else () for o in options}
    require_effect([o for o in options if o.when is not None and not o.when.values], values, set_options)


def has_own_value(option: Option, values: Mapping[str, Any]) -> bool:
    """Whether an option has another value than every default that it can have here."""
    value = values[option.name]
    return value not in (None, (), []) and value not in (option.default, option.default_in(values))


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
            raise UsageError(f"{self.word} {shortened(name)!r}: choose from {', '.join(self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[T]:
        return list(self._entries.values())


def options_class(name: str, options: Iterable[Option], base: type, module: str) -> Any:
    """A frozen dataclass of `module` with one keyword an option. `base` has its methods."""
    fields = [(o.name, o.annotation, _default_of(o)) for o in options]
    class_of_options = dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, kw_only=True)
    class_of_options.__module__, class_of_options.__doc__ = module, base.__doc__
    return class_of_options


def _default_of(option: Option) -> Any:
    return dataclasses.field(default=None if option.defaults[1] else option.default)
