"""RAM that every schedule needs: beside an operator, and for a tensor that cannot leave."""

from __future__ import annotations

from poetc.scheduling import choose_pairs
from poetc.solvers._model import NEVER, Model


def operand_bytes(model: Model, v: int) -> int:
    """RAM that the outputs and workspace of `v` take beyond its inputs, everything allowed in place."""
    optional = [(i, o) for i, o, required in model.pairs[v] if not required]
    required = tuple((i, o) for i, o, needed in model.pairs[v] if needed)
    # The checker also lets a smaller output take over a larger input.
    op = model.problem.operators[v]
    optional += [
        (p.input, p.output) for p in op.in_place if not p.required and model.size[p.output] < model.size[p.input]
    ]
    pairs = choose_pairs(required, optional, model.size)
    return model.workspace[v] + sum(model.size[o] for o in model.outputs[v]) - sum(model.size[o] for _, o in pairs)


def working_set_bytes(model: Model, v: int) -> int:
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
    """First executions [a, b] at which `t` is in RAM in every schedule: it cannot be made again nor paged."""
    p = model.producer[t]
    if model.pageable[t] or model.on_store[t] or (p >= 0 and model.recomputable[p]):
        return None
    last = max(model.consumers[t], default=-1)
    if model.ends_in_ram[t]:
        last = NEVER
    return (p + 1, last) if last > p else None
