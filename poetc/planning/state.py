"""Where each tensor of state lives between steps: in RAM, or on the store.

State that lives on the store costs a transfer in, and a transfer out if it is trained. State in RAM costs its bytes
throughout the step. `auto` leaves all of it in RAM where keep-all fits. Elsewhere `solvers.PlacementSearch` chooses,
and proves a bound that no choice can beat.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from poetc import solvers
from poetc.devices import format_bytes, format_gap, format_ns
from poetc.errors import InfeasibleError, LimitError, UsageError, format_count
from poetc.planning.alternatives import smallest_of
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.order import Order, in_order, with_own_order
from poetc.planning.plain import ENGINE, effort_of
from poetc.planning.planner import Planner, Reduction
from poetc.planning.settings import PLAIN, STATE
from poetc.planning.smallest_ram import RamSearch, search_share_s
from poetc.planning.solution import Solution, cost_of_computing_once
from poetc.scheduling import (
    PageIn,
    Paging,
    Problem,
    TensorSpec,
    for_recent,
    keep_all_peak_bytes,
    movable_state,
    on_store,
    stored_state,
    unchanged_state,
    without_moves,
)
from poetc.scheduling.schedule import Schedule, Status, first_executions
from poetc.scheduling.scope import ANY, Option, Repetition, Scope
from poetc.solvers.poetc.options import Ladders

State = Literal["auto", "ram", "store"]
STATES: tuple[str, ...] = get_args(State)

Placement = frozenset[int]  # the first versions of state tensors that live on the store
IN_RAM: Placement = frozenset()


def state_fits(problem: Problem) -> bool:
    """Whether all state that may live on the store fits in RAM at once."""
    state_bytes = sum(t.size_bytes for t in problem.tensors if t.initial and t.pageable)
    return state_bytes <= problem.budget_bytes - problem.base_bytes


class StatePlacement(Reduction[Placement]):
    """The place of each tensor of state between steps. `mode`: "auto" chooses; "ram" and "store" place all alike."""

    name = "state"
    scoped = True
    noun = "placement of state"

    def __init__(self, mode: str = "auto") -> None:
        if mode not in STATES:
            raise UsageError(f"--state {mode}: there are {', '.join(STATES)}")
        self.mode = mode
        self.begun: dict[tuple[Problem, bool], _Begun] = {}  # by problem, and whether its order is fixed
        self.ladders: Ladders = {}

    def is_open(self, problem: Problem) -> bool:
        """Whether state on the store can be of any use."""
        size = sum(problem.tensors[chain[0]].size_bytes for chain in movable_state(problem))
        if size == 0 or keep_all_peak_bytes(problem) <= problem.budget_bytes:
            return False
        budget_bytes = problem.budget_bytes
        return size >= STATE.worth_a_choice * budget_bytes or solvers.lower_bound_bytes(problem) > budget_bytes

    def frugal(self, problem: Problem) -> Problem:
        if self.mode == "store":
            return everything_on_store(problem)
        return _roomier(problem) if self.mode == "auto" else problem

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Placement]:
        """All on the store, where most fits; frozen state alone; and all in RAM.

        `solvers.PlacementSearch` proposes those between.
        """
        known = None if incumbent is None else self.option(incumbent)
        if known is not None:
            yield known
        yield everything(problem)
        yield unchanged_state(problem)
        yield IN_RAM

    def fix(self, problem: Problem, choice: Placement) -> Problem:
        return on_store(problem, choice)

    def chosen(self, problem: Problem, solved: Problem) -> Placement | None:
        """None where the mode places all state alike."""
        return placement_of(problem, solved) if self.mode == "auto" else None

    def restore(self, problem: Problem, choice: Placement, solution: Solution) -> Solution:
        """A scope that names a placement, or any, stays."""
        named = solution.proof.scope.choice(self.name) is not None
        restored = solution.with_choice(self.name, choice) if named else super().restore(problem, choice, solution)
        return replace(restored, problem=self.fix(problem, choice))

    def realise(self, problem: Problem, solution: Solution) -> Solution:
        """With the placement that the solution's problem has."""
        if self.mode != "auto":
            return solution
        return solution.with_choice(self.name, placement_of(problem, solution.problem))

    @classmethod
    def scope_words(cls, option: Option) -> str:
        return f"{'any' if option is ANY else 'this'} {cls.noun}"

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        problem, proof = solution.problem, solution.proof
        stored = stored_state(problem)
        size = sum(problem.tensors[chain[0]].size_bytes for chain in stored)
        live = f"{format_count(len(stored), 'tensor')} ({size:,} bytes) {'lives' if len(stored) == 1 else 'live'}"
        parts = [f"state: {live} on the store, the others in RAM"] if stored else []
        if solution.placement_bound is not None and proof.objective > 0:
            gap = max(0.0, (proof.objective - solution.placement_bound) / proof.objective)
            parts.append(f"with this placement of state the gap is {format_gap(gap)}")
        return "; ".join(parts)

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        if self.mode == "ram":
            return inner.lower_bound_bytes(problem)
        stored = inner.lower_bound_bytes(everything_on_store(problem))
        return stored if self.mode == "store" else min(stored, inner.lower_bound_bytes(problem))

    def at_once(self, problem: Problem, planner: Planner) -> list[tuple[Placement, Schedule]]:
        """Schedules that are found at once, the cheapest one first.

        All state is on the store, frozen state alone, none, or all but the state that saves the most in RAM.
        """
        placements = (*self.propose(problem, None), *solvers.thrifty_placements(problem))
        firsts = list[tuple[Placement, Schedule]]()
        for on in dict.fromkeys(placements):
            placed = self.fix(problem, on)
            fits = solvers.lower_bound_bytes(placed) <= placed.budget_bytes
            first = planner.at_once(placed) if fits else None
            firsts += [] if first is None else [(on, first)]
        return sorted(firsts, key=lambda known: (known[1].proof.objective, len(known[0])))

    def soonest(self, problem: Problem, planner: Planner) -> Problem:
        firsts = self.at_once(problem, planner) if self.mode == "auto" and self.is_open(problem) else []
        return self.fix(problem, firsts[0][0]) if firsts else self.usual(problem)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        """The problem has all state in RAM."""
        if self.mode != "auto" or planner.solver != ENGINE:
            alike = self.usual(problem)
            solution = _with(planner, alike).solve(alike)
            return solution if self.mode != "auto" else self._placed_alike(problem, alike, solution)
        if not self.is_open(problem):
            least_bytes = planner.lower_bound_bytes(problem)
            try:
                return self._placed_alike(problem, problem, self._going_on(problem, planner, least_bytes))
            except InfeasibleError:
                everywhere = everything_on_store(problem)
                if solvers.lower_bound_bytes(everywhere) > problem.budget_bytes or not movable_state(problem):
                    raise
            planner.progress("nothing fits with all state in RAM")
        return _OpenPlacement(self, problem, planner.part(_left_s(planner))).solve()

    def _going_on(self, problem: Problem, planner: Planner, least_bytes: int) -> Solution:
        """The solution with all state in RAM. A second search goes on where the first one ended, in its order."""
        key, inner = (problem, planner.options.fixed_order), _with(planner, problem, least_bytes)
        known = self.begun.get(key)
        if known is None or known.search is not None or inner.warm_start.to_beat is not None:
            solution = inner.solve(problem)
        else:
            part = inner.part(inner.left_s, fixed_order=True, seed=inner.options.seed + 1)
            part = part.with_warm_start(start=known.schedules[IN_RAM], proven=known.proven[IN_RAM])
            solution = with_own_order(known.order, part.solve(in_order(problem, known.order)))
        self.begun[key] = _ended(problem, solution)
        return solution

    def usual(self, problem: Problem) -> Problem:
        """All state in one place, for solvers that cannot choose: in RAM if that can fit, else on the store.

        Raises UsageError where the mode asks for a store that is not there.
        """
        if self.mode == "store":
            if problem.paging is Paging.NONE:
                raise UsageError("--state store: there is no store, or paging is off")
            return everything_on_store(problem)
        fits = solvers.lower_bound_bytes(problem) <= problem.budget_bytes
        return problem if self.mode == "ram" or fits else _roomier(problem)

    def _placed_alike(self, problem: Problem, alike: Problem, solution: Solution) -> Solution:
        return self.restore(problem, placement_of(problem, alike), solution)


def everything(problem: Problem) -> Placement:
    """All state that can live on the store."""
    return frozenset(chain[0] for chain in movable_state(problem))


def everything_on_store(problem: Problem) -> Problem:
    tensors = _everything_stored(problem)
    return problem if tensors is problem.tensors else replace(problem, tensors=tensors)


@for_recent
def _everything_stored(problem: Problem) -> tuple[TensorSpec, ...]:
    return on_store(problem, everything(problem)).tensors


def placement_of(problem: Problem, placed: Problem) -> Placement:
    """The state of `problem`, all in RAM, that lives on the store in `placed`."""
    return everything(problem) & frozenset(chain[0] for chain in stored_state(placed))


def read_most(known: Solution, room_bytes: int) -> Placement:
    """Frozen state on the store that `known` spends most on reading for its bytes, as much as `room_bytes` hold.

    Of equals the last ones: they are read near the loss, where there is the least RAM to read ahead.
    """
    problem = known.problem
    reads = Counter(action.tensor for action in known.schedule.actions if isinstance(action, PageIn))
    streamed = {t for o in problem.operators for t in o.reads_store}
    frozen = [chain[0] for chain in stored_state(problem) if len(chain) == 1 and chain[0] not in streamed]

    def saved_share(t: int) -> float:
        tensor = problem.tensors[t]
        return reads[t] * problem.objective.cost(tensor.page_in_pj, tensor.page_in_ns) / tensor.size_bytes

    chosen = set[int]()
    for t in sorted((t for t in frozen if reads[t]), key=lambda t: (-saved_share(t), -t)):
        if problem.tensors[t].size_bytes <= room_bytes:
            room_bytes -= problem.tensors[t].size_bytes
            chosen.add(t)
    return frozenset(chosen)


def _roomier(problem: Problem) -> Problem:
    """With all state in RAM, or all of it on the store.

    Where less RAM may do, if there is the time, the room on the store and the leave to write to it.
    """
    stored = everything_on_store(problem)
    less = solvers.lower_bound_bytes(stored) < solvers.lower_bound_bytes(problem)
    return stored if less and solvers.has_schedule(stored) else problem


def _with(planner: Planner, problem: Problem, least_bytes: int | None = None) -> Planner:
    """The inner planner, for `problem` with its state placed.

    `least_bytes`: below it no other placement works either, which an error then says.
    """
    known = planner.smallest_ram
    own = known if known is not None and known.problem == problem else None
    if own is None and least_bytes is not None:
        own = RamSearch(problem, search_share_s(planner.options.time_limit_s), least_bytes=lambda: least_bytes)
    return planner.inner.knowing(own)


def _left_s(planner: Planner) -> float:
    """The rest of the time limit, whose whole the work limit was, or a little more."""
    return max(planner.left_s, min(STATE.floor_s, STATE.floor_share * planner.options.work_limit_s))


@dataclass(slots=True)
class _Begun:
    """A solve that has ended: another one of the same problem goes on there, under the order that was chosen.

    `search`: that for a placement, where one is open. `schedules` and `proven`: by placement, the schedule without
    moves and the bound, under that order.
    """

    order: Order
    search: solvers.PlacementSearch | None = None
    schedules: dict[Placement, Schedule] = field(default_factory=dict)
    proven: dict[Placement, int] = field(default_factory=dict)


def _ended(problem: Problem, solution: Solution) -> _Begun:
    """The knowledge that a later solve with all state in RAM begins with."""
    schedule, scope = without_moves(problem, solution.schedule), solution.proof.scope
    order = first_executions(schedule.actions)
    about_it = scope.order == order and scope.repetition is Repetition.ANY and not scope.choices
    place = tuple(sorted(range(len(order)), key=order.__getitem__))
    proven = solution.proof.bound if about_it else 0
    return _Begun(order, None, {IN_RAM: solvers.restored(schedule, place)}, {IN_RAM: proven})


class _OpenPlacement:
    """A solve with the placement open, under one order of operators: first the placement, then the schedule."""

    def __init__(self, reduction: StatePlacement, problem: Problem, planner: Planner) -> None:
        self.reduction, self.problem, self.planner = reduction, problem, planner
        self.options, self.limit_s = planner.options, planner.options.time_limit_s
        self.order: Order = None
        self.least_bytes = 0
        self.begun: _Begun

    def solve(self) -> Solution:
        problem, planner = self.problem, self.planner
        if problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns:
            return self.reduction.restore(problem, IN_RAM, _with(planner, problem).solve(problem))
        self.least_bytes = planner.lower_bound_bytes(problem)
        if self.least_bytes > problem.budget_bytes:  # the error says which budget works
            roomier = _roomier(problem)
            solution = _with(planner, roomier, self.least_bytes).solve(roomier)
            return self.reduction.restore(problem, placement_of(problem, roomier), solution)
        planner.progress("choosing where state lives")
        search = self._search()
        try:
            return self._placed(search)
        finally:
            search.rest()

    def _placed(self, search: solvers.PlacementSearch) -> Solution:
        planner, ordered = self.planner, search.problem
        search.run(STATE.choice_share * self.options.work_limit_s, until_settled=True)
        while search.least == math.inf and search.run(STATE.more_share * self.options.work_limit_s):
            pass  # with a placement that nothing was found for the solve below would find nothing either
        if not self.options.is_quick:
            search.spread(max(search.stop_at, time.monotonic() + planner.within_s(STATE.least_share * self.limit_s)))
        packs = self._set_aside_too_tight(search, ordered)
        # A placement without a schedule so far may still be possible: the one that a relaxation suggests, all on the
        # store, or all in RAM.
        attempts = dict.fromkeys((search.best(), *self.reduction.propose(ordered, None)))
        if search.least == math.inf and search.suggested is not None:
            attempts = {search.suggested: None, **attempts}
        errors: list[InfeasibleError | LimitError] = []
        for on in attempts:
            try:
                solution = self._solved(search, ordered, on, PLAIN.solve_share if packs else PLAIN.tight_share)
            except (InfeasibleError, LimitError) as error:
                errors.append(error)
                planner.progress(f"nothing found with {format_count(len(on), 'tensor')} of state on the store")
                search.solved[on] = math.inf
                continue
            search.stop_at, search.solved[on] = planner.stop_at, solution.cost
            return self._improved(search, ordered, on, solution)
        raise self._nothing_found(search, errors)

    def _report(self, event: solvers.Event) -> None:
        order = in_order(self.problem, self.order).order
        self.planner.report(self.problem, replace(event, order=order), any_state=True)

    def _search(self) -> solvers.PlacementSearch:
        """The search for a placement: a new one under the best order, or that of an earlier solve."""
        stop_at = self.planner.started + STATE.stop_share * self.limit_s
        key = self.problem, self.options.fixed_order
        begun = self.reduction.begun.get(key)
        search = None if begun is None else begun.search
        if begun is None or search is None:
            first = self._at_once()
            clear = None if first is None or self.options.fixed_order else self._clear_order(*first)
            if not self.options.fixed_order and clear is None:
                self.order = self._best_order(self.planner.started + STATE.stop_share * self.limit_s / 2)
                first = first if self.order is None else None
            search = solvers.PlacementSearch(in_order(self.problem, self.order), self.options, stop_at, self._report)
            known = clear or first
            if known is not None:
                search.take(*known)
            begun = self.reduction.begun[key] = _Begun(self.order, search)
        else:
            self.options = replace(self.options, seed=self.options.seed + 1)  # runs of the race are others than before
            search.go_on(self.options, stop_at, self._report)
            for on, schedule in begun.schedules.items():
                search.take(on, schedule)
        self.order, self.begun = begun.order, begun
        return search

    def _at_once(self) -> tuple[Placement, Schedule] | None:
        """Something to show before orders are searched."""
        firsts = self.reduction.at_once(self.problem, self.planner)
        if not firsts:
            return None
        for placement, first in firsts:
            if self.planner.keep_packed(self.reduction.fix(self.problem, placement), first) is not None:
                break
        cost, once = firsts[0][1].proof.objective, cost_of_computing_once(self.problem)
        self._report(solvers.Event(stage="at once", objective=cost, bound=once))
        return firsts[0]

    def _clear_order(self, placement: Placement, first: Schedule) -> tuple[Placement, Schedule] | None:
        """Take the order in which a schedule with that placement costs far less than `first`, where there is one."""
        placed = self.reduction.fix(self.problem, placement)
        clear = solvers.clear_order(placed, first.proof.objective, self.options)
        if clear is None:
            return None
        self.order, schedule = clear
        self.planner.keep_packed(in_order(placed, self.order), schedule)
        once = cost_of_computing_once(self.problem)
        self._report(solvers.Event(stage="at once", objective=schedule.proof.objective, bound=once))
        return placement, schedule

    def _best_order(self, stop_at: float) -> Order:
        """For the placement to come: an order good for all state on the store need not be for all of it in RAM."""
        problem, options = self.problem, self.options
        work = solvers.Work(STATE.order_share * options.work_limit_s, stop_at)
        stored = everything_on_store(problem)
        order = solvers.best_order(stored, options, work, STATE.low_traffic_saves)
        if solvers.lower_bound_bytes(problem) > problem.budget_bytes:
            return order
        in_ram = solvers.best_order(problem, options, solvers.Work(work.limit_s, stop_at), STATE.low_traffic_saves)
        orders = list(dict.fromkeys((order, in_ram, None)))
        if len(orders) == 1:
            return order
        return solvers.cheapest_order((stored, problem), orders, options, solvers.Work(work.limit_s, stop_at))

    def _set_aside_too_tight(self, search: solvers.PlacementSearch, ordered: Problem) -> bool:
        """A placement that fills RAM between steps leaves no room that packing needs: others then come first.

        True if the best schedule found packs, as far as is known.
        """
        excess = 0
        for _ in range(STATE.looser):
            on = search.best()
            placed, schedule = self.reduction.fix(ordered, on), search.schedule(on)
            if schedule is None:
                return True
            schedule, plan = packed(placed, schedule, search.stop_at, search.stop_at, effort_of(self.options))
            excess = ram_bytes(placed, plan) - placed.budget_bytes
            if excess <= 0 and self.planner.is_real:
                self.planner.keep(placed, schedule, plan)
            short = excess - (placed.budget_bytes - solvers.lower_bound_bytes(placed))
            if excess <= 0 or short <= 0 or not search.loosen(on, short):
                break
            self.planner.progress(f"packing needs {format_bytes(excess)} more than this placement of state leaves")
        return excess <= 0

    def _solved(self, search: solvers.PlacementSearch, ordered: Problem, on: Placement, solve_share: float) -> Solution:
        problem = self.reduction.fix(ordered, on)
        part = self.planner.part(_left_s(self.planner), fixed_order=True, seed=self.options.seed)
        proven = max(math.ceil(search.bound), self.begun.proven.get(on, 0))
        known = {"proven": proven, "cuts": search.cuts, "ladders": self.reduction.ladders}
        part = part.with_warm_start(start=search.schedule(on), **known)
        part = replace(part, solve_share=solve_share)
        if not on:  # `_improved` may claim the bound for this placement alone
            part = part.having(self.reduction, on)
        solution = _with(part, problem, self.least_bytes).solve(problem)
        proof = solution.proof
        if proof.scope.order == tuple(range(len(problem.operators))) and proof.scope.repetition is Repetition.ANY:
            self.begun.proven[on] = max(proof.bound, self.begun.proven.get(on, 0))
        self.begun.schedules[on] = without_moves(problem, solution.schedule)
        return self.reduction.restore(ordered, on, solution)

    def _improved(self, search: solvers.PlacementSearch, ordered: Problem, on: Placement, solved: Solution) -> Solution:
        """`solved`, or a cheaper one with another placement, with the bound for any."""
        search.take(on, self.begun.schedules[on])
        search.keep_in_ram()
        on, solution = self._cheaper_that_packs(search, ordered, on, solved)
        if solution is solved and not on and solution.proof.bound >= search.bound:
            return with_own_order(self.order, solution)
        is_complete = False
        if not self.options.is_quick:
            solution, is_complete = self._other_placements(search, ordered, solution)
        solution = self._for_any_placement(solution, math.ceil(search.bound), is_complete)
        return with_own_order(self.order, solution)

    def _cheaper_that_packs(
        self, search: solvers.PlacementSearch, ordered: Problem, on: Placement, solved: Solution
    ) -> tuple[Placement, Solution]:
        """`solved`, or the schedule that the search found with another placement, if that is cheaper and packs.

        Where the best schedule for `on` did not pack, a dearer one was taken.
        """
        known = search.known
        least_s = self.planner.within_s(min(PLAIN.late_s, STATE.least_share * self.limit_s))
        pack_until = max(search.stop_at, time.monotonic() + least_s)
        cheaper = [s for s in known if s != on and known[s] < solved.cost]
        for other in sorted(cheaper, key=lambda s: (known[s], len(s), sorted(s)))[: STATE.packed_instead]:
            schedule, problem = search.schedule(other), self.reduction.fix(ordered, other)
            if schedule is None:
                continue
            schedule, plan = packed(problem, schedule, pack_until, pack_until, effort_of(self.options))
            fits = ram_bytes(problem, plan) <= problem.budget_bytes
            if fits and schedule.proof.objective < solved.cost:  # moves cost something
                candidate = Solution(problem=problem, schedule=schedule, plan=plan)
                return other, self.reduction.restore(ordered, other, candidate)
        return on, solved

    def _other_placements(
        self, search: solvers.PlacementSearch, ordered: Problem, solution: Solution
    ) -> tuple[Solution, bool]:
        """`solution`, or a cheaper one: until it is proven that there is none, or the time is up.

        Second, whether the search ended by itself.
        """
        is_complete, options = True, self.options
        for _ in range(STATE.solves):
            other, more = None, True
            while other is None and more:
                more = search.run(STATE.more_share * options.work_limit_s)
                other = search.untried()
            left_s = search.stop_at - time.monotonic()
            if other is None or search.done:
                break
            if left_s < STATE.least_share * self.limit_s:
                is_complete = False
                break
            better = self.planner.part(left_s, fixed_order=True)
            known = {"cuts": search.cuts, "ladders": self.reduction.ladders}
            better = better.with_warm_start(proven=math.ceil(search.bound), to_beat=solution.cost, **known)
            search.solved[other] = math.inf
            self.planner.progress(f"trying {format_count(len(other), 'tensor')} of state on the store")
            problem = self.reduction.fix(ordered, other)
            try:
                candidate = better.inner.knowing(None).solve(problem)
            except (InfeasibleError, LimitError):
                continue
            if candidate.cost < solution.cost:
                search.solved[other] = candidate.cost
                solution = self.reduction.restore(ordered, other, candidate)
        search.run()  # the time that is left is the bound's
        return solution, is_complete and time.monotonic() < search.stop_at

    def _for_any_placement(self, solution: Solution, bound: int, is_complete: bool) -> Solution:
        """With the bound that holds for any placement, in place of the one for that of this schedule.

        `is_complete`: the search for placements and bound ended by itself.
        """
        own = solution.proof
        proven = replace(
            own,
            bound=solvers.bound_beside(bound, own.objective, "placement of state left open"),
            scope=Scope(order=tuple(range(len(self.problem.operators)))).with_choice("state", ANY),
            method=f"{own.method.partition('; bound: ')[0]}; bound: placement of state left open",
        )
        status = Status.FEASIBLE if is_complete and own.status is not Status.LIMIT else Status.LIMIT
        if proven.gap() <= solvers.ROUNDING:
            status = Status.OPTIMAL
        elif proven.gap() <= self.options.gap:
            status = Status.FEASIBLE
        narrower = own.bound if own.bound > bound else None
        return replace(solution.with_proof(replace(proven, status=status)), placement_bound=narrower)

    def _nothing_found(
        self, search: solvers.PlacementSearch, errors: list[InfeasibleError | LimitError]
    ) -> InfeasibleError | LimitError:
        """All on the store leaves the most RAM: where that is proven impossible, every placement is.

        That does not hold if time, writing or room on the store is short.
        """
        problem = self.problem
        limited = problem.deadline_ns is not None or problem.write_limit_bytes is not None
        if problem.store_capacity_bytes is not None:
            limited |= sum(t.footprint_bytes for t in problem.tensors if t.pageable) > problem.store_capacity_bytes
        nearest = min(errors, key=smallest_of)
        if all(isinstance(error, InfeasibleError) for error in errors) and not limited:
            return nearest
        text, within = str(nearest), ""
        if problem.deadline_ns is not None:
            within = f" within the deadline of {format_ns(problem.deadline_ns)}"
        if search.impossible:
            proven = "proven under this order, wherever state lives"
            why = f"no schedule fits in {problem.budget_bytes} bytes{within} ({proven})"
        else:
            why = f"found no schedule for {problem.budget_bytes} bytes{within}, nor a proof that there is none"
        if search.impossible or isinstance(nearest, InfeasibleError):  # which was about some placements
            text = "; ".join((why, *text.split("; ")[1:]))
            if problem.deadline_ns is not None and "--deadline" not in text:
                text += "; allow a longer --deadline or a larger --budget"
        error: InfeasibleError | LimitError
        error = (InfeasibleError if search.impossible else LimitError)(text, details=nearest.details)
        error.__cause__ = nearest
        return error
