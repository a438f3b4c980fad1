"""Help in groups: the usual options by default, a group or all of them with --help GROUP and --help all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
import cloup
from click.core import augment_usage_errors
from cloup.formatting import HelpFormatter, HelpSection

from poetc.cli._choices import DeclaredOption
from poetc.cli._commands import COMMANDS
from poetc.errors import shortened

HEADINGS = {
    "data": "Data",
    "run": "Run",
    "loss": "Loss",
    "optimizer": "Optimizer",
    "precision": "Precision",
    "updates": "Parameters that are trained",
    "model": "Model",
    "budget": "Device and budget",
    "memory": "Memory",
    "search": "Search",
    "output": "Output",
}
ALL, USUAL = "all", "usual"
USUAL_ONES = ("out", "resume")  # of the options of one command
WIDEST = 30  # columns of an option with its value, in the short help
WIDEST_CHOICE = 70  # columns of an option with the names that it takes: with more of them the help has them
SHORT = 30  # a command with more options shows the usual ones


class Command(cloup.Command):
    """A command whose options have groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; an error of the parser knows the command, too."""
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """--help, and --help GROUP where there are groups."""
        del ctx
        groups = self.groups()
        more = [ALL, *groups] if self.is_long() else []
        return click.Option(
            ["-h", "--help"],
            is_flag=False,
            flag_value=USUAL,
            is_eager=True,
            expose_value=False,
            metavar="[GROUP]" if more else "",
            callback=self._show,
            help=f"Show this message; more with GROUP: {', '.join(more)}." if more else "Show this message and exit.",
        )

    def is_long(self) -> bool:
        """Whether the help shows the usual options only."""
        return len([p for p in self.params if isinstance(p, click.Option)]) > SHORT

    def groups(self) -> list[str]:
        """The groups of its options, in the order of their headings."""
        used = {p.group_name for p in self.params if isinstance(p, DeclaredOption)}
        return [name for name in HEADINGS if name in used or name == "output"]

    def _show(self, context: click.Context, parameter: click.Parameter, value: Any) -> None:
        del parameter
        if value is None or context.resilient_parsing:
            return
        known = (USUAL, ALL, *self.groups())
        if value not in known:
            raise click.UsageError(
                f"--help {shortened(value)}: there is no such group; choose from {', '.join(known[1:])}"
            )
        context.meta["poetc.help"] = value if self.is_long() else ALL
        click.echo(context.get_help(), color=context.color)
        context.exit()

    def _sections(self, shown: str) -> Iterator[tuple[str, list[click.Option]]]:
        options = [p for p in self.params if isinstance(p, click.Option) and not p.hidden]
        if shown == USUAL:
            yield "Usual options", [o for o in options if is_usual(o)]
            return
        for name in self.groups():
            if shown in (ALL, name):
                yield HEADINGS[name], sorted((o for o in options if group_of(o) == name), key=_owner_first)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's text: all of it before all options, a paragraph before the usual ones, none before a group."""
        text, shown = inspect.cleandoc(self.help or ""), self._shown(ctx)
        if shown == USUAL:
            text = text.partition("\n\n")[0]
        if shown in (USUAL, ALL):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        shown = self._shown(ctx)
        sections = [
            HelpSection(heading, [r for o in options if (r := _record(o, ctx, is_short=shown == USUAL)) is not None])
            for heading, options in self._sections(shown)
        ]
        if shown in (USUAL, ALL) and (help_option := self.get_help_option(ctx)) is not None:
            record = help_option.get_help_record(ctx)
            assert record is not None
            sections[-1] = HelpSection(sections[-1].heading, [*sections[-1].definitions, record])
        formatter.write_many_sections([s for s in sections if s.definitions], aligned=True)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All examples, the first one with the usual options, none with a group."""
        shown, epilog = self._shown(ctx), self.epilog or ""
        if not epilog or shown not in (USUAL, ALL):
            return
        lines = epilog.strip().splitlines()
        if shown == USUAL:
            lines = [line for line in lines if line.strip() not in ("", "\b", "Example:", "Examples:")][:1]
            lines = ["\b", "Example:", *lines]
        formatter.write_paragraph()
        formatter.write_text("\n".join(lines))

    def _shown(self, context: click.Context) -> str:
        return str(context.meta.get("poetc.help", USUAL if self.is_long() else ALL))


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """A decorator as `click.command`, for a command of the list whose options have groups."""

    def decorate(function: Callable[..., Any]) -> Command:
        result = click.command(name, cls=Command, **settings)(function)
        result.short_help = COMMANDS[str(result.name)]
        return result

    return decorate


def group_of(option: click.Option) -> str:
    return option.group_name if isinstance(option, DeclaredOption) else "output"


def is_usual(option: click.Option) -> bool:
    return option.is_usual if isinstance(option, DeclaredOption) else option.required or option.name in USUAL_ONES


def _owner_first(option: click.Option) -> tuple[str, ...]:
    """Options without a condition first; the others follow under the choice that they belong to."""
    when = option.declared.when if isinstance(option, DeclaredOption) else None
    return () if when is None else (when.name, *when.values)


def _record(option: click.Option, context: click.Context, *, is_short: bool) -> tuple[str, str] | None:
    record = option.get_help_record(context)
    if record is None:
        return None
    names, text = record
    if not (is_short and isinstance(option, DeclaredOption)):
        if isinstance(option.type, click.Choice) and len(names) > WIDEST_CHOICE:
            names = f"{', '.join(sorted(option.opts, key=len))} {option.opts[-1].strip('-').upper()}"
            help_text, gap, default = text.partition("  [")
            text = f"{help_text} One of {', '.join(map(str, option.type.choices))}.{gap}{default}"
        return names, text
    if isinstance(option.type, click.Choice) or len(names) > WIDEST:
        names = f"{option.opts[-1]} {str(option.name).upper()}"
    return names, option.declared.usual
