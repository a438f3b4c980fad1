"""Cuts spread over the whole step, for budgets that hold few large tensors at once.

There one cut proves little, wherever it stands: a schedule pages and recomputes again and again. A relaxation with a
cut in each of some stretches counts all of that. More cuts prove more, until HiGHS no longer solves their MIP. Small
tensors take no room, which keeps the MIP small; small state takes room together where its placement is open.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable

from poetc.scheduling import movable_state
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ram import working_set_bytes
from poetc.solvers.poetc.settings import SPREAD


def small_tensors(model: Model) -> frozenset[int]:
    """The tensors that spread cuts do not decide about one by one."""
    least_bytes = SPREAD.least_share * model.paging_capacity
    return frozenset(t for t in range(model.n_tensors) if model.size[t] < least_bytes)


def residents(model: Model, among: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """The versions of each tensor of state that lives in RAM, where all are in `among`.

    One of them is in RAM all the time, or one of them is written and read.
    """
    return tuple(
        chain
        for chain in movable_state(model.problem)
        if among.issuperset(chain) and model.in_ram[chain[0]] and model.ends_in_ram[chain[-1]]
    )


def spread_cuts(model: Model, count: int) -> tuple[int, ...]:
    """In each of `count` stretches of the step, the operator with the largest working set.

    The working sets of a stretch add up to as many bytes in each, so that large tensors have more cuts.
    """
    sets = [working_set_bytes(model, v) for v in range(model.n_ops)]
    sums = [*itertools.accumulate(sets)]
    edges = [bisect.bisect_left(sums, sums[-1] * k / count) for k in range(count)]
    stretches = [range(first, end) for first, end in itertools.pairwise([*edges, model.n_ops]) if first < end]
    return tuple(max(stretch, key=lambda v: (sets[v], -v)) for stretch in stretches)


def best_spread(model: Model, relax: Callable[[tuple[int, ...]], Relaxation | None]) -> Relaxation | None:
    """The relaxation with spread cuts that proves the most; None where there is none.

    MIPs with more and more cuts are solved until two in turn prove no more. `relax`: solves the relaxation with these
    cuts; None where it is too large, or no work is left.
    """
    if model.n_ops * (model.n_tensors - len(small_tensors(model))) > SPREAD.most_pairs:
        return None
    best, worse = None, 0
    cuts = [*dict.fromkeys(spread_cuts(model, count) for count in SPREAD.counts)]
    for chosen in cuts:
        relaxation = relax(chosen)
        if relaxation is None or relaxation.infeasible:
            break
        worse = 0 if best is None or relaxation.bound > best.bound else worse + 1
        best = relaxation if worse == 0 else best
        if worse == SPREAD.patience:
            break
    return best
