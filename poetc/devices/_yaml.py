"""YAML into plain values that remember their lines.

Not `yaml.safe_load`: that loses lines, takes `no` for False and `1e9` for text, and drops the first of two equal keys
without a word.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from poetc.errors import UsageError

KeyPath = tuple[str, ...]
_DEEPEST = 12
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?")


def read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping in a file, and the line of every key path. Raises UsageError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the device profile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise UsageError(f"{path}:{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    lines: dict[KeyPath, int] = {(): 1}
    value = _convert(node, (), lines, path)
    if not isinstance(value, dict):
        raise UsageError(f"{path}:1: a device profile is a mapping of keys to values")
    return value, lines


def _convert(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> Any:
    if len(at) > _DEEPEST:  # an alias that holds itself never ends
        raise UsageError(f"{path}:{lines[at[:1]]}: nested too deeply")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError(f"{path}:{line}: a key must be a word")
            key = str(key_node.value)
            if key in result:
                raise UsageError(f"{path}:{line}: key {key!r} is given twice in the same section")
            lines[(*at, key)] = line
            result[key] = _convert(value_node, (*at, key), lines, path)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*at, str(i)), lines, path) for i, item in enumerate(node.value)]
    if node is None:
        return None
    text = str(node.value)
    if getattr(node, "style", None) is not None:  # quoted or block text
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
