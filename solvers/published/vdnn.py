"""vDNN, policy "conv": the inputs of convolutions live on the store between forward and backward pass.

Source: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, MICRO 2016, section 3.

An offloaded tensor is written after its last forward reader and read back when the backward pass needs it. With
synchronous transfers, prefetching it during an earlier layer only takes room. So it is read right before its use. The
paper's dynamic policy is applied on top of either static one: offload nothing if everything fits, else everything the
policy names. Then tensors that need not be offloaded are taken back, the largest first. Policy "all" is the solver
vdnn_all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from poetc.errors import UnsupportedProblemError
from poetc.solvers.interface import SolverInfo
from poetc.solvers.kinds import is_convolution
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._training import Split, run_static, split

INFO = SolverInfo(
    name="vdnn",
    title="Inputs of convolutions offloaded (policy conv, dynamic)",
    citation="M. Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016",
    paging=True,
    notes="Offloads activations only; nothing is recomputed.",
    read="section 3",
    differs="the dynamic policy takes tensors back one by one",
    checked="nothing is recomputed, each tensor written once",
)


def feature_maps(model: Model, parts: Split, readers: Iterable[int]) -> list[int]:
    """Tensors of the forward pass that `readers` and the backward pass read, the largest first."""
    read = {t for v in readers for t in model.inputs[v]}
    maps = [t for t in parts.saved if t in read and t in parts.optional and model.pageable[t]]
    return sorted(maps, key=lambda t: (-model.size[t], t))


def offload(baseline: Baseline, parts: Split, maps: list[int]) -> None:
    """Offer the schedules of the dynamic policy for `maps`."""
    model = baseline.model
    page = set[int]()
    everything = set(parts.forward_tensors)

    def offer(chosen: set[int]) -> bool:
        codes = partial(run_static, model, parts, everything - chosen, chosen)
        return baseline.offer_made(codes, f"{len(chosen)} tensors offloaded")

    if not offer(page):
        page = set(maps)
        if offer(page):
            for t in maps:
                if baseline.out_of_time:
                    break
                if offer(page - {t}):
                    page.remove(t)
    baseline.check_time()


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no store, no convolution), InfeasibleError."""
    model = baseline.model
    if not any(model.pageable):
        raise UnsupportedProblemError(f"{INFO.name}: offloads only, and nothing here may be paged")
    parts = split(model, INFO.name, every_part=True)
    convolutions = [v for v in parts.forward if is_convolution(baseline.problem.operators[v].kind)]
    if not convolutions:
        raise UnsupportedProblemError(f"{INFO.name}: the policy offloads inputs of convolutions, there are none")
    offload(baseline, parts, feature_maps(model, parts, convolutions))
