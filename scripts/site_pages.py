"""Hook of mkdocs: fills the pages of commands and of the C interface in from the code, so that they are always current.

`docs/reference/cli.md` and `docs/reference/c-api.md` hold a comment where the text goes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from poetc.cli import cli

INCLUDE = Path(__file__).resolve().parents[1] / "poetc" / "runtime" / "include"
PORTS = INCLUDE.parent / "ports"
HEADERS = (
    *(
        INCLUDE / f"{name}.h"
        for name in ("poetc", "poetc_session", "poetc_checkpoint", "poetc_state", "poetc_data", "poetc_rate")
    ),
    PORTS / "device" / "poetc_port.h",
    PORTS / "device" / "poetc_board.h",
)
COMMENT = r"(/\*(?:(?!\*/)[\s\S])*\*/\n)?"


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Called by mkdocs for each page. The laboratory stays out of the search."""
    if page is not None and page.file.src_uri.startswith("lab/"):
        page.meta["search"] = {"exclude": True}
    for mark, text in (("<!-- commands -->", commands), ("<!-- headers -->", c_interface)):
        if mark in markdown:
            markdown = markdown.replace(mark, text())
    return markdown


def commands() -> str:
    """A section a command: usage, help, options, examples."""
    named = dict(_commands(cli, "poetc"))
    common = _shared(named["poetc report"], named["poetc solve"])
    model = _shared(named["poetc analyze"], named["poetc solve"]) - common
    solve = named["poetc solve"].params
    parts: list[str] = ["## Options of most commands", _table(o for o in solve if _key(o) in common)]
    parts += ["## Options about the model and its training", "[Training options](training.md) explains them."]
    parts += [_table(o for o in solve if _key(o) in model)]
    for name, command in named.items():
        keys = {_key(option) for option in command.params}
        also = ["options about the model"] if model <= keys else []
        also += ["the options of most commands"] if common <= keys else []
        left_out = (model if model <= keys else set()) | (common if common <= keys else set())
        own = [o for o in command.params if isinstance(o, click.Option) and _key(o) not in left_out]
        usage = command.collect_usage_pieces(click.Context(command))
        parts += [f"## {name}", f"    {name} {' '.join(usage)}", *_paragraphs(command.help or "")]
        parts += [_table(own)] if own else []
        parts += [f"Also: {' and '.join(also)}."] if also else []
        if examples := _examples(command.epilog or ""):
            parts.append("\n".join(f"    {line}" for line in examples))
    return "\n\n".join(parts)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
    else:
        for child, value in command.commands.items():
            yield from _commands(value, f"{name} {child}")


def _key(option: click.Parameter) -> tuple[str, str]:
    return "/".join(option.opts), str(getattr(option, "help", ""))


def _shared(one: click.Command, other: click.Command) -> set[tuple[str, str]]:
    options = [{_key(o) for o in command.params if isinstance(o, click.Option)} for command in (one, other)]
    return options[0] & options[1]


def _table(options: Any) -> str:
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        value = "" if option.is_flag else f" `{_cell(option.make_metavar(click.Context(cli)))}`"
        shown = option.show_default and isinstance(option.default, (str, int, float)) and option.default is not None
        if option.is_flag and option.secondary_opts:
            default = f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
        else:
            default = f"`{_cell(str(option.default))}`" if shown and not option.is_flag else ""
        lines.append(f"| {names}{value} | {_cell(option.help or '')} | {default} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def _examples(epilog: str) -> list[str]:
    lines = [line.strip() for line in epilog.replace("\b", "").splitlines()]
    return [line for line in lines if line.startswith(("poetc ", "make ", "in ~", "once"))]


def c_interface() -> str:
    """A section a header, a subsection a declaration: its comment, and the declaration itself."""
    parts = []
    for header in HEADERS:
        text = header.read_text()
        parts += [f"## {header.name}", *_comment(text[: text.index("*/") + 2])]
        for comment, code in declarations(text):
            parts += [f"### {_name(code)}", *_comment(comment), f"```c\n{code}\n```"]
    return "\n\n".join(parts)


def declarations(header: str) -> Iterator[tuple[str, str]]:
    """Comment and code of each declaration: types, functions, constants."""
    body = header[header.index("*/") + 2 :]
    body = re.sub(
        r'^#(if|ifdef|ifndef|endif|include)\b.*$|^extern "C" \{$|^\}$(?=\n#endif)', "", body, flags=re.MULTILINE
    )
    body = re.sub(r"^#define POETC\w*_H$", "", body, flags=re.MULTILINE)
    body = re.sub(r"^(static inline [^{]*?)\n\{\n.*?^\}$", r"\1;", body, flags=re.MULTILINE | re.DOTALL)
    body = re.sub(
        rf"{COMMENT}#define \w+\(.*", "", body.replace("\\\n", " ")
    )  # macros with parameters are no interface
    body = re.sub(r"^(?:struct|enum) \w+;$", "", body, flags=re.MULTILINE)
    line = r"(?:typedef )?(?:struct|enum)\b[^;{]*\{"
    declaration = rf"({line}[^\n]*\}};|{line}.*?^\}}[^;]*;|#define [^\n]*|[^\s/#}}][^{{}}]*?;)"
    for found in re.finditer(COMMENT + declaration, body, re.MULTILINE | re.DOTALL):
        yield found[1] or "", found[2].strip()


def _name(code: str) -> str:
    for pattern in (
        r"^#define (\w+)",
        r"^.*(?:struct|enum) (\w+) \{",
        r"^enum \{ (\w+)",
        r"\(\*(\w+)\)\(",
        r"(\w+)\(",
        r"(\w+);$",
    ):
        if found := re.search(pattern, code):
            return f"`{found[1]}`"
    return f"`{' '.join(code.split())}`"


def _comment(text: str) -> list[str]:
    """Paragraphs of a C comment; lines that are set in are code."""
    lines = [re.sub(r"^\s*(/\*|\*/|\*(?= |$)) ?", "", line) for line in text.replace("*/", "").splitlines()]
    parts = []
    for part in re.split(r"\n\s*\n", "\n".join(lines).strip()):
        if part.startswith("    "):
            parts.append(part)
        else:
            prose = " ".join(part.split())
            parts.append(re.sub(r"\b(\w+->\w+|(?:poetc|POETC)_\w+(?:\*|\(\))?)", r"`\1`", prose))
    return [part for part in parts if part]
