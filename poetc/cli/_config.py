"""--config: options of a command in a YAML file, by their names on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from poetc.errors import UsageError, printable, shortened
from poetc.yaml_values import read

FILE = "poetc.config"  # in the context: the path of the file
_NEVER = ("config", "help", "resume", "json", "debug")  # one run's own


def keys_of(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters that a file may set, by the name of their option without its dashes."""
    return {key: parameter for parameter in command.params for key in _keys(parameter) if key not in _NEVER}


def _keys(parameter: click.Parameter) -> Iterator[str]:
    if isinstance(parameter, click.Argument):
        yield str(parameter.name)
        return
    yield from (name[2:] for name in parameter.opts if name.startswith("--"))


def _read(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Put the values of the file in place of the defaults. Options of the command line win."""
    del parameter
    if path is None:
        return
    document, _ = read(Path(path), "a file of options", of_words=True)
    known, values = keys_of(context.command), dict[str, Any]()
    for key, value in document.items():
        if key not in known:
            raise UsageError(f"{path}: {shortened(printable(str(key)))!r} is no option of {context.command_path}")
        values[str(known[key].name)] = _value(path, str(key), known[key], value)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[FILE] = path


def _value(path: str, key: str, parameter: click.Parameter, value: Any) -> Any:
    is_list = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if not isinstance(value, str) and not is_list:
        raise UsageError(f"{path}: {key} must be a value, or a list of values")
    if getattr(parameter, "multiple", False) or parameter.nargs == -1:
        return [value] if isinstance(value, str) else value
    return ",".join(value) if is_list else value


config_option = click.option(
    "--config",
    is_eager=True,
    expose_value=False,
    callback=_read,
    metavar="FILE.yaml",
    help="Take options from this file, by their names without dashes: epochs: 3. Options of the command line win.",
)
