"""A run of a command on a network, and the look of numbers in the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")
Known = Mapping[tuple[str, str], dict[str, Any]]  # by table and key: command, date, answer
Rows = list[list[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """`words`: of the command, without the graph. One of them alone is the name of a script of this folder."""

    table: str
    key: str
    words: tuple[str, ...]
    network: str


def answer(known: Known, table: str, key: str) -> dict[str, Any]:
    """KeyError where the run is missing."""
    found: dict[str, Any] = known[table, key]["answer"]
    return found


def known_only(items: Iterable[Item], row: Callable[[Item], list[str]]) -> Rows:
    """The rows of those items whose runs are there."""
    rows = []
    for item in items:
        with suppress(KeyError):
            rows.append(row(item))
    return rows


def mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.2f}"


def joules(energy_pj: int | None) -> str:
    return "-" if energy_pj is None else f"{energy_pj / 1e12:,.4g}"


def solver_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of `poetc compare`: the solver and its row."""
    for row in found["rows"]:
        yield row["solver"], row
