"""Capuchin: swap or recompute by measured accesses.

Source: Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian, ASPLOS 2020, section 4.

One iteration with everything in RAM gives the time of each access. A candidate is a tensor with its longest pause
between two accesses, forward and backward. Its

    free time = (back access - swap-in time) - (evicted access + swap-out time)                         (section 4.3)

tells how well a transfer would hide behind compute. Candidates alive at the peak are swapped in the order of free time
while it is not negative and the device has a store. Then the rest is recomputed by bytes / recomputation time (MSPS).
Choosing a tensor makes those that are recomputed from it dearer (lineages are updated). Choosing stops when the step
fits. The paper reads a page 5 % before its use so that it hides. Here transfers are synchronous and nothing hides:
Capuchin's ranking stays as it is, and its transfers have their full cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, Irretrievable
from poetc.solvers.published._training import Split, run_static, split

INFO = SolverInfo(
    name="capuchin",
    title="Swap by free time, then recompute by bytes per second",
    citation="X. Peng et al., Capuchin: Tensor-based GPU Memory Management for Deep Learning, ASPLOS 2020",
    paging=True,
    notes="Assumes that transfers hide behind compute, which synchronous stores do not do.",
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    tensor: int
    free_ns: int


def _candidates(model: Model, parts: Split) -> list[_Candidate]:
    """The candidates by decreasing free time."""
    end = [0] * model.n_ops  # of each operator's execution
    clock = 0
    for v in range(model.n_ops):
        clock += model.op_ns[v]
        end[v] = clock
    found = []
    for t in parts.saved:
        if t not in parts.optional:
            continue
        evicted = end[parts.last_forward_use[t]]
        back = next(v for v in model.consumers[t] if v >= parts.cut)
        free = (end[back] - model.op_ns[back] - model.in_ns[t]) - (evicted + model.out_ns[t])
        found.append(_Candidate(t, free))
    return sorted(found, key=lambda c: (-c.free_ns, c.tensor))


def _recompute_ns(model: Model, t: int, absent: set[int]) -> int | None:
    """The time to make `t` from tensors that are there when the backward pass begins; None if it is impossible."""
    operators: set[int] = set()
    stack = [model.producer[t]]
    while stack:
        v = stack.pop()
        if v in operators:
            continue
        if v < 0 or not model.recomputable[v]:
            return None
        operators.add(v)
        stack.extend(model.producer[u] for u in model.inputs[v] if u in absent)
    return sum(model.op_ns[v] for v in operators)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (no backward pass), InfeasibleError."""
    baseline = Baseline(INFO, problem, options, progress)
    model = baseline.model
    parts = split(model, INFO.name)
    if baseline.offer(model.keep_all(), "nothing to do"):
        return baseline.finish()
    made, saved = set(parts.made), set(parts.saved)
    page: set[int] = set()
    redo: set[int] = set()

    def offer() -> bool:
        """Offer schedules with collective recomputation, which holds tensors made on the way, then without it."""
        label = f"{len(page)} swapped, {len(redo)} recomputed"
        fits = False
        for retain in (True, False):
            try:
                codes = run_static(model, parts, saved - page - redo, page, retain=retain)
            except Irretrievable as error:
                baseline.refusal = str(error)
                continue
            fits |= baseline.offer(codes, label)
        return fits

    candidates = _candidates(model, parts)
    for c in candidates:
        if baseline.out_of_time or c.free_ns < 0:
            break
        if model.pageable[c.tensor]:
            page.add(c.tensor)
            if offer():
                return baseline.finish()
    rest = {c.tensor for c in candidates} - page
    while rest and not baseline.out_of_time:
        absent = (made - saved) | redo
        rated = [(t, _recompute_ns(model, t, absent)) for t in sorted(rest)]
        best = max(
            ((model.size[t] / max(1, ns), -t) for t, ns in rated if ns is not None),
            default=None,
        )
        if best is None:
            break
        rest.remove(-best[1])
        redo.add(-best[1])
        if offer():
            break
    baseline.check_time()
    return baseline.finish()
