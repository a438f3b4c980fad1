"""A Problem seen as a training step: the forward pass (the loss included), then the backward pass with its updates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from poetc.errors import UnsupportedProblemError
from poetc.solvers.model import Model
from poetc.solvers.published._tape import Tape


@dataclass(frozen=True, slots=True)
class Split:
    """A training step. The operators before `cut` are the forward pass and the loss."""

    cut: int
    made: tuple[int, ...]  # tensors that the forward pass makes
    saved: tuple[int, ...]  # those of `made` that the backward pass reads
    optional: frozenset[int]  # those of `made` that a method may give up: recomputable, not wanted at the end
    last_forward_use: dict[int, int]  # by tensor of `made`, the last forward reader, or the producer
    to_loss: frozenset[int]  # forward operators that the loss depends on


def split(model: Model, solver: str) -> Split:
    """Raises UnsupportedProblemError where there is no backward pass."""
    operators = model.problem.operators
    cut = next((v for v, op in enumerate(operators) if op.phase == "backward"), 0)
    if cut == 0:
        raise UnsupportedProblemError(
            f"{solver}: needs a forward pass followed by a backward pass (operators of phase 'backward')"
        )
    outputs = tuple(t for v in range(cut) for t in model.outputs[v])
    last = {t: max([u for u in model.consumers[t] if u < cut], default=model.producer[t]) for t in outputs}
    saved = tuple(t for t in outputs if any(u >= cut for u in model.consumers[t]))
    optional = frozenset(t for t in outputs if model.recomputable[model.producer[t]] and not model.ends_in_ram[t])
    needed = set(saved)
    relevant: set[int] = set()
    for v in reversed(range(cut)):
        if any(t in needed for t in model.outputs[v]):
            relevant.add(v)
            needed.update(model.inputs[v])
    return Split(cut, outputs, saved, optional, last, frozenset(relevant))


def forward_pass(model: Model, parts: Split, page: Collection[int]) -> Tape:
    """The tape after the forward pass. Each tensor of `page` is written after its last forward use."""
    tape = Tape(model)
    writes: dict[int, list[int]] = {}
    for t in sorted(page):
        writes.setdefault(parts.last_forward_use[t], []).append(t)
    for v in range(parts.cut):
        tape.compute(v)
        for t in writes.get(v, ()):
            tape.page_out(t)
    return tape


def run_static(
    model: Model,
    parts: Split,
    keep: Collection[int],
    page: Collection[int] = (),
    *,
    retain: bool = True,
) -> list[int]:
    """The sequence that, between forward and backward pass, holds `keep` in RAM and `page` on the store.

    `page` is written after its last forward use and read back when the backward pass needs it. All others are
    recomputed on demand. `retain`: a tensor that was brought back is held until its last use. Otherwise only those are
    that the operator reads for which they were brought back, and tensors made on the way go at once.
    """
    tape = forward_pass(model, parts, page)
    tape.drop(t for t in parts.made if (t in parts.optional and t not in keep) or t in page)
    held = set(keep)
    for v in range(parts.cut, model.n_ops):
        brought = tape.compute(v)
        if not retain:
            held.update(model.inputs[v])
            tape.drop(t for t in brought if t not in held)
    return tape.finish()
