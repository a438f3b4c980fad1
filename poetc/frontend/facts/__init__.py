"""Facts about a model that a user would know and the file does not say: one file a fact, each with its evidence.

Training reads them from the graph, options override them, and `poetc analyze --facts` lists them.
"""

from __future__ import annotations

from poetc.frontend.facts import class_axis, fixed_tensors, probabilities
from poetc.graph import Fact, Graph

_OF_GRAPHS = (probabilities.find, class_axis.find)


def find(graph: Graph, known: frozenset[str] = frozenset()) -> tuple[Fact, ...]:
    """The facts about `graph`, by kind and then in the order of its outputs, inputs and tensors.

    `known`: tensors that the file itself calls parameters.
    """
    return (*(fact for finder in _OF_GRAPHS for fact in finder(graph)), *fixed_tensors.find(graph, known))


def notes(facts: tuple[Fact, ...]) -> list[str]:
    """The facts that a user should know when a model is read."""
    fixed = [f for f in facts if f.kind == fixed_tensors.KIND]
    return [f"not trained: {f.subject!r}, {f.evidence} ({f.option} trains it)" for f in fixed]


__all__ = ["find", "notes", "probabilities"]
