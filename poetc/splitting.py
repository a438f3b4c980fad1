"""Into how many micro-batches a batch is best split: each number is another problem, and the cheapest schedule wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poetc import homes, variants
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import Schedule, SolveOptions, Status

Progress = Callable[[str], None]


FIRST_ROUND = 0.5  # of the time limit, for all together; the rest is for the best of them


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of micro-batches. `cost`: of its schedule (None: none); `least`: no schedule of it costs less."""

    count: int
    cost: int | None
    least: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    count: int
    placed: homes.Placed
    tried: tuple[Tried, ...]

    @property
    def schedule(self) -> Schedule:
        return self.placed.schedule


def best_split(
    problems: Sequence[tuple[int, Problem]],
    solver: str,
    options: SolveOptions,
    progress: Progress,
    state: str = "ram",
) -> Split:
    """The cheapest verified schedule of all `problems` (number of micro-batches, problem), within one time limit.

    Problems whose keep-all fits come first, since that costs nothing to find out; then those that could be cheaper, by
    what computing everything once costs: each gets an equal share of half of the time, and the best one the rest. One
    that costs more than the best schedule even when nothing is recomputed is not solved at all. Raises what the most
    frugal of them raised if none has a schedule.
    """
    stop_at = time.monotonic() + options.time_limit_s
    first_stop = stop_at - (1 - FIRST_ROUND) * options.time_limit_s
    best: Split | None = None
    best_cost = 0
    tried: dict[int, Tried] = {}
    errors: list[PoetcError] = []
    hopeless = {n: p for n, p in problems if variants.lower_bound_bytes(p, state) > p.budget_bytes}
    if len(hopeless) == len(problems):  # the most frugal one shall say what would work
        hopeless.pop(min(hopeless, key=lambda n: variants.lower_bound_bytes(hopeless[n], state)))
    waiting = sorted(problems, key=lambda p: (keep_all_peak_bytes(p[1]) > p[1].budget_bytes, _once(p[1]), p[0]))
    for left, (count, problem) in zip(range(len(waiting), 0, -1), waiting, strict=True):
        once = _once(problem)
        if best is not None and once >= best_cost:
            tried[count] = Tried(count, None, once, "cannot be cheaper")
            continue
        if count in hopeless:
            tried[count] = Tried(count, None, once, "does not fit")
            continue
        alone = len(waiting) - len(hopeless) == 1
        seconds = stop_at - time.monotonic() if alone else (first_stop - time.monotonic()) / left
        work_share = 1.0 if alone else FIRST_ROUND / len(waiting)
        share = replace(
            options,
            time_limit_s=max(seconds, options.time_limit_s / 50),
            work_limit_s=work_share * options.work_limit_s,
        )
        progress(f"{count} micro-batches")
        try:
            placed = variants.solve_and_pack(problem, state, solver, share, progress)
        except (InfeasibleError, LimitError) as error:
            proven = isinstance(error, InfeasibleError)
            tried[count] = Tried(count, None, once, "does not fit" if proven else "nothing found")
            errors.append(error)
            continue
        proof = placed.schedule.proof
        cost = proof.objective
        tried[count] = Tried(count, cost, proof.bound, proof.status.value)
        if best is None or cost < best_cost:
            best, best_cost = Split(count=count, placed=placed, tried=()), cost
    if best is None:
        raise min(errors, key=_smallest)
    left_s = stop_at - time.monotonic()
    if len(tried) > 1 and best.schedule.proof.status is Status.LIMIT and left_s > 0:
        best = _again(best, dict(problems)[best.count], solver, replace(options, time_limit_s=left_s), progress, state)
        proof = best.schedule.proof
        tried[best.count] = Tried(best.count, proof.objective, proof.bound, proof.status.value)
    return replace(best, tried=tuple(tried[count] for count in sorted(tried)))


def _again(best: Split, problem: Problem, solver: str, options: SolveOptions, progress: Progress, state: str) -> Split:
    """The same problem with more time: the better schedule and the better bound of both."""
    progress(f"{best.count} micro-batches again")
    try:
        placed = variants.solve_and_pack(problem, state, solver, options, progress)
    except (InfeasibleError, LimitError):
        return best
    proof, known = placed.schedule.proof, best.schedule.proof
    if proof.objective < known.objective:
        return replace(best, placed=placed)
    bound = min(proof.bound, known.objective)
    if bound <= known.bound or placed.problem != best.placed.problem:
        return best
    better = replace(known, bound=bound, schedule_class=proof.schedule_class)
    if bound == known.objective:
        better = replace(better, status=Status.OPTIMAL)
    return replace(best, placed=replace(best.placed, schedule=replace(best.schedule, proof=better)))


def _once(problem: Problem) -> int:
    return problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns


def _smallest(error: PoetcError) -> float:
    smallest = error.details.get("min_budget_bytes")
    return float(smallest) if isinstance(smallest, int) else float("inf")
