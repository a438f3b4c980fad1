"""Graphs that break a rule of the IR, and what a failing pass says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poetc.graph import Graph, Operator, Role, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.passes import GraphError, Pass, check_graph, run_passes
from poetc.training import TrainingOptions, build
from tests.program.models import mlp


@pytest.fixture(scope="module")
def graph() -> TrainingGraph:
    return build(mlp(), TrainingOptions(optimizer="sgd", learning_rate=0.05))


def updated(read: Callable[[Builder], str], update_first: bool) -> Graph:
    """w@1 = w - lr g, and a product with what `read` makes of w or of a view of it, after or before the update."""
    b = Builder()
    w, g = (b.add_tensor(n, TensorType((2, 3)), r) for n, r in (("w", Role.INPUT), ("g", Role.INPUT)))
    lr = b.add_tensor("lr", TensorType((1,)), Role.INPUT)
    b.emit1("Reshape", [w], {"shape": (3, 2)}, hint="flat")
    other = read(b)
    update = b.emit1("Sgd", [w, g, lr], hint="w@1")
    b.emit1("Relu", [other], hint="y")
    operators = list(b.operators)
    if not update_first:
        operators[-2], operators[-1] = operators[-1], operators[-2]
    return Graph("updated", b.tensors, tuple(operators), ("w", "g", "lr"), (update, operators[-1].outputs[0]), b.values)


READS: dict[str, Callable[[Builder], str]] = {
    "w": lambda b: "w",
    "a view": lambda b: b.operators[-1].outputs[0],
    "a view of a view": lambda b: b.emit1("Reshape", [b.operators[-1].outputs[0]], {"shape": (6,)}),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_after_the_update_is_found_through_views_as_well(read: str) -> None:
    check_graph(updated(READS[read], update_first=False))
    with pytest.raises(GraphError, match=r"reads '.*' after '.*' updated it"):
        check_graph(updated(READS[read], update_first=True))


def test_an_update_through_a_view_takes_the_root() -> None:
    b = Builder()
    w, g = (b.add_tensor(n, TensorType(s), Role.INPUT) for n, s in (("w", (2, 3)), ("g", (6,))))
    lr = b.add_tensor("lr", TensorType((1,)), Role.INPUT)
    flat = b.emit1("Reshape", [w], {"shape": (6,)})
    b.emit1("Sgd", [flat, g, lr])
    b.emit1("Relu", [w])
    with pytest.raises(GraphError, match="reads 'w' after"):
        check_graph(Graph("updated", b.tensors, tuple(b.operators), ("w", "g", "lr"), (), b.values))


@pytest.mark.parametrize("through_a_view", [False, True])
def test_a_storage_is_updated_once(through_a_view: bool) -> None:
    """Passes rely on it; what is moved twice in a step (statistics that layers share) has a version between."""

    def graph(version_between: bool) -> Graph:
        b = Builder()
        w, g, lr = (b.add_tensor(n, TensorType(s), Role.INPUT) for n, s in (("w", (6,)), ("g", (6,)), ("lr", (1,))))
        again = b.emit1("Reshape", [w], {"shape": (6,)}) if through_a_view else w
        first = b.emit1("Sgd", [w, g, lr], hint="first")
        b.emit1("Sgd", [first if version_between else again, g, lr], hint="second")
        return Graph("updated", b.tensors, tuple(b.operators), ("w", "g", "lr"), (), b.values)

    check_graph(graph(version_between=True))
    with pytest.raises(GraphError, match=r"reads '.*' after '.*' updated it"):
        check_graph(graph(version_between=False))


def without_first(graph: TrainingGraph) -> TrainingGraph:
    return replace(graph, operators=graph.operators[1:])


def twice(graph: TrainingGraph) -> TrainingGraph:
    return replace(graph, operators=(*graph.operators, graph.operators[-1]))


def unknown(graph: TrainingGraph) -> TrainingGraph:
    first: Operator = replace(graph.operators[0], kind="Nothing")
    return replace(graph, operators=(first, *graph.operators[1:]))


@pytest.mark.parametrize(
    "spoil, message",
    [(without_first, "no operator makes it"), (twice, "appears twice"), (unknown, "of unknown kind 'Nothing'")],
)
def test_a_pass_that_spoils_the_graph_is_named_with_those_before_it(
    graph: TrainingGraph, spoil: Callable[[TrainingGraph], TrainingGraph], message: str
) -> None:
    def same(g: TrainingGraph) -> TrainingGraph:
        return g

    with pytest.raises(GraphError, match=f"^pass bad: .*{message}"):
        run_passes(graph, [Pass("bad", spoil), Pass("later", same)])
    with pytest.raises(GraphError, match=f"^pass bad after one, two: .*{message}"):
        run_passes(graph, [Pass("one", same), Pass("two", same), Pass("bad", spoil)])
    with pytest.raises(GraphError, match=f"^pass one: .*{message}"):
        run_passes(spoil(graph), [Pass("one", same)])


def test_what_a_pass_requires_and_ensures_is_checked_around_it(graph: TrainingGraph) -> None:
    calls: list[str] = []

    def note(what: str) -> Callable[[Graph], None]:
        return lambda _: calls.append(what)

    def run(g: TrainingGraph) -> TrainingGraph:
        calls.append("run")
        return g

    assert run_passes(graph, [Pass("p", run, requires=note("requires"), ensures=note("ensures"))]) == graph
    assert calls == ["requires", "run", "ensures"]
