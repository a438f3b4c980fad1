"""Facts about a model that a user would know and the file does not say: one file a fact, each with its evidence.

Training reads them from the graph, options override them, and `poetc analyze --facts` lists them.
"""

from __future__ import annotations

from poetc.frontend.facts import batch_axis, class_axis, fixed_tensors, folded_norms, probabilities
from poetc.graph import Fact, Graph

FIXED = fixed_tensors.KIND
_OF_GRAPHS = (probabilities.find, class_axis.find, batch_axis.find)


def find(graph: Graph, known: frozenset[str] = frozenset(), folded: int = 0) -> tuple[Fact, ...]:
    """The facts about `graph`, by kind and then in the order of its outputs, inputs and tensors.

    `known`: tensors that the file itself calls parameters. `folded`: batch norms that it names and does not hold.
    """
    of_graph = (fact for finder in _OF_GRAPHS for fact in finder(graph))
    return (*of_graph, *fixed_tensors.find(graph, known), *folded_norms.find(graph, folded))


def notes(facts: tuple[Fact, ...]) -> list[str]:
    """The facts that a user should know when a model is read."""
    told = {
        fixed_tensors.KIND: "not trained: {0.subject!r}, {0.evidence} ({0.option} trains it)",
        folded_norms.KIND: "batch norms may be folded: {0.evidence}",
    }
    return [told[f.kind].format(f) for f in facts if f.kind in told]
