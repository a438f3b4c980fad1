"""A knapsack solver for the activation memory budget of `torch.compile`, with a proven gap.

    import torch._functorch.config as config
    from poetc.torch import KnapsackSolver
    config.activation_memory_budget = 0.3
    config.activation_memory_budget_solver = solver = KnapsackSolver()

`solver.reports` then has a `Report` of each graph. The extra `torch` brings PyTorch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._functorch import config, partitioners
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, get_hash_for_files
from torch.fx import Node
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from poetc.solvers import highs
from poetc.solvers import knapsack as knapsack_module
from poetc.solvers.knapsack import MOST_VALUE, knapsack

PARTS = 2**53  # of all times together, where they are no integers
ROUNDING = 1e-12  # of the budget in bytes, which PyTorch has as a share


@dataclass(frozen=True, slots=True)
class Report:
    """One graph. Times are in the unit of PyTorch's estimator, which counts floating-point operations by default.

    `budget_bytes`: for tensors that PyTorch asks about. `saved_bytes`: of those that are saved. `recomputed`: the time
    of the others. `least`: no choice within the budget recomputes less.
    """

    tensors: int
    budget_bytes: int
    saved_bytes: int
    saved: int
    recomputed: float
    least: float
    seconds: float

    @property
    def gap(self) -> float:
        """The share of the recomputed time that another choice within the budget could save at most."""
        return (self.recomputed - self.least) / self.recomputed if self.recomputed else 0.0


class KnapsackSolver(CustomKnapsackSolver):  # type: ignore[misc]
    """The tensors to save within the budget, so that the others take the least time to recompute.

    The saved bytes never exceed the budget, and a larger budget never recomputes more.
    """

    def __init__(self, time_limit_s: float = 10.0) -> None:
        self.time_limit_s = time_limit_s
        self.reports: list[Report] = []

    def __call__(
        self,
        memory: list[float],
        joint_graph: Any,
        max_memory: float,
        node_info: Any,
        all_recomputable_banned_nodes: list[Any],
    ) -> tuple[list[int], list[int]]:
        """The numbers of the tensors to save, and of those to recompute."""
        del joint_graph, node_info
        started = time.perf_counter()
        nodes = all_recomputable_banned_nodes
        sizes, times = [partitioners._size_of(node) for node in nodes], [_runtime(node) for node in nodes]
        scale = _scale(times)
        values = [round(t * scale) for t in times]
        room = _room(memory, sizes, max_memory)
        chosen = knapsack(sizes, values, room, self.time_limit_s)
        kept = set(chosen.items)
        everything = sum(values)
        self.reports.append(
            Report(
                tensors=len(nodes),
                budget_bytes=room,
                saved_bytes=chosen.size,
                saved=len(kept),
                recomputed=(everything - chosen.value) / scale,
                least=(everything - chosen.bound) / scale,
                seconds=time.perf_counter() - started,
            )
        )
        return list(chosen.items), [i for i in range(len(nodes)) if i not in kept]

    def uuid(self) -> Any:
        """Of the code and the limit of time, on which the choice depends."""
        files = tuple(str(Path(module.__file__ or "").resolve()) for module in (knapsack_module, highs))
        return get_hash_for_files((__file__, *files), str(self.time_limit_s))


def _room(memory: Sequence[float], sizes: Sequence[int], max_memory: float) -> int:
    """The budget in bytes: `memory` has the sizes as shares of the bytes that are saved without a budget."""
    largest = max(range(len(sizes)), key=lambda i: sizes[i])
    return 0 if not sizes[largest] else math.floor(max_memory * sizes[largest] / memory[largest] * (1 + ROUNDING))


def _scale(times: Sequence[float]) -> float:
    """Times in whole parts: one where all are integers, so that nothing is rounded."""
    if all(float(t).is_integer() for t in times) and sum(times) < MOST_VALUE:
        return 1.0
    return PARTS / sum(times)


def _runtime(node: Any) -> float:
    """Of a node, as PyTorch's estimator has it.

    PyTorch does not hand its own estimates over. Its counter of operations does not work where a solver is called, so
    its formulas are asked.
    """
    mode = config.activation_memory_budget_runtime_estimator
    if mode != "flops":
        return float(partitioners.estimate_runtime(node))
    formula = flop_registry.get(getattr(node.target, "_overloadpacket", node.target))
    if formula is None:
        return 1.0
    args, kwargs = tree_map(lambda a: a.meta["val"] if isinstance(a, Node) else a, (node.args, node.kwargs))
    return float(max(1, int(formula(*args, **kwargs, out_val=node.meta["val"]))))
