"""Order of the backward operators: same operators, same numbers, no more memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from poetc.graph import Graph, Operator, Phase, TrainingGraph
from poetc.ops import spec, view_roots
from poetc.passes import check_graph, order_backward, run_standard
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, build
from tests.program.models import make_problem, mlp
from tests.support.graphs import evaluate, random_inputs, small_cnn

GRAPHS = {
    "mlp, sgd": (mlp, "sgd"),
    "mlp, adam": (mlp, "adam"),
    "cnn, momentum": (small_cnn, "momentum"),
}
cases = pytest.mark.parametrize("name", GRAPHS)


def training(name: str) -> TrainingGraph:
    make, optimizer = GRAPHS[name]
    graph: Graph = make()
    return build(graph, TrainingOptions(optimizer=optimizer, learning_rate=0.05, fusion=False))


def precedes(graph: Graph) -> list[set[int]]:
    """For each operator those that must come before it: makers of what it reads, readers of what it updates."""
    roots = view_roots(graph)
    makers = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    before = [{makers[t] for t in op.inputs if t in makers} for op in graph.operators]
    for i, op in enumerate(graph.operators):
        updated = {roots[op.inputs[k]] for k, _ in spec(op.kind).must_alias}
        before[i] |= {j for j, o in enumerate(graph.operators) if j != i and updated & {roots[t] for t in o.inputs}}
    return before


def shuffled(graph: TrainingGraph, random: Random) -> TrainingGraph:
    """The backward operators in any order that the data allow."""
    before = precedes(graph)
    order: list[int] = []
    left = list(range(len(graph.operators)))
    while left:
        ready = [i for i in left if before[i] <= set(order)]
        forward = [i for i in ready if graph.operators[i].phase not in (Phase.BACKWARD, Phase.UPDATE)]
        order.append(forward[0] if forward else random.choice(ready))
        left.remove(order[-1])
    return replace(graph, operators=tuple(graph.operators[i] for i in order))


def peak_bytes(graph: TrainingGraph) -> int:
    return keep_all_peak_bytes(make_problem(graph))


def orders(name: str) -> list[TrainingGraph]:
    graph = training(name)
    return [graph, *(shuffled(graph, Random(seed)) for seed in range(8))]


@cases
def test_every_operator_stays_and_comes_after_what_it_depends_on(name: str) -> None:
    for graph in orders(name):
        check_graph(graph)
        ordered = order_backward(graph)
        place = {op.name: i for i, op in enumerate(ordered.operators)}
        assert sorted(place) == sorted(op.name for op in graph.operators)
        for op, before in zip(graph.operators, precedes(graph), strict=True):
            assert all(place[graph.operators[i].name] < place[op.name] for i in before), op.name
        assert [o for o in ordered.operators if is_forward(o)] == [o for o in graph.operators if is_forward(o)]
        check_graph(ordered)


def is_forward(op: Operator) -> bool:
    return op.phase not in (Phase.BACKWARD, Phase.UPDATE) and not spec(op.kind).is_view


@cases
def test_the_peak_of_keep_all_never_grows(name: str) -> None:
    peaks = [(peak_bytes(graph), peak_bytes(order_backward(graph))) for graph in orders(name)]
    assert all(after <= before for before, after in peaks), peaks
    assert any(after < before for before, after in peaks), peaks


@cases
def test_gradients_and_state_keep_their_bits(name: str) -> None:
    graph = shuffled(training(name), Random(3))
    ordered = run_standard(graph)
    assert ordered.operators != graph.operators
    before, after = (evaluate(g, random_inputs(g), np.float32) for g in (graph, ordered))
    for tensor in (graph.loss, *graph.gradients.values(), *graph.updates.values()):
        assert before[tensor].tobytes() == after[tensor].tobytes(), tensor
