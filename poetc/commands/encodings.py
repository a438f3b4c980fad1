"""The encodings of saved tensors that a training step can have, as the planner takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from poetc import passes
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.devices import DeviceProfile, build_problem
from poetc.errors import InfeasibleError, LimitError, UsageError
from poetc.events import Progress
from poetc.graph import TrainingGraph
from poetc.ops.encoding import FORMATS
from poetc.planning import Solution
from poetc.planning.saved import Encodings, EncodingSpace, Saved, Tensor
from poetc.scheduling import keep_all_peak_bytes
from poetc.scheduling.problem import Paging, Problem
from poetc.training import PRECISIONS, TrainingOptions

CODERS = ("SlopeBits", "PackNibbles", "UnpackNibbles", "Encode", "Decode")
LEAST_LEFT = 0.2  # of the time limit, for each further form of --saved auto
WORTH = 0.01  # of keep-all's peak: encodings that spare less altogether are not tried

T = TypeVar("T")


def require_exact(request: ModelRequest, reason: str) -> None:
    """UsageError where lossy encodings are asked for, which a command cannot have for that reason."""
    if is_lossy(request.training):
        raise UsageError(f"--saved {request.training.saved}: {reason}; leave it out")


def is_lossy(options: TrainingOptions) -> bool:
    """Whether `--saved` allows encodings that change bits."""
    return options.saved == "auto" or options.saved in FORMATS


def is_lossy_step(step: TrainingGraph) -> bool:
    """The same of the training that a step is of."""
    return step.options.get("saved") in FORMATS


def formats_of_auto(options: TrainingOptions) -> tuple[str, ...]:
    """The values of `--saved` that `auto` stands for, the exact one first."""
    return ("exact", "f16", "int8") if not PRECISIONS[options.precision].narrow else ("exact",)


def encodings_of(step: TrainingGraph) -> tuple[passes.Encoding, ...]:
    """The encodings that `--saved` allows for the step, in a fixed order."""
    saved = str(step.options.get("saved", "exact"))
    return () if saved == "off" else passes.offered(step, saved if saved in FORMATS else "")


def offers_of(
    step: TrainingGraph | None,
    profile: DeviceProfile | None,
    problem: Problem,
    paging: Paging | None,
    build: Callable[[Encodings], Problem] | None = None,
    *,
    streams: bool = False,
) -> tuple[EncodingSpace, ...]:
    """The offer for `problem`, which was built of `step` for the profile with `paging`; none where none is of use.

    `build`: makes such a problem, with some encodings, in another way. `streams`: operands have to be streamed. Only
    encodings that change bits are offered then, if `--saved` asks for such: others are seldom worth a search of their
    own.
    """
    if step is None or profile is None or (streams and not is_lossy_step(step)):
        return ()
    encodings = encodings_of(step)
    spared_bytes = sum(e.saved_bytes - e.encoded_bytes for e in encodings)
    if spared_bytes < WORTH * keep_all_peak_bytes(problem):
        return ()
    lossy = [i for i, e in enumerate(encodings) if e.format in FORMATS]
    lossless = [i for i in range(len(encodings)) if i not in lossy]
    alone = [i for i in lossless if encodings[i].is_alone]
    larger = sorted(lossy, key=lambda i: -encodings[i].saved_bytes)[: len(lossy) // 2]
    tried = (alone, lossless, sorted(lossless + larger), lossless + lossy)
    proposals = tuple(dict.fromkeys(tuple(choice) for choice in tried if choice))

    def built(choice: Encodings) -> Problem:
        if build is not None:
            return build(choice)
        other_processors = [p.name for p in problem.processors[1:]]
        return build_problem(
            encoded_step(step, choice),
            profile,
            budget_bytes=problem.budget_bytes,
            paging=paging,
            processors=other_processors,
            banks=problem.banks,
        )

    operators = passes.encoded(step, encodings).operators
    tensors = tuple(Tensor(e.tensor, frozenset(op.name for op in operators if e.code in op.inputs)) for e in encodings)
    return (EncodingSpace(exact=problem, build=built, tensors=tensors, proposals=proposals, streams=streams),)


def encoded_step(step: TrainingGraph, choice: Encodings | None) -> TrainingGraph:
    """The step with the encodings that were chosen."""
    encodings = encodings_of(step)
    return passes.encoded(step, [encodings[i] for i in choice or ()])


def steps_of(step: TrainingGraph | None, offers: Sequence[EncodingSpace]) -> tuple[TrainingGraph | None, ...]:
    """The step, and those that have the encodings that are proposed where operands have to be streamed."""
    return (step, *(encoded_step(step, c) for o in offers if o.streams and step is not None for c in o.proposals))


def summary_of(step: TrainingGraph | None, solution: Solution) -> list[dict[str, Any]]:
    """The encodings that were chosen, for `solve --json`. `step` is the one without them.

    `energy_pj`: of making the code, and of decoding it, once each.
    """
    if step is None:
        return []
    encodings, choice = encodings_of(step), Saved.option(solution)
    by_name = {op.name: op.energy_pj for op in solution.problem.operators}
    spent_pj: dict[str, int] = {}
    for op in encoded_step(step, choice).operators if choice else ():
        spent_pj |= {t: spent_pj.get(t, 0) + by_name[op.name] for t in (*op.inputs, *op.outputs) if op.kind in CODERS}
    return [
        {
            "tensor": e.tensor,
            "format": e.format,
            "saved_bytes": e.saved_bytes,
            "encoded_bytes": e.encoded_bytes,
            "energy_pj": spent_pj[e.code],
        }
        for e in (encodings[i] for i in choice or ())
    ]


def notes_of_none(step: TrainingGraph | None, keep_all_bytes: int, budget_bytes: int) -> list[str]:
    """For a step of which nothing was encoded: why `--saved f16` and such had no effect; none without the option."""
    if step is None or not is_lossy_step(step):
        return []
    why = "the cheapest schedule that was found has no encodings"
    if not encodings_of(step):
        why = "the step saves no tensor that has such an encoding"
    elif keep_all_bytes <= budget_bytes:
        why = "the budget has room for every tensor"
    return [f"--saved {step.options['saved']} had no effect: {why}"]


def as_exactly_as_works(request: SolveRequest, way: Callable[[SolveRequest], T], progress: Progress) -> T:
    """The result of `way`; with `--saved auto` that of the most exact form for which there is one.

    A further form gets the time that the ones before it left, or a little where they left none.
    """
    if request.model.training.saved != "auto":
        return way(request)
    *others, last = formats_of_auto(request.model.training)
    stop_at, limit_s = request.stop_at, request.options.time_limit_s
    for form in others:
        with suppress(InfeasibleError, LimitError):
            return way(with_saved(request, form))
        progress(f"nothing found with saved tensors as --saved {form}")
        left_s = max(stop_at - time.monotonic(), LEAST_LEFT * limit_s)
        request = replace(request, began=None, options=replace(request.options, time_limit_s=left_s))
    return way(with_saved(request, last))


def with_saved(request: SolveRequest, saved: str) -> SolveRequest:
    """The request with another `--saved`."""
    return replace(request, model=replace(request.model, training=replace(request.model.training, saved=saved)))
