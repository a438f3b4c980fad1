"""Options of the command line, made of the declared ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from poetc import declare
from poetc.cli._config import FILE
from poetc.declare import Option
from poetc.errors import UsageError

TYPED = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)  # by the user, in the line or in --config


class Value(click.ParamType):  # type: ignore[type-arg]
    """A value as it is declared."""

    def __init__(self, values: declare.Values) -> None:
        self.values = values
        self.name = type(values).__name__.lower()

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self.values.accept(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class _Choice(Value, click.Choice):  # type: ignore[type-arg]
    """A choice of names, as it is declared."""

    def __init__(self, values: declare.Choice) -> None:
        click.Choice.__init__(self, values.names)
        self.values = values


class DeclaredOption(click.Option):
    """A click option made from an `Option` of poetc.declare. It knows its group for the help."""

    def __init__(self, names: Sequence[str], declared: Option, **more: Any) -> None:
        self.declared, self.group_name, self.is_usual = declared, declared.group, bool(declared.usual)
        super().__init__(names, **more)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The checked value; a default is not checked."""
        if isinstance(value, str) and value[:1] == "-" and any(value in p.opts for p in ctx.command.params):
            raise click.BadOptionUsage(str(self.name), f"Option {self.declared.flag!r} requires an argument", ctx)
        if ctx.get_parameter_source(str(self.name)) is ParameterSource.DEFAULT and not self.multiple:
            return value
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(str(self.name)) is not ParameterSource.DEFAULT_MAP:
                raise
            raise UsageError(f"{ctx.meta[FILE]}: {self.declared.flag[2:]}: {error.message}") from None


def complete_device(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of devices; files where none begins so."""
    del context, parameter
    from poetc.devices import list_profiles

    names = [CompletionItem(name) for name in list_profiles() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def _complete_solver(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    from poetc.solvers import available

    return [CompletionItem(name) for name in available() if name.startswith(incomplete)]


_COMPLETIONS = {"device": complete_device, "solver": _complete_solver}


def help_of(option: Option) -> str:
    """The condition, the help and the default, as one text."""
    text = option.help
    if option.when is not None:
        text = f"With {option.when}: {text[0].lower()}{text[1:]}"
    owner, own = option.defaults
    default = option.default_text
    if own:
        parts = [] if option.default is None else [f"{option.default:g}"]
        default = "; ".join([*parts, *(f"{value:g} with --{owner} {name}" for name, value in own.items())])
    return f"{text} Default: {default}." if default else text


def click_option(option: Option) -> Callable[[Any], Any]:
    """A decorator that adds the option to a command."""
    values = option.values
    names = [n for n in (option.short, option.flag, option.name) if n]
    if isinstance(values, declare.Switch) and values.has_no:
        names[-2] = f"{option.flag}/--no-{option.flag[2:]}"
    more: dict[str, Any] = {"help": help_of(option), "metavar": option.metavar or None}
    if isinstance(values, declare.Switch):
        more |= {"is_flag": True, "default": option.default, "show_default": values.has_no}
    else:
        has_default = option.default not in (None, "", ()) and not option.defaults[1]
        more["type"] = _Choice(values) if isinstance(values, declare.Choice) else Value(values)
        more |= {"default": None if option.defaults[1] else option.default, "show_default": has_default}
        more["multiple"] = option.repeated
    if option.joins:
        more |= {"multiple": True, "default": (option.default,), "callback": _joined}
    if option.name in _COMPLETIONS:
        more["shell_complete"] = _COMPLETIONS[option.name]
    return click.option(*names, cls=DeclaredOption, declared=option, **more)


def _joined(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str:
    """The entries as one text. One without an output may be given once."""
    if len(values) > 1 and not all("=" in value for value in values):
        flag = parameter.opts[0]
        raise UsageError(f"{flag} is given twice; for several outputs write OUTPUT=LOSS each time")
    return ",".join(values)


def declared(*options: Option) -> Callable[[Any], Any]:
    """A decorator that adds these options, listed in this order."""

    def apply(function: Any) -> Any:
        for option in reversed(options):
            function = click_option(option)(function)
        return function

    return apply


def given_options(context: click.Context, options: Iterable[Option]) -> list[str]:
    """The flags of those of `options` that were typed."""
    return [o.flag for o in options if context.get_parameter_source(o.name) in TYPED]


def refuse_without_effect(context: click.Context, **chosen: str) -> None:
    """UsageError for an option that was typed and depends on another choice than `chosen`, by name of the option."""
    options = [p.declared for p in context.command.params if isinstance(p, DeclaredOption)]
    typed = [o for o in options if given_options(context, [o])]
    declare.require_effect(typed, {name: (value,) for name, value in chosen.items()})
