"""The options that define the task: the same for solve, lock and sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetc.cli import _options
from poetc.commands import options as shared
from poetc.training import TRAINING

if TYPE_CHECKING:
    from poetc.commands.requests import SolveRequest


_PLACE = _options.declared(shared.DEVICE, shared.BUDGET)
_TASK = (*shared.LIMITS, *shared.IMPORTANCE, shared.BATCH, *TRAINING)
problem_options = _options.declared(*_TASK, *shared.SEARCH)
solve_options = _options.stacked(_PLACE, problem_options)
train_options = _options.stacked(_PLACE, _options.declared(*_TASK, *shared.TRAIN_SEARCH))


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
            time_limit_s=options.pop("time_limit"),
            gap=options.pop("gap"),
            fixed_order=options.pop("fixed_order", False),
            group=options.pop("group"),
        ),
        **options,
    )
