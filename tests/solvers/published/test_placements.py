"""Rules that place operators on processors, beside their papers' formulas in networkx."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx
import pytest

from poetc import solvers
from poetc.scheduling import Problem
from poetc.solvers.processors import heft, weight_gradients
from tests.solvers.test_processors import with_processors
from tests.support.problems import random_dag, training_problem


def times(problem: Problem, k: int) -> dict[int, int]:
    """Time of an operator, ns, by processors that can run it."""
    costs = {p: problem.operators[k].cost_on(p) for p in range(len(problem.processors))}
    return {p: cost[0] for p, cost in costs.items() if cost is not None}


@pytest.mark.parametrize("seed", range(30))
def test_heft_without_hand_overs(seed: int) -> None:
    """Ranks are the longest paths to an end by mean times; each operator, by rank, goes where it ends first."""
    random = Random(seed)
    plain = training_problem(random, 2) if seed % 2 else random_dag(random, 7)
    problem = with_processors(random, plain, 2 + seed % 3 // 2)
    processors = tuple(replace(p, hand_over_ns=0, flush_ps_per_byte=0) for p in problem.processors)
    problem = replace(problem, processors=processors)
    count, maker = len(problem.operators), {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
    graph = networkx.DiGraph()
    mean = [sum(own := times(problem, k).values()) / len(own) for k in range(count)]
    for k, operator in enumerate(problem.operators):
        graph.add_edge(k, "end", weight=mean[k])
        graph.add_edges_from((maker[t], k, {"weight": mean[maker[t]]}) for t in operator.inputs if t in maker)
    rank = {}
    for k in range(count):
        behind = graph.subgraph({k, *networkx.descendants(graph, k)})
        rank[k] = networkx.dag_longest_path_length(behind)
    free, end, expected = dict.fromkeys(range(len(processors)), 0), dict[int, int](), [0] * count
    for k in sorted(rank, key=lambda k: (-round(rank[k], 6), k)):
        ready = max((end[j] for j in graph.predecessors(k)), default=0)
        ends = {p: max(ready, free[p]) + ns for p, ns in times(problem, k).items()}
        expected[k] = min(ends, key=lambda p: (ends[p], p))
        end[k] = free[expected[k]] = ends[expected[k]]
    assert heft(problem) == tuple(expected)


def test_weight_gradients_and_their_updates_move() -> None:
    problem = with_processors(Random(3), training_problem(Random(3), 4))
    able = [1 in times(problem, k) for k in range(len(problem.operators))]
    own = [o.name.startswith(("matmul_grad_w", "update")) for o in problem.operators]
    assert weight_gradients(problem) == tuple(int(a and b) for a, b in zip(able, own, strict=True))
    assert 1 in weight_gradients(problem)


def test_every_published_method_says_how_it_was_read() -> None:
    """The page on published solvers is made of these cells."""
    infos = [solvers.info(name) for name in solvers.available()]
    assert not [i.name for i in infos if i.citation and not (i.read and i.differs and i.checked)]
    assert sum(bool(i.read) for i in infos) >= 25
