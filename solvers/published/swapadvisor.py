"""SwapAdvisor: a genetic search over operator orders, with swapping alone.

Source: Huang, Jin, Li, ASPLOS 2020, sections 4 and 5.

An individual is a topological order of the step. Its swaps follow. When RAM is short the tensor whose next use is
furthest goes to the store, weights too, and comes back for its reader. Fitness is the objective of the simulated step.
Crossover takes a prefix of one parent and the rest in the other's order. Mutation moves an operator within its
dependences. The paper's second gene, the assignment of tensors to pools of fixed size classes, decides nothing where
RAM is counted in bytes. With synchronous transfers prefetching earlier than the use cannot hide anything, so pages are
read right before it.
"""

from __future__ import annotations

import numpy as np

from poetc.errors import UnsupportedProblemError
from poetc.solvers.dependences import Dependences
from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, Irretrievable, method
from poetc.solvers.published._online import Online, Rules

INFO = SolverInfo(
    name="swapadvisor",
    title="Genetic search over orders, tensors swapped by their next use",
    citation="C.-C. Huang, G. Jin and J. Li, SwapAdvisor, ASPLOS 2020",
    paging=True,
    energy=True,
    notes="Reorders operators, so its schedules may lie outside the classes that other solvers' bounds hold for. "
    "Swaps only.",
    read="sections 4 and 5",
    differs="no pools of size classes; 12 individuals",
    checked="orders keep the dependences",
)

POPULATION = 12  # individuals of a generation
GENERATIONS = 12  # at most
EVALUATIONS_X_OPERATORS = 30_000  # simulated steps times operators, at most: larger problems have fewer
MUTATIONS = 4  # operators that a mutation moves, at most


class _Orders(Dependences):
    """How individuals change."""

    def mutated(self, order: list[int], random: np.random.Generator) -> list[int]:
        result = list(order)
        for _ in range(1 + int(random.integers(MUTATIONS))):
            v = result.pop(int(random.integers(len(result))))
            at = {u: i for i, u in enumerate(result)}
            low = max((at[u] for u in self.before[v]), default=-1) + 1
            high = min((at[u] for u in self.after[v]), default=len(result))
            result.insert(int(random.integers(low, high + 1)), v)
        return result

    def crossed(self, one: list[int], other: list[int], random: np.random.Generator) -> list[int]:
        head = one[: int(random.integers(1, len(one)))]
        taken = set(head)
        return head + [v for v in other if v not in taken]


def _furthest(run: Online, t: int) -> float:
    return -run.next_use(t)


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no store), InfeasibleError, LimitError."""
    model = baseline.model
    if not any(model.pageable):
        raise UnsupportedProblemError(f"{INFO.name}: swaps only, and nothing here may be paged")
    orders = _Orders(model)
    random = np.random.Generator(np.random.PCG64(baseline.options.seed))
    pageable = frozenset(t for t in range(model.n_tensors) if model.pageable[t])
    known: dict[tuple[int, ...], float] = {}

    def fitness(order: list[int]) -> float:
        key = tuple(order)
        if key not in known:
            known[key] = float("inf")
            for paging in (False, True):  # without the page buffer first: the order alone may be enough
                rules = Rules(score=_furthest, recompute=False, pageable=pageable if paging else (), order=order)
                try:
                    codes = Online(baseline, baseline.model.capacity_for(paging), rules).run()
                except Irretrievable as error:
                    baseline.refusal = baseline.refusal or str(error)
                    continue
                if baseline.offer(codes, "genetic search"):
                    known[key] = min(known[key], baseline.offered_cost)
                    break
        return known[key]

    population = [list(range(model.n_ops))]
    while len(population) < POPULATION:
        population.append(orders.mutated(population[int(random.integers(len(population)))], random))
    evaluations = max(POPULATION, EVALUATIONS_X_OPERATORS // model.n_ops)
    for _ in range(GENERATIONS):
        population.sort(key=fitness)
        if baseline.out_of_time or len(known) >= evaluations:
            break
        if baseline.best is not None and baseline.best_cost <= model.base_cost:
            break
        parents = population[: POPULATION // 2]
        children: list[list[int]] = []
        while len(parents) + len(children) < POPULATION:
            one, other = (parents[int(random.integers(len(parents)))] for _ in range(2))
            children.append(orders.mutated(orders.crossed(one, other, random), random))
        population = parents + children
    baseline.check_time()
