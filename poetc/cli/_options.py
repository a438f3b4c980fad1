"""Options that several commands share, and the values made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from poetc.cli._choices import complete_device, declared
from poetc.cli._console import Console
from poetc.commands import options as shared
from poetc.training import TRAINING, TrainingOptions

__all__ = ["complete_device", "declared"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
DIRECTORY = click.Path(path_type=Path, file_okay=True, dir_okay=True)


def stacked(*decorators: Decorator) -> Decorator:
    """One decorator out of several; their options are listed in the order given."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def file_names(folder: str, ending: str) -> tuple[str, ...]:
    """Names of the files of a folder of poetc. None is loaded, so that --help is quick."""
    files = Path(__file__).parents[1].joinpath(folder).glob(f"[!_]*.{ending}")
    return tuple(sorted(path.stem for path in files))


device_option = declared(shared.DEVICE)
batch_option = declared(shared.BATCH)
dim_options = declared(*(o for o in TRAINING if o.name in ("dim", "shape")))
infer_batch_option = declared(shared.INFER_BATCH)
group_option = declared(shared.GROUP)
compared_steps_option = declared(shared.COMPARED_STEPS)
milp_options = declared(*shared.MILP)
importance_options = declared(*shared.IMPORTANCE)
training_options = declared(*TRAINING)
numerics_option = declared(shared.NUMERICS)
checkpoint_option = declared(shared.CHECKPOINT)
any_range_option = declared(shared.ANY_RANGE)


def output_directory_option(help: str) -> Decorator:
    """The option -o of a command that writes a directory beside its model unless told otherwise."""
    return click.option("-o", "--output-dir", "out", type=DIRECTORY, metavar="DIR", help=help)


def split_names(context: click.Context, parameter: click.Parameter, value: Any) -> tuple[str, ...]:
    """The callback of an option that takes A,B,..., and may be repeated."""
    del context, parameter
    texts = [value] if isinstance(value, str) else value or ()
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def budgets_option(help: str, default: tuple[str, ...] = ()) -> Decorator:
    """The option --budgets of a command that solves for several of them."""
    return click.option(
        "-b",
        "--budgets",
        metavar="SIZE,SIZE...",
        multiple=True,
        default=default,
        callback=split_names,
        help=f"RAM budgets: 512kB,384kB, or parts of the keep-all peak, 60%,0.5x. May be repeated. {help}".rstrip(),
    )


force_option = click.option(
    "--force",
    is_flag=True,
    help="Replace files that you changed too, and keep a copy of each, NAME.orig. By default the command names "
    "them and stops.",
)

_OUTPUT = stacked(
    click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors on stderr."),
    click.option("-v", "--verbose", is_flag=True, help="Print every stage on stderr, one line each."),
    click.option("--debug", is_flag=True, expose_value=False, help="Print a traceback if something fails."),
)


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the output. The command takes the `console` that follows them."""

    @functools.wraps(function)
    def with_console(*arguments: Any, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> Any:
        return function(*arguments, console=Console(as_json=as_json, quiet=quiet, verbose=verbose), **options)

    return _OUTPUT(with_console)


def training_from(options: dict[str, Any]) -> TrainingOptions:
    """Take the options of `training_options` out of a command's options."""
    names = [name for name in TrainingOptions.__dataclass_fields__ if name in options]
    return TrainingOptions(**{name: options.pop(name) for name in names})
