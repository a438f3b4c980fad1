"""A run of a command on a network, and the look of numbers in the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.2f}"


def joules(energy_pj: int | None) -> str:
    return "-" if energy_pj is None else f"{energy_pj / 1e12:,.4g}"


def solver_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of `poetc compare`: the solver and its row."""
    for row in found["rows"]:
        yield row["solver"], row


def joined(words: Sequence[object]) -> str:
    return ", ".join(map(str, words))
