"""DTR with h_DTR^eq: the evicted neighbourhood approximated by union-find classes.

Source: Kirisame et al., ICLR 2021, section 4.1 and appendix C.2. See `dtr`.

Evicted tensors that are connected are one class with a running cost. Evicting merges classes. Rematerializing a tensor
only subtracts its own cost from its class, without splitting it.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._online import Online
from poetc.solvers.published.dtr import solve_with

INFO = SolverInfo(
    name="dtr_eq",
    title="Online eviction by h_DTR over equivalence classes",
    citation="M. Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021",
    notes="Greedy, without lookahead. Recomputation only.",
    read="section 4, appendix C",
    differs="no tensor is evicted that cannot be made again; a dead one stays while an evicted one needs it",
    checked="theorem 3.1: linear work with memory of the order of the square root",
)


class _Classes:
    """Union-find over tensors, brought up to date with the evictions since the last score."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.cost: dict[int, float] = {}
        self.absent: set[int] = set()
        self.seen = (-1, -1)

    def root(self, t: int) -> int:
        while self.parent[t] != t:
            self.parent[t] = self.parent[self.parent[t]]
            t = self.parent[t]
        return t

    def update(self, run: Online) -> None:
        stamp = len(run.codes), len(run.resident)
        if stamp == self.seen:
            return
        self.seen = stamp
        model = run.model
        now = {
            t
            for t in range(model.n_tensors)
            if model.producer[t] >= 0
            and run.executed[model.producer[t]]
            and t not in run.resident
            and t not in run.gone
        }
        for t in self.absent - now:
            self.cost[self.root(t)] -= model.op_cost[model.producer[t]]
        for t in sorted(now - self.absent):
            self.parent[t] = t
            self.cost[t] = model.op_cost[model.producer[t]]
        self.absent = now
        for t in sorted(now):
            for u in neighbours(model, t):
                if u in now:
                    a, b = self.root(t), self.root(u)
                    if a != b:
                        self.parent[a] = b
                        self.cost[b] += self.cost[a]


def neighbours(model: Model, t: int) -> list[int]:
    """Tensors that `t` is made from or that are made from it."""
    outputs = [o for v in model.consumers[t] for o in model.outputs[v]]
    return list(model.inputs[model.producer[t]]) + outputs


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises InfeasibleError, LimitError (thrashing)."""
    classes = _Classes()

    def score(run: Online, t: int) -> float:
        classes.update(run)
        model = run.model
        around = {classes.root(u) for u in neighbours(model, t) if u in classes.absent}
        cost = model.op_cost[model.producer[t]] + sum(max(0.0, classes.cost[r]) for r in sorted(around))
        return cost / (model.size[t] * run.staleness(t))

    return solve_with(INFO, score, problem, options, progress)
