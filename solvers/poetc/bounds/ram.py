"""The RAM that every schedule needs: for an operator, for a tensor that cannot leave, and in all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poetc.scheduling import Problem, choose_pairs, for_recent
from poetc.solvers.model import NEVER, Model


def operand_bytes(model: Model, v: int) -> int:
    """Bytes of the outputs and workspace of `v`, as far as they are not in place of inputs."""
    if not (in_place := model.problem.operators[v].in_place):
        return model.workspace[v] + sum(model.size[o] for o in model.outputs[v])
    optional = [(i, o) for i, o, required in model.pairs[v] if not required]
    required = tuple((i, o) for i, o, needed in model.pairs[v] if needed)
    # The checker also lets a smaller output take over a larger input.
    optional += [(p.input, p.output) for p in in_place if not p.required and model.size[p.output] < model.size[p.input]]
    pairs = choose_pairs(required, optional, model.size)
    return model.workspace[v] + sum(model.size[o] for o in model.outputs[v]) - sum(model.size[o] for _, o in pairs)


def working_set_bytes(model: Model, v: int) -> int:
    """Bytes of all operands and the workspace of `v`."""
    return sum(model.size[t] for t in model.inputs[v]) + operand_bytes(model, v)


def tiny_tensors(model: Model, share: float) -> frozenset[int]:
    """The smallest tensors, as many as take together at most `share` of the capacity."""
    left = share * model.capacity
    tiny: list[int] = []
    for t in sorted(range(model.n_tensors), key=lambda t: (model.size[t], t)):
        left -= model.size[t]
        if left < 0:
            break
        tiny.append(t)
    return frozenset(tiny)


def pinned_interval(model: Model, t: int) -> tuple[int, int] | None:
    """First executions [a, b] at which `t` is in RAM in every schedule: it can neither be made again nor paged."""
    p = model.producer[t]
    if model.pageable[t] or model.on_store[t] or (p >= 0 and model.recomputable[p]):
        return None
    last = max(model.consumers[t], default=-1)
    if model.ends_in_ram[t]:
        last = NEVER
    return (p + 1, last) if last > p else None


@for_recent
def lower_bound_bytes(problem: Problem) -> int:
    """The RAM that every schedule needs, in whatever order.

    It is the most of four sums: the tensors there at the start; those there at the end; and two for each operator. One
    is its operands and workspace beside the tensors that always stay, which can neither be made again nor paged. The
    other is the RAM one step before it, when the last of its inputs arrives and the others are there already.
    """
    model = Model(problem)
    pinned = [pinned_interval(model, t) for t in range(model.n_tensors)]
    # No order of first executions is assumed: only tensors that are there from the start until the end count.
    always = set()
    for t in range(model.n_tensors):
        if pinned[t] is not None and model.in_ram[t] and model.ends_in_ram[t]:
            always.add(t)
    updated: dict[int, int] = {}  # state in place: its two versions are the same bytes; each names the other
    for pairs in model.pairs:
        for i, o, required in pairs:
            if (
                required
                and model.in_ram[i]
                and pinned[i] is not None
                and model.ends_in_ram[o]
                and not model.pageable[o]
            ):
                updated[i] = o
                updated[o] = i
    fixed = sum(model.size[t] for t in always)
    fixed += sum(model.size[i] for i in updated if model.in_ram[i])

    def outside(operands: set[int]) -> int:
        """Bytes that stay beside `operands`."""
        if not fixed:
            return 0
        inside = sum(model.size[t] for t in operands & always)
        pairs = {i for t in operands & updated.keys() for i in (t, updated[t])}
        inside += sum(model.size[i] for i in pairs if model.in_ram[i])
        return fixed - inside

    bound, own = 0, [operand_bytes(model, v) for v in range(model.n_ops)]
    for v in range(model.n_ops):
        operands = {*model.inputs[v], *model.outputs[v]}
        bound = max(bound, sum(model.size[t] for t in model.inputs[v]) + own[v] + outside(operands))
        if not any(model.on_store[u] or model.pageable[u] for u in model.inputs[v]):  # else no more than that
            bound = max(bound, _arrival_bytes(model, v, own, outside))
    bound = max(bound, sum(s for s, there in zip(model.size, model.in_ram, strict=True) if there))
    bound = max(bound, sum(s for s, there in zip(model.size, model.ends_in_ram, strict=True) if there))
    base = problem.base_bytes + (problem.page_buffer_bytes if model.must_page else 0)
    return base + bound


def _arrival_bytes(model: Model, v: int, own: Sequence[int], outside: Callable[[set[int]], int]) -> int:
    """RAM when the last input of `v` arrives, for the input for which that is least.

    No input is paged. 0 if all may be there from the start. `own`: each operator's `operand_bytes`. `outside`: bytes
    that stay beside the given operands.
    """
    if any(model.in_ram[u] for u in model.inputs[v]):
        return 0
    least = None
    for u in model.inputs[v]:
        others = set(model.inputs[v]) - {u}
        p = model.producer[u]
        options = []
        if p >= 0:
            present = set(model.inputs[p]) | (others - set(model.outputs[p]))
            size = sum(model.size[t] for t in present) + own[p]
            options.append(size + outside(present | set(model.outputs[p])))
        option = min(options, default=0)
        least = option if least is None else min(least, option)
    return least or 0
