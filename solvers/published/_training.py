"""A Problem seen as a training step: the forward pass (the loss included), then the backward pass with its updates.

With micro-batches each part has a forward and a backward pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from poetc.errors import UnsupportedProblemError
from poetc.solvers.model import Model
from poetc.solvers.published._tape import Tape


@dataclass(frozen=True, slots=True)
class Split:
    """The operators of a training step, split into forward and backward passes; micro-batches have one of each.

    `forward`: operators of forward passes and losses. `cut`: where the first backward pass begins. `turn`: for each of
    `forward_tensors`, the first operator of the backward pass that follows it.
    """

    cut: int
    forward: tuple[int, ...]
    turn: dict[int, int]
    forward_tensors: tuple[int, ...]  # tensors that the forward operators make
    saved: tuple[int, ...]  # those that are read after their turn
    optional: frozenset[int]  # those that a method may give up: recomputable, not wanted at the end
    last_forward_use: dict[int, int]  # by forward tensor, the last reader before its turn, or the producer
    to_loss: frozenset[int]  # forward operators that the loss depends on


def split(model: Model, solver: str, *, every_part: bool = False) -> Split:
    """Without `every_part` all behind the first forward pass counts as backward pass, as for methods that know one.

    Raises UnsupportedProblemError where there is no backward pass.
    """
    turn_of = _forward_operators(model, every_part)
    if not turn_of:
        raise UnsupportedProblemError(
            f"{solver}: needs a forward pass followed by a backward pass (operators of phase 'backward')"
        )
    forward = tuple(turn_of)
    turn = {t: at for v, at in turn_of.items() for t in model.outputs[v]}
    outputs = tuple(turn)
    last = {t: max([u for u in model.consumers[t] if u < turn[t]], default=model.producer[t]) for t in outputs}
    saved = tuple(t for t in outputs if any(u >= turn[t] for u in model.consumers[t]))
    optional = frozenset(t for t in outputs if model.recomputable[model.producer[t]] and not model.ends_in_ram[t])
    needed = set(saved)
    relevant: set[int] = set()
    for v in reversed(forward):
        if any(t in needed for t in model.outputs[v]):
            relevant.add(v)
            needed.update(model.inputs[v])
    return Split(turn_of[0], forward, turn, outputs, saved, optional, last, frozenset(relevant))


def _forward_operators(model: Model, every_part: bool) -> dict[int, int]:
    """By operator of a forward pass, in their order, the first backward operator behind that pass."""
    backward_of: dict[int, int] = {}
    passed: list[int] | None = []  # operators of the forward pass so far; None in a backward pass
    for v, op in enumerate(model.problem.operators):
        if passed is None and every_part and op.phase == "forward":
            passed = []
        if passed is None:
            continue
        if op.phase == "backward":
            backward_of.update(dict.fromkeys(passed, v))
            passed = None
        else:
            passed.append(v)
    return backward_of


def run(
    model: Model,
    parts: Split,
    page: Collection[int],
    given_up: Collection[int],
    forgotten: Callable[[int, set[int]], Iterable[int]],
) -> list[int]:
    """The sequence that gives up `given_up` where a backward pass begins, and brings it back on demand.

    Each tensor of `page` is written after its last forward use. `forgotten`: of a backward operator and of the tensors
    that were brought back for it, those that go again at once.
    """
    tape = Tape(model)
    writes: dict[int, list[int]] = {}
    for t in sorted(page):
        writes.setdefault(parts.last_forward_use[t], []).append(t)
    leaves: dict[int, list[int]] = {}
    for t in given_up:
        leaves.setdefault(parts.turn[t], []).append(t)
    forward = frozenset(parts.forward)
    for v in range(model.n_ops):
        tape.drop(leaves.get(v, ()))
        brought = tape.compute(v)
        for t in writes.get(v, ()):
            tape.page_out(t)
        if v not in forward:
            tape.drop(forgotten(v, brought))
    return tape.finish()


def run_static(
    model: Model,
    parts: Split,
    keep: Collection[int],
    page: Collection[int] = (),
    *,
    retain: bool = True,
) -> list[int]:
    """The sequence that, between a forward and its backward pass, holds `keep` in RAM and `page` on the store.

    `page` is written after its last forward use and read back when the backward pass needs it. All others are
    recomputed on demand. `retain`: a tensor that was brought back is held until its last use. Otherwise only those are
    that the operator reads for which they were brought back, and tensors made on the way go at once.
    """
    given_up = [t for t in parts.forward_tensors if (t in parts.optional and t not in keep) or t in page]
    held = set(keep)

    def forgotten(v: int, brought: set[int]) -> list[int]:
        if retain:
            return []
        held.update(model.inputs[v])
        return [t for t in brought if t not in held]

    return run(model, parts, page, given_up, forgotten)
