"""The ways of using several processors: the main one alone, operators side by side, or threads inside kernels.

The way whose operators run in turn and cost least is solved first. Its steps are then taken in the other ways, in next
to no time, and its bound is carried over to their prices. A way that cannot be cheaper is not solved.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from poetc import solvers
from poetc.devices.units import format_cost, format_gap
from poetc.errors import InfeasibleError, LimitError
from poetc.planning.alternatives import better_of, smallest_of, with_lowest_bound
from poetc.planning.kernels import KERNELS, fastest
from poetc.planning.order import in_order
from poetc.planning.overlap import expected_cost, expected_pj, expected_transfer_ns
from poetc.planning.planner import Planner, Reduction
from poetc.planning.processors import on_several, transfers_ns
from poetc.planning.raced import raced_on_several, worth_racing
from poetc.planning.repricing import at_prices_of, carried_to
from poetc.planning.same_steps import (
    OPERATORS,
    can_fit,
    has_steps_of,
    may_stream,
    operators_of,
    widest,
    with_operators,
)
from poetc.planning.saved import Saved
from poetc.planning.settings import KERNEL, WAYS
from poetc.planning.solution import OptionResult, Solution, bound_holds, least_cost
from poetc.planning.state import everything_on_store, state_fits
from poetc.planning.streaming import Streaming
from poetc.scheduling import Paging, Problem, verify_parts
from poetc.scheduling.schedule import Compute, PageIn, PageOut, Status
from poetc.scheduling.scope import ANY, Scope
from poetc.solvers.processors import above_idle, critical_path_ns, relaxed, transfers_apart

ALONE, SIDE_BY_SIDE = 0, 1  # greater numbers are those of threads
AT_HAND = "the steps of one processor in another way; bound: every operator once"
ALL_WAYS = "the bound for all ways"  # a stage
Problems = Mapping[int, Problem]  # by way, the same step
NO_WAYS: Problems = MappingProxyType({})


def way_words(way: int) -> str:
    """The way in the words of reports."""
    return {ALONE: "the main processor alone", SIDE_BY_SIDE: "operators side by side"}.get(
        way, f"kernels in {way} threads"
    )


def _taken_words(way: int, solution: Solution) -> str:
    """The way of a schedule: side by side are cores of which more than one computes, apart from streamed operators."""
    computes = [action for action in solution.schedule.actions if isinstance(action, Compute)]
    operators, cores = solution.problem.operators, {action.processor for action in computes}
    beside = any(not operators[action.operator].is_streamed for action in computes if not action.processor)
    transfers = any(isinstance(action, PageIn | PageOut) for action in solution.schedule.actions)
    if way != SIDE_BY_SIDE or beside or len(cores - {0}) != 1 or not transfers:
        return way_words(way)
    also = " and runs the streamed operators" if 0 in cores else ""
    return f"one core computes, the main one does the transfers{also}"


def untried(ways: Problems, only: Solution) -> tuple[OptionResult, ...]:
    """The results of all ways where time is up after one schedule."""
    costs = {CoreUsage.option(only): only.cost}
    return tuple(OptionResult(w, costs.get(w), least_cost(ways[w]), "no time was left") for w in sorted(ways))


class CoreUsage(Reduction[int]):
    """`sets`: an entry for each problem that has the choice, which is the one of the main processor alone.

    Ways have other prices: no problem is a relaxation of all. A problem does not show the threads of its kernels.
    """

    name = "threads"

    def __init__(self, sets: Sequence[Problems]) -> None:
        self.sets = tuple(sets)
        self.results: dict[int, OptionResult] = {}
        self.solved: dict[int, Solution] = {}  # by way, with the bound for that way
        self.beaten: list[tuple[int, Solution]] = []  # ways, with schedules dearer than steps at hand, and their bounds
        self.in_turn: Solution | None = None  # the cheapest one whose operators run in turn
        self.hints: dict[int, tuple[Solution, Solution | None]] = {}  # by way: steps in turn, and as listed there
        self.beside: Solution | None = None  # the cheapest list of operators side by side
        self.barred: set[int] = set()  # ways in which no schedule fits
        self.in_order: dict[object, int] = {}  # bounds by way, order and streamed operands

    def is_open(self, problem: Problem) -> bool:
        return bool(self._set(problem))

    def frugal(self, problem: Problem) -> Problem:
        """With operators in turn, which have one stack in the budget, in the shortest time."""
        return self.fix(problem, self._shortest(problem))

    def usual(self, problem: Problem) -> Problem:
        """The way with operators in turn that costs least if nothing is recomputed."""
        return self.fix(problem, next((w for w in self.propose(problem, None) if w != SIDE_BY_SIDE), ALONE))

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[int]:
        """Operators in turn first, since their steps serve every way: the cheaper one before the other."""
        expected = {way: expected_cost(self.fix(problem, way)) for way in self._set(problem)}
        yield from sorted(expected, key=lambda way: (way == SIDE_BY_SIDE, expected[way], way))

    def fix(self, problem: Problem, choice: int) -> Problem:
        """In the limits of `problem`."""
        in_way = self._set(problem).get(choice)
        if in_way is None:
            return problem
        return replace(
            problem,
            operators=in_way.operators,
            tensors=in_way.tensors,
            processors=in_way.processors,
            base_bytes=in_way.base_bytes,
            idle_uw=in_way.idle_uw,
        )

    def chosen(self, problem: Problem, solved: Problem) -> int | None:
        """None where other choices have changed the operators."""
        return next((w for w, p in self._set(problem).items() if p.operators is solved.operators), None)

    def restore(self, problem: Problem, choice: int, solution: Solution) -> Solution:
        restored = super().restore(problem, choice, solution)
        if choice != SIDE_BY_SIDE and (self.in_turn is None or restored.cost <= self.in_turn.cost):
            self.in_turn = restored
        return restored

    def realise(self, problem: Problem, solution: Solution) -> Solution:
        """A solution of `frugal`."""
        return self.restore(problem, self._shortest(problem), solution) if self.is_open(problem) else solution

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        if not solution.ways:
            return ""
        show = functools.partial(format_cost, solution.problem.objective)
        own = cls.option(solution) or ALONE
        parts, least = [], solution.proof.bound
        for way in solution.ways:
            if way.count == own:
                least = max(least, way.least)
                continue
            cost = f"at least {show(way.least)} ({way.outcome})" if way.cost is None else show(way.cost)
            parts.append(f"{way_words(way.count)}: {cost}")
        taken = f"{_taken_words(own, solution)}, {show(solution.cost)}"
        if solution.proof.bound < least <= solution.cost:
            taken += f" (gap {format_gap(1 - least / solution.cost)} for this way)"
        return f"cores: {taken}; instead of {'; '.join(parts)}"

    def at_hand(self, problem: Problem, choice: int, planner: Planner) -> Solution | None:
        """The steps of operators in turn, in this way."""
        known = self.in_turn
        if known is None or choice == self.option(known):
            return known
        if choice not in self.hints or self.hints[choice][0] is not known:
            self.hints[choice] = known, self._listed(problem, choice, known, planner)
        return self.hints[choice][1]

    def _listed(self, problem: Problem, choice: int, known: Solution, planner: Planner) -> Solution | None:
        """The steps of `known` in another way."""
        asked, inner = self.fix(problem, choice), planner.inner
        if choice == SIDE_BY_SIDE:
            solution = self._cheapest_list(on_several(asked, known, inner))
        else:
            solution = at_prices_of(inner.fixed(asked, known), known)
        return self._as_listed(problem, choice, solution)

    def _as_listed(self, problem: Problem, choice: int, solution: Solution | None) -> Solution | None:
        """Steps in another way than they were found in, which prove nothing."""
        if solution is None:
            return None
        bound = solvers.bound_beside(least_cost(self.fix(problem, choice)), solution.cost, AT_HAND)
        status = Status.OPTIMAL if solution.cost <= bound * (1 + solvers.ROUNDING) else Status.LIMIT
        proof = replace(solution.proof, bound=bound, status=status, scope=solution.proof.scope.open, method=AT_HAND)
        return self.restore(problem, choice, solution.with_proof(proof))

    def _cheapest_list(self, listed: Solution | None) -> Solution | None:
        """The cheapest list so far, this one included: steps that cost less in turn may have a dearer list."""
        lists = [known for known in (self.beside, listed) if known is not None]
        self.beside = min(lists, key=lambda known: known.cost, default=None)
        return self.beside

    def least_cost(self, problem: Problem) -> int:
        return min((least_cost(self.fix(problem, way)) for way in self._set(problem)), default=least_cost(problem))

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        if not self.is_open(problem):
            return inner.lower_bound_bytes(problem)
        return min(inner.lower_bound_bytes(self.fix(problem, way)) for way in self._set(problem))

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if not self.is_open(problem):
            return planner.inner.solve(problem)
        self.results.clear()
        self.solved.clear()
        self.beaten.clear()
        self.hints.clear()
        self.barred.clear()
        self.in_order.clear()
        self.in_turn = self.beside = None
        options, bounds_s = planner.options, WAYS.bounds_share * planner.options.time_limit_s
        shorter = replace(options, time_limit_s=options.time_limit_s - bounds_s)
        best = self._cheapest(problem, replace(planner, options=shorter, end_at=planner.end_at - bounds_s))
        best = self._bounded(problem, best, planner)
        planner.settle(problem, best, ALL_WAYS)
        return replace(best, ways=tuple(self.results[way] for way in sorted(self.results)))

    def _cheapest(self, problem: Problem, planner: Planner) -> Solution:
        """The cheapest verified schedule of all ways, within one time limit."""
        gap, best = planner.options.gap, None
        order = list(self.propose(problem, None))
        asked = {way: self.fix(problem, way) for way in order}
        least = {way: least_cost(p) for way, p in asked.items()}
        hopeless = {way for way in order if not can_fit(asked[way], planner)}
        if len(hopeless) == len(order):  # prices with streams are not known yet
            hopeless -= {order[0], *(way for way in order if may_stream(asked[way], planner))}
        is_apart = self._is_better_apart(asked, hopeless, streams=any(may_stream(p, planner) for p in asked.values()))
        if is_apart:
            order.sort(key=lambda way: way != SIDE_BY_SIDE)
            best = self._first_in_turn(problem, hopeless, planner)
        costs: dict[int, float] = {}
        if is_apart and best is not None:
            costs = {way: self._cost_at_hand(problem, way, planner) for way in order}
            order, is_apart = sorted(order, key=lambda way: costs[way]), False
        errors: list[InfeasibleError | LimitError] = []
        put_off = set[int]()  # ways that cost more wait for the others
        beside = None if SIDE_BY_SIDE in hopeless else asked.get(SIDE_BY_SIDE)
        is_raced = beside is not None and worth_racing(beside)
        if beside is not None:  # lists have orders of their own, about which bounds of other ways say nothing
            expected = {SIDE_BY_SIDE: least[SIDE_BY_SIDE]}
            planner.best.expect(problem, planner.chosen, self.name, expected, planner.own_choices)
        for_lists_s = WAYS.lists_share * planner.options.time_limit_s if is_raced else 0.0
        for n, way in enumerate(order):
            if way in hopeless:
                is_streamed = may_stream(asked[way], planner)
                self.barred |= set() if is_streamed else {way}
                outcome = "not tried with streams" if is_streamed else "does not fit"
                self.results[way] = OptionResult(way, None, least[way], outcome)
                continue
            scope = None if best is None or not any(operators_of(best).values()) else best.proof.scope
            bound = least[way] if best is None else self._least(problem, way, scope, planner, best.cost)
            if best is not None and bound >= (1 - gap) * best.cost:
                same = self.at_hand(problem, way, planner) if bound <= best.cost and planner.left_s > 0 else None
                if same is not None and self._is_better(same, best):
                    planner.keep_shown(asked[way], same, way_words(way), least[way])
                    self._record(same, bound)
                    best = same
                    continue
                beaten = "not cheaper in the same order"
                if scope is not None:
                    beaten = f"not cheaper with the same {'streams' if Streaming.option(best) else 'encodings'}"
                beaten = "cannot be cheaper" if least[way] >= (1 - gap) * best.cost else beaten
                self.results[way] = OptionResult(way, None, bound, beaten)
                continue
            planner.say(problem, way_words(way))
            hint = self.at_hand(problem, way, planner)  # late, too: that takes next to no time
            if hint is not None:
                planner.keep_shown(asked[way], hint, way_words(way), least[way])
                self._record(hint, bound)
                best = hint if best is None or self._is_better(hint, best) else best
                if bound >= (1 - gap) * best.cost:
                    continue
                if hint.cost > WAYS.near * best.cost and set(order[n + 1 :]) - hopeless - put_off:
                    put_off.add(way)
                    order.append(way)
                    continue
            is_late = errors and best is None and planner.left_s <= -WAYS.late_share * planner.options.time_limit_s
            if is_late or (best is not None and planner.left_s <= WAYS.worth_share * planner.options.time_limit_s):
                self.results.setdefault(way, OptionResult(way, None, bound, "no time was left"))
                continue
            lists_s = 0.0 if way == SIDE_BY_SIDE or SIDE_BY_SIDE not in order[n + 1 :] else for_lists_s
            rivals = [w for w in order[n + 1 :] if w not in hopeless and least[w] < least[way] and not is_apart]
            rivals = [w for w in rivals if not costs or costs[w] <= WAYS.near * costs[way]]
            share = 1 / (1 + len(rivals))
            try:
                solution = self._solved(problem, way, planner, share, lists_s)
            except (InfeasibleError, LimitError) as error:
                is_proven = isinstance(error, InfeasibleError) and self.in_turn is None  # for any encodings
                outcome = "does not fit" if is_proven else "nothing found"
                self.results.setdefault(way, OptionResult(way, None, bound, outcome))
                errors.append(error)
                continue
            # Steps of another way come without a bound of their own: a schedule within the gap has one.
            is_close = solution.proof.gap() <= gap and hint is not None and solution.cost * (1 - gap) <= hint.cost
            known = [solved for solved in (self.solved.get(way), hint) if solved is not None]
            hint = min(known, key=lambda solved: solved.cost, default=None)
            own = solution if hint is None or is_close else better_of(hint, solution)
            self.beaten += [] if own.schedule is solution.schedule else [(way, solution)]
            self.solved[way] = own
            self._record(own, bound)
            if best is None or self._is_better(own, best) or self.option(best) == way:
                best = own
            if lists_s and not best.is_close(gap) and self.in_turn is not None:  # before more bounds, which take long
                self.at_hand(problem, SIDE_BY_SIDE, planner)  # the list of the steps themselves comes first
                planner.say(problem, "a race of lists side by side")
                self._cheapest_list(raced_on_several(asked[SIDE_BY_SIDE], self.in_turn, planner.inner))
                for_lists_s = 0.0
                self.hints[SIDE_BY_SIDE] = self.in_turn, self._as_listed(problem, SIDE_BY_SIDE, self.beside)
        planner.best.no_longer_expect(problem, planner.chosen, self.name, SIDE_BY_SIDE)
        if best is None:
            raise min(errors, key=smallest_of)
        return self._again(problem, best, planner)

    def _first_in_turn(self, problem: Problem, hopeless: Collection[int], planner: Planner) -> Solution | None:
        """A schedule of operators in turn by a small share of the limits; None where it finds none, or takes too long.

        Where RAM is short, a core for the transfers alone may find none in all of its time.
        """
        way, options = self._shortest(problem), planner.options
        if way in hopeless or len(problem.operators) > WAYS.first_operators_per_s * options.time_limit_s:
            return None
        planner.progress(way_words(way))
        part = planner.inner.part(
            WAYS.first_share * options.time_limit_s, work_limit_s=WAYS.first_share * options.work_limit_s
        )
        asked = self.fix(problem, way)
        try:
            solution = self.restore(asked, way, part.solve(asked))
        except (InfeasibleError, LimitError):
            return None
        self.solved[way] = solution
        self._record(solution, 0)
        return solution

    def _cost_at_hand(self, problem: Problem, way: int, planner: Planner) -> float:
        """The cost of the steps of operators in turn in this way; infinite where they do not fit."""
        same = self.at_hand(problem, way, planner)
        return math.inf if same is None else same.cost

    def _is_better_apart(self, asked: Problems, hopeless: Collection[int], *, streams: bool = False) -> bool:
        """Whether a core that does the transfers alone probably saves energy where more state is read than fits.

        The work of another core then hides transfers for which all cores would wait. Where one operator takes nearly
        all RAM, little can be read ahead, unless `streams`: it may stream its operands.
        """
        beside = asked.get(SIDE_BY_SIDE)
        apart = None if beside is None or SIDE_BY_SIDE in hopeless else transfers_apart(beside)
        if apart is None or beside is None or beside.objective.cost(1, 0) == 0:
            return False
        if any(map(state_fits, asked.values())):
            return False  # one stack takes less: with operators in turn all state may stay in RAM
        needed_bytes = solvers.lower_bound_bytes(everything_on_store(fastest(asked[ALONE])))
        if KERNEL.tight * needed_bytes > beside.budget_bytes and not streams:
            return False
        transfers_ns = expected_transfer_ns(asked[ALONE])
        least = min(expected_pj(p, transfers_ns) for way, p in asked.items() if way != SIDE_BY_SIDE)
        return expected_pj(apart[0], transfers_ns) < (1 - WAYS.apart_saves) * least

    def _solved(self, problem: Problem, way: int, planner: Planner, share: float, aside_s: float = 0.0) -> Solution:
        """With that share of the work limit, and of the time that is left, but for `aside_s`."""
        asked = self.fix(problem, way)
        seconds = min(planner.left_s - aside_s, WAYS.patience * share * planner.left_s)
        least_s = WAYS.least_share * planner.options.time_limit_s
        work_s = share * planner.options.work_limit_s
        part = planner.inner.part(max(seconds, least_s), work_limit_s=work_s)
        if not self.solved:  # later ways may have another order than the best schedule
            planner.best.carry = self.name, functools.partial(self._for_all_ways, problem, way, planner, {})
        try:
            return self.restore(asked, way, self._with_known_encodings(asked, part))
        finally:
            planner.best.carry = None

    def _with_known_encodings(self, asked: Problem, planner: Planner) -> Solution:
        """Solve a way with the encodings of the cheapest schedule in turn, where there is one.

        They take as much RAM and as many transfers in every way, and to try all of them takes most of the time.
        """
        saved = next(iter(planner.reductions), None)
        if self.in_turn is None or not isinstance(saved, Saved):
            return planner.solve(asked)
        choice = saved.option(self.in_turn) if saved.is_open(asked) else None
        return planner.solve(asked) if choice is None else saved.solved_with(asked, choice, planner)

    def _for_all_ways(
        self,
        problem: Problem,
        way: int,
        planner: Planner,
        known: dict[Any, dict[int, Problem]],
        bound: int,
        chosen: Mapping[str, Any],
    ) -> int:
        """The bound for all ways that `bound` for one way proves, while that is searched; 0 where it says nothing.

        With the same encodings and streamed operands in all ways: `known` keeps their problems by these options.
        """
        if way == SIDE_BY_SIDE:
            return 0
        options = {kind.name: chosen.get(kind.name) or () for kind in OPERATORS}
        key = tuple(options.values())
        if key not in known:
            ways = {other: self.fix(problem, other) for other in self._set(problem)}
            known[key] = {other: with_operators(p, options, planner) for other, p in ways.items()}
        asked, least = known[key], bound
        for other in asked.keys() - self.barred - {way}:
            least = min(least, max(least_cost(asked[other]), carried_to(asked[way], bound, asked[other])))
        return least

    def _again(self, problem: Problem, best: Solution, planner: Planner) -> Solution:
        """The best way with the rest of the time, if it had a share: the better schedule and the better bound."""
        way = self.option(best)
        assert way is not None
        if len(self.solved) < 2 or best.is_close(planner.options.gap) or planner.left_s <= 0:
            return best
        planner.say(problem, f"{way_words(way)} again")
        try:
            again = self._solved(problem, way, planner, 1.0)
        except (InfeasibleError, LimitError):
            return best
        best = better_of(best, again)
        self.solved[way] = best
        self._record(best, 0)
        return best

    def _is_better(self, candidate: Solution, best: Solution) -> bool:
        """Whether it is cheaper; of equal costs the faster one is better, then the one with operators in turn."""
        if abs(candidate.cost - best.cost) > WAYS.equal * best.cost:
            return candidate.cost < best.cost
        times = [verify_parts([(s.problem, s.schedule.actions)]).time_ns for s in (candidate, best)]
        if times[0] == times[1]:
            return self.option(best) == SIDE_BY_SIDE != self.option(candidate)
        return times[0] < times[1]

    def _record(self, solution: Solution, least: int) -> None:
        proof, way = solution.proof, self.option(solution)
        assert way is not None
        self.results[way] = OptionResult(way, proof.objective, max(least, proof.bound), proof.status.value)

    def _bounded(self, problem: Problem, best: Solution, planner: Planner) -> Solution:
        """With a bound for all ways in which something may fit: the lowest one.

        It is one for schedules with the same streamed operands, or none, if that is higher.
        """
        open_, listed = self._set(problem).keys() - self.barred, None
        scopes, streams = [best.proof.scope], Streaming.option(best)
        if streams is not None or self.option(best) == SIDE_BY_SIDE:
            # Bounds of other ways may be about its own streamed operands alone.
            scopes.append(best.proof.scope.with_choice(Streaming.name, streams or ()))
        # The bound for a plan is about another order, and steps of another way have none.
        if self.option(best) == SIDE_BY_SIDE or best.proof.method == AT_HAND:
            scope = replace(best.proof.scope.open, order=best.scope.order)
            for kind in OPERATORS:
                if scope.choice(kind.name) is not None:
                    scope = scope.with_choice(kind.name, kind.option(best) or ())
            listed = best.with_scope(scope)
            scopes.append(scope)
        # The steps of one way may be cheapest in another, about which nothing was proven.
        proven = [*self.solved.values(), *(known for _, known in self.beaten)]
        scopes += [known.proof.scope for known in proven if bound_holds(known, best)]
        by_scope = dict[Scope, dict[int, int]]()
        for scope in dict.fromkeys(scopes):
            least, enough = by_scope.setdefault(scope, {}), best.cost
            for way in sorted(open_, key=lambda way: (way != SIDE_BY_SIDE, way)):  # which has the lowest one, mostly
                least[way] = self._least(problem, way, scope, planner, enough, is_last=True, listed=listed)
                enough = min(enough, least[way])
        shown, scope = planner.proven(problem, best)
        by_scope[scope] = {way: max(shown, by_scope.get(scope, {}).get(way, 0)) for way in open_}
        bounds = {scope: min(known.values(), default=0) for scope, known in by_scope.items()}
        scope = widest({s: bound for s, bound in bounds.items() if bound >= min(shown, best.cost)}, best, planner)
        least, best = by_scope[scope], best.with_scope(scope)
        for way in least.keys() & self.results.keys():
            self.results[way] = replace(self.results[way], least=least[way])
        return with_lowest_bound(best, least.values(), planner.options.gap)

    def _least(
        self,
        problem: Problem,
        way: int,
        scope: Scope | None,
        planner: Planner,
        enough: int,
        *,
        is_last: bool = False,
        listed: Solution | None = None,
    ) -> int:
        """No schedule of that way costs less: in `scope`, as far as the way has its choices; None: in any scope found.

        `listed`: the best schedule, without a bound under its order, in a scope that has this order.

        From its own proof, or carried over from that of another way with the same encodings and streamed operands.
        `enough`: the cost of the best schedule, from where on a higher bound is of no use.
        """
        asked = self.fix(problem, way)
        least = least_cost(asked)
        for other, known in (*self.solved.items(), *self.beaten):
            proof = known.proof
            if scope is not None and not proof.scope.covers(scope.only(dict(proof.scope.choices))):
                continue
            if other == way:
                least = max(least, proof.bound)
            elif other != SIDE_BY_SIDE:
                options = operators_of(known)
                if scope is None and any(options.values()):
                    continue  # others may be encoded or streamed
                pair = [with_operators(p, options, planner) for p in (self.fix(problem, other), asked)]
                least = max(least, carried_to(pair[0], proof.bound, pair[1]))
                # A wide gap of a way in turn is a wider one side by side: while ways are solved that is not looked at.
                is_of_use = asked.processors and (is_last or not solvers.has_wide_gap(proof.bound, known.cost))
                is_in_order = scope is None or has_steps_of(scope, known)
                if known is self.solved.get(other) and is_of_use and is_in_order:
                    least = max(least, self._in_order(way, pair[1], known, planner))
        if least < enough and listed is not None and scope is not None and has_steps_of(scope, listed):
            least = max(least, self._in_order_of_list(problem, way, listed, planner))
        return least if least >= enough else max(least, self._by_phases(asked, scope, planner, enough, is_last=is_last))

    def _in_order_of_list(self, problem: Problem, way: int, listed: Solution, planner: Planner) -> int:
        """The bound for a way under the order of `listed`: in threads that of one core, which has more room."""
        solved = way if way == SIDE_BY_SIDE else ALONE
        options = operators_of(listed)
        known, asked = (with_operators(self.fix(problem, number), options, planner) for number in (solved, way))
        bound = self._in_order(solved, known, listed, planner)
        return bound if solved == way else carried_to(known, bound, asked)

    def _in_order(self, way: int, asked: Problem, known: Solution, planner: Planner) -> int:
        """The bound for a way under the order of `known`, with any kernels and placement of state; 0 for none.

        Side by side, idle energy as a price of work and transfers, or for the critical path alone, makes it a plain
        problem.
        """
        order = known.proof.scope.order
        if asked.paging is not Paging.SYNC or not isinstance(order, tuple):
            return 0
        key = way, order, *operators_of(known).values()
        if key not in self.in_order:
            share, options, bounds = WAYS.in_order_share, planner.options, [0]
            paged_ns = transfers_ns(known.problem, known.schedule.actions)
            plain = relaxed(asked, paged_ns).problem if asked.processors else asked
            shifted = above_idle(asked) if asked.processors else None
            priced = [] if shifted is None else [(*shifted, 0.0)]  # without idle energy more cuts prove little
            priced += [] if plain is None else [(plain, 0, share)]
            if asked.processors and paged_ns > critical_path_ns(asked):
                priced.reverse()  # idle energy as a price of transfers proves more
            if planner.left_s <= 0:
                priced = [] if planner.is_over else priced[:1]
            for at_prices, idle, worth in priced:
                ordered = in_order(KERNELS.relax(replace(at_prices, deadline_ns=None)), order)
                work_s, seconds = worth * options.work_limit_s, planner.within_s(share * options.time_limit_s)
                cutoff = max(0, known.cost - idle)
                stop_at = time.monotonic() + seconds
                bound = solvers.bound_of_any_placement(ordered, cutoff, work_s=work_s, stop_at=stop_at)
                bounds.append(idle + bound)
            self.in_order[key] = max(bounds)
        return self.in_order[key]

    def _by_phases(self, asked: Problem, scope: Scope | None, planner: Planner, enough: int, *, is_last: bool) -> int:
        """A way's bound from the parts of a step around one operator; 0 where none is known.

        `is_last`: it may take all time that is left.
        With the encodings and streamed operands that `scope` names, or those found; it holds for any other choice.
        """
        known = self.in_turn
        opened = [r for r in planner.inner.reductions if isinstance(r, OPERATORS) and r.is_open(asked)]
        if known is None and any(isinstance(r, Saved) for r in opened):
            return 0
        options: dict[str, Any] = {kind.name: () for kind in OPERATORS} if known is None else operators_of(known)
        if scope is None and any(options.values()):
            return 0
        named = {r.name: None if scope is None else scope.choice(r.name) for r in opened}
        options |= {name: option for name, option in named.items() if option is not None}
        if ANY in options.values():
            return 0
        seconds = WAYS.phases_share * planner.options.time_limit_s
        if is_last:
            seconds = max(seconds, planner.left_s)
        asked, seconds = with_operators(asked, options, planner), planner.within_s(seconds)
        return solvers.phased_bound(asked, time_limit_s=seconds, enough=enough)

    def _shortest(self, problem: Problem) -> int:
        """The way with operators in turn that takes the least time."""
        times = {way: p.compute_once_ns for way, p in self._set(problem).items() if way != SIDE_BY_SIDE}
        return min(times, key=lambda way: (times[way], way), default=ALONE)

    def _set(self, problem: Problem) -> Problems:
        """The problems of all ways; none where `problem` has no such choice."""
        matching = (s for s in self.sets if s[ALONE].operators == problem.operators)
        return {} if problem.processors else next(matching, {})
