"""SuperNeurons: liveness, a tensor cache for convolutions, recomputation of cheap layers.

Source: Wang, Ye, Zhao, Wu, Li, Song, Xu, Kraska, PPoPP 2018, section 3.

Checkpoints are the outputs of convolutions (of all contractions, where there are none). Tensors between two of them
are cheap and dropped after the forward pass. In the backward pass a segment is speed-centric (recomputed once and held)
if its memory is at most l_peak, the most that one layer needs. Else it is memory-centric (recomputed anew for each
reader). Checkpoints are offloaded only when RAM is short, the least recently used first, and stay on the store until
the backward pass reads them. If all tensors fit without recomputation, nothing is done.
"""

from __future__ import annotations

from poetc.solvers.interface import SolverInfo
from poetc.solvers.kinds import is_contraction, is_convolution
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, Irretrievable, method
from poetc.solvers.published._training import Split, run, split

INFO = SolverInfo(
    name="superneurons",
    title="Convolutions kept or offloaded, cheap layers recomputed",
    citation="L. Wang et al., SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks, "
    "PPoPP 2018",
    paging=True,
    notes="Which layers are recomputed follows from their kind, not from their cost.",
    read="section 3",
    differs="cheap layers by kind",
    checked="nothing is done where all fits",
)


def _checkpoints(model: Model, parts: Split) -> list[int]:
    operators = model.problem.operators
    for wanted in (is_convolution, is_contraction):
        wanted_kinds = [v for v in sorted(parts.to_loss) if wanted(operators[v].kind)]
        if wanted_kinds:
            return wanted_kinds
    return sorted(parts.to_loss)


def _segments(model: Model, parts: Split, checkpoints: list[int]) -> tuple[dict[int, int], set[int]]:
    """The segment of each cheap tensor (the checkpoint before it), and the segments that are speed-centric."""
    l_peak = max(
        sum(model.size[t] for t in (*model.inputs[v], *model.outputs[v])) + model.workspace[v]
        for v in range(model.n_ops)
    )
    segment: dict[int, int] = {}
    memory: dict[int, int] = {}
    current = -1
    marks = set(checkpoints)
    for v in parts.forward:
        if v in marks:
            current = v
            continue
        for t in model.outputs[v]:
            if t in parts.optional:
                segment[t] = current
                memory[current] = memory.get(current, 0) + model.size[t]
    return segment, {s for s, size in memory.items() if size <= l_peak}


def _codes(model: Model, parts: Split, segment: dict[int, int], speedy: set[int], paged: set[int]) -> list[int]:
    def forgotten(_: int, brought: set[int]) -> list[int]:
        return [t for t in brought if t in segment and segment[t] not in speedy]

    return run(model, parts, paged, paged | set(segment), forgotten)


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError, InfeasibleError."""
    model = baseline.model
    parts = split(model, INFO.name, every_part=True)
    checkpoints = _checkpoints(model, parts)
    segment, speedy = _segments(model, parts, checkpoints)
    # Least recently used at the end of the forward pass: in the order of their last forward readers.
    cache = sorted(
        (t for v in checkpoints for t in model.outputs[v] if t in parts.saved and t in parts.optional),
        key=lambda t: (parts.last_forward_use[t], t),
    )
    cache = [t for t in cache if model.pageable[t]]
    if baseline.offer(model.keep_all(), "nothing to do"):
        return
    for count in range(len(cache) + 1):
        if baseline.out_of_time:
            break
        try:
            codes = _codes(model, parts, segment, speedy, set(cache[:count]))
        except Irretrievable as error:
            baseline.refusal = str(error)
            break
        if baseline.offer(codes, f"{count} of {len(cache)} checkpoints offloaded"):
            break
    baseline.check_time()
