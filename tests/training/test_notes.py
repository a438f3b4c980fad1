"""Notes of the import that a training repeats: on tied weights where they are trained."""

from __future__ import annotations

from dataclasses import replace

from poetc import training
from poetc.graph import TIED, Fill, Graph, Role, TensorType
from poetc.ops import Builder
from poetc.training import TrainingOptions

TWICE = f" is the weight of 2 operators (a, b){TIED}"


def network(weights: int) -> Graph:
    """Each weight but the last is multiplied by twice, and the import says so."""
    b = Builder()
    y = x = b.add_tensor("x", TensorType((2, 3)), Role.INPUT)
    for k in range(weights):
        b.add_tensor(f"w{k}", TensorType((3, 3)), Role.PARAMETER, Fill("ones"))
        y = b.emit1("MatMul", [b.emit1("MatMul", [y, f"w{k}"]), f"w{k}"])
    b.add_tensor("last", TensorType((3, 3)), Role.PARAMETER, Fill("ones"))
    y = b.emit1("MatMul", [y, "last"])
    notes = ("the first note", *(f"'w{k}'{TWICE}" for k in range(weights)), "the last note")
    return replace(Graph("tied", b.tensors, tuple(b.operators), (x,), (y,), b.values), notes=notes)


def notes(graph: Graph, train: str = "all", lora: tuple[str, ...] = ()) -> list[str]:
    if lora:
        graph = training.with_adapters(graph, training.select_updates(graph, train, lora))
    built = training.build(graph, TrainingOptions(loss="mse", train=train, lora=lora))
    return [n for n in built.notes if "tied" in n or "note" in n]


def test_tied_weights_are_told_where_they_are_trained() -> None:
    graph = network(2)
    assert notes(graph) == list(graph.notes)
    assert notes(graph, train="w1") == ["the first note", f"'w1'{TWICE}", "the last note"]


def test_those_of_a_frozen_base_are_not() -> None:
    assert notes(network(2), lora=("1:last",)) == ["the first note", "the last note"]


def test_many_tied_weights_are_told_in_one_note() -> None:
    """As of a decoder whose blocks read tables of places: each would have had a line."""
    told = notes(network(11))
    assert told[1:7] == [f"'w{k}'{TWICE}" for k in range(6)] and len(told) == 9
    assert told[-1] == "tied weights of several operators, too: 'w6', 'w7', 'w8' and 2 more"
