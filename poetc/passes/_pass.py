"""The interface of a pass: graph to graph, with a precondition on the one and a postcondition on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poetc.graph import Graph, TrainingGraph
from poetc.passes._check import GraphError, check_graph


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewriting of the training graph. `requires` checks its input, `ensures` its output; both raise GraphError."""

    name: str
    run: Callable[[TrainingGraph], TrainingGraph]
    requires: Callable[[Graph], None] = check_graph
    ensures: Callable[[Graph], None] = check_graph


def run_passes(graph: TrainingGraph, passes: Sequence[Pass]) -> TrainingGraph:
    """Apply `passes` in order. A failure names the pass and the ones before it."""
    done: list[str] = []
    checked: Callable[[Graph], None] | None = None  # by the pass before, of the same graph
    for step in passes:
        try:
            if step.requires is not checked:
                step.requires(graph)
            before, graph = graph, step.run(graph)
            if graph is not before or step.ensures is not checked:
                step.ensures(graph)
            checked = step.ensures
        except GraphError as error:
            earlier = f" after {', '.join(done)}" if done else ""
            raise GraphError(f"pass {step.name}{earlier}: {error}") from error
        done.append(step.name)
    return graph
