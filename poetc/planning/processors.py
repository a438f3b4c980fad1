"""The processor of each operator, where a problem names several.

A placement makes the problem plain: the processors then work one at a time, and the engine decides about recomputation
and paging as always. Its actions are then made to run side by side. The bound is that of a relaxation in which an
operator costs no more than a weighted share of each processor (`poetc.solvers.processors.bounds`). Small problems are
searched to the end besides (`poetc.solvers.processors.exact`).
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poetc import solvers
from poetc.devices.units import format_ns
from poetc.errors import InfeasibleError, LimitError, UnsupportedProblemError, format_count
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.kernels import Kernels
from poetc.planning.overlap import Overlap
from poetc.planning.placements import ranked
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner, Reduction
from poetc.planning.progress import BestSoFar
from poetc.planning.settings import PLAIN, WAYS
from poetc.planning.solution import Solution, cost_of_computing_once, everything, least_cost, status_of
from poetc.planning.state import StatePlacement, read_most, state_fits
from poetc.scheduling import (
    Action,
    Compute,
    Free,
    Move,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Schedule,
    ScheduleError,
    Trace,
    complete,
    for_recent,
    keep_all_decisions,
    keep_all_peak_bytes,
    verify,
    verify_parts,
    without_moves,
)
from poetc.scheduling.schedule import Proof, SolveOptions, Status
from poetc.scheduling.scope import ANY, Option, Repetition, Scope
from poetc.solvers.processors import (
    Placement,
    Relaxed,
    are_equal,
    as_ready,
    can_search,
    critical_path_ns,
    estimate,
    is_roomy,
    one_after_another,
    placed,
    relaxed,
    repeated_elsewhere,
    search,
    side_by_side,
    transfers_apart,
    without_long_transfers,
)

BOUND_SHARE = 0.35  # of the time, for the relaxation
PLACEMENTS = 3  # that are solved for
APART_SHARE = 0.75  # of the time that is left, and of the work limit: for transfers beside the work
APART_ENOUGH = 0.02  # of the cost, above a bound for any processors: other shares of the transfers are not tried
LEAST_SHARE = 0.02  # of the time, for a placement
ATTEMPTS = 6  # to pack
ASIDE_SHARE = 0.05  # of the budget, at most, which is left for operators side by side
ASIDES = (0.04, 0.01, 0.1)  # of the budget, for plans on equal processors, whose placements differ in nothing
MOVES_COST = 0.002  # of the cost: where moves cost more, a list is tried that leaves more room
MOVES_ROOM = 0.01  # of the budget, for that
MORE_ROOM = 0.02  # of the budget: at most as much less has each of the first lists than the one before
CAREFUL = 3  # lists
MOVES_SHARE = 0.5  # of the time that is left, at least a second: to pack a list, with moves if need be
HINT_SHARE = 0.1  # of the time, for lists of another way's steps: the last attempt to pack may end later
ROOMY_BYTES = 2**50
LIST_SHARES = (1.0, 0.995)  # of the budget: a list for less RAM may wait less
KEEP_SHARE = 0.01  # of the budget: less room than that is not worth another list
KEEP_S = 0.5  # for another list with more state in RAM: a large one gets one attempt to pack
SEARCH_SHARE = 0.25  # of the work limit, for exact search: half of it with every operator once; of the time, at least
NODE_S = 0.0001  # of work, a node of it
SEARCHED = "exact search of placements and orders"
LISTED = "operators side by side"  # a stage
TWICE = "operators on two processors, each for its own readers"


class Processors(Reduction[Placement]):
    """Where each operator runs. Every option gives the same bits."""

    name = "processors"
    scoped = True
    noun = "processors"

    def is_open(self, problem: Problem) -> bool:
        return bool(problem.processors)

    def relax(self, problem: Problem) -> Problem | None:
        return relaxed(problem).problem if problem.processors else problem

    def usual(self, problem: Problem) -> Problem:
        """On the main processor: RAM does not depend on the processor, but for workspaces side by side."""
        if not problem.processors:
            return problem
        return replace(_on_main(problem), budget_bytes=problem.budget_bytes, deadline_ns=problem.deadline_ns)

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Placement]:
        """The best by simulation of everything once: rules, and moves of single operators."""
        del incumbent
        options = SolveOptions()
        yield from ranked(problem, options, time.monotonic() + options.time_limit_s)

    def fix(self, problem: Problem, choice: Placement) -> Problem:
        return placed(problem, choice) if problem.processors else problem

    @classmethod
    def scope_words(cls, option: Option) -> str:
        return f"any {cls.noun}" if option is ANY else f"this placement on {cls.noun}"

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        problem = solution.problem
        if not problem.processors:
            return ""
        trace, actions = verify(problem, solution.schedule), solution.schedule.actions
        counts = Counter(action.processor for action in actions if isinstance(action, Compute))
        transfers = any(isinstance(action, PageIn | PageOut) for action in actions)
        parts = [
            f"{p.name} {_work_words(counts[k], transfers=transfers and not k)}, busy {format_ns(busy)}"
            for k, (p, busy) in enumerate(zip(problem.processors, trace.busy_ns, strict=True))
        ]
        spent = f"{format_count(trace.hand_overs, 'hand-over')} in {format_ns(trace.time_ns)}"
        return f"processors: {'; '.join(parts)}; {spent}"

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        return inner.lower_bound_bytes(self.usual(problem))

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if not problem.processors:
            return planner.inner.solve(problem)
        return _Side(self, problem, planner).solve()


class _Side:
    def __init__(self, reduction: Processors, problem: Problem, planner: Planner) -> None:
        self.reduction, self.problem, self.planner = reduction, problem, planner
        self.limit_s = planner.options.time_limit_s
        self.transfers_ns = 0  # of a schedule that was found

    @functools.cached_property
    def relaxed(self) -> Relaxed:
        return relaxed(self.problem, self.transfers_ns)

    def solve(self) -> Solution:
        problem, planner = self.problem, self.planner
        if planner.solver != ENGINE and solvers.info(planner.solver).processors:
            schedule = solvers.solve(problem, planner.solver, planner.options)
            solution = self._packed(problem, schedule.actions, _placement(problem, schedule), schedule.proof)
            if solution is None:
                raise LimitError(f"{planner.solver}: its schedule does not pack into {problem.budget_bytes} bytes")
            proof = solution.proof
            return solution.with_proof(
                replace(proof, bound=solvers.bound_beside(proof.bound, solution.cost, proof.method))
            )
        if planner.solver != ENGINE:
            raise UnsupportedProblemError(f"{planner.solver}: places operators on one processor alone")
        best = self._apart() if (is_paged := not state_fits(problem)) else None
        if best is not None and best.cost * (1 - APART_ENOUGH) <= self._simple().bound:
            return self._searched(self._proven(best, self._simple()))
        is_short, is_equal = keep_all_peak_bytes(problem) > problem.budget_bytes, are_equal(problem)
        # On equal processors the longest chain mostly proves more than divided work. Schedules come first there.
        proof = self._simple() if is_equal else self._bound()
        errors: list[InfeasibleError | LimitError] = []
        placements = ranked(problem, planner.options, planner.stop_at) if best is None or planner.left_s > 0 else []
        choices: list[tuple[Placement, float | None]] = [(choice, None) for choice in placements[:PLACEMENTS]]
        if placements and is_short and is_equal:
            choices = [(placements[0], share) for share in ASIDES]
        tries, least_failed = len(choices), math.inf
        choices += [(choice, 0.0) for choice in placements[:1]]  # all of the budget, where less left no schedule
        for_search_s = SEARCH_SHARE * self.limit_s if can_search(problem) else 0.0
        for n, (choice, aside) in enumerate(choices):
            left_s = (planner.left_s - for_search_s) / max(1, tries - n)
            if best is not None and (n == tries or left_s <= 0 or self._is_enough(best, proof)):
                break
            if aside is not None and aside >= least_failed:
                continue
            try:
                plain = self._plain(choice, planner.inner.part(max(left_s, LEAST_SHARE * self.limit_s)), aside)
            except (InfeasibleError, LimitError) as error:
                errors.append(error)
                least_failed = math.inf if aside is None else aside
                continue
            same_actions = [choice]
            if n == 0 and aside is None and is_short:
                same_actions = list(dict.fromkeys((choice, *placements)))  # the main processor alone is one of them
            fixed = planner.inner.fixed(problem, plain)
            solution = self._cheapest(fixed, plain, same_actions)
            if solution is None:
                errors.append(LimitError("the actions do not fit beside each other"))
            elif best is None or solution.cost < best.cost:
                best = solution
        if not is_paged and not (best is not None and self._is_enough(best, proof)):  # transfers are few
            candidates = [s for s in (best, self._apart()) if s is not None]
            best = min(candidates, key=lambda s: s.cost, default=None)
        if best is None:
            raise errors[-1]  # it names the budget that was asked for
        if is_equal and not self._is_enough(best, proof):
            proof = self._bound()
        return self._searched(self._proven(best, proof))

    def from_one(self, in_turn: Solution) -> Solution | None:
        """The actions of a schedule for one processor in one of the best placements; None if they fit in none.

        Where no time is left, rules give the placements.
        """
        planner = self.planner
        fixed = planner.fixed(self.problem, in_turn)
        if planner.left_s > 0 and are_equal(fixed):
            placements, stop_at = [as_ready(fixed)], time.monotonic() + planner.within_s(HINT_SHARE * self.limit_s)
        elif planner.left_s > 0:
            placements, stop_at = ranked(fixed, planner.options, planner.stop_at)[:PLACEMENTS], planner.stop_at
        else:
            late_s = planner.within_s(WAYS.late_share * self.limit_s)
            placements, stop_at = [as_ready(fixed)], time.monotonic() + late_s
        packed: Solution | None = None
        for steps in (self._roomier(fixed, in_turn, stop_at), in_turn):
            packed = packed or (None if steps is None else self._cheapest(fixed, steps, placements, stop_at=stop_at))
        if packed is None:
            return None
        return packed.with_scope(in_turn.proof.scope.with_choice(Processors.name, ANY))

    def _roomier(self, fixed: Problem, in_turn: Solution, stop_at: float) -> Solution | None:
        """The steps of `in_turn` with room for the stacks of all processors and for a list; None where none are known.

        Steps that fill the RAM fit on no second stack. With a little more room a list waits less.
        """
        own = in_turn.problem
        less_bytes = fixed.base_bytes - own.base_bytes + int(MOVES_ROOM * own.budget_bytes)
        actions = without_moves(own, in_turn.schedule).actions
        room_bytes = own.budget_bytes - less_bytes
        if not any(isinstance(s, PageIn | PageOut) for s in actions):
            return None
        roomier = solvers.in_less_ram(replace(own, budget_bytes=room_bytes), actions, stop_at)
        return None if roomier is None else replace(in_turn, schedule=replace(in_turn.schedule, actions=roomier))

    def _searched(self, best: Solution) -> Solution:
        """`best`, or a cheaper one, with the proof of exact search as far as that comes."""
        problem = best.problem
        if best.proof.status is not Status.OPTIMAL and not any(t.initial == "store" for t in problem.tensors):
            for actions, trace in repeated_elsewhere(problem, self.problem):
                if _cost_of(problem, trace) < best.cost:
                    better = self._as_listed(best, actions, TWICE)
                    if better is not None and better.cost < best.cost:
                        best = better
        if best.proof.status is Status.OPTIMAL or not can_search(problem):
            return best
        self.planner.progress("searching all placements and orders")
        nodes = int(0.5 * SEARCH_SHARE * self.planner.options.work_limit_s / NODE_S)
        scope = replace(best.scope.with_choice(Processors.name, ANY), order=ANY)
        if is_roomy(problem) and not any(Kernels.option(best) or ()) and _fastest_are_cheapest(self.problem):
            scope = everything()
        least: dict[Repetition, int] = {}
        for once in (True, False):
            # The limit of nodes ends it. It comes last, so that a slow machine may take all time that is left.
            stop_at = time.monotonic() + (0.5 if once else 1.0) * max(0.0, self.planner.left_s)
            outcome = search(problem, best.cost, nodes, once=once, stop_at=stop_at)
            if outcome.actions is not None:
                best = self._as_listed(best, outcome.actions) or best
            if outcome.is_complete:
                least[Repetition.ONCE if once else Repetition.ANY] = outcome.cost
        counts = Counter(s.operator for s in best.schedule.actions if isinstance(s, Compute))
        if max(counts.values()) > 1:
            least.pop(Repetition.ONCE, None)
        for repetition in (Repetition.ANY, Repetition.ONCE):
            if least.get(repetition, 0) > best.proof.bound:
                return self._exact(best, replace(scope, repetition=repetition), least[repetition])
        return best.with_proof(replace(best.proof, status=self._status(best.cost, best.proof.bound)))

    def _as_listed(self, best: Solution, actions: tuple[Action, ...], origin: str = SEARCHED) -> Solution | None:
        """The solution with these actions, as they are, and the bound of `best`; None if they do not pack."""
        problem = best.problem
        packed = self._in_memory(problem, actions, verify_parts([(problem, actions)]), best.proof)
        if ram_bytes(problem, packed.plan) > problem.budget_bytes:
            return None
        named = replace(packed.with_proof(replace(packed.proof, method=origin)), choices=best.choices)
        return self._proven(named.with_choice(Processors.name, _placement(problem, packed.schedule)), best.proof)

    def _exact(self, best: Solution, scope: Scope, least: int) -> Solution:
        """With `least` as the bound."""
        proof, bound = best.proof, solvers.bound_beside(least, best.cost, SEARCHED)
        status = self._status(best.cost, bound)
        method = f"{proof.method.partition('; bound: ')[0]}; bound: {SEARCHED}"
        return best.with_proof(replace(proof, bound=bound, status=status, scope=scope, method=method))

    def _bound(self) -> Proof:
        """A bound for any placement; the relaxation may run out of time, which leaves the simple one."""
        relaxed, simple = self.relaxed, self._simple()
        if relaxed.problem is None:
            return simple
        self.planner.progress("a bound for any processors")
        seconds = BOUND_SHARE * min(self.limit_s, self.planner.left_s)
        if seconds <= 0:
            return simple
        part = replace(self.planner.inner.part(seconds), relaxed=self.planner.relaxed | {Processors.name}).knowing(None)
        try:
            proof = part.solve(relaxed.problem).proof
        except LimitError:
            return simple
        if proof.bound < simple.bound:
            return simple
        return replace(proof, method=f"{proof.method}, weighted shares of processors")

    def _simple(self) -> Proof:
        """A bound on every schedule: divided work, critical path, or parts around one operator."""
        least, method = self.relaxed.least, "work and hand-overs divided among processors, critical path"
        around = self._around_loss()
        if around > least:
            least, method = around, "parts of the step around one operator"
        return Proof(status=Status.LIMIT, objective=least, bound=least, scope=everything(), method=method)

    def _apart(self) -> Solution | None:
        """With the transfers of the first processor beside the work of another one; None where nothing is paged.

        A workspace counts on beside a transfer. So the schedule is one for a smaller budget, which helps to pack, too.
        """
        problem, planner = self.problem, self.planner
        fits = keep_all_peak_bytes(problem) <= problem.budget_bytes
        apart = None if fits or planner.left_s <= 0 else transfers_apart(problem)
        if apart is None:
            return None
        asked, placement = apart
        if cost_of_computing_once(asked) >= planner.best.packed_cost(problem):
            return None  # one processor computes: hiding every transfer would not be enough
        least = ([o.workspace_bytes, *(v.workspace_bytes for v in o.low_workspace)] for o in problem.operators)
        aside_bytes = max(map(min, least))
        planner.progress("transfers beside the work of another processor")
        asked = replace(asked, budget_bytes=asked.budget_bytes - aside_bytes)
        part = planner.inner.part(APART_SHARE * planner.left_s, work_limit_s=APART_SHARE * planner.options.work_limit_s)
        one_share = tuple(Overlap(one_share=True) if isinstance(r, Overlap) else r for r in part.reductions)
        best: Solution | None = None
        for chain in (replace(part, reductions=one_share), part):
            try:
                plain = self._steps(chain, asked)
            except (InfeasibleError, LimitError):
                return best
            self.transfers_ns = transfers_ns(plain.problem, plain.schedule.actions)
            packed = self._cheapest(planner.inner.fixed(problem, plain), plain, (placement,), shares=LIST_SHARES)
            packed = None if packed is None else self._with_state_kept(packed)
            if packed is not None and (best is None or packed.cost < best.cost):
                best = packed
            if planner.left_s <= 0 or (best is not None and best.cost * (1 - APART_ENOUGH) <= self._around_loss()):
                break
        return best

    def _with_state_kept(self, packed: Solution) -> Solution:
        """Listed anew with frozen state kept in RAM for good, in the room that the list leaves, if that is cheaper."""
        stored, placement = StatePlacement.option(packed), _placement(packed.problem, packed.schedule)
        if not stored or self.planner.left_s <= 0:
            return packed
        before = without_moves(packed.problem, packed.schedule).actions
        room_bytes = packed.problem.budget_bytes - verify_parts([(packed.problem, before)]).peak_bytes
        if room_bytes < KEEP_SHARE * packed.problem.budget_bytes:
            return packed
        kept = read_most(packed, room_bytes) & stored
        if not kept:
            return packed
        choices = packed.with_choice(StatePlacement.name, stored - kept).choices
        problem = self.planner.inner.fixed(self.problem, replace(packed, choices=choices))
        actions = tuple(s for s in before if not (isinstance(s, PageIn | Free) and s.tensor in kept))
        once_more = time.monotonic() + KEEP_S
        solution = self._packed(problem, actions, placement, packed.proof, once_more)
        return packed if solution is None or solution.cost >= packed.cost else replace(solution, choices=choices)

    def _around_loss(self) -> int:
        """A bound from the parts of a step around one operator; 0 where none is known."""
        return solvers.phased_bound(self.problem, time_limit_s=self.planner.within_s(WAYS.phases_share * self.limit_s))

    def _plain(self, choice: Placement, part: Planner, aside: float | None) -> Solution:
        """For a placement, with one processor at a time. `aside`: the share of the budget left for lists."""
        asked = self.reduction.fix(self.problem, choice)
        places = [(r, isinstance(r, StatePlacement) and r.mode == "auto") for r in part.reductions]
        stays = bool(aside) and any(is_open for _, is_open in places) and state_fits(self.problem)
        if stays:
            asked = without_long_transfers(asked, critical_path_ns(self.problem))
            part = replace(part, reductions=tuple(StatePlacement("ram") if is_open else r for r, is_open in places))
        if asked.deadline_ns is not None and asked.compute_once_ns > asked.deadline_ns:
            asked = replace(asked, deadline_ns=None)  # side by side they may be in time
        aside_bytes = self._aside_bytes(asked, choice) if aside is None else int(aside * asked.budget_bytes)
        if aside is not None or aside_bytes <= ASIDE_SHARE * asked.budget_bytes:
            asked = replace(asked, budget_bytes=asked.budget_bytes - aside_bytes)
        plain = self._steps(part, asked)
        return plain.with_choice(StatePlacement.name, frozenset()) if stays else plain

    def _steps(self, part: Planner, asked: Problem) -> Solution:
        """A schedule for one processor at a time, whose cost and bound say nothing about the problem."""
        steps = BestSoFar(outer=self.planner.best)  # their prices are not those of the problem
        try:
            return replace(part, best=steps, show=self._show).knowing(None).solve(asked)
        finally:
            self.planner.best.is_late |= steps.is_late

    def _show(self, stage: str) -> None:
        """Report the best schedule and bound at a stage of a search for steps."""
        self.planner.report(self.problem, solvers.Event(stage=stage, objective=None, bound=least_cost(self.problem)))

    def _aside_bytes(self, plain: Problem, choice: Placement) -> int:
        """By how much everything once takes more RAM side by side than in turn. As much is left for that."""
        roomy = replace(self.problem, budget_bytes=ROOMY_BYTES, deadline_ns=None)
        listed = side_by_side(roomy, complete(plain, keep_all_decisions(plain)), choice)
        return 0 if listed is None else max(0, listed[1].peak_bytes - keep_all_peak_bytes(plain))

    def _cheapest(
        self,
        problem: Problem,
        plain: Solution,
        placements: Sequence[Placement],
        stop_at: float = math.inf,
        shares: Sequence[float] = (1.0,),
    ) -> Solution | None:
        """The actions of `plain` side by side, in the cheapest of these placements; `problem` has its other choices.

        `stop_at`: when the search ends, though it has found nothing. `shares`: as of `_packed`.
        """
        actions, best = plain.schedule.actions, None
        if any(isinstance(s, Move) for s in actions):
            actions = without_moves(plain.problem, plain.schedule).actions
        if problem.paging is Paging.SYNC and any(isinstance(s, PageIn | PageOut) for s in actions):
            # The first processor does the transfers. Placements were ranked without them.
            placements = list(dict.fromkeys((as_ready(problem, first=1), *placements)))
            placements.sort(key=lambda placement: estimate(problem, actions, placement))
        for placement in placements:
            if best is not None and self.planner.left_s <= 0:
                break
            packed = self._packed(problem, actions, placement, plain.proof, stop_at, shares)
            if packed is not None and (best is None or packed.cost < best.cost):
                best = replace(packed, choices=plain.choices).with_choice(Processors.name, placement)
                self.planner.keep_shown(self.problem, best, LISTED, least_cost(self.problem))
        return best

    def _packed(
        self,
        problem: Problem,
        actions: tuple[Action, ...],
        choice: Placement,
        proof: Proof,
        stop_at: float = math.inf,
        shares: Sequence[float] = (1.0,),
    ) -> Solution | None:
        """The actions side by side, as far as they pack into the budget: the cheapest list for these shares of it."""
        budget, cheapest, best = problem.budget_bytes, math.inf, None
        for attempt in range(ATTEMPTS):
            is_late, is_last = self.planner.left_s <= 0, attempt == ATTEMPTS - 1
            if time.monotonic() >= stop_at or (best is not None and (is_last or is_late)):
                return best
            arranged = None if is_last else self._listed(problem, actions, choice, max(0, budget), shares)
            if arranged is None:
                listed = one_after_another(actions, choice)
                try:
                    trace = verify_parts([(problem, listed)])
                except ScheduleError:
                    return best
                if problem.deadline_ns is not None and trace.time_ns > problem.deadline_ns:
                    return best
                arranged = listed, trace
            solution = self._in_memory(problem, *arranged, proof)
            excess = ram_bytes(problem, solution.plan) - problem.budget_bytes
            if excess <= 0:
                best = solution if best is None or solution.cost < best.cost else best
                cheapest = min(cheapest, _cost_of(problem, arranged[1]))
                if best.cost <= cheapest * (1 + MOVES_COST):
                    return best
                excess = int(MOVES_ROOM * problem.budget_bytes)
            if attempt < CAREFUL:  # a little more room often does, whatever one packing says
                excess = min(excess, int(MORE_ROOM * problem.budget_bytes))
            budget = min(budget, arranged[1].peak_bytes) - excess
        return best

    def _listed(
        self,
        problem: Problem,
        actions: tuple[Action, ...],
        choice: Placement,
        budget_bytes: int,
        shares: Sequence[float],
    ) -> tuple[tuple[Action, ...], Trace] | None:
        """The cheapest list for any of these shares of a budget, as far as time allows; None if there is none."""
        best: tuple[tuple[Action, ...], Trace] | None = None
        for share in shares:
            if best is not None and self.planner.left_s <= 0:
                break
            within_bytes = math.floor(share * budget_bytes)
            if best is not None and best[1].peak_bytes <= within_bytes:
                break  # it would be the same one
            listed = side_by_side(problem, actions, choice, within_bytes)
            if listed is None:
                break
            if best is None or _cost_of(problem, listed[1]) < _cost_of(problem, best[1]):
                best = listed
        return best

    def _in_memory(self, problem: Problem, actions: tuple[Action, ...], trace: Trace, proof: Proof) -> Solution:
        """The actions with their own cost, packed as well as time allows: the arena may be larger than the budget.

        They get moves where that helps. The bound of `proof` stays, though it may be about one processor at a time.
        """
        cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
        own = replace(proof, objective=cost, status=Status.LIMIT)
        schedule = Schedule(solver=self.planner.solver, actions=actions, proof=own)
        until = time.monotonic() + self.planner.within_s(max(1.0, MOVES_SHARE * self.planner.left_s))
        schedule, plan = packed(problem, schedule, until, until, PLAIN.quick_effort)  # moves save the rest
        if any(isinstance(s, Move) for s in schedule.actions):
            trace = verify_parts([(problem, schedule.actions)])
            cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
            schedule = replace(schedule, proof=replace(own, objective=cost))
        return Solution(problem=problem, schedule=schedule, plan=plan)

    def _proven(self, best: Solution, proof: Proof) -> Solution:
        origin = best.proof.method.partition("; bound: ")[0]
        scope = proof.scope.with_choice(Processors.name, ANY)
        if not scope.choices_cover(best.scope):  # that was about another order, or other kernels
            proof = self._simple()
            scope = proof.scope
        bound = solvers.bound_beside(proof.bound, best.cost, proof.method)
        status = self._status(best.cost, bound)
        method = f"{origin}; bound: {proof.method.rpartition('bound: ')[2]}"
        stated = Proof(status=status, objective=best.cost, bound=bound, scope=scope, method=method)
        return best.with_proof(stated)

    def _is_enough(self, best: Solution, proof: Proof) -> bool:
        """Whether `proof` leaves no more than the gap that was asked for."""
        return self._status(best.cost, proof.bound) is not Status.LIMIT

    def _status(self, cost: int, bound: int) -> Status:
        return status_of(cost, bound, self.planner.options.gap)


def _work_words(operators: int, *, transfers: bool) -> str:
    """The work of a processor: operators, and the transfers if it does these."""
    counted = format_count(operators, "operator")
    return counted if not transfers else f"{counted} and the transfers" if operators else "the transfers alone"


@for_recent
def _on_main(problem: Problem) -> Problem:
    return placed(problem, (0,) * len(problem.operators))


def on_several(problem: Problem, in_turn: Solution, planner: Planner) -> Solution | None:
    """The actions of `in_turn`, which is for one processor, on those of `problem`; None if they do not fit.

    `planner` has the chain for `problem`. The bound of the result says nothing yet.
    """
    return _Side(Processors(), problem, planner).from_one(in_turn)


def _cost_of(problem: Problem, trace: Trace) -> int:
    return problem.objective.cost(trace.energy_pj, trace.time_ns)


def transfers_ns(problem: Problem, actions: Sequence[Action]) -> int:
    """The time of all transfers together."""
    tensors = problem.tensors
    outs = sum(tensors[s.tensor].page_out_ns for s in actions if isinstance(s, PageOut))
    return outs + sum(tensors[s.tensor].page_in_ns for s in actions if isinstance(s, PageIn))


def _placement(problem: Problem, schedule: Schedule) -> Placement:
    """The processor of each operator's last execution."""
    processor_of = {s.operator: s.processor for s in schedule.actions if isinstance(s, Compute)}
    return tuple(processor_of[k] for k in range(len(problem.operators)))


def _fastest_are_cheapest(problem: Problem) -> bool:
    """Whether no kernel with less workspace is faster or cheaper than the first one, on any processor."""
    for operator in problem.operators:
        for variant in operator.low_workspace:
            first = {e.processor: (e.time_ns, e.energy_pj) for e in operator.elsewhere}
            others = {e.processor: (e.time_ns, e.energy_pj) for e in variant.elsewhere}
            first[0], others[0] = (operator.time_ns, operator.energy_pj), (variant.time_ns, variant.energy_pj)
            for p, (time_ns, energy_pj) in others.items():
                if p not in first or time_ns < first[p][0] or energy_pj < first[p][1]:
                    return False
    return True
