"""Capuchin: swap or recompute by measured accesses.

Source: Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian, ASPLOS 2020, section 4.

One iteration with everything in RAM gives the time of each access. A candidate is a tensor with its longest pause
between two accesses, forward and backward. Its

    free time = (back access - swap-in time) - (evicted access + swap-out time)                         (section 4.3)

tells how well a transfer would hide behind compute. While the step does not fit, the next choice is the cheapest one
that is left (section 4.4). A swap that hides costs nothing, and those are taken first, in the order of free time. Where
none is left, each tensor has two prices: the part of its transfers that does not hide, and the time to recompute it.
The smaller price is its way, and the tensor of the most bytes for each ns of it goes. Choosing a tensor makes those
that are recomputed from it dearer (lineages are updated). Choosing stops when the step fits. Synchronous transfers hide
nothing, so that their whole time is their price there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from poetc.solvers.interface import SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._training import Split, run_static, split

INFO = SolverInfo(
    name="capuchin",
    title="Swap what hides, then the cheaper of swap and recomputation",
    citation="X. Peng et al., Capuchin: Tensor-based GPU Memory Management for Deep Learning, ASPLOS 2020",
    paging=True,
    notes="Weighs time, not energy. On a synchronous store no transfer hides, so that every swap has its full price.",
    read="section 4",
    differs="free time from the model of costs in place of a measured iteration; a bus does one transfer at a time",
    checked="cheaper of swap and recomputation, tensor by tensor",
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    tensor: int
    away: tuple[int, int]  # ns, from its last access in the forward pass to its first in the backward pass
    moved_ns: int  # of both transfers

    @property
    def free_ns(self) -> int:
        return self.away[1] - self.away[0] - self.moved_ns

    def waits_ns(self, model: Model, swapped: list[_Candidate]) -> int:
        """The part of its transfers that the processor waits for. The bus does one transfer at a time."""
        if not model.overlaps:
            return self.moved_ns
        busy = sum(o.moved_ns for o in swapped if o.away[0] < self.away[1] and self.away[0] < o.away[1])
        return max(0, busy - self.free_ns)


def _candidates(model: Model, parts: Split) -> list[_Candidate]:
    """The candidates by decreasing free time."""
    end = [0] * model.n_ops  # of each operator's execution
    clock = 0
    for v in range(model.n_ops):
        clock += model.op_ns[v]
        end[v] = clock
    candidates = []
    for t in parts.saved:
        if t not in parts.optional:
            continue
        evicted = end[parts.last_forward_use[t]]
        back = next(v for v in model.consumers[t] if v >= parts.turn[t])
        moved = model.bus_in_ns[t] + model.bus_out_ns[t]
        candidates.append(_Candidate(t, (evicted, end[back] - model.op_ns[back]), moved))
    return sorted(candidates, key=lambda c: (-c.free_ns, c.tensor))


def _recompute_ns(model: Model, t: int, absent: set[int], again: Counter[int]) -> int | None:
    """The time to make `t` from tensors that are there when the backward pass begins; None if it is impossible.

    It is paid again for each recomputed tensor that is made from `t`: `again` of them.
    """
    operators = _lineage(model, t, absent)
    if operators is None:
        return None
    return (1 + again[t]) * sum(model.op_ns[v] for v in operators)


def _read_by(model: Model, redo: set[int], absent: set[int]) -> Counter[int]:
    """For each tensor, how many of `redo` are made from it."""
    readings: Counter[int] = Counter()
    for other in redo:
        made_by = _lineage(model, other, absent) or set()
        readings.update({t for v in made_by for t in model.inputs[v]})
    return readings


def _lineage(model: Model, t: int, absent: set[int]) -> set[int] | None:
    """The operators that make `t` without `absent`; None if one of them must not run again."""
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
    return operators


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no backward pass), InfeasibleError."""
    model = baseline.model
    parts = split(model, INFO.name, every_part=True)
    if baseline.offer(model.keep_all(), "nothing to do"):
        return
    outputs, saved = set(parts.forward_tensors), set(parts.saved)
    page: set[int] = set()
    redo: set[int] = set()

    def offer() -> bool:
        """Offer schedules with collective recomputation, which holds tensors made on the way, then without it."""
        label = f"{len(page)} swapped, {len(redo)} recomputed"
        fits = False
        for retain in (True, False):
            fits |= baseline.offer_made(
                partial(run_static, model, parts, saved - page - redo, page, retain=retain), label
            )
        return fits

    rest = {c.tensor: c for c in _candidates(model, parts)}  # by decreasing free time
    swapped: list[_Candidate] = []
    while rest and not baseline.out_of_time:
        waits = {t: c.waits_ns(model, swapped) for t, c in rest.items() if model.pageable[t]}
        chosen = next((t for t in rest if waits.get(t) == 0), None)
        way = page
        if chosen is None:
            absent = (outputs - saved) | redo
            made_from = _read_by(model, redo, absent)
            priced: list[tuple[float, int, set[int]]] = []
            for t in rest:
                again, swap = _recompute_ns(model, t, absent, made_from), waits.get(t)
                if again is not None and (swap is None or again <= swap):
                    priced.append((model.size[t] / max(1, again), -t, redo))
                elif swap is not None:
                    priced.append((model.size[t] / max(1, swap), -t, page))
            if not priced:
                break
            _, negated, way = max(priced, key=lambda p: p[:2])
            chosen = -negated
        taken = rest.pop(chosen)
        way.add(chosen)
        swapped += [taken] if way is page else []
        if offer():
            break
    else:
        # Recomputation needs room for its operands. Where that is missing, its tensors are swapped, the largest first.
        for t in sorted((t for t in redo if model.pageable[t]), key=lambda t: (-model.size[t], t)):
            redo.remove(t)
            page.add(t)
            if offer() or baseline.out_of_time:
                break
    baseline.check_time()
