"""vDNN, policy "all": the inputs of every layer live on the store between forward and backward pass.

Source: Rhu et al., MICRO 2016, section 3. See `vdnn`.
"""

from __future__ import annotations

from poetc.errors import UnsupportedProblemError
from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._baseline import Baseline
from poetc.solvers.published._training import split
from poetc.solvers.published.vdnn import feature_maps, offload

INFO = SolverInfo(
    name="vdnn_all",
    title="Inputs of all layers offloaded (policy all, dynamic)",
    citation="M. Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016",
    paging=True,
    notes="Offloads activations only; nothing is recomputed.",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (no store), InfeasibleError."""
    baseline = Baseline(INFO, problem, options, progress)
    if not any(baseline.model.pageable):
        raise UnsupportedProblemError(f"{INFO.name}: offloads only, and nothing here may be paged")
    parts = split(baseline.model, INFO.name, every_part=True)
    return offload(baseline, parts, feature_maps(baseline.model, parts, parts.forward))
