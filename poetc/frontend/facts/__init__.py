"""Facts about a model that a user would know and the file does not say: one file a fact, each with its evidence.

Training reads them from the graph, options override them, and `poetc analyze --facts` lists them.
"""

from __future__ import annotations

from poetc.frontend.facts import class_axis, probabilities
from poetc.graph import Fact, Graph

_FINDERS = (probabilities.find, class_axis.find)


def find(graph: Graph) -> tuple[Fact, ...]:
    """The facts about `graph`, by kind and then in the order of its outputs, inputs and tensors."""
    return tuple(fact for finder in _FINDERS for fact in finder(graph))


__all__ = ["find", "probabilities"]
