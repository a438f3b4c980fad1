"""Random tiny problems with the exhaustive optimum beside them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from random import Random

from poetc.scheduling import (
    InPlace,
    Objective,
    PageOut,
    Paging,
    Problem,
    keep_all_peak_bytes,
    movable_state,
    on_store,
)
from poetc.solvers.banks import placement_bound, relaxed
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.bounds.gaps import GapModel
from poetc.solvers.poetc.bounds.spread import residents, spread_cuts
from poetc.solvers.poetc.placement.relaxation import OpenPlacement, open_model
from poetc.solvers.poetc.placement.search import bound_of_any_placement
from tests.support.banks import banked, cheapest
from tests.support.oracle import Optimum, optimum
from tests.support.problems import ProblemBuilder, random_dag, training_problem, with_budget
from tests.support.ram import order_free_bound_bytes


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
        problem = dataclasses.replace(problem, objective=Objective.TIME)
    return problem, optimum(problem)


@functools.cache
def worn(seed: int) -> tuple[Problem, Optimum | None] | None:
    """`case(seed)` with half of what its optimum writes to the store allowed, or half of its pages; None if it writes
    nothing.
    """
    problem, best = case(seed)
    if best is None:
        return None
    written = sum(problem.tensors[s.tensor].footprint_bytes for s in best.actions if isinstance(s, PageOut))
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


def paired(seed: int) -> tuple[Problem, Optimum] | None:
    """A chain of operators, then some that read two tensors each, with pages that are dear and RAM for little more than
    one operator. So it matters which operand can be made beside another one. None where nothing fits, or it takes too
    long to find the optimum.
    """
    random = Random(seed)
    b = ProblemBuilder(random, paging=True)
    there = [b.tensor("x", 1, initial="ram")]
    operators = random.randint(5, 7)
    for k in range(operators):
        if k < 3:
            inputs = [there[-1] if random.random() < 0.7 else random.choice(there)]
        else:
            inputs = random.sample(there[1:], 2 if random.random() < 0.8 else 1)
            if random.random() < 0.5 and there[-1] not in inputs:
                inputs[0] = there[-1]
        output = b.tensor(f"t{k}", random.choice((1, 3, 4, 5, 6)), final="ram" if k == operators - 1 else "")
        alike = [t for t in inputs[:1] if t > 0 and b.tensors[t].size_bytes == b.tensors[output].size_bytes]
        pairs = [InPlace(input=t, output=output) for t in alike if random.random() < 0.5]
        outputs = [output]
        if random.random() < 0.2:
            outputs.append(b.tensor(f"u{k}", random.choice((1, 3, 5))))
        b.operator(f"op{k}", inputs, outputs, in_place=pairs)
        there += outputs
    times = random.choice((1, 5, 20))
    tensors = (
        dataclasses.replace(t, page_out_pj=times * t.page_out_pj, page_in_pj=times * t.page_in_pj) for t in b.tensors
    )
    problem = dataclasses.replace(b.problem("paired"), tensors=tuple(tensors))
    problem = with_budget(problem, random.choice((0, 0, 0.05, 0.1, 0.2)))
    try:
        best = optimum(problem, max_states=60_000)
    except RuntimeError:  # too many states
        return None
    return None if best is None else (problem, best)


def with_state(seed: int) -> tuple[Problem, dict[frozenset[int], Optimum | None]] | None:
    """A DAG of 4 to 7 operators, some of whose state only passes through, with its optimum for every choice of state on
    the store; None where there is no such choice, or one takes too long to find.
    """
    random = Random(seed)
    problem = random_dag(random, random.randint(4, 7), paging=True)
    times = random.choice((1, 2, 4, 8))
    state = {t for chain in movable_state(problem) for t in chain}
    taken = {pair.input for spec in problem.operators for pair in spec.in_place if pair.required}
    tensors = list(problem.tensors)
    for t, spec in enumerate(tensors):
        if t in state:
            spec = dataclasses.replace(spec, size_bytes=spec.size_bytes * times)
        if spec.initial == "ram" and not spec.final and t not in taken and random.random() < 0.6:
            size_bytes = spec.size_bytes * random.choice((1, 2, 4))
            spec = dataclasses.replace(spec, final="ram", pageable=True, size_bytes=size_bytes)
        costs = {"page_out_pj": random.choice((1, 5, 20)), "page_in_pj": random.choice((1, 5, 20))}
        tensors[t] = dataclasses.replace(spec, **costs)

    def allowed(pair: InPlace) -> bool:
        source, made = tensors[pair.input], tensors[pair.output]
        return source.size_bytes == made.size_bytes and (pair.required or not source.final)

    operators = [
        dataclasses.replace(spec, in_place=tuple(pair for pair in spec.in_place if allowed(pair)))
        for spec in problem.operators
    ]
    problem = dataclasses.replace(problem, tensors=tuple(tensors), operators=tuple(operators))
    chains = movable_state(problem)
    if not 0 < len(chains) < 4:
        return None
    first = [chain[0] for chain in chains]
    low = order_free_bound_bytes(on_store(problem, first))
    more = max(0, keep_all_peak_bytes(problem) - low)
    budget_bytes = low + int(more * random.choice((0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)))
    problem = dataclasses.replace(problem, budget_bytes=budget_bytes)
    if random.random() < 0.1:
        problem = dataclasses.replace(problem, paging=Paging.NONE)
    if random.random() < 0.2:
        deadline_ns = int(problem.compute_once_ns * random.uniform(1.05, 1.8))
        problem = dataclasses.replace(problem, deadline_ns=deadline_ns)
    subsets = itertools.chain.from_iterable(itertools.combinations(first, k) for k in range(len(first) + 1))
    try:
        return problem, {frozenset(s): optimum(on_store(problem, s), max_states=6000) for s in subsets}
    except RuntimeError:  # too many states
        return None


def invalid_bounds(seed: int) -> list[str] | None:
    """Relaxations of `with_state(seed)` and of `paired(seed)`, for one cut anywhere and for several, that claim more
    than an optimum, or that there is none; the same for the bound of placements in banks. None where there is no such
    problem.
    """
    pair, found, in_banks = paired(seed), with_state(seed), _wrong_in_banks(seed)
    wrong = ([] if pair is None else _wrong_of_pair(seed, *pair)) + (in_banks or [])
    if found is None:
        return None if pair is None and in_banks is None else wrong
    problem, optima = found
    random, n = Random(seed), len(problem.operators)
    several = [random.sample(range(n), 2) for _ in range(3)] + [random.sample(range(n), 3)]
    chains, opened, fixed = movable_state(problem), open_model(problem), Model(problem)
    best = min((o for o in optima.values() if o is not None), key=lambda o: o.cost, default=None)
    anywhere = None if best is None else best.cost
    in_ram = optima[frozenset()]
    if anywhere is not None:
        for cutoff in (anywhere, 2 * anywhere):
            least = bound_of_any_placement(problem, cutoff, work_s=1.0, stop_at=math.inf)
            if least > anywhere:
                wrong.append(f"seed {seed}, one cut and spread ones below {cutoff}: {least} > {anywhere}")
    for count in (1, 2, 3, n):  # cuts spread over the step, where small tensors take no room
        cuts, seen = spread_cuts(fixed, count), sorted(set(fixed.size))
        for least_bytes, lp in itertools.product((seen[0], seen[len(seen) // 2], seen[-1]), (False, True)):
            free = frozenset(t for t, size in enumerate(fixed.size) if size < least_bytes)
            asked = (
                (CutModel(fixed, cuts, free=free), in_ram),
                (GapModel(fixed, cuts, free=free), in_ram),
                (GapModel(fixed, cuts, resident=residents(fixed, free), free=free), in_ram),
                (OpenPlacement(opened, cuts, chains, free=free), best),
                (GapModel(opened, cuts, chains=chains, free=free), best),
            )
            for model, least in asked:
                relaxation = None if least is None else model.solve(time_limit_s=60, relax=lp)
                if relaxation is not None and (relaxation.infeasible or relaxation.bound > least.cost):
                    name = type(model).__name__
                    wrong.append(f"seed {seed}, {name}, {count} spread cuts, {least_bytes} bytes: {relaxation.bound}")
    for cuts in [[v] for v in range(n)] + [sorted(cuts) for cuts in several]:
        if anywhere is not None:
            relaxation = OpenPlacement(opened, cuts, chains, between=True).solve(time_limit_s=60)
            if relaxation.infeasible or relaxation.bound > anywhere:
                wrong.append(f"seed {seed}, cuts {cuts}, any placement: {relaxation.bound} > {anywhere}")
        if in_ram is not None:
            for ties in (False, True):
                relaxation = CutModel(fixed, cuts, between=True, ties=ties).solve(time_limit_s=60)
                if relaxation.infeasible or relaxation.bound > in_ram.cost:
                    wrong.append(f"seed {seed}, cuts {cuts}, ties {ties}: {relaxation.bound} > {in_ram.cost}")
    return wrong


def _wrong_of_pair(seed: int, problem: Problem, best: Optimum) -> list[str]:
    wrong = []
    for cuts, lp in itertools.product(((), tuple(range(len(problem.operators)))), (False, True)):
        relaxation = GapModel(Model(problem), cuts).solve(time_limit_s=60, relax=lp)
        if relaxation.infeasible or relaxation.bound > best.cost:
            wrong.append(f"seed {seed}, pairs of operands, {len(cuts)} cuts: {relaxation.bound} > {best.cost}")
    return wrong


def _wrong_in_banks(seed: int) -> list[str] | None:
    """Brute force knows no paging: it adds ways, so that the bound may only fall with it."""
    random = Random(seed)
    problem = banked(random, random.choice((3, 3, 4)), random.choice((2, 2, 3)))
    least = cheapest(problem)
    if least is None:
        return None
    paged = dataclasses.replace(problem, paging=Paging.SYNC)
    bounds = {
        "each operator alone": relaxed(problem).compute_once_pj,
        "waiting tensors": placement_bound(problem, time_limit_s=60).least,
        "waiting tensors, with paging": placement_bound(paged, time_limit_s=60).least,
    }
    return [f"seed {seed}, banks, {name}: {bound} > {least}" for name, bound in bounds.items() if bound > least]


def poet_like(seed: int, layers: int) -> Problem:
    """What POET is about: a forward chain with skips and its mirror image, one output each, no in-place."""
    from poetc.scheduling import OperatorSpec, Paging, TensorSpec

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
    )
    return with_budget(problem, random.choice((0.1, 0.3, 0.5)))
