"""Write the pages of commands and of the C interface, and the types of options: scripts/site_pages.py.

In `docs/reference/cli.md` and `docs/reference/c-api.md` it replaces all that is behind a mark. It is a hook of mkdocs
as well, for the search.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from poetc import solvers
from poetc.boards import BOARDS, TARGETS
from poetc.cli import cli
from poetc.ops.optimizers import OPTIMIZERS
from poetc.training import LOSSES, TRAINING
from poetc.training.rates import kinds

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
MARK = "<!-- scripts/site_pages.py writes the text below this line -->"
INCLUDE = ROOT / "poetc" / "runtime" / "include"
PORTS = INCLUDE.parent / "ports"
HEADERS = (
    *(
        INCLUDE / f"{name}.h"
        for name in (
            "poetc",
            "poetc_session",
            "poetc_checkpoint",
            "poetc_state",
            "poetc_data",
            "poetc_rate",
            "poetc_task",
            "poetc_bundle",
            "poetc_update",
            "poetc_queues",
        )
    ),
    PORTS / "device" / "poetc_port.h",
    PORTS / "device" / "poetc_board.h",
    PORTS / "pressure" / "poetc_pressure.h",
)
STUB = ROOT / "poetc" / "training" / "options.pyi"
COMMENT = r"(/\*(?:(?!\*/)[\s\S])*\*/\n)?"


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Called by mkdocs for each page. The laboratory stays out of the search."""
    if page is not None and page.file.src_uri.startswith("lab/"):
        page.meta["search"] = {"exclude": True}
    return markdown


def pages() -> dict[Path, str]:
    """The text that each of the pages should have: the written part, and the part that is made behind the mark."""
    written = {path: path.read_text().partition(MARK)[0] for path in (REFERENCE / "cli.md", REFERENCE / "c-api.md")}
    made = (commands(), c_interface())
    texts = {path: f"{text}{MARK}\n\n{part}\n" for (path, text), part in zip(written.items(), made, strict=True)}
    docs = ROOT / "docs"
    guides = (docs / "how-to" / "port.md", docs / "how-to" / "two-processors.md")
    with_marks = (REFERENCE / "training.md", *guides, docs / "explanation" / "published-solvers.md")
    return {**texts, STUB: stub(), **{page: with_tables(page.read_text()) for page in with_marks}}


def with_tables(page: str) -> str:
    """The page with the tables that are made of declarations, each between two marks."""
    tables = {
        "losses": losses,
        "optimizers": optimizers,
        "options of optimizers": options_of_optimizers,
        "schedules": schedules,
        "targets": targets,
        "published solvers": published_solvers,
        "placements": placements,
    }
    for mark, lines in tables.items():
        begin, end = f"<!-- {mark}: make pages -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        if found:
            page = before + begin + "".join(f"{line}\n" for line in lines()) + end + rest.partition(end)[2]
    return page


def schedules() -> list[str]:
    rows = [f"| `{k.usage or k.example}` | {k.formula} | {k.pytorch} |" for k in kinds()]
    return ["| schedule | rate at step t, counted from 0 | in PyTorch |", "|---|---|---|", *rows]


def targets() -> list[str]:
    rows = []
    for target in TARGETS.values():
        boards = [f"{b.name} ({b.title})" for b in BOARDS.values() if b.target == target.name]
        rows.append(f"| `{target.name}` | {target.title} | {'; '.join(boards) or '-'} |")
    head = "| target (`poetc emit --target`) | result | boards (`--board`, and `poetc run --on qemu:…`) |"
    return [head, "|---|---|---|", *rows]


def published_solvers() -> list[str]:
    """A row for each paper part: methods with the same cells share one."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for i in map(solvers.info, solvers.available()):
        if i.read:
            names.setdefault((i.read, i.differs, i.checked), []).append(f"`{i.name}`")
    rows = [f"| {', '.join(own)} | {' | '.join(cells)} |" for cells, own in names.items()]
    return ["| solver | read | differs here | checked against its paper |", "|---|---|---|---|", *rows]


def placements() -> list[str]:
    """Solvers that place operators on processors by a rule."""
    infos = [i for i in map(solvers.info, solvers.available()) if i.processors and i.name != solvers.ENGINE_NAME]
    return ["| solver | rule |", "|---|---|", *(f"| `{i.name}` | {i.title} |" for i in infos)]


def losses() -> list[str]:
    rows = [
        f"| `{o.name}` | {o.help} | {o.target} | {', '.join(f'`{x.flag}`' for x in o.options) or '-'} |"
        for o in LOSSES.values()
    ]
    return ["| `--loss` | loss | target | options |", "|---|---|---|---|", *rows]


def optimizers() -> list[str]:
    rows = [f"| `{o.name}` | {o.help} | {o.state} |" for o in OPTIMIZERS.values()]
    return ["| `--optimizer` | update | state a parameter |", "|---|---|---|", *rows]


def options_of_optimizers() -> list[str]:
    lines = ["| option | for | meaning | default |", "|---|---|---|---|"]
    for option in TRAINING:
        if option.when is not None and option.when.name == "optimizer":
            own = [f"`{name}` {value:g}" for name, value in option.defaults[1].items()]
            default = option.default_text or "; ".join(
                [*([] if option.default is None else [f"{option.default:g}"]), *own]
            )
            names = ", ".join(f"`{name}`" for name in option.when.values)
            lines.append(f"| `{option.flag}` | {names} | {option.help} | {default} |")
    return lines


def stub() -> str:
    """The keywords of TrainingOptions with their types, for type checkers and editors."""
    rows = "\n".join(f"    {option.name}: {option.annotation} = ..." for option in TRAINING)
    return (
        "# scripts/site_pages.py writes this file: `make pages`.\n"
        "from dataclasses import dataclass\nfrom typing import Literal\n\n"
        "from poetc.training._options import Methods\n\n"
        f"@dataclass(frozen=True, kw_only=True)\nclass TrainingOptions(Methods):\n{rows}\n"
    )


def commands() -> str:
    """A section a command: usage, help, options, examples."""
    named = dict(_commands(cli, "poetc"))
    common = _shared(named["poetc report"], named["poetc solve"])
    model = _shared(named["poetc analyze"], named["poetc solve"]) - common
    solve = named["poetc solve"].params
    rows = (
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(command.get_short_help_str(200))} |"
        for name, command in named.items()
    )
    parts: list[str] = [
        "\n".join(["## Commands\n\n| command | job |", "|---|---|", *rows]),
        "## Options of most commands",
        _table(o for o in solve if _key(o) in common),
    ]
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
        given = option.default[0] if isinstance(option.default, tuple) and option.default else option.default
        shown = option.show_default and isinstance(given, (str, int, float))
        if option.is_flag and option.secondary_opts:
            default = f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
        else:
            default = f"`{_cell(str(given))}`" if shown and not option.is_flag else ""
        lines.append(f"| {names}{value} | {_cell(option.help or '')} | {default} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def _examples(epilog: str) -> list[str]:
    """Lines that go on in the next one are joined."""
    lines = [line.strip() for line in re.sub(r"\n    +(?=--)", " ", epilog.replace("\b", "")).splitlines()]
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
        r'^#(if|ifdef|ifndef|endif|include|error)\b.*$|^extern "C" \{$|^\}$(?=\n#endif)', "", body, flags=re.MULTILINE
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


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
