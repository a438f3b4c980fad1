"""The command line of a benchmark: a function is a command, and its parameters are the options.

A parameter without a default is an argument, and a tuple takes several. One behind `*` is an option `--name`, and one
with `False` a flag. `Annotated[type, "text"]` gives its help, and `Literal` its choices. A function may yield the rows
of a table, head first: they are printed as Markdown, each as it comes.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Rows = Iterator[Sequence[object]]


def main(*commands: Callable[..., Any], worker: Callable[..., Any] | None = None) -> None:
    """Run the command that `sys.argv` names; `worker` runs behind `--worker`, in a process that a command starts."""
    words = sys.argv[1:]
    if worker is not None and words[:1] == ["--worker"]:
        commands, words = (worker,), words[1:]
    text = commands[0].__globals__["__doc__"]
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, metavar="COMMAND") if len(commands) > 1 else None
    for command in commands:
        own = parts.add_parser(command.__name__.replace("_", "-")) if parts else parser
        own.set_defaults(command=command)
        for name, parameter in inspect.signature(command).parameters.items():
            _add(own, name, parameter, typing.get_type_hints(command, include_extras=True)[name])
    given = vars(parser.parse_args(words))
    answer = given.pop("command")(**given)
    if isinstance(answer, Iterator):
        for line in markdown(answer):
            print(line, flush=True)
    elif answer is not None:
        sys.exit(answer)


def _add(parser: argparse.ArgumentParser, name: str, parameter: inspect.Parameter, kind: Any) -> None:
    help = None
    if typing.get_origin(kind) is typing.Annotated:
        kind, help = typing.get_args(kind)
    if isinstance(kind, types.UnionType):  # "or None"
        kind = typing.get_args(kind)[0]
    is_list = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if is_list else kind
    default, is_option = parameter.default, parameter.kind is parameter.KEYWORD_ONLY
    words: dict[str, Any] = {"help": help}
    if default is not parameter.empty:
        words["default"] = default
    if kind is bool:
        words["action"] = "store_true"
    else:
        choices = typing.get_args(kind) or None  # of a Literal
        words |= {"type": type(choices[0]) if choices else kind, "choices": choices}
        if is_list:
            words["nargs"] = "+" if default is parameter.empty else "*"
        elif not is_option and default is not parameter.empty:
            words["nargs"] = "?"
    if is_option:
        words["required"] = default is parameter.empty and kind is not bool
    parser.add_argument(f"--{name.replace('_', '-')}" if is_option else name, **words)


def markdown(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a table, head first. A text in place of a row is a line, behind which another table begins."""
    is_head = True
    for row in rows:
        yield row if isinstance(row, str) else f"| {' | '.join(map(str, row))} |"
        if is_head and not isinstance(row, str):
            yield "|" + "---|" * len(row)
        is_head = isinstance(row, str)


def with_tables(
    page: str, tables: Mapping[str, Iterable[Sequence[object]]], keys: Mapping[str, int] | None = None
) -> str:
    """A page with its tables made anew, each behind a line `<!-- NAME -->`. One that has no rows stays.

    `keys`: by table, how many of the first columns name a row. Of such a table rows stay that are not made anew.
    """
    for name, rows in tables.items():
        lines = list(markdown(rows))
        if len(lines) > 2:
            if keys and name in keys:
                lines = _merged(_lines(page, name), lines, keys[name])
            text = "".join(f"{line}\n" for line in lines)
            page = re.sub(rf"(<!-- {name} -->\n)(?:\|.*\n)*", partial(_behind, text), page)
    return page


def _lines(page: str, name: str) -> list[str]:
    found = re.search(rf"<!-- {name} -->\n((?:\|.*\n)*)", page)
    return found[1].splitlines() if found else []


def _merged(before: Sequence[str], made: Sequence[str], keys: int) -> list[str]:
    """The lines of `made`, in the order of `before` where that has rows with the same key, and those rows' others."""
    if list(before[:1]) != list(made[:1]):
        return list(made)  # another head

    def key(line: str) -> tuple[str, ...]:
        return tuple(cell.strip() for cell in line.split("|")[1 : 1 + keys])

    new = {key(line): line for line in made[2:]}
    kept = [new.pop(key(line), line) for line in before[2:]]
    return [*made[:2], *kept, *new.values()]


def _behind(text: str, found: re.Match[str]) -> str:
    return found[1] + text


class Table:
    """A CSV file that grows row by row, so that a run which was interrupted goes on where it stopped."""

    def __init__(self, path: Path, columns: Sequence[str], keys: Sequence[str]) -> None:
        """`keys`: the columns that name a row; of several with one name the last counts."""
        self._path, self._columns, self._keys = path, columns, keys
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
        self.rows: dict[tuple[str, ...], Mapping[str, str]] = {
            tuple(row[key] for key in keys): row for row in csv.DictReader(text)
        }

    def add(self, row: Mapping[str, Any]) -> Mapping[str, str]:
        """Write a row, and give it as a reader of the file has it."""
        held = {name: "" if row.get(name) is None else str(row[name]) for name in self._columns}
        self.rows[tuple(held[key] for key in self._keys)] = held
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(held)
        return held
