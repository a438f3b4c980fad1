"""The encodings of saved tensors that a training step can have, as the planner takes them."""

from __future__ import annotations

from typing import Any

from poetc import passes
from poetc.devices import DeviceProfile, build_problem
from poetc.graph import TrainingGraph
from poetc.planning.saved import Encodings, Offer, Tensor
from poetc.scheduling import keep_all_peak_bytes
from poetc.scheduling.problem import Paging, Problem

WORTH = 0.01  # of keep-all's peak: encodings that spare less altogether are not tried


def encodings_of(step: TrainingGraph) -> tuple[passes.Encoding, ...]:
    """The encodings that `--saved` allows for the step, in a fixed order."""
    return () if step.options.get("saved", "exact") == "off" else passes.offered(step)


def offers_of(
    step: TrainingGraph | None, profile: DeviceProfile | None, problem: Problem, paging: Paging | None
) -> tuple[Offer, ...]:
    """The offer for `problem`, which was built of `step` for the profile with `paging`; none where none is of use."""
    if step is None or profile is None:
        return ()
    found = encodings_of(step)
    spared_bytes = sum(e.saved_bytes - e.encoded_bytes for e in found)
    if spared_bytes < WORTH * keep_all_peak_bytes(problem):
        return ()
    alone = tuple(i for i, e in enumerate(found) if e.is_alone)
    proposals = tuple(dict.fromkeys(choice for choice in (alone, tuple(range(len(found)))) if choice))

    def build(choice: Encodings) -> Problem:
        return build_problem(made(step, choice), profile, budget_bytes=problem.budget_bytes, paging=paging)

    operators = passes.encoded(step, found).operators
    tensors = tuple(Tensor(e.tensor, frozenset(op.name for op in operators if e.code in op.inputs)) for e in found)
    return (Offer(exact=problem, build=build, tensors=tensors, proposals=proposals),)


def made(step: TrainingGraph, choice: Encodings | None) -> TrainingGraph:
    """The step with the encodings that were chosen."""
    found = encodings_of(step)
    return passes.encoded(step, [found[i] for i in choice or ()])


def summary_of(step: TrainingGraph | None, choice: Encodings | None) -> list[dict[str, Any]]:
    """The encodings that were chosen, for `solve --json`. `step` is the one without them."""
    if step is None:
        return []
    found = encodings_of(step)
    return [
        {
            "tensor": e.tensor,
            "format": e.format,
            "saved_bytes": e.saved_bytes,
            "encoded_bytes": e.encoded_bytes,
        }
        for e in (found[i] for i in choice or ())
    ]
