"""Reverse-mode differentiation over the IR (source to source: backward operators are operators like any other)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from poetc.graph import DType, Operator, Role
from poetc.ops import Builder, spec


def depends_on(operators: Iterable[Operator], sources: Iterable[str]) -> set[str]:
    """Tensors whose value depends on any of `sources` (themselves included), operators in topological order."""
    reached = set(sources)
    for op in operators:
        if not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
    return reached


def differentiate(
    b: Builder,
    loss: str,
    wanted: frozenset[str],
    on_complete: Callable[[str, str], None],
    *,
    first: int = 0,
    weight: str | None = None,
) -> None:
    """Emit the backward operators of everything in `b` from operator `first` on up to `loss`, which counts for `weight`
    (a scalar; None: 1).

    The gradient of each tensor in `wanted` is handed to `on_complete(tensor, gradient)` as soon as nothing can add to
    it and no operator yet to come reads the tensor, so that an update can follow its gradient at once. Contributions
    at a fan-out are added in the order of the reversed operator list, one at a time: it never depends on the schedule.
    """
    forward = b.operators[first:]
    active = depends_on(forward, wanted)
    useful = _leads_to(forward, loss)
    b.role = Role.GRADIENT
    gradients: dict[str, str] = {} if weight is None else {loss: weight}
    readers: dict[str, int] = dict.fromkeys(wanted, 0)
    for op in forward:
        for tensor in set(op.inputs):
            if tensor in readers:
                readers[tensor] += 1

    def add(tensor: str, gradient: str) -> None:
        if tensor in gradients:
            gradient = b.emit1("Add", [gradients[tensor], gradient], hint=f"grad({tensor})")
        gradients[tensor] = gradient

    for op in reversed(forward):
        if op.outputs[0] == loss or any(t in gradients for t in op.outputs):
            b.source = op.source
            needed = [t in active and t in useful and b.type(t).dtype is DType.F32 for t in op.inputs]
            if any(needed):
                grads = [gradients.get(t) for t in op.outputs]
                for tensor, gradient, want in zip(
                    op.inputs, spec(op.kind).gradient(b, op, grads, needed), needed, strict=True
                ):
                    if gradient is not None and want:
                        add(tensor, gradient)
        for tensor in sorted(set(op.inputs)):
            if tensor in readers:
                readers[tensor] -= 1
                if readers[tensor] == 0 and tensor in gradients:
                    on_complete(tensor, gradients[tensor])


def _leads_to(operators: list[Operator], goal: str) -> set[str]:
    needed = {goal}
    for op in reversed(operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
    return needed
