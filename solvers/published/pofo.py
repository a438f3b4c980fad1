"""POFO: rematerialization and offloading of activations combined by a dynamic program over a chain.

Source: Beaumont, Eyraud-Dubois, Shilova, "Efficient combination of rematerialization and offloading for training DNNs",
NeurIPS 2021.

From the front, the chain is cut into segments: a single block whose saved tensors are kept, or a run of blocks. Of a
run only the entering tensor is kept; it is recomputed once, as a whole, when the backward pass gets there. Either
kind is held in RAM or offloaded. State: (block, slots held by the segments before).

    P(i, m) = min over j, offload:  cost of the segment i ... j-1 + P(j, m + its slots, 0 if offloaded)

where the segment's own backward pass must fit beside m. The paper's further state, the debts of transfers not yet
hidden behind compute, measures idle time of a link that works beside the processor. With synchronous transfers there
is none to hide: each adds its own time and energy at once. The decisions of the program are replayed exactly, for
several budgets, as in `rotor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._chain import Chain, chain_of, memories
from poetc.solvers.published._training import run_static

INFO = SolverInfo(
    name="pofo",
    title="Dynamic program over chains, recomputing or offloading each segment",
    citation="O. Beaumont et al., Efficient Combination of Rematerialization and Offloading for Training DNNs, NeurIPS "
    "2021",
    general_graphs=False,
    paging=True,
    energy=True,
    notes="Each block is recomputed at most once. Transfers do not overlap compute here, so the paper's transfer debts "
    "are zero.",
    read="the dynamic programs",
    differs="memory in slots; several budgets are replayed. With `--dma` no debts of transfers: the replay hides them",
    checked="`rotor`: all persistent schedules of small chains",
)

SLOTS = 200  # of the budget: time and memory of the program grow with their number


@dataclass(frozen=True, slots=True)
class _Choice:
    """Blocks `first` ... `end` - 1, recorded (one block) or recomputed; `page` goes to the store."""

    first: int
    end: int
    keep: frozenset[int]
    page: frozenset[int]
    slots: int  # held by it
    needed: int  # while it is undone, beside the segments before
    cost: float


def _choices(chain: Chain, i: int, slot_bytes: int) -> list[_Choice]:
    model, blocks = chain.model, chain.blocks

    def slots(size_bytes: int) -> int:
        return -(-size_bytes // slot_bytes)

    entering = frozenset(blocks[i - 1].boundary) if i else frozenset()
    result: list[_Choice] = []

    def add(end: int, held: frozenset[int], undo: int, cost: float) -> None:
        """`held` stays from the forward to the backward pass; `undo` bytes more are there when it is undone."""
        needed = slots(chain.bytes_of(entering) + undo)
        result.append(_Choice(i, end, held, frozenset(), slots(chain.bytes_of(held)), needed, cost))
        able = frozenset(t for t in held if model.pageable[t] and t in chain.parts.optional)
        if able:
            moved = sum(model.in_cost[t] + model.out_cost[t] for t in able)
            left = slots(chain.bytes_of(held - able))
            result.append(_Choice(i, end, held - able, able, left, needed, cost + moved))

    last = len(blocks) - 1
    add(i + 1, (blocks[i].saved - set(blocks[i].boundary)) | entering, blocks[i].undo_bytes, 0.0)
    undo, inside, cost = 0, 0, 0.0
    for end in range(i + 1, last + 1):
        block = blocks[end - 1]
        undo = max(undo, inside + block.undo_bytes)
        inside += chain.bytes_of(block.saved | set(block.boundary))
        cost += block.cost
        add(end, entering, undo, cost)
    return result


def _best(choices: list[list[_Choice]], slots: int) -> list[_Choice] | None:
    """The cheapest way through the chain."""
    count = len(choices)
    value = np.full((count + 1, slots + 1), math.inf)
    value[count] = 0.0
    taken = np.zeros((count, slots + 1), np.int32)
    for i in range(count - 1, -1, -1):
        for number, c in enumerate(choices[i]):
            rooms = slots + 1 - max(c.slots, c.needed)  # memory slots that may be taken before it
            if rooms > 0:
                after = value[c.end][c.slots : c.slots + rooms] + c.cost
                better = after < value[i][:rooms]
                value[i][:rooms][better] = after[better]
                taken[i][:rooms][better] = number
    if math.isinf(value[0][0]):
        return None
    path: list[_Choice] = []
    i = m = 0
    while i < count:
        path.append(choices[i][int(taken[i][m])])
        i, m = path[-1].end, m + path[-1].slots
    return path


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no chain), InfeasibleError."""
    chain = chain_of(baseline.model, INFO.name)
    slot_bytes = max(1, -(-baseline.problem.budget_bytes // SLOTS))
    choices = [_choices(chain, i, slot_bytes) for i in range(len(chain.blocks))]
    for slots in memories(SLOTS, 50):
        if baseline.out_of_time:
            break
        path = _best(choices, slots)
        if path is None:
            break
        keep = frozenset[int]().union(*(c.keep for c in path))
        page = frozenset[int]().union(*(c.page for c in path)) - keep
        codes = partial(run_static, chain.model, chain.parts, keep, page)
        if baseline.offer_made(codes, f"{slots} of {SLOTS} memory slots"):
            break
    baseline.check_time()
