"""Revolve: binomial checkpointing, optimal for chains of equal steps.

The source is Griewank, Walther, ACM TOMS 26(1), 2000, algorithm 799.

The forward steps that reverse l steps with s checkpoints (the start included) are t(l, s). It is min over j of j + t(l
- j, s - 1) + t(j, s), with t(1, s) = 0 and t(l, 1) = l (l - 1) / 2. In closed form it is r l - C(s + r, s + 1), with r
the least for which C(s + r, s) >= l. On a real network the steps are the blocks between single separating tensors,
taken for equal although they are not. Every s is tried, and the cheapest schedule that fits is kept.
"""

from __future__ import annotations

import functools
import math

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._chain import Chain, ChainTape, chain_of

INFO = SolverInfo(
    name="revolve",
    title="Binomial checkpointing",
    citation="A. Griewank and A. Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000",
    general_graphs=False,
    notes="Blocks count as equal steps. Recomputation only.",
    read="algorithm 799",
    differs="blocks of a DAG between single tensors",
    checked="the closed form of forward steps, by the recursion",
)


def repetitions(steps: int, checkpoints: int) -> int:
    """The least r with C(s + r, s) >= l."""
    r = 0
    while math.comb(checkpoints + r, checkpoints) < steps:
        r += 1
    return r


def forward_steps(steps: int, checkpoints: int) -> int:
    """t(l, s) in closed form: r l - C(s + r, s + 1)."""
    r = repetitions(steps, checkpoints)
    return r * steps - math.comb(checkpoints + r, checkpoints + 1)


@functools.cache
def next_checkpoint(steps: int, checkpoints: int) -> int:
    """The least j that attains the minimum in the recursion for t(l, s); s >= 2."""
    return min(
        range(1, steps),
        key=lambda j: (j + forward_steps(steps - j, checkpoints - 1) + forward_steps(j, checkpoints), j),
    )


def _reverse(tape: ChainTape, first: int, steps: int, checkpoints: int) -> None:
    """Record the backward pass of `steps` blocks from `first` on, with so many checkpoints.

    The input of block `first` is available.
    """
    last = len(tape.chain.blocks) - 1
    if steps == 1:
        if first == last:
            tape.record(first)
        tape.backward(first)
        return
    if checkpoints == 1:
        for k in range(first + steps - 1, first - 1, -1):
            for i in range(first, k):
                tape.advance(i)
                if i > first:
                    tape.drop_boundary(i - 1)
            _reverse(tape, k, 1, 1)
            if k > first:
                tape.drop_boundary(k - 1)
        return
    j = next_checkpoint(steps, checkpoints)
    for i in range(first, first + j):
        tape.advance(i)
        if i > first:
            tape.drop_boundary(i - 1)
    _reverse(tape, first + j, steps - j, checkpoints - 1)
    tape.drop_boundary(first + j - 1)
    _reverse(tape, first, j, checkpoints)


def codes_for(chain: Chain, checkpoints: int) -> list[int]:
    """The sequence with this many checkpoints, the network's input included."""
    tape = ChainTape(chain)
    _reverse(tape, 0, len(chain.blocks), checkpoints)
    return tape.tape.finish()


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no chain), InfeasibleError."""
    chain = chain_of(baseline.model, INFO.name)
    for checkpoints in range(len(chain.blocks), 0, -1):
        if baseline.out_of_time:
            break
        if baseline.offer_made(functools.partial(codes_for, chain, checkpoints), f"{checkpoints} checkpoints"):
            break  # fewer checkpoints only add forward steps
    baseline.check_time()
