"""--config: options of a command in a YAML file, by their names on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from poetc.errors import UsageError, printable, shortened
from poetc.files import read_file

FILE = "poetc.config"  # in the context: the path of the file
_NEVER = ("config", "help", "resume", "json", "debug")  # one run's own
_LARGEST_BYTES = 1 << 20


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
    try:
        text = read_file(Path(path), _LARGEST_BYTES).decode()
        _require_single(path, yaml.compose(text, Loader=yaml.BaseLoader))
        document = yaml.load(text, Loader=yaml.BaseLoader)  # words stay words
    except OSError as error:
        raise UsageError(f"--config {path}: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: must hold options and their values, such as epochs: 3")
    known, values = keys_of(context.command), dict[str, Any]()
    for key, value in document.items():
        if key not in known:
            raise UsageError(f"{path}: {shortened(printable(str(key)))!r} is no option of {context.command_path}")
        values[str(known[key].name)] = _value(path, str(key), known[key], value)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[FILE] = path


def _require_single(path: str, root: yaml.Node | None) -> None:
    """Raise UsageError for a key of the configuration file that occurs twice."""
    keys = (
        [node for node, _ in root.value if isinstance(node, yaml.ScalarNode)]
        if isinstance(root, yaml.MappingNode)
        else []
    )
    for n, node in enumerate(keys):
        if any(node.value == other.value for other in keys[:n]):
            key = shortened(printable(str(node.value)))
            raise UsageError(f"{path}:{node.start_mark.line + 1}: {key!r} is given twice")


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
