"""Melon: recomputation by tensor saving per second, calibrated against a lifetime-aware pool.

Source: Wang et al., MobiSys 2022, sections 3.2 and 3.3.

When the next operator does not fit, the tensor of the largest

    TPS(t) = size * (release point - now) / (own cost + cost of its absent ancestors)

is evicted; release points are known from the step's order. Live bytes say whether a run fits, as they do for every
method here. If its peak is above the budget, the run is repeated with as much less RAM. The pool then places lifetimes
longest first (then larger, then earlier), each in the best-fitting gap; the log says where it ends. The paper's
micro-batches change the graph (see `gpipe`) and its plan switches need two budgets.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetc.solvers.interface import SolverInfo
from poetc.solvers.liveness import Profile
from poetc.solvers.published._baseline import Baseline, Irretrievable, method
from poetc.solvers.published._online import Online, Rules

INFO = SolverInfo(
    name="melon",
    title="Recomputation by tensor saving per second, within a lifetime-aware pool",
    citation="Q. Wang et al., Melon: Breaking the Memory Wall for Resource-Efficient On-Device Machine Learning, "
    "MobiSys 2022",
    notes="Judged by live bytes and packed as every schedule is; its own pool is only reported. No micro-batches. "
    "Recomputation only.",
    read="sections 3.2 and 3.3",
    differs="judged by live bytes; its pool is reported; no micro-batches",
    checked="the order of its pool",
)

ROUNDS = 12  # runs with less and less RAM: a run takes time in proportion to the operators


def _score(run: Online, t: int) -> float:
    freed = run.model.size[t] * max(1, run.last_use(t) - run.position)
    return -freed / max(1.0, run.ancestors_cost(t))


def pool_bytes(lifetimes: Sequence[tuple[int, int, int]]) -> int:
    """The end of the pool for (first step, end, bytes): longest lifetime first, best-fitting gap."""
    placed: list[tuple[int, int, int, int]] = []  # (offset, bytes, first, end)
    top = 0
    for first, end, size in sorted(lifetimes, key=lambda x: (x[0] - x[1], -x[2], x[0])):
        gap_start, best_offset, best_gap = 0, -1, -1
        for offset, length, other_first, other_end in placed:  # ascending offsets
            if other_first >= end or other_end <= first:
                continue
            gap = offset - gap_start
            if gap >= size and (best_gap < 0 or gap < best_gap):
                best_offset, best_gap = gap_start, gap
            gap_start = max(gap_start, offset + length)
        at = best_offset if best_gap >= 0 else gap_start
        placed.append((at, size, first, end))
        placed.sort()
        top = max(top, at + size)
    return top


def _lifetimes(baseline: Baseline, codes: list[int]) -> list[tuple[int, int, int]]:
    """The pool of tensors and workspaces; an output in place of its input goes on with its lifetime."""
    model = baseline.model
    profile = Profile(model, codes)
    first = {id(stay): stay.birth for stays in profile.stays for stay in stays}
    continued = set()
    for pairs in profile.pairs:  # in order of execution, so that chains add up
        for old, new in pairs:
            first[id(new)] = first[id(old)]
            continued.add(id(old))
    result = [
        (first[id(stay)], stay.end + 1, model.size[stay.tensor])
        for stays in profile.stays
        for stay in stays
        if id(stay) not in continued
    ]
    result += [(j, j + 1, model.workspace[c]) for j, c in enumerate(codes) if c < model.n_ops and model.workspace[c]]
    return result


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises InfeasibleError, LimitError (thrashing)."""
    capacity = baseline.model.capacity
    for _ in range(ROUNDS):
        baseline.check_time()
        try:
            codes = Online(baseline, capacity, Rules(score=_score)).run()
        except Irretrievable as error:
            baseline.refusal = baseline.refusal or str(error)
            break
        pool = baseline.problem.base_bytes + pool_bytes(_lifetimes(baseline, codes))
        if baseline.offer(codes, f"evicted within {capacity} bytes, its pool ends at {pool}"):
            break
        excess = baseline.peak_bytes(codes) - baseline.problem.budget_bytes
        if excess <= 0:
            break  # another limit than RAM
        capacity -= excess
