"""Text in the width of the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TextIO

LEAST_COLUMNS = 20  # of text that is wrapped
_GAP = re.compile(r"(?<=\S)  +(?=\S)")  # between the first two columns of a line


def columns_of(stream: TextIO) -> int | None:
    """The width of the terminal that `stream` is; None for a file or a program, which reads lines."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def hanging(text: str, columns: int | None, indent: int, first: int | None = None) -> str:
    """`text` begins in column `first` (default: `indent`) and goes on in column `indent` where the terminal ends."""
    begin = indent if first is None else first
    if columns is None or begin + len(text) <= columns:
        return text
    wrapped = textwrap.fill(
        text,
        max(columns, indent + LEAST_COLUMNS),
        initial_indent=" " * begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped[begin:]


def fitted(text: str, columns: int | None) -> str:
    """Each line that is too long goes on under its second column, or two columns further in than it began."""
    if columns is None:
        return text
    return "\n".join(line if len(line) <= columns else _fitted(line, columns) for line in text.splitlines())


def _fitted(line: str, columns: int) -> str:
    gap = _GAP.search(line)
    begin = len(line) - len(line.lstrip())
    indent = gap.end() if gap and gap.end() <= columns // 2 else begin + 2
    return " " * begin + hanging(line[begin:], columns, indent, begin)
