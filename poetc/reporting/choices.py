"""Choices and scopes in words. Each kind of choice brings its own; only here do they become a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from poetc.devices.units import format_ns, format_pj
from poetc.errors import format_count
from poetc.planning.chain import KINDS
from poetc.planning.solution import Solution
from poetc.scheduling import Problem, stored_state
from poetc.scheduling.scope import ANY, Repetition, Scope

ALL_SCHEDULES: Final = "all schedules"
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


def core_words(cores: Mapping[str, Any] | None) -> str:
    """The ways of using the cores that were compared, as `core_ways` of `--json` has them; "" where there was one."""
    if not cores:
        return ""
    *others, last = cores["cores"]
    return f"any of {cores['ways']} ways of using {', '.join(others)} and {last}"


def scope_sentence(scope: Scope, cores: Mapping[str, Any] | None = None) -> str:
    """The schedules that a bound holds for. Absent restrictions are not named, but for those of an open choice.

    `cores`: those with several ways of using them, for all of which it holds.
    """
    return "; ".join(part for part in (_scope_sentence(scope), core_words(cores)) if part)


def _scope_sentence(scope: Scope) -> str:
    if scope.is_everything:
        return ALL_SCHEDULES
    if scope.order is ANY:
        order = "any order"
    else:
        order = "the problem's order" if scope.order == tuple(range(len(scope.order))) else "this schedule's order"
    parts = [_REPETITION[scope.repetition].format(order=order)]
    kinds = [(kind, scope.choice(kind.name)) for kind in reversed(KINDS)]
    parts += [kind.scope_words(option) for kind, option in kinds if option is not None]
    named = {kind.name for kind in KINDS}  # a file of another poetc may have more
    parts += [f"this option of {name!r}" for name, option in scope.choices if name not in named and option is not ANY]
    return "; ".join(parts)


def choice_notes(asked: Problem, solution: Solution, saved: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The choices for `asked`, a note a kind of choice.

    `saved`: the encodings of saved tensors, as `--json` has them.
    """
    notes = [kind.note(asked, solution) for kind in KINDS]
    return [note for note in (*notes, _saved(saved), _inputs(solution)) if note]


def _saved(saved: Sequence[Mapping[str, Any]]) -> str:
    if not saved:
        return ""
    before, after = (sum(int(e[key]) for e in saved) for key in ("saved_bytes", "encoded_bytes"))
    lossy = sorted({str(e["format"]) for e in saved} - {"slope", "place"})
    effect = f"with an error, in {lossy[0]}; poetc validate measures it" if lossy else "the same results"
    spent = format_pj(sum(int(e["energy_pj"]) for e in saved))
    tensors = format_count(len(saved), "tensor")
    return f"{tensors} saved for backward in {after:,} bytes instead of {before:,}, for {spent} a step ({effect})"


def _inputs(solution: Solution) -> str:
    """Those that lie on the store: whoever calls the step writes them."""
    problem = solution.problem
    state = {t for chain in stored_state(problem) for t in chain}
    inputs = [t for i, t in enumerate(problem.tensors) if t.initial == "store" and i not in state]
    if not inputs:
        return ""
    size, time_ns, energy_pj = (
        sum(n) for n in zip(*((t.size_bytes, t.page_out_ns, t.page_out_pj) for t in inputs), strict=True)
    )
    return (
        f"{size:,} bytes of inputs go to the store before each step, in {format_ns(time_ns)} and {format_pj(energy_pj)}"
        " that are not part of it"
    )
