"""Where state lives between steps, and a schedule and its plan for that: `planning` for a problem whose homes are open.

`auto`: in RAM where keep-all fits or nothing could live elsewhere; else where `solvers.HomeSearch` says, which also
proves what no choice of homes can beat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from poetc import planning, solvers
from poetc.devices import format_bytes, format_ns
from poetc.errors import InfeasibleError, LimitError, UsageError
from poetc.scheduling import (
    Paging,
    Problem,
    keep_all_peak_bytes,
    movable_state,
    on_store,
    stored_state,
)
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, SolveOptions, Status

Progress = Callable[[str], None]
State = Literal["auto", "ram", "store"]
STATES: tuple[str, ...] = get_args(State)
# Of the time limit, counted in work: for an order; then the first search for homes, before anything is solved.
ORDER_SHARE, CHOICE_SHARE = 0.1, 0.2
LEAN_SAVES = 0.01  # of the cost with all state on the store: a little there is no sign that other homes profit
MORE_SHARE = 0.1  # each search after that, before other homes are solved
STOP_SHARE = 0.6  # of the time limit, on the clock: when that search stops on a slow machine; that for an order: half
LOOSER = 4  # how often homes give way that leave packing too little
FLOOR_S, FLOOR_SHARE = 1.0, 0.1  # at least, for a schedule once there are homes: that much, or of the time limit
SOLVES = 12  # at most, for other homes
LEAST_SHARE = 0.05  # of the time limit has to be left for one more
PACKED_INSTEAD = 6  # schedules for other homes, where the best does not pack
WORTH_A_CHOICE = 0.1  # of the budget: less state than that stays in RAM if it can
ANY_HOMES = "; any homes of state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """`problem` is the one that was asked for with the homes that `schedule` is for; `remark`: what was chosen."""

    problem: Problem
    schedule: Schedule
    plan: MemoryPlan
    remark: str = ""


def solve_and_pack(
    problem: Problem,
    state: str,
    solver: str,
    options: SolveOptions,
    progress: Progress,
    minimum: planning.Minimum | None = None,
) -> Placed:
    """`planning.solve_and_pack` for a problem with all state in RAM, with the homes that `state` asks for."""
    if state != "auto" or solver != "poetc":
        return _placed(without_search(problem, state), solver, options, progress, minimum)
    started = time.monotonic()
    if not _is_open(problem):
        try:
            return _placed(problem, solver, options, progress, minimum, lower_bound_bytes(problem, state))
        except InfeasibleError:
            if solvers.lower_bound_bytes(_everything(problem)) > problem.budget_bytes or not movable_state(problem):
                raise
        progress("nothing fits with all state in RAM")
    left_s = _left_s(options, started)
    return _chosen(problem, solver, replace(options, time_limit_s=left_s), progress, minimum)


def without_search(problem: Problem, state: str) -> Problem:
    """The homes that solvers get which cannot choose them: all state in RAM if that can fit, else on the store.
    UsageError where `state` asks for a store that is not there.
    """
    if state not in STATES:
        raise UsageError(f"--state {state}: there are {', '.join(STATES)}")
    if state == "store":
        if problem.paging is Paging.NONE:
            raise UsageError("--state store: there is no store, or paging is off")
        return _everything(problem)
    fits = solvers.lower_bound_bytes(problem) <= problem.budget_bytes
    return problem if state == "ram" or fits else _roomier(problem)


def in_words(problem: Problem) -> str:
    """Where state lives that could live in RAM or on the store; empty if there is none."""
    stored, others = len(stored_state(problem)), len(movable_state(problem))
    if not stored:
        return "all in RAM" if others else ""
    return f"{stored} of {stored + others} on the store" if others else "all on the store"


def minimum(problem: Problem, state: str, least_s: float, stop_at: float = 0.0) -> planning.Minimum:
    """The search for the least RAM, with the homes that `state` allows."""
    least_bytes = lower_bound_bytes(problem, state)
    if state == "store":
        problem = _everything(problem)
    elif state == "auto":
        problem = _roomier(problem)
    return planning.Minimum(problem, least_s, stop_at, least_bytes)


def smallest_ram(problem: Problem, state: str, time_limit_s: float = planning.MINIMUM_SEARCH_S) -> planning.SmallestRam:
    """`planning.smallest_ram` with the homes that `state` allows."""
    return minimum(problem, state, time_limit_s).found


def leanest(minimum: planning.Minimum, solver: str) -> Placed:
    """The schedule of least RAM as an answer to the budget that it needs: where nothing else is found."""
    found, problem = minimum.found, minimum.problem
    assert found.schedule is not None and found.plan is not None
    schedule = planning.leanest(problem, solver, found.schedule)
    return Placed(problem=problem, schedule=schedule, plan=found.plan, remark=_remark(problem))


def bound_holds(proven: Placed, placed: Placed) -> bool:
    """Whether the bound that comes with `proven` is about the schedule of `placed` too."""
    same = stored_state(proven.problem) == stored_state(placed.problem)
    everywhere = ANY_HOMES in proven.schedule.proof.schedule_class
    return (same or everywhere) and planning.bound_holds(proven.schedule, placed.schedule)


def lower_bound_bytes(problem: Problem, state: str) -> int:
    """No schedule needs less RAM, with the homes that `state` allows."""
    if state == "ram":
        return solvers.lower_bound_bytes(problem)
    stored = solvers.lower_bound_bytes(_everything(problem))
    return stored if state == "store" else min(stored, solvers.lower_bound_bytes(problem))


def _everything(problem: Problem) -> Problem:
    return on_store(problem, {chain[0] for chain in movable_state(problem)})


def _roomier(problem: Problem) -> Problem:
    """With all state in RAM, or all of it on the store: where less RAM may do, if there is the time, the room on the
    store and the leave to write to it.
    """
    stored = _everything(problem)
    less = solvers.lower_bound_bytes(stored) < solvers.lower_bound_bytes(problem)
    return stored if less and solvers.min_budget(stored, time_limit_s=0.0).smallest_bytes is not None else problem


def _is_open(problem: Problem) -> bool:
    """Whether homes on the store can be of any use."""
    size = sum(problem.tensors[chain[0]].size_bytes for chain in movable_state(problem))
    if size == 0 or keep_all_peak_bytes(problem) <= problem.budget_bytes:
        return False
    return size >= WORTH_A_CHOICE * problem.budget_bytes or solvers.lower_bound_bytes(problem) > problem.budget_bytes


def _placed(
    problem: Problem,
    solver: str,
    options: SolveOptions,
    progress: Progress,
    minimum: planning.Minimum | None,
    least_bytes: int | None = None,
    solve_share: float = planning.SOLVE_SHARE,
) -> Placed:
    """`least_bytes`: below it nothing works with other homes either, which an error then says."""
    own = minimum if minimum is not None and minimum.problem == problem else None
    if own is None and least_bytes is not None:
        own = planning.Minimum(problem, planning.search_share_s(options.time_limit_s), least_bytes=least_bytes)
    schedule, plan = planning.solve_and_pack(problem, solver, options, progress, own, solve_share)
    return Placed(problem=problem, schedule=schedule, plan=plan, remark=_remark(problem))


def _remark(problem: Problem) -> str:
    stored, size = stored_state(problem), 0
    for chain in stored:
        size += problem.tensors[chain[0]].size_bytes
    if not stored:
        return ""
    return f"state: {len(stored)} tensors ({size:,} bytes) live on the store, the others in RAM"


def _chosen(
    problem: Problem, solver: str, options: SolveOptions, progress: Progress, minimum: planning.Minimum | None
) -> Placed:
    """Under one order of operators: first the homes, then the schedule."""
    started = time.monotonic()
    if problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns:
        return _placed(problem, solver, options, progress, minimum)
    least_bytes = lower_bound_bytes(problem, "auto")
    if least_bytes > problem.budget_bytes:  # the error says what would work
        return _placed(_roomier(problem), solver, options, progress, minimum, least_bytes)
    progress("choosing homes of state")
    limit_s = options.time_limit_s
    known: list[int] = []  # objectives of schedules, for whatever homes

    def report(event: solvers.Event) -> None:
        if event.objective is not None:
            known.append(event.objective)
        progress(planning.progress_line(problem, replace(event, objective=min(known, default=None))))

    # Something to show before orders are searched: with everything on the store, where it fits most easily.
    for homes in (_everything(problem), problem):
        first = solvers.at_once(homes, options)
        if first is not None:
            once = problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
            report(solvers.Event(stage="at once", objective=first.proof.objective, bound=once))
            break
    order = None
    if not options.fixed_order:
        order = _order(problem, options, started + STOP_SHARE * limit_s / 2)
    ordered = problem if order is None else solvers.reordered(problem, order)
    search = solvers.HomeSearch(ordered, options, started + STOP_SHARE * limit_s, report)
    search.run(CHOICE_SHARE * options.work_limit_s, until_settled=True)
    while search.least == math.inf and search.run(MORE_SHARE * options.work_limit_s):
        pass  # with homes that nothing was found for the solve below would find nothing either
    packs = _set_aside_too_tight(search, ordered, progress)
    # What nothing was found for may still be possible: as a relaxation suggests, with all on the store, or all in RAM.
    attempts = dict.fromkeys((search.best(), search.everything, frozenset[int]()))
    if search.least == math.inf and search.suggested is not None:
        attempts = {search.suggested: None, **attempts}
    errors: list[InfeasibleError | LimitError] = []
    for on in attempts:
        left = replace(options, time_limit_s=_left_s(options, started))
        try:
            fixed = replace(
                left, fixed_order=True, start=search.schedule(on), proven=math.ceil(search.bound), cuts=search.cuts
            )
            share = planning.SOLVE_SHARE if packs else planning.TIGHT_SHARE
            placed = _placed(on_store(ordered, on), solver, fixed, progress, minimum, least_bytes, share)
        except (InfeasibleError, LimitError) as error:
            errors.append(error)
            progress(f"nothing found with {len(on)} tensors of state on the store")
            search.solved[on] = math.inf
            continue
        search.stop_at, search.solved[on] = started + limit_s, placed.schedule.proof.objective
        solved = placed
        on, placed = _cheaper_that_packs(search, ordered, on, placed, search.stop_at)
        if placed is solved and not on and placed.schedule.proof.bound >= search.bound:
            return _in_own_order(problem, on, placed, order)
        known.append(placed.schedule.proof.objective)
        on, placed, is_complete = _other_homes(search, ordered, solver, options, on, placed, progress)
        placed = _for_any_homes(placed, math.ceil(search.bound), options.gap, is_complete)
        return _in_own_order(problem, on, placed, order)
    # All on the store leaves the most RAM: where that is proven impossible everything is, unless time, writing or the
    # store is what is short.
    limited = problem.deadline_ns is not None or problem.write_limit_bytes is not None
    if problem.store_capacity_bytes is not None:
        limited |= sum(t.footprint_bytes for t in problem.tensors if t.pageable) > problem.store_capacity_bytes
    nearest = min(errors, key=_smallest_known)
    if all(isinstance(error, InfeasibleError) for error in errors) and not limited:
        raise nearest
    text, within = str(nearest), ""
    if problem.deadline_ns is not None:
        within = f" within the deadline of {format_ns(problem.deadline_ns)}"
    if search.impossible:
        proven = "proven under this order, wherever state lives"
        why = f"no schedule fits in {problem.budget_bytes} bytes{within} ({proven})"
    else:
        why = f"found no schedule for {problem.budget_bytes} bytes{within}, nor a proof that there is none"
    if search.impossible or isinstance(nearest, InfeasibleError):  # which was about some homes
        text = "; ".join((why, *text.split("; ")[1:]))
        if problem.deadline_ns is not None and "--deadline" not in text:
            text += "; allow a longer --deadline or a larger --budget"
    if search.impossible:
        raise InfeasibleError(text, details=nearest.details) from nearest
    raise LimitError(text, details=nearest.details) from nearest


def _left_s(options: SolveOptions, started: float) -> float:
    """Of the time limit, whose whole the work limit was, or a little more."""
    left_s = options.time_limit_s - (time.monotonic() - started)
    return max(left_s, min(FLOOR_S, FLOOR_SHARE * options.work_limit_s))


def _order(problem: Problem, options: SolveOptions, stop_at: float) -> tuple[int, ...] | None:
    """For the homes that are to be chosen: what is good for all state on the store need not be for all of it in RAM."""
    work = solvers.Work(ORDER_SHARE * options.work_limit_s, stop_at)
    stored = _everything(problem)
    order = solvers.best_order(stored, options, work, LEAN_SAVES)
    if solvers.lower_bound_bytes(problem) > problem.budget_bytes:
        return order
    in_ram = solvers.best_order(problem, options, solvers.Work(work.limit_s, stop_at), LEAN_SAVES)
    orders = list(dict.fromkeys((order, in_ram, None)))
    return (
        order
        if len(orders) == 1
        else solvers.cheapest_order((stored, problem), orders, options, solvers.Work(work.limit_s, stop_at))
    )


def _set_aside_too_tight(search: solvers.HomeSearch, ordered: Problem, progress: Progress) -> bool:
    """Homes that fill RAM between steps leave no room for what packing needs: others then come first. Whether the best
    schedule found packs, as far as is known.
    """
    excess = 0
    for _ in range(LOOSER):
        on = search.best()
        placed, schedule = on_store(ordered, on), search.schedule(on)
        if schedule is None:
            return True
        _, plan = planning.packed(placed, schedule, search.stop_at, search.stop_at)
        excess = planning.ram_bytes(placed, plan) - placed.budget_bytes
        short = excess - (placed.budget_bytes - solvers.lower_bound_bytes(placed))
        if excess <= 0 or short <= 0 or not search.loosen(on, short):
            break
        progress(f"packing needs {format_bytes(excess)} more than the homes of state leave: others come first")
    return excess <= 0


def _cheaper_that_packs(
    search: solvers.HomeSearch, ordered: Problem, on: frozenset[int], placed: Placed, stop_at: float
) -> tuple[frozenset[int], Placed]:
    """`placed`, or what the search found with other homes, if that is cheaper and packs: where the best schedule for
    `on` did not, something dear had to do.
    """
    known, pack_until = search.known, max(stop_at, time.monotonic() + LEAST_SHARE * search.options.time_limit_s)
    cheaper = [s for s in known if s != on and known[s] < placed.schedule.proof.objective]
    for other in sorted(cheaper, key=lambda s: (known[s], len(s), sorted(s)))[:PACKED_INSTEAD]:
        schedule, problem = search.schedule(other), on_store(ordered, other)
        if schedule is None:
            continue
        schedule, plan = planning.packed(problem, schedule, pack_until, pack_until)
        fits = planning.ram_bytes(problem, plan) <= problem.budget_bytes
        if fits and schedule.proof.objective < placed.schedule.proof.objective:  # moves cost something
            return other, Placed(problem=problem, schedule=schedule, plan=plan, remark=_remark(problem))
    return on, placed


def _other_homes(
    search: solvers.HomeSearch,
    ordered: Problem,
    solver: str,
    options: SolveOptions,
    on: frozenset[int],
    placed: Placed,
    progress: Progress,
) -> tuple[frozenset[int], Placed, bool]:
    """`placed`, with `on` on the store, or what is cheaper: until it is proven that nothing is, or the time is up.
    Last, whether the search ended by itself.
    """
    is_complete = True
    for _ in range(SOLVES):
        other, more = None, True
        while other is None and more:
            more = search.run(MORE_SHARE * options.work_limit_s)
            other = search.untried()
        left_s = search.stop_at - time.monotonic()
        if other is None or search.done:
            break
        if left_s < LEAST_SHARE * options.time_limit_s:
            is_complete = False
            break
        known = placed.schedule.proof.objective
        proven = replace(options, proven=math.ceil(search.bound), cuts=search.cuts)
        better = replace(proven, fixed_order=True, time_limit_s=left_s, to_beat=known)
        search.solved[other] = math.inf
        progress(f"trying {len(other)} tensors of state on the store")
        try:
            found = _placed(on_store(ordered, other), solver, better, progress, None)
        except (InfeasibleError, LimitError):
            continue
        if found.schedule.proof.objective < known:
            search.solved[other] = found.schedule.proof.objective
            on, placed = other, found
    search.run()  # what time is left is the bound's
    return on, placed, is_complete and time.monotonic() < search.stop_at


def _smallest_known(error: InfeasibleError | LimitError) -> float:
    smallest = error.details.get("min_budget_bytes")
    return float(smallest) if isinstance(smallest, int) else float("inf")


def _for_any_homes(placed: Placed, bound: int, gap: float, is_complete: bool) -> Placed:
    """`placed`, with the bound that holds for any homes; the search for homes and bound ended by itself or did not."""
    own, remark = placed.schedule.proof, [placed.remark] if placed.remark else []
    if own.bound > bound:
        remark.append(f"with these homes the gap is {own.gap():.3%}")
    return replace(placed, schedule=_proven(placed.schedule, bound, gap, is_complete), remark="; ".join(remark))


def _in_own_order(problem: Problem, on: frozenset[int], placed: Placed, order: tuple[int, ...] | None) -> Placed:
    """`placed`, solved under `order` with `on` on the store, as an answer to `problem`."""
    schedule, plan = placed.schedule, placed.plan
    if order is not None:
        schedule = solvers.restored(schedule, order)
        operators = tuple(
            replace(a, operator=None if a.operator is None else order[a.operator]) for a in plan.allocations
        )
        plan = replace(plan, allocations=operators)
    return replace(placed, problem=on_store(problem, on), schedule=schedule, plan=plan)


def _proven(schedule: Schedule, bound: int, gap: float, is_complete: bool) -> Schedule:
    """With the bound that holds for any homes, in place of the one for those of this schedule."""
    proof = schedule.proof
    status = Status.FEASIBLE if is_complete and proof.status is not Status.LIMIT else Status.LIMIT
    least = min(bound, proof.objective)
    proven: Proof = replace(
        proof,
        bound=least,
        schedule_class=solvers.CLASS + ANY_HOMES,
        method=f"{proof.method.partition('; bound: ')[0]}; bound: homes of state left open",
    )
    if proven.gap() <= solvers.ROUNDING:
        status = Status.OPTIMAL
    elif proven.gap() <= gap:
        status = Status.FEASIBLE
    return replace(schedule, proof=replace(proven, status=status))
