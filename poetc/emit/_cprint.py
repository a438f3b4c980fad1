"""Prints C: identifiers, literals, comments, tables. No templates; everything is deterministic."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

LINE_WIDTH = 110
IDENTIFIER_LENGTH = 48


def identifier(name: str, length: int = IDENTIFIER_LENGTH) -> str:
    """A C identifier of at most `length` characters for any name.

    Other characters become `_`; a name that is too long is cut, and a hash tells it apart.
    """
    text = re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_") or "x"
    if text[0].isdigit():
        text = f"m_{text}"
    if len(text) > length:
        text = f"{text[: length - 9]}_{_hash(name)}"
    return text


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """`identifier` of each name; where two would be equal (case aside, for macros) the later ones get a hash."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text = short = identifier(name)
        number = 0
        while text.upper() in taken:
            text = f"{short[: IDENTIFIER_LENGTH - 9]}_{_hash(name + '+' * number)}"
            number += 1
        taken.add(text.upper())
        result[name] = text
    return result


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def comment(text: str) -> str:
    """A whole text as a comment.

    Characters that may not stand in one are escaped as in JSON, so that no two texts look alike. These are all but
    printable ASCII, backslashes, and the second character of `*/`, `/*` and `??`.
    """
    return f"/* {re.sub(_NOT_IN_COMMENTS, _escaped, text)} */"


_NOT_IN_COMMENTS = r"[^\x20-\x7e]|\\|(?<=\*)/|(?<=/)\*|(?<=\?)\?"


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def string(text: str) -> str:
    """A string literal of the UTF-8 bytes of `text`."""
    plain = set(b" !#$%&'()*+,-./:;<=>@[]^_`{|}~") | set(range(48, 58)) | set(range(65, 91)) | set(range(97, 123))
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def floating(value: float) -> str:
    """A float literal that reads back as the same bits."""
    with np.errstate(over="ignore"):
        single = float(np.float32(value))
    if math.isnan(single):
        return "NAN"
    if math.isinf(single):
        return "INFINITY" if single > 0 else "-INFINITY"
    return re.sub(r"\.?0*p", "p", single.hex()) + "f"


def integer(value: int) -> str:
    """An int32_t literal. ValueError outside its range."""
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} does not fit into 32 bits")
    return str(value) if value != -(2**31) else "(-2147483647 - 1)"


def table(declaration: str, items: Sequence[str]) -> list[str]:
    """`declaration = { items };` with lines filled up."""
    lines, line = [f"{declaration} = {{"], "   "
    for item in items:
        if len(line) + len(item) + 2 > LINE_WIDTH and line.strip():
            lines.append(line)
            line = "   "
        line += f" {item},"
    return [*lines, line, "};"]


T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class Pool(Generic[T]):
    """Rows laid end to end in one array; equal rows are stored once."""

    items: list[T] = field(default_factory=list)
    _places: dict[tuple[T, ...], int] = field(default_factory=dict)

    def add(self, row: Sequence[T]) -> int | None:
        """Index of the row's first item; None for an empty row."""
        key = tuple(row)
        if not key:
            return None
        if key not in self._places:
            self._places[key] = len(self.items)
            self.items.extend(key)
        return self._places[key]
