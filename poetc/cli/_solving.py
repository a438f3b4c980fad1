"""The options that define the task: the same for solve, lock and sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from poetc.cli import _options
from poetc.scheduling import DEFAULT_GAP, Objective

if TYPE_CHECKING:
    from poetc.commands.requests import SolveRequest


def _named(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    """An empty value is no list of names, and would be taken for the default."""
    if not value and _context.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT:
        raise click.UsageError("--processors '': name processors, or leave the option out for the main one alone")
    return value


problem_options = _options.stacked(
    click.option(
        "--deadline",
        metavar="TIME",
        help="The longest time of one training step: 2.5s, 300ms, or 1.3x the time without any recomputing or paging.",
    ),
    click.option(
        "--objective",
        type=click.Choice([objective.value for objective in Objective]),
        help="The quantity to minimise. Default: energy, or the objective of a problem.json.",
    ),
    click.option(
        "--paging/--no-paging", default=True, show_default=True, help="Whether tensors may go to the device's store."
    ),
    click.option(
        "--dma",
        is_flag=True,
        help="Transfers overlap compute, for a store whose profile says `mode: dma` and a port that does so.",
    ),
    click.option(
        "--processors",
        metavar="NAMES",
        default="",
        callback=_named,
        help="Processors that work beside the main one: names in the device's profile with commas between, or `all`. "
        "Default: the main one alone.",
    ),
    click.option(
        "--max-written",
        metavar="SIZE",
        help="The most that one training step may write to the store, in whole blocks. Writing wears it out.",
    ),
    _options.importance_options,
    _options.state_option,
    _options.batch_option,
    _options.training_options,
    _options.solver_option,
    click.option(
        "--time-limit",
        type=_options.Seconds(),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time of search and proof. The best schedule by then is the answer.",
    ),
    click.option(
        "--gap",
        type=_options.Number(0, 1),
        default=DEFAULT_GAP,
        show_default=True,
        metavar="FRACTION",
        help="Stop when proven to be within this fraction of the least energy: 0.001 is 0.1 %; 0 proves to the end.",
    ),
    click.option(
        "--fixed-order",
        is_flag=True,
        help="Keep the model's order of operators. By default the solver poetc looks for an order that needs less RAM.",
    ),
)

solve_options = _options.stacked(
    _options.device_option,
    click.option(
        "-b",
        "--budget",
        metavar="SIZE",
        help="All RAM that training may use: 256MB (10^6), 256MiB, 60% of the keep-all peak, or `least`. `least` is "
        "the smallest budget that is found; with a deadline of 1.04x it costs hardly any time. Or a budget for "
        "each bank of RAM: axi=400kB,dtcm=100kB. Default: the device's RAM.",
    ),
    problem_options,
)


def solve_request(model: Path, options: dict[str, Any]) -> SolveRequest:
    """Take the options of `solve_options` (and `out`, if it is there) out of a command's options."""
    from poetc.commands.requests import ModelRequest, SolveRequest
    from poetc.scheduling.schedule import SolveOptions

    training = _options.training_from(options)
    importance = options.pop("importance", None)
    return SolveRequest(
        importance=None if importance is None else Path(importance),
        model=ModelRequest(
            source=model,
            batch=options.pop("batch"),
            infer_batch=options.pop("infer_batch", None),
            device=options.pop("device"),
            training=training,
        ),
        options=SolveOptions(
            time_limit_s=options.pop("time_limit"), gap=options.pop("gap"), fixed_order=options.pop("fixed_order")
        ),
        **options,
    )
