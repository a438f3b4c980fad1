"""Choices and scopes in words. Only here does the scope of a bound become a sentence."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from poetc.devices.units import format_bytes, format_cost, format_count, format_ns, format_pj
from poetc.planning.importance import update_text
from poetc.planning.kernels import low_workspace_operators
from poetc.planning.solution import Solution, Tried
from poetc.planning.ways import ALONE, way_words
from poetc.scheduling import Compute, Move, Problem, stored_state, verify
from poetc.scheduling.scope import ANY, Repetition, Scope

ALL_SCHEDULES: Final = "all schedules"
NAMES = 4  # of operators or updates, in a note
LEAST_GAP = 1e-5  # relative: less than that is rounding
_STAGED = (
    "first executions in {order}; between two of them every operator at most once again, in that order, and page-ins "
    "right before the first that can read them"
)
_REPETITION = {
    Repetition.ANY: "first executions in {order}; any recomputation, any paging",
    Repetition.STAGED: _STAGED,
    Repetition.STAGED_FORWARD: f"{_STAGED}; nothing computed again or read back before the loss",
    Repetition.CHECKMATE: (
        "Checkmate's stages: recomputation once a stage in ascending order, no paging, no optional in-place"
    ),
    Repetition.MOCCASIN: "Checkmate's stages with at most two executions an operator, no paging, no optional in-place",
    Repetition.POET: (
        "POET's stages: recomputation once a stage in ascending order, page-ins one stage ahead, no in-place"
    ),
    Repetition.LAYERS: "whole layers alone, recomputed once a stage in ascending order as the solver's paper has it",
    Repetition.ONCE: "every operator once, in {order}; no paging",
    Repetition.OTHER: "a class that its solver does not name",
}


def scope_sentence(scope: Scope) -> str:
    """The schedules that a bound holds for. Absent restrictions are not named, but for those of an open choice."""
    if scope.is_everything:
        return ALL_SCHEDULES
    if scope.order is ANY:
        order = "any order"
    else:
        order = "the problem's order" if scope.order == tuple(range(len(scope.order))) else "this schedule's order"
    parts = [_REPETITION[scope.repetition].format(order=order)]
    if scope.state is not None:
        parts.append("any placement of state" if scope.state is ANY else "this placement of state")
    if scope.processors is not None:
        parts.append("any processors" if scope.processors is ANY else "this placement on processors")
    if scope.banks is not None:
        parts.append("any banks of RAM" if scope.banks is ANY else "these banks of RAM")
    if scope.streaming is ANY:
        parts.append("any streamed operands")
    elif scope.streaming is not None:
        parts.append("these streamed operands" if scope.streaming else "no streamed operands")
    if scope.kernels is ANY:
        parts.append("any kernels")
    elif scope.kernels is not None:
        parts.append("these kernels" if any(scope.kernels) else "the fastest kernels")
    if scope.saved is ANY:
        parts.append("any encodings of saved tensors")
    elif scope.saved is not None:
        parts.append("these encodings of saved tensors" if scope.saved else "no encodings of saved tensors")
    return "; ".join(parts)


def choice_notes(asked: Problem, solution: Solution, saved: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The choices for `asked`, a note a kind of choice.

    `saved`: the encodings of saved tensors, as `--json` has them.
    """
    notes = [_tried(solution.tried, asked)] if solution.tried else []
    notes += [_ways(solution)] if solution.ways else []
    found = (
        updates_note(solution),
        _saved(saved),
        _banks(solution),
        _processors(solution),
        _state(solution),
        _inputs(solution),
        _kernels(asked, solution),
    )
    return notes + [note for note in found if note]


def updates_note(solution: Solution) -> str:
    """The updates that `--train best` chose, and the bound on all sets; "" where nothing was chosen."""
    worth, updates = solution.worth, solution.choices.updates
    if worth is None or updates is None:
        return ""
    names = [f"{name} {update_text(update)}" for name, update in updates]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    bound = f"no set of updates has more than {worth.bound / worth.total:.1%}"
    if worth.least is not None and worth.cost_bound is not None:
        shown = format_cost(solution.problem.objective, worth.cost_bound)
        bound = f"no set of {worth.least / worth.total:.1%} takes less than {shown}"
    elif worth.gap < LEAST_GAP:
        bound = "which no set of updates exceeds"
    have = "update has" if len(names) == 1 else "updates have"
    return (
        f"--train best: {len(names)} {have} {worth.value / worth.total:.1%} of all importance"
        f" ({bound} without encodings of saved tensors): {', '.join(names[:NAMES])}{more}"
    )


def _saved(saved: Sequence[Mapping[str, Any]]) -> str:
    if not saved:
        return ""
    before, after = (sum(int(e[key]) for e in saved) for key in ("saved_bytes", "encoded_bytes"))
    lossy = sorted({str(e["format"]) for e in saved} - {"slope", "place"})
    effect = f"with an error, in {lossy[0]}; poetc validate measures it" if lossy else "the same results"
    spent = format_pj(sum(int(e["energy_pj"]) for e in saved))
    tensors = format_count(len(saved), "tensor")
    return f"{tensors} saved for backward in {after:,} bytes instead of {before:,}, for {spent} a step ({effect})"


def _banks(solution: Solution) -> str:
    problem = solution.problem
    if not problem.banks:
        return ""
    trace = verify(problem, solution.schedule)
    parts = [
        f"{bank.name} {format_bytes(peak)} of {format_bytes(bank.budget_bytes)}"
        for bank, peak in zip(problem.banks, trace.bank_peaks, strict=True)
    ]
    copies = sum(isinstance(s, Move) and s.bank is not None for s in solution.schedule.steps)
    copied = f"; {format_count(copies, 'copy', 'copies')} between banks" if copies else ""
    return (
        f"banks of RAM: {', '.join(parts)}{copied}; their reads and writes cost {format_pj(trace.bank_pj)}"
        f" and {format_ns(trace.bank_ns)} more than in the cheapest memory"
    )


def _processors(solution: Solution) -> str:
    problem = solution.problem
    if not problem.processors:
        return ""
    trace, steps = verify(problem, solution.schedule), solution.schedule.steps
    counts = Counter(step.processor for step in steps if isinstance(step, Compute))
    parts = [
        f"{p.name} {format_count(counts[k], 'operator')}, busy {format_ns(busy)}"
        for k, (p, busy) in enumerate(zip(problem.processors, trace.busy_ns, strict=True))
    ]
    return (
        f"processors: {'; '.join(parts)}; {format_count(trace.hand_overs, 'hand-over')} in {format_ns(trace.time_ns)}"
    )


def _inputs(solution: Solution) -> str:
    """Those that lie on the store: whoever calls the step writes them."""
    problem = solution.problem
    state = {t for chain in stored_state(problem) for t in chain}
    given = [t for i, t in enumerate(problem.tensors) if t.initial == "store" and i not in state]
    if not given:
        return ""
    size, time_ns, energy_pj = (
        sum(n) for n in zip(*((t.size_bytes, t.page_out_ns, t.page_out_pj) for t in given), strict=True)
    )
    return (
        f"{size:,} bytes of inputs go to the store before each step, in {format_ns(time_ns)} and {format_pj(energy_pj)}"
        " that are not part of it"
    )


def _state(solution: Solution) -> str:
    problem, proof = solution.problem, solution.proof
    stored = stored_state(problem)
    size = sum(problem.tensors[chain[0]].size_bytes for chain in stored)
    live = f"{format_count(len(stored), 'tensor')} ({size:,} bytes) {'lives' if len(stored) == 1 else 'live'}"
    parts = [f"state: {live} on the store, the others in RAM"] if stored else []
    if solution.placement_bound is not None and proof.objective > 0:
        gap = max(0.0, (proof.objective - solution.placement_bound) / proof.objective)
        parts.append(f"with this placement of state the gap is {gap:.3%}")
    return "; ".join(parts)


def _kernels(asked: Problem, solution: Solution) -> str:
    found = sorted(low_workspace_operators(asked, solution.problem), key=lambda o: o[0].workspace_bytes - o[1])
    if not found:
        return ""
    shown = [f"{op.name} ({format_bytes(b)} -> {format_bytes(op.workspace_bytes)})" for op, b in found[:NAMES]]
    more = f" and {len(found) - NAMES} more" if len(found) > NAMES else ""
    operators = format_count(len(found), "operator")
    return (
        f"{operators} in kernels with less workspace than the fastest, as RAM is short (the same results): "
        f"{', '.join(shown)}{more}"
    )


def _ways(solution: Solution) -> str:
    show = functools.partial(format_cost, solution.problem.objective)
    own = solution.choices.threads or ALONE
    parts = []
    for way in solution.ways:
        if way.count != own:
            cost = f"at least {show(way.least)} ({way.outcome})" if way.cost is None else show(way.cost)
            parts.append(f"{way_words(way.count)}: {cost}")
    return f"cores: {way_words(own)}, {show(solution.cost)}; instead of {'; '.join(parts)}"


def _tried(tried: tuple[Tried, ...], problem: Problem) -> str:
    if len(tried) == 1 and tried[0].count == 1:
        return (
            "micro-batches: the batch is not split (batch-norm needs it whole, it fits as it is, or it has no divisor)"
        )
    show = functools.partial(format_cost, problem.objective)
    parts = (f"{t.count}: {t.outcome}" if t.cost is None else f"{t.count}: {show(t.cost)} ({t.outcome})" for t in tried)
    return f"micro-batches tried: {'; '.join(parts)}"
