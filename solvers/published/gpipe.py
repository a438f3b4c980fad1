"""GPipe's memory saving: only tensors that cross the borders of K partitions are stored.

Each partition is recomputed as a whole in the backward pass (Huang et al., NeurIPS 2019, section 2.3).

The partitions are runs of blocks between single separating tensors, with equal estimated cost as in the paper; every K
is tried. This is GPipe with one micro-batch. Splitting the batch makes other operators, on tensors of other sizes, with
accumulation buffers, and changes batch-norm's statistics. That is another training step, hence another Problem, and no
schedule of this one. It has to be done to the graph before the Problem is made. The pipeline itself needs several
devices.
"""

from __future__ import annotations

from functools import partial

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._chain import Chain, chain_of
from poetc.solvers.published._training import run_static

INFO = SolverInfo(
    name="gpipe",
    title="Boundaries of K partitions stored, each partition recomputed",
    citation="Y. Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, "
    "NeurIPS 2019",
    general_graphs=False,
    notes="One micro-batch: splitting the batch changes the graph and is no schedule of the same problem.",
    read="section 2",
    differs="micro-batches change the graph and are no part of it",
    checked="boundaries alone are stored",
)


def _borders(chain: Chain, partitions: int) -> list[int]:
    """The last block of each partition but the last: where the running cost passes k / K of the whole."""
    total = sum(b.cost for b in chain.blocks)
    borders: list[int] = []
    running = 0
    for k, block in enumerate(chain.blocks[:-1]):
        running += block.cost
        if running * partitions >= total * (len(borders) + 1) and len(borders) < partitions - 1:
            borders.append(k)
    return borders


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no chain), InfeasibleError."""
    chain = chain_of(baseline.model, INFO.name)
    for partitions in range(1, len(chain.blocks) + 1):
        if baseline.out_of_time:
            break
        borders = _borders(chain, partitions)
        if len(borders) + 1 < partitions:
            continue
        keep = {t for k in borders for t in chain.blocks[k].boundary}
        # The last partition is undone right after it was computed.
        rest = chain.blocks[borders[-1] + 1 :] if borders else chain.blocks
        keep.update(t for block in rest for v in block.forward for t in chain.model.outputs[v])
        baseline.offer_made(partial(run_static, chain.model, chain.parts, keep), f"{partitions} partitions")
    baseline.check_time()
