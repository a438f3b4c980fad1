"""vDNN, policy "all": the inputs of every layer live on the store between forward and backward pass.

Source: Rhu et al., MICRO 2016, section 3. See `vdnn`.
"""

from __future__ import annotations

from poetc.errors import UnsupportedProblemError
from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._training import split
from poetc.solvers.published.vdnn import feature_maps, offload

INFO = SolverInfo(
    name="vdnn_all",
    title="Inputs of all layers offloaded (policy all, dynamic)",
    citation="M. Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016",
    paging=True,
    notes="Offloads activations only; nothing is recomputed.",
    read="section 3",
    differs="the dynamic policy takes tensors back one by one",
    checked="nothing is recomputed, each tensor written once",
)


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no store), InfeasibleError."""
    if not any(baseline.model.pageable):
        raise UnsupportedProblemError(f"{INFO.name}: offloads only, and nothing here may be paged")
    parts = split(baseline.model, INFO.name, every_part=True)
    offload(baseline, parts, feature_maps(baseline.model, parts, parts.forward))
