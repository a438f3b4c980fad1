"""YAML into plain values that remember their lines.

Not `yaml.safe_load`: that loses lines, takes `no` for False and `1e9` for text, and drops the first of two equal keys
without a word.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from poetc.errors import UsageError
from poetc.files import read_file

KeyPath = tuple[str, ...]
LARGEST_BYTES = 1 << 18  # twenty times the largest profile
_DEEPEST, _MOST_NODES = 12, 20_000
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?")
_LARGEST_INT = 2**63 - 1
_LONGEST = 40  # digits of a number


class _Limited(Composer):
    """Refuses aliases, depth and thousands of values before they take memory: a profile has no use for them."""

    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[attr-defined]
        self.nodes += 1
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            raise yaml.MarkedYAMLError(problem="an alias (*name); write the values out", problem_mark=mark)
        if self.depth >= _DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
        if self.nodes > _MOST_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {_MOST_NODES:,} values", problem_mark=mark)
        self.depth += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node


class _Loader(_Limited, yaml.SafeLoader):
    pass


def _quick() -> type[Any]:
    """A loader whose events come from libyaml, in a quarter of the time; the other one where PyYAML is without it."""
    if not yaml.__with_libyaml__:
        return _Loader
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class Quick(_Limited, CParser, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            Resolver.__init__(self)

    return Quick


@functools.lru_cache(maxsize=64)
def _composed(text: str) -> yaml.Node | None:
    """The nodes of a document, which nobody changes: many profiles inherit the same one."""
    node: yaml.Node | None
    try:
        node = yaml.compose(text, Loader=_quick())
    except yaml.YAMLError:  # the other loader's messages have better lines and words
        node = yaml.compose(text, Loader=_Loader)
    return node


def read_text(path: Path, kind: str = "a device profile") -> str:
    """The text of a file. Raises UsageError; `kind` is the noun for such a file, with its article."""
    try:
        return read_file(path, LARGEST_BYTES).decode()
    except OSError as error:
        raise UsageError(f"cannot read {_definite(kind)} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None


def read(
    path: Path, kind: str = "a device profile", *, of_words: bool = False
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping in a file, and the line of every key path. Raises UsageError with file and line.

    `of_words`: numbers and others stay as they are spelt.
    """
    return parse(read_text(path, kind), path, kind, of_words=of_words)


def parse(
    text: str, path: Path, kind: str = "a device profile", *, of_words: bool = False
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The answer of `read` for this text of the file `path`."""
    try:
        node = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise UsageError(f"{path}:{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    lines: dict[KeyPath, int] = {(): 1}
    value = _convert(node, (), lines, path, of_words)
    if not isinstance(value, dict):
        raise UsageError(f"{path}:1: {kind} is a mapping of keys to values")
    return value, lines


def _definite(kind: str) -> str:
    return f"the {kind.partition(' ')[2]}"


def _convert(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path, of_words: bool) -> Any:
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
            result[key] = _convert(value_node, (*at, key), lines, path, of_words)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*at, str(i)), lines, path, of_words) for i, item in enumerate(node.value)]
    if node is None:
        return None
    text = str(node.value)
    if of_words or getattr(node, "style", None):  # quoted or block text
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
        return _number(text.replace("_", ""), f"{path}:{node.start_mark.line + 1}")
    return text


def _number(text: str, where: str) -> int | float:
    """Raises UsageError for a number that 64 bits cannot hold."""
    if len(text) > _LONGEST:
        raise UsageError(f"{where}: a number of {len(text):,} characters; nothing here needs that many")
    value = int(text, 0) if _INT.fullmatch(text) else float(text)
    if abs(value) > (_LARGEST_INT if isinstance(value, int) else sys.float_info.max):
        raise UsageError(f"{where}: the number {text} is too large")
    return value
