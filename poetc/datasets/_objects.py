"""The objects of JSON lines, one a line, none with a key twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from poetc.errors import UsageError, printable
from poetc.files import read_file

LARGEST_BYTES = 1 << 32


def objects(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """The number of each line that is not empty, the line, and its object. UsageError names the line."""
    for number, line in enumerate(read_file(path, LARGEST_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
            if not isinstance(row, dict) or not row:
                raise UsageError(f"{path}: line {number} is not an object with keys")
            if has_strings(line, row):
                json.loads(line, object_pairs_hook=_unique, parse_int=str)
        except _Double as error:
            raise UsageError(f"{path}: line {number} has the key {printable(str(error))!r} twice") from None
        except (ValueError, RecursionError) as error:  # msgspec's errors and those of UTF-8 are ValueErrors
            raise UsageError(f"{path}: line {number} is not JSON ({error})") from None
        yield number, line, row


def has_strings(line: bytes, row: dict[str, Any]) -> bool:
    """Whether the line has more quotes than those around the keys of its object. Without, no key stands there twice."""
    return line.count(b'"') != 2 * len(row)


class _Double(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Double(name)
        seen.add(name)
