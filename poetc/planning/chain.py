"""The chain of reductions: every choice that `poetc solve` leaves open, in the order in which choices are made.

`KINDS` are its classes. Reports take from them the words for choices and scopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from poetc.planning.banks import Banks
from poetc.planning.kernels import Kernels
from poetc.planning.micro_batches import MicroBatches
from poetc.planning.overlap import Overlap
from poetc.planning.planner import Reduction
from poetc.planning.processors import Processors
from poetc.planning.saved import EncodingSpace, Saved
from poetc.planning.state import StatePlacement
from poetc.planning.streaming import AlternativesOf, Streaming
from poetc.planning.updates import BestUpdates
from poetc.planning.ways import CoreUsage, Problems
from poetc.scheduling import Problem

KINDS: Final[tuple[type[Reduction[Any]], ...]] = (
    BestUpdates,
    MicroBatches,
    CoreUsage,
    Saved,
    Streaming,
    Banks,
    Processors,
    Overlap,
    Kernels,
    StatePlacement,
)


def reductions(
    state: str = "auto",
    micro_batches: Mapping[int, Problem] | None = None,
    updates: BestUpdates | None = None,
    offers: Sequence[EncodingSpace] = (),
    ways: Sequence[Problems] = (),
    streams: Sequence[AlternativesOf] = (),
) -> tuple[Reduction[Any], ...]:
    """Outermost first.

    `state`: as `--state` takes it. `micro_batches`: the problems by number of parts, if that is open. `updates`: the
    choice of the trained parameters, if that is open. `offers`: the encodings of saved tensors that they can have.
    `ways`: the ways of using several processors that problems have. `streams`: make the streamed alternatives of
    operators.
    """
    chosen = () if updates is None else (updates,)
    parts = () if micro_batches is None else (MicroBatches(micro_batches),)
    saved = (Saved(offers),) if offers else ()
    used = (CoreUsage(ways),) if ways else ()
    streaming = (Streaming(streams),) if streams else ()
    return (
        *chosen,
        *parts,
        *used,
        *saved,
        *streaming,
        Banks(),
        Processors(),
        Overlap(),
        Kernels(),
        StatePlacement(state),
    )
