"""The dynamic program over lower sets of the forward graph, which both of Kusumoto's solvers use (see `kusumoto`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetc.errors import UnsupportedProblemError
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline
from poetc.solvers.published._training import Split, run_static, split

UNITS = 400  # parts of the forward pass's cost, in which recomputation is counted
LEAST_UNIT = 1e-12  # cost of such a part, where nothing costs anything
PERCENTS = range(200, 5, -6)  # of the budget: memories that are tried, as the estimate leaves weights out


@dataclass(frozen=True, slots=True)
class ForwardGraph:
    """The operators that the loss depends on, as bits."""

    operators: tuple[int, ...]  # bit -> operator
    before: tuple[int, ...]  # masks of direct predecessors
    after: tuple[int, ...]
    size: tuple[int, ...]  # bytes of the outputs
    cost: tuple[float, ...]

    def total(self, mask: int, values: Sequence[float]) -> float:
        result: float = 0
        while mask:
            low = mask & -mask
            result += values[low.bit_length() - 1]
            mask ^= low
        return result

    def union(self, mask: int, of: Sequence[int]) -> int:
        result = 0
        while mask:
            low = mask & -mask
            result |= of[low.bit_length() - 1]
            mask ^= low
        return result


def forward_graph(model: Model, parts: Split) -> ForwardGraph:
    operators = tuple(sorted(parts.to_loss))
    bit = {v: k for k, v in enumerate(operators)}
    before = [0] * len(operators)
    after = [0] * len(operators)
    for k, v in enumerate(operators):
        for t in model.inputs[v]:
            if model.producer[t] in bit:
                p = bit[model.producer[t]]
                before[k] |= 1 << p
                after[p] |= 1 << k
    size = tuple(sum(model.size[t] for t in model.outputs[v]) for v in operators)
    return ForwardGraph(operators, tuple(before), tuple(after), size, tuple(model.op_cost[v] for v in operators))


def ancestor_closures(graph: ForwardGraph) -> list[int]:
    """For each operator v, the set of v and all operators that it depends on."""
    closures: list[int] = []
    for k, before in enumerate(graph.before):
        closures.append(1 << k | graph.union(before, closures))
    return closures


def all_lower_sets(graph: ForwardGraph, limit: int, solver: str) -> list[int]:
    """Every set that holds all predecessors of its members. Raises UnsupportedProblemError beyond `limit`."""
    lower_sets = {0}
    work = [0]
    while work:
        lower = work.pop()
        for k, before in enumerate(graph.before):
            if not lower >> k & 1 and before & ~lower == 0:
                grown = lower | 1 << k
                if grown not in lower_sets:
                    lower_sets.add(grown)
                    work.append(grown)
                    if len(lower_sets) > limit:
                        raise UnsupportedProblemError(
                            f"{solver}: the forward graph has more than {limit} lower sets; take kusumoto_approx"
                        )
    return sorted(lower_sets)


@dataclass(frozen=True, slots=True)
class _Transition:
    origin: int
    end: int
    units: int  # cost of recomputing
    cached: int  # bytes added to the cache
    needed: int  # bytes beside the cache while the segment is undone


def _transitions(graph: ForwardGraph, lower_sets: Sequence[int]) -> list[list[_Transition]]:
    """Segments by the set that they end in; sets in ascending size."""
    whole = (1 << len(graph.operators)) - 1
    unit = max(LEAST_UNIT, sum(graph.cost) / UNITS)
    result: list[list[_Transition]] = []
    for j, end in enumerate(lower_sets):
        out = graph.union(end, graph.after) & ~end
        into = graph.union(out, graph.before)
        border = into & end
        out_bytes = graph.total(out, graph.size)
        arriving: list[_Transition] = []
        for i in range(j):
            origin = lower_sets[i]
            if origin & ~end:
                continue
            segment = end & ~origin
            cached = border & segment
            again = 0.0 if end == whole else graph.total(segment & ~cached, graph.cost)
            needed = 2 * graph.total(segment, graph.size) + out_bytes + graph.total(into & ~end, graph.size)
            arriving.append(_Transition(i, j, round(again / unit), int(graph.total(cached, graph.size)), int(needed)))
        result.append(arriving)
    return result


def _cheapest(transitions: list[list[_Transition]], memory: int) -> list[int] | None:
    """Positions of the lower sets that a cheapest sequence within `memory` visits."""
    count = len(transitions)
    cached = np.full((count, UNITS + 1), math.inf)
    origin = np.full((count, UNITS + 1), -1, np.int32)
    cached[0][0] = 0.0
    for j in range(1, count):
        for t in transitions[j]:
            before = cached[t.origin]
            new = np.full(UNITS + 1, math.inf)
            new[t.units :] = before[: UNITS + 1 - t.units]
            new = np.where(new + t.needed <= memory, new + t.cached, math.inf)
            better = new < cached[j]
            cached[j][better] = new[better]
            origin[j][better] = t.origin
    reached = np.flatnonzero(np.isfinite(cached[-1]))
    if not len(reached):
        return None
    j, units = count - 1, int(reached[0])
    path = [j]
    while j:
        i = int(origin[j][units])
        units -= next(t.units for t in transitions[j] if t.origin == i)
        j = i
        path.append(j)
    return path[::-1]


def kept_by(graph: ForwardGraph, model: Model, sets: Sequence[int]) -> set[int]:
    """The tensors that the canonical strategy of a chain of lower sets caches, with those of the last segment."""
    bits = 0
    for lower in sets[:-1]:
        bits |= graph.union(graph.union(lower, graph.after) & ~lower, graph.before) & lower
    bits |= sets[-1] & ~(sets[-2] if len(sets) > 1 else 0)
    return {t for k, v in enumerate(graph.operators) if bits >> k & 1 for t in model.outputs[v]}


def run(baseline: Baseline, *, exact: bool, limit: int) -> None:
    """Offer the decisions of the program for memories from twice the budget down, until one fits."""
    model = baseline.model
    parts = split(model, baseline.info.name)
    graph = forward_graph(model, parts)
    whole = (1 << len(graph.operators)) - 1
    family = all_lower_sets(graph, limit, baseline.info.name) if exact else ancestor_closures(graph)
    lower_sets = sorted({0, whole, *family}, key=lambda s: (s.bit_count(), s))
    transitions = _transitions(graph, lower_sets)
    budget = baseline.problem.budget_bytes
    previous: list[int] | None = None
    # 2 m(segment) stands for a segment and its gradients; weights and the rest are not counted: hence the sweep.
    for percent in PERCENTS:
        if baseline.out_of_time:
            break
        path = _cheapest(transitions, budget * percent // 100)
        if path is None:
            break
        if path == previous:
            continue
        previous = path
        keep = kept_by(graph, model, [lower_sets[j] for j in path])
        keep |= {t for t in parts.forward_tensors if model.producer[t] not in parts.to_loss}
        if baseline.offer_made(partial(run_static, model, parts, keep), f"{len(path) - 1} segments"):
            break
    baseline.check_time()
