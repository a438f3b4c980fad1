"""Random tiny problems with the exhaustive optimum beside them."""

from __future__ import annotations

import dataclasses
import functools
from random import Random

from poetc.scheduling import PageOut, Problem
from tests.support.oracle import Optimum, optimum
from tests.support.problems import random_dag, training_problem, with_budget


@functools.cache
def case(seed: int) -> tuple[Problem, Optimum | None]:
    """DAGs of 3 to 6 operators and one-layer training steps, some with paging, a deadline, or time as the objective."""
    random = Random(seed)
    paging = random.random() < 0.5
    if seed % 2:
        problem = random_dag(random, random.randint(3, 6), paging=paging)
    else:
        problem = training_problem(random, 1, paging=paging)
    problem = with_budget(problem, random.choice((0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)))
    if random.random() < 0.3:
        limit = int(problem.compute_once_ns * random.uniform(1.05, 1.6))
        problem = dataclasses.replace(problem, deadline_ns=limit)
    if random.random() < 0.2:
        problem = dataclasses.replace(problem, objective="time")
    return problem, optimum(problem)


@functools.cache
def worn(seed: int) -> tuple[Problem, Optimum | None] | None:
    """`case(seed)` with half of what its optimum writes to the store allowed, or half of its pages; None if it writes
    nothing.
    """
    problem, best = case(seed)
    if best is None:
        return None
    written = sum(problem.tensors[s.tensor].footprint_bytes for s in best.steps if isinstance(s, PageOut))
    if not written:
        return None
    random = Random(seed)
    limit = random.choice((0, written // 2, written - 1, written))
    there = sum(t.footprint_bytes for t in problem.tensors if t.initial == "store")
    if random.random() < 0.5:
        problem = dataclasses.replace(problem, write_limit_bytes=limit)
    else:
        problem = dataclasses.replace(problem, store_capacity_bytes=there + limit)
    return problem, optimum(problem)


def poet_like(seed: int, layers: int) -> Problem:
    """What POET is about: a forward chain with skips and its mirror image, one output each, no in-place."""
    from poetc.scheduling import OperatorSpec, Paging, Semantics, TensorSpec

    random = Random(seed)
    edges: list[tuple[int, int]] = []
    for k in range(1, layers):
        edges.append((k - 1, k))
        if k > 2 and random.random() < 0.3:
            edges.append((random.randrange(k - 2), k))
    loss = layers
    edges.append((layers - 1, loss))
    for k in range(layers):
        node = loss + 1 + k
        mirrored = layers - 1 - k
        edges += [(node - 1, node), (mirrored, node)]
    count = 2 * layers + 1
    tensors = tuple(
        TensorSpec(
            name=f"t{k}",
            size_bytes=random.randint(1, 8) * 16,
            page_in_pj=random.randint(20, 90),
            page_out_pj=random.randint(20, 90),
            page_in_ns=1,
            page_out_ns=1,
        )
        for k in range(count)
    )
    operators = tuple(
        OperatorSpec(
            name=f"op{k}",
            phase="forward" if k <= loss else "backward",
            inputs=tuple(sorted({u for u, v in edges if v == k})),
            outputs=(k,),
            time_ns=random.randint(1, 99),
            energy_pj=random.randint(1, 99),
        )
        for k in range(count)
    )
    problem = Problem(
        name=f"poet{layers}",
        operators=operators,
        tensors=tensors,
        budget_bytes=1 << 30,
        paging=Paging.SYNC if random.random() < 0.7 else Paging.NONE,
        semantics=Semantics.POET,
    )
    return with_budget(problem, random.choice((0.1, 0.3, 0.5)))
