"""Reverse-mode differentiation over the IR (source to source: backward operators are operators like any other)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from poetc.graph import DType, Operator, Role
from poetc.ops import Builder, bind, spec
from poetc.ops.movement import slice_steps
from poetc.training._adapters import DETACHED

_REAL = (DType.F32, DType.I8)  # codes of 8 bits stand for real numbers


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
    saved: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Emit the backward operators of everything in `b` from operator `first` on up to `loss`.

    The loss counts for `weight` (a scalar; None: 1).

    `on_complete(tensor, gradient)` gets the gradient of each tensor in `wanted`, as soon as nothing can add to it and
    no later operator reads the tensor. So an update can follow its gradient at once. Contributions at a fan-out are
    added in the order of the reversed operator list, one at a time: it never depends on the schedule. Those of slices
    that together are a whole tensor are joined, not added.

    `saved` is by the output of a product whose weight is trained in part. It holds the saved channels of the product's
    input, and a tensor of the part's type. The weight's gradient is that of the part.
    """
    forward = b.operators[first:]
    active = depends_on((op for op in forward if not op.attributes.get(DETACHED)), wanted)
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

    def step(op: Operator) -> None:
        b.source = op.source
        needed = [t in active and t in useful and (t in wanted or b.type(t).dtype in _REAL) for t in op.inputs]
        if any(needed):
            grads = [gradients.get(t) for t in op.outputs]
            if needed[1:2] == [True] and saved and op.outputs[0] in saved:
                part = replace(op, inputs=(*saved[op.outputs[0]], *op.inputs[2:]))
                only = [k == 1 for k in range(len(op.inputs))]
                gradient = spec(op.kind).gradient(b, part, grads, only)[1]
                assert gradient is not None
                add(op.inputs[1], gradient)
                needed[1] = False
            of_inputs = spec(op.kind).gradient(b, op, grads, needed)
            for tensor, gradient, want in zip(op.inputs, of_inputs, needed, strict=True):
                if gradient is not None and want:
                    add(tensor, gradient)

    pieces = _whole_slices(b, forward, active & useful)
    for op in reversed(forward):
        if op.name in pieces:
            axis, slices, is_first = pieces[op.name]
            there = [one for one in slices if one.outputs[0] in gradients]
            if is_first and len(there) == len(slices):
                b.source = op.source
                add(op.inputs[0], b.emit1("Concat", [gradients[one.outputs[0]] for one in slices], {"axis": axis}))
            elif is_first:
                for one in reversed(there):
                    step(one)
        elif op.outputs[0] == loss or any(t in gradients for t in op.outputs):
            step(op)
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


def _whole_slices(
    b: Builder, operators: Sequence[Operator], wanted: set[str]
) -> dict[str, tuple[int, list[Operator], bool]]:
    """By slice: the axis, all slices of the same tensor, and whether this one comes first among `operators`.

    Only slices count that together are the whole of a tensor of `wanted`; they are in the order of their pieces.
    """
    by_axis: dict[tuple[str, int], list[tuple[int, int, Operator]]] = {}
    for op in operators:
        if op.kind == "Slice" and op.inputs[0] in wanted and b.type(op.inputs[0]).dtype is DType.F32:
            bound = bind(op, b.tensors)
            starts, sizes = bound.get_ints("starts"), bound.get_ints("sizes")
            cut = [axis for axis, n in enumerate(bound.inputs[0].shape) if n != sizes[axis]]
            if len(cut) == 1 and set(slice_steps(bound)) == {1}:
                by_axis.setdefault((op.inputs[0], cut[0]), []).append((starts[cut[0]], sizes[cut[0]], op))
    result: dict[str, tuple[int, list[Operator], bool]] = {}
    for (tensor, axis), pieces in by_axis.items():
        ordered, end = sorted(pieces, key=lambda piece: piece[0]), 0
        for start, size, _ in ordered:
            end = end + size if start == end else -1
        if end == b.type(tensor).shape[axis]:
            slices = [op for _, _, op in ordered]
            result |= {op.name: (axis, slices, op is pieces[0][2]) for op in slices}
    return result
