"""The description of an algorithm of training in mixed precision: which tensors are rounded to which numbers.

A named precision brings one, and `--precision FILE.yaml` reads one. In a record it is one line of JSON, so a directory
needs the file no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from poetc.errors import UsageError, shortened
from poetc.graph import Attribute
from poetc.ops._integers import ROUNDINGS
from poetc.ops.chunked import MOST_BITS, MOST_CHUNK
from poetc.ops.few_bits import LEAST_LOW, MOST_MANTISSA, MOST_POWER
from poetc.yaml_values import KeyPath, parse, read_text

SCALES = ("fixed", "nearest-power", "power", "real")
KIND = "a description of a precision"
PRODUCTS = ("weights", "activations", "errors")
STATE = ("gradients", "stored", "state")
ENDS = ("first", "last")
NORMS = ("statistics", "normalised", "parameters", "gradients")
ARITHMETIC = ("floats", "integers")  # of products
_NARROW_BITS = 8  # significant bits of bf16
_EXACT_BITS = 24  # of a product of two numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """`integer`: bits with the sign. `floats`: bits of exponent and mantissa; one of the two is given.

    `scale`: a place in `SCALES`; a fixed one is 1 / `times`. `range`: the share of the largest magnitude that the
    numbers reach. `groups`: planes and rows have a scale of their own, too. `unit`: the worth of
    1 in place of the scale; 0: the scale. `rises_to`: bits to which an integer with a scale of power may rise; 0: none.
    `clips`: magnitudes of 1 and more become the largest below 1; without, they keep the step of the others.
    """

    integer: int = 0
    floats: tuple[int, int] = (0, 0)
    scale: str = "fixed"
    times: int = 1
    range: float = 1.0
    groups: bool = False
    rounding: str = "nearest"
    unit: float = 0.0
    rises_to: int = 0
    clips: bool = True

    @property
    def bits(self) -> int:
        """Significant bits of a magnitude."""
        most = max(self.integer, self.rises_to)
        return (most - 1 if self.integer else self.floats[1] + 1) + 2 * self.groups

    @property
    def is_narrow(self) -> bool:
        """Whether bf16 holds the values."""
        return self.bits <= _NARROW_BITS

    @property
    def power(self) -> int:
        return 1 - self.times.bit_length() if self.clips else MOST_MANTISSA + 1 - self.integer

    @property
    def low(self) -> int:
        """The exponent below which numbers are no finer."""
        exponent, _ = self.floats
        fixed = 2 - 2 ** (exponent - 1)  # as IEEE floats, whose highest exponent stands for infinities
        return 0 if self.integer else fixed if self.scale == "fixed" else 1 - 2**exponent

    def grid(self) -> dict[str, Attribute]:
        """The attributes of `FewBits` that tell of the grid. Raises ValueError for bits beyond its limits."""
        exponent, mantissa = self.floats
        if not self.clips:  # as many numbers of this step as floats of 32 bits have
            return {"low": 0, "mantissa": MOST_MANTISSA, "largest": 1 - 2.0**-MOST_MANTISSA}
        if self.integer:
            top = 1 - 2.0 ** (1 - self.integer)
            return {"low": 0, "mantissa": self.integer - 1, "largest": top, "top": top}
        largest = 1 - 2.0 ** -(mantissa + 1)
        if self.scale == "fixed":
            largest *= 2.0 ** min(2 - self.low, MOST_POWER + 1)
        if self.low < LEAST_LOW:
            raise ValueError(f"{exponent} bits of exponent are too many")
        return {"low": self.low, "mantissa": mantissa, "largest": largest}

    def attributes(self, seed: int) -> dict[str, Attribute]:
        if self.rises_to:
            random: dict[str, Attribute] = {"rounding": self.rounding, "seed": seed}
            return {"scale": "adapted", **(random if self.rounding == "stochastic" else {})}
        grid = self.grid()
        if self.scale != "fixed":
            grid["scale"] = self.scale
        elif self.power:
            grid["power"] = self.power
        if self.range != 1:
            grid["range"] = self.range
        if self.groups:
            grid["groups"] = 1
        if self.rounding == "stochastic":
            grid |= {"rounding": self.rounding, "seed": seed}
        if self.unit:
            grid["unit"] = self.unit
        return grid

    def __str__(self) -> str:
        exponent, mantissa = self.floats
        return f"{self.integer} bits" if self.integer else f"1, {exponent}, {mantissa}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums of products are rounded to these floats after every addition, in chunks of so many terms."""

    floats: tuple[int, int]
    chunk: int

    @property
    def numbers(self) -> Numbers:
        return Numbers(floats=self.floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Numbers of the factors of products (weights, activations, errors), and of their results.

    `products`: of floats, whose factors are rounded, or of integers, by kernels of their own (`--precision niti`).
    `gradients`: of weights, in front of the update. `stored`: weights after it; `state`: the optimizer's. None: floats
    of 32 bits. `first` and `last`: other numbers in the first and the last product. `norms`: of batch norms that
    compute statistics; without it all of them are floats of 32 bits, as is all that it does not name. `statistics`:
    means and deviations. `normalised`: (x - mean) / deviation. `parameters`: scale and bias as they are read;
    `gradients`: theirs, in front of the update.
    """

    products: str = ARITHMETIC[0]
    weights: Numbers
    activations: Numbers
    errors: Numbers
    gradients: Numbers | None = None
    stored: Numbers | None = None
    state: Numbers | None = None
    sums: Sums | None = None
    first: Mapping[str, Numbers] | None = None
    last: Mapping[str, Numbers] | None = None
    norms: Mapping[str, Numbers] | None = None

    def __post_init__(self) -> None:
        """ValueError for numbers that do not fit together."""
        if self.products == "integers":
            self._check_integers()
        for end in ((), *((e,) for e in ENDS if getattr(self, e)), ENDS if self.first and self.last else ()):
            factors = {name: self.numbers(name, end) for name in PRODUCTS}
            names = ("weights and activations", "errors and weights", "errors and activations")
            for pair in names:
                one, other = pair.split(" and ")
                bits = factors[one].bits + factors[other].bits
                power = factors[one].power + factors[other].power
                if self.sums is not None and self.sums.numbers.low + power < LEAST_LOW:
                    raise ValueError(f"sums of {pair} would begin below 2^{LEAST_LOW}; take a smaller times")
                if bits > _EXACT_BITS:
                    raise ValueError(f"products of {pair} have {bits} bits; {_EXACT_BITS} are exact in 32-bit floats")
        for name in STATE:
            numbers = getattr(self, name)
            if numbers is not None and numbers.scale == "real":
                raise ValueError(f"{name}: a real scale is for weights, activations and errors")
            if numbers is not None and numbers.rises_to:
                raise ValueError(f"{name}: bits that rise are for weights, activations and errors")
        for name, numbers in (self.norms or {}).items():
            if numbers.scale != "fixed":
                raise ValueError(f"norms: {name} have a fixed scale")
            if name == "statistics" and not numbers.integer:
                raise ValueError("norms: statistics are integers, whose step keeps deviations from 0")

    def _check_integers(self) -> None:
        for name in ("sums", "state", *ENDS, "norms"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: products of integers have none")
        for name in (*PRODUCTS, "gradients", "stored"):
            numbers = getattr(self, name)
            wanted = (8, 24) if name == "stored" else (8,)
            if numbers is None or numbers.integer not in wanted or numbers.scale != "power":
                bits = " or ".join(map(str, wanted))
                raise ValueError(f"{name}: products of integers need integers of {bits} bits with scale power")
            rounding = "nearest" if name in ("weights", "stored") else numbers.rounding
            if numbers != Numbers(integer=numbers.integer, scale="power", rounding=rounding):
                raise ValueError(f"{name}: products of integers have no other field")

    def numbers(self, name: str, ends: tuple[str, ...] = ()) -> Numbers:
        """Those of weights, activations or errors in a product that is such ends of the network."""
        for end in ends:
            other: Numbers | None = (getattr(self, end) or {}).get(name)
            if other is not None:
                return other
        usual: Numbers = getattr(self, name)
        return usual

    def text(self) -> str:
        """One line of JSON, without defaults."""
        return json.dumps(_plain(self), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Numbers | Sums | Algorithm):
        pairs = ((f.name, getattr(value, f.name), f.default) for f in fields(value))
        return {name: _plain(numbers) for name, numbers, default in pairs if numbers != default}
    if isinstance(value, Mapping):
        return {name: _plain(numbers) for name, numbers in value.items()}
    return list(value) if isinstance(value, tuple) else value


def read_algorithm(path: Path) -> Algorithm:
    """The description in a YAML file. Raises UsageError with file and line."""
    return _parsed(read_text(path, KIND), path)


def recorded_algorithm(text: str) -> Algorithm:
    """The description that `Algorithm.text` wrote. Raises UsageError."""
    return _parsed(text, Path("--precision"))


def _parsed(text: str, path: Path) -> Algorithm:
    members, lines = parse(text, path, KIND)
    return _Reader(path, lines).algorithm(members)


class _Reader:
    def __init__(self, path: Path, lines: dict[KeyPath, int]) -> None:
        self.path, self.lines = path, lines

    def error(self, at: KeyPath, why: str) -> UsageError:
        return UsageError(f"{self.path}:{self.lines.get(at, 1)}: {'.'.join(at)}{': ' if at else ''}{why}")

    def section(self, value: Any, at: KeyPath, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(at, f"is {shortened(value)}, not a mapping")
        for key in value:
            if key not in known:
                raise self.error((*at, key), f"unknown; there are {', '.join(known)}")
        return value

    def algorithm(self, value: Any) -> Algorithm:
        entries = self.section(value, (), ("products", *PRODUCTS, *STATE, "sums", *ENDS, "norms"))
        for name in PRODUCTS:
            if name not in entries:
                raise self.error((), f"{name} are missing")
        by_name: dict[str, Any] = {n: self.numbers(entries[n], (n,)) for n in (*PRODUCTS, *STATE) if n in entries}
        if "products" in entries:
            by_name["products"] = self.choice(entries["products"], ("products",), ARITHMETIC)
        if "sums" in entries:
            by_name["sums"] = self.sums(entries["sums"])
        for end, names in (*((end, PRODUCTS) for end in ENDS), ("norms", NORMS)):
            if end in entries:
                own = self.section(entries[end], (end,), names)
                by_name[end] = {name: self.numbers(numbers, (end, name)) for name, numbers in own.items()}
        try:
            return Algorithm(**by_name)
        except ValueError as error:
            raise self.error((), str(error)) from None

    def sums(self, value: Any) -> Sums:
        entries = self.section(value, ("sums",), ("floats", "chunk"))
        if len(entries) < 2:
            raise self.error(("sums",), "floats and chunk are both needed")
        chunk = self.whole(entries["chunk"], ("sums", "chunk"), 1, MOST_CHUNK)
        floats = self.floats(entries["floats"], ("sums", "floats"), MOST_BITS)
        self.check(Numbers(floats=floats), ("sums",))
        return Sums(floats=floats, chunk=chunk)

    def numbers(self, value: Any, at: KeyPath) -> Numbers:
        entries = self.section(value, at, tuple(f.name for f in fields(Numbers)))
        if ("integer" in entries) == ("floats" in entries):
            raise self.error(at, "give integer (bits) or floats ([exponent, mantissa])")
        values: dict[str, Any] = {}
        for key, part in entries.items():
            where = (*at, key)
            if key in ("integer", "rises_to"):
                values[key] = self.whole(part, where, 2, MOST_MANTISSA + 1)
            elif key == "floats":
                values[key] = self.floats(part, where)
            elif key == "times":
                values[key] = self.whole(part, where, 1, 1 << MOST_POWER)
                if part & (part - 1):
                    raise self.error(where, f"{part} is no power of two")
            elif key in ("scale", "rounding"):
                values[key] = self.choice(part, where, SCALES if key == "scale" else ROUNDINGS)
            elif key in ("groups", "clips"):
                if not isinstance(part, bool):
                    raise self.error(where, f"is {shortened(part)}, neither true nor false")
                values[key] = part
            else:
                most = 1.0 if key == "range" else 2.0**MOST_POWER
                if isinstance(part, bool) or not isinstance(part, float | int) or not 2.0**-MOST_POWER <= part <= most:
                    raise self.error(where, f"{shortened(part)} is no number from 2^-{MOST_POWER} to {most:g}")
                values[key] = float(part)
        numbers = Numbers(**values)
        only_scaled = [k for k in ("range", "groups", "unit") if k in entries]
        if numbers.scale == "fixed" and only_scaled:
            raise self.error((*at, only_scaled[0]), "a fixed scale has none; choose another scale")
        if "unit" in entries and at != ("gradients",):
            raise self.error((*at, "unit"), "a unit is for gradients of weights")
        if numbers.scale != "fixed" and "times" in entries:
            raise self.error((*at, "times"), "only a fixed scale has it")
        if "clips" in entries and not (at[0] == "norms" and entries.keys() <= {"integer", "clips", "rounding"}):
            raise self.error((*at, "clips"), "is for integers of norms, with rounding alone beside")
        is_rising = numbers.scale == "power" and 0 < numbers.integer < numbers.rises_to
        if "rises_to" in entries and not (is_rising and entries.keys() <= {"integer", "scale", "rises_to", "rounding"}):
            raise self.error(
                (*at, "rises_to"), "needs an integer of fewer bits, scale power, and rounding alone beside"
            )
        self.check(numbers, at)
        return numbers

    def check(self, numbers: Numbers, at: KeyPath) -> None:
        try:
            numbers.grid()
        except ValueError as error:
            raise self.error(at, str(error)) from None

    def choice(self, value: Any, at: KeyPath, names: tuple[str, ...]) -> str:
        if value not in names:
            raise self.error(at, f"{shortened(value)!r}: choose from {', '.join(names)}")
        return str(value)

    def floats(self, value: Any, at: KeyPath, most: int = MOST_MANTISSA) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.error(at, f"{shortened(value)} is not [bits of the exponent, bits of the mantissa]")
        return self.whole(value[0], at, 2, 7), self.whole(value[1], at, 0, most)

    def whole(self, value: Any, at: KeyPath, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(at, f"{shortened(value)} is no whole number from {least:,} to {most:,}")
        return value
