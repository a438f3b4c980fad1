"""The planner and the choices that it composes: one interface for every kind, as cvxpy lowers problems.

A `Planner` holds a chain of reductions with one clock, one account of counted work and one stream of events. The
outermost reduction turns a problem with its choice open into problems in which the choice is made; the rest of the
chain solves those. A new kind of choice is one subclass of `Reduction`, and its place in the chain.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

from poetc import solvers
from poetc.errors import LimitError
from poetc.events import Progress, silent
from poetc.planning import plain
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.progress import ORDER, REPETITION, TIME_LIMIT, WORK_LIMIT, BestSoFar, progress_line
from poetc.planning.settings import PLAIN
from poetc.planning.smallest_ram import RamSearch
from poetc.planning.solution import SCOPED, Solution, cost_of_computing_once, least_cost
from poetc.scheduling import Paging, Problem
from poetc.scheduling.schedule import MemoryPlan, Schedule, SolveOptions
from poetc.scheduling.scope import ANY, Option, Repetition, Scope
from poetc.solvers import WarmStart

ChoiceT = TypeVar("ChoiceT")

FIRSTS = 8  # schedules that are found at once: so many are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Solves problems within `options.time_limit_s` after `started`, and `options.work_limit_s` of counted work.

    `reductions`: the choices that are open, outermost first; without any, problems are plain. `smallest_ram`: a search
    for the least RAM, used where nothing fits. `warm_start`: knowledge that the engine begins with. `solve_share`: of
    the time, for the first solve of a plain problem; the rest is for packing. `best`: shared by all planners made from
    this one. `relaxed`: the names of choices that are relaxed. Objectives of schedules are then none of the problem's,
    and bounds hold for each such choice. `real_cost`: that of a packed schedule with real options instead of relaxed
    ones; None where none fits. `chosen`: the options that were taken on the way here, by their choice, of choices whose
    options bounds may name. `show`: takes the stages of a search whose schedules are steps for another problem, so that
    neither their costs nor their bounds are shown. `end_at`: when all has to be done, by `time.monotonic`. Bounds and
    packing at the end may take until then. Only the search for a first schedule may last longer.
    """

    options: SolveOptions
    warm_start: WarmStart = field(default_factory=WarmStart)
    solver: str = plain.ENGINE
    reductions: tuple[Reduction[Any], ...] = ()
    progress: Progress = silent
    smallest_ram: RamSearch | None = None
    solve_share: float = PLAIN.solve_share
    best: BestSoFar = field(default_factory=BestSoFar)
    relaxed: frozenset[str] = frozenset()
    real_cost: Callable[[Solution], int | None] | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    show: Callable[[str], None] | None = None
    started: float = field(default_factory=lambda: time.monotonic())  # by the clock of the moment
    end_at: float = math.inf

    @property
    def stop_at(self) -> float:
        """When the time is up, by `time.monotonic`."""
        return self.started + self.options.time_limit_s

    @property
    def left_s(self) -> float:
        return self.stop_at - time.monotonic()

    @property
    def stopped_by(self) -> str:
        """The limit that ended a search whose gap is not closed: the clock's, or that of counted work."""
        is_late = self.best.is_late and self.left_s < PLAIN.late_left * self.options.time_limit_s
        return TIME_LIMIT if is_late or self.left_s <= 0 else WORK_LIMIT

    @property
    def inner(self) -> Planner:
        """This planner without its outermost reduction."""
        return replace(self, reductions=self.reductions[1:])

    def within_s(self, seconds: float) -> float:
        """`seconds`, or the time until `end_at`, if that is less and a schedule is known."""
        left_s = self.end_at - time.monotonic() if self.best.is_answered else math.inf
        return max(0.0, min(seconds, left_s))

    @property
    def is_over(self) -> bool:
        """Whether a schedule is known, and all has to be done."""
        return self.within_s(math.inf) <= 0

    def part(self, time_limit_s: float, **options: Any) -> Planner:
        """A planner that starts now and has `time_limit_s`; `options` replace others of the solver's.

        Where no time is left it has a moment, for schedules that are found at once.
        """
        time_limit_s = self.within_s(time_limit_s) or PLAIN.moment_s
        return replace(
            self, options=replace(self.options, time_limit_s=time_limit_s, **options), started=time.monotonic()
        )

    def with_warm_start(self, **known: Any) -> Planner:
        """This planner with `known` in its warm start."""
        return replace(self, warm_start=replace(self.warm_start, **known))

    def having(self, choice: type[Reduction[Any]] | Reduction[Any], option: Any) -> Planner:
        """This planner for problems with that option taken; a choice whose bounds are for all options stays open."""
        return replace(self, chosen={**self.chosen, choice.name: option}) if choice.scoped else self

    def expecting(self, problem: Problem, choice: Reduction[Any], options: Mapping[Any, Problem]) -> None:
        """Note that problems with these options of a choice will be searched, unless bounds are about all of them."""
        if choice.scoped and choice.name not in self.relaxed:
            least = {option: self.inner.least_cost(fixed) for option, fixed in options.items()}
            self.best.expect(problem, self.chosen, choice.name, least, self.own_choices)

    def expecting_more(self, problem: Problem, choice: Reduction[Any], least: int | None) -> None:
        """Note that options may come which the best one suggests, at no less than `least`; None: they have come."""
        if choice.scoped and choice.name not in self.relaxed:
            self.best.expect_more(problem, self.chosen, choice.name, least, self.own_choices)

    @property
    def own_choices(self) -> frozenset[str]:
        """The names of the choices for whose every option `least_cost` holds."""
        return self.relaxed | {reduction.name for reduction in self.reductions}

    def knowing(self, smallest_ram: RamSearch | None) -> Planner:
        """This planner with another search for the least RAM."""
        return replace(self, smallest_ram=smallest_ram)

    def report(self, problem: Problem, event: solvers.Event, *, any_state: bool = False) -> None:
        """Tell the user how far the search is, beside the best schedule and the best bound of all searches.

        `any_state`: the bound holds for every placement of state, though that is open.
        """
        if self.show is not None:
            self.show(event.stage)
            return
        covers = self.relaxed | {"state"} if any_state else self.relaxed
        chosen = _in_class(self.chosen, event.repetition)
        seen = self.best.observe(problem, event, is_real=not self.relaxed, covers=covers, chosen=chosen)
        if seen.is_about_others:
            self.progress("the bound is now about another order of operators, or other choices")
        self.progress(progress_line(problem, seen))

    def keep_packed(self, problem: Problem, schedule: Schedule | None = None) -> tuple[Schedule, MemoryPlan] | None:
        """Take up `schedule` as the best so far, if it packs at once, and nothing that costs about as much is known.

        None: the first one that is found, if nothing is known.
        """
        if not self.is_real or self.options.is_quick or self.solver != plain.ENGINE:
            return None
        known_cost = self.best.packed_cost(problem)
        dearer = schedule is None or schedule.proof.objective >= PLAIN.kept_share * known_cost
        if known_cost < math.inf and dearer:
            return self.best.kept_first(problem, schedule)
        first = self.at_once(problem) if schedule is None else schedule
        if first is None:
            return None
        until = time.monotonic() + PLAIN.first_share * self.options.time_limit_s
        packing = packed(problem, first, until, until)
        if ram_bytes(problem, packing[1]) > problem.budget_bytes:
            return None
        self.keep(problem, *packing)
        self.best.kept = problem, first, packing
        return packing

    def at_once(self, problem: Problem) -> Schedule | None:
        """The schedule that a search begins with; the last ones are not made again."""
        known, seed = self.best.at_once, self.options.seed
        for entry in known:
            if entry[:2] == (seed, problem):
                return entry[2]
        first = solvers.at_once(problem, self.options)
        known[:] = [*known[1 - FIRSTS :], (seed, problem, first)]
        return first

    def first(self, problem: Problem) -> Solution | None:
        """A schedule that is found at once, and kept, if it packs and is the first one.

        Nobody waits for it until other problems are built and weighed. Beside work its cost would be another.
        """
        if problem.processors or problem.banks or self.solver != plain.ENGINE:
            return None
        self.best.begin(problem, self.reductions, self.least_cost)
        part, asked, options = self, [problem], list[Any]()
        for reduction in self.reductions:
            asked.append(reduction.soonest(asked[-1], self))
            options.append(reduction.chosen(*asked[-2:]) if reduction.is_open(asked[-2]) else None)
            part = part.having(reduction, options[-1])
        fixed, once = asked[-1], cost_of_computing_once(asked[-1])
        packing = part.keep_packed(fixed)
        if packing is None:
            return None
        cost, order = (part.at_once(fixed) or packing[0]).proof.objective, plain.order_of(fixed, packing[0])
        part.report(fixed, solvers.Event(stage="at once", objective=cost, bound=once, order=order))
        if problem.paging is Paging.DMA:
            return None
        schedule = plain.instead(fixed, self.solver, plain.KEPT, packing[0], None)
        solution = Solution(problem=fixed, schedule=schedule, plan=packing[1])
        for reduction, at, option in reversed([*zip(self.reductions, asked[:-1], options, strict=True)]):
            solution = solution if option is None else reduction.restore(at, option, solution)
        self.best.has_first = True
        bound = min(solution.proof.bound, self.least_cost(problem))  # in another way everything once may cost less
        return solution.with_proof(replace(solution.proof, bound=bound))

    @property
    def is_real(self) -> bool:
        """Whether the cost of a real schedule is known for each that is found."""
        return not self.relaxed or self.real_cost is not None

    def keep(self, problem: Problem, schedule: Schedule, plan: MemoryPlan) -> None:
        """Take up a schedule that packs, or the real one for it, as the best so far, if it is."""
        cost: int | None = schedule.proof.objective
        if self.relaxed:
            solution = Solution(problem=problem, schedule=schedule, plan=plan)
            cost = None if self.real_cost is None else self.real_cost(solution)
        if cost is not None:
            chosen = _in_class(self.chosen, schedule.proof.scope.repetition)
            self.best.keep(problem, cost, chosen, plain.order_of(problem, schedule))

    def chosen_by(self, solution: Solution) -> dict[str, Any]:
        """The options that `solution` took, of choices whose options bounds may name."""
        return {r.name: r.option(solution) for r in self.reductions if r.scoped and r.name not in self.relaxed}

    def say(self, problem: Problem, stage: str) -> None:
        """Tell the work that begins, beside the best schedule and bound so far."""
        if self.best.has_packed(problem):
            self.report(problem, solvers.Event(stage=stage, objective=None, bound=self.least_cost(problem)))
        else:
            self.progress(stage)

    def proven(self, problem: Problem, solution: Solution) -> tuple[int, Scope]:
        """The best bound that searches have shown for a solution and others of any class, and its scope."""
        chosen, order = {**self.chosen, **self.chosen_by(solution)}, plain.order_of(solution.problem, solution.schedule)
        bound, named = self.best.proven(problem, chosen, order)
        scope = solution.scope if ORDER in named else replace(solution.scope, order=ANY)
        for name in dict(scope.choices).keys() - named:
            scope = scope.with_choice(name, ANY)
        return bound, scope

    def settle(self, problem: Problem, solution: Solution, stage: str) -> None:
        """Show the cost and the bound of a solution that is not searched further."""
        proof, order = solution.proof, plain.order_of(solution.problem, solution.schedule)
        repetition = proof.scope.repetition
        chosen = _in_class({**self.chosen, **self.chosen_by(solution)}, repetition)
        self.best.settle(problem, solution.cost, proof.bound, chosen, order)
        event = solvers.Event(stage=stage, objective=None, bound=proof.bound, order=order, repetition=repetition)
        self.report(problem, event)

    def keep_shown(self, problem: Problem, solution: Solution, stage: str, least: int) -> None:
        """The same for a solution that no solver reported. `least`: no schedule of `problem` costs less."""
        planner = replace(self, chosen={**self.chosen, **self.chosen_by(solution)})
        planner.keep(solution.problem, solution.schedule, solution.plan)  # which may have more operators: encodings
        self.report(problem, solvers.Event(stage=stage, objective=None, bound=least))

    def solve(self, problem: Problem) -> Solution:
        """The cheapest solution found whose packed arena fits the budget.

        Raises InfeasibleError where it is proven that nothing fits, LimitError where nothing was found. Both name the
        smallest RAM that is known to work.
        """
        if self.best.is_safe and self.is_over:
            raise LimitError("no time was left for more than a first schedule")
        self.best.begin(problem, self.reductions, self.least_cost)
        if self.reductions:
            outermost = self.reductions[0]  # which the first problem may have left open, but not this one
            planner = self if outermost.is_open(problem) else self.having(outermost, None)
            return outermost.solve(problem, planner)
        schedule, plan = plain.solve_and_pack(problem, self)
        return Solution(problem=problem, schedule=schedule, plan=plan)

    def lower_bound_bytes(self, problem: Problem) -> int:
        """No schedule needs less RAM, whatever is chosen."""
        if self.reductions:
            return self.reductions[0].lower_bound_bytes(problem, self.inner)
        return solvers.lower_bound_bytes(problem)

    def proves_too_small(self, problem: Problem) -> bool:
        """Whether nothing fits the budget, whatever is chosen, where `lower_bound_bytes` is above it."""
        return all(reduction.proves_too_small(problem) for reduction in self.reductions)

    def least_cost(self, problem: Problem) -> int:
        """No schedule costs less, whatever is chosen: every operator once."""
        known = [r.least_cost(problem) for r in self.reductions if type(r).least_cost is not Reduction.least_cost]
        return min([*known, least_cost(problem)])  # those of all other reductions are equal

    def search_ram(
        self, problem: Problem, least_s: float, stop_at: float = 0.0, *, work_limit_s: float = math.inf
    ) -> RamSearch:
        """The search for the least RAM with the choices that probably need the least."""
        frugal = problem
        for reduction in self.reductions:
            frugal = reduction.frugal(frugal)
        return RamSearch(frugal, least_s, stop_at, lambda: self.lower_bound_bytes(problem), work_limit_s)

    def fixed(self, problem: Problem, solution: Solution) -> Problem:
        """`problem` with those choices of `solution` made that are made here."""
        for reduction in self.reductions:
            choice = reduction.option(solution)
            if choice is not None:
                problem = reduction.fix(problem, choice)
        return problem

    def recall(self, problem: Problem, solution: Solution) -> Solution:
        """`solution`, of another run, as one of `problem`: with the choices that its own problem shows.

        Raises ScheduleError where it made a choice that `problem` does not have.
        """
        for reduction in self.reductions:
            choice = reduction.chosen(problem, solution.problem)
            if choice is not None:
                solution = solution.with_choice(reduction.name, choice)
        return solution

    def least_ram_solution(self, problem: Problem, search: RamSearch) -> Solution:
        """The schedule of least RAM that `search` found, as a solution of `problem` for the budget that it needs."""
        least = search.result
        assert least.schedule is not None and least.plan is not None
        schedule = plain.instead(search.problem, self.solver, plain.LEAST_RAM, least.schedule, None)
        solution = Solution(problem=search.problem, schedule=schedule, plan=least.plan)
        asked = [problem]
        for reduction in self.reductions[:-1]:
            asked.append(reduction.frugal_as(asked[-1], search.problem))
        for reduction, at in zip(reversed(self.reductions), reversed(asked), strict=True):
            solution = reduction.realise(at, solution)
        return solution


def _in_class(chosen: Mapping[str, Any], repetition: Repetition) -> Mapping[str, Any]:
    """These options, with the class of schedules that a bound is about, if it is about one."""
    return chosen if repetition is Repetition.ANY else {**chosen, REPETITION: repetition}


class Reduction(ABC, Generic[ChoiceT]):
    """One kind of choice. `ChoiceT` is the type of one option.

    `name`: of the kind, in `Solution.choices`. `scoped`: a bound can hold for one option alone, so that its scope names
    the option: numbers. `noun`: the kind, in sentences on scopes.

    `restore(problem, c, solution)` undoes `fix(problem, c)`: it turns a solution of the fixed problem into one of
    `problem`. A bound for `relax(problem)` holds for every option; `scope` says so.
    """

    name: ClassVar[str]
    scoped: ClassVar[bool] = False
    noun: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if cls.scoped:
            SCOPED.add(cls.name)

    @abstractmethod
    def is_open(self, problem: Problem) -> bool:
        """Whether `problem` leaves this choice, and another option than the usual one may be of use."""

    @abstractmethod
    def fix(self, problem: Problem, choice: ChoiceT) -> Problem:
        """The problem with the choice made."""

    @abstractmethod
    def solve(self, problem: Problem, planner: Planner) -> Solution:
        """The cheapest solution found in the time of `planner`, whose outermost reduction this one is.

        Raises InfeasibleError with a proof, LimitError without.
        """

    @classmethod
    def option(cls, solution: Solution) -> ChoiceT | None:
        """The option of a solution; None where there was nothing to choose."""
        return solution.choices.get(cls.name)

    def relax(self, problem: Problem) -> Problem | None:
        """A problem without the choice in which no option costs more or needs more RAM than in `problem`.

        None where no plain problem does that: `solve` then has a relaxation of its own.
        """
        del problem
        return None

    def usual(self, problem: Problem) -> Problem:
        """The problem with the usual option, for solvers that cannot choose."""
        return problem

    def soonest(self, problem: Problem, planner: Planner) -> Problem:
        """The problem with the option of the cheapest schedule that is found at once, as far as that is looked at."""
        del planner
        return self.usual(problem)

    def frugal(self, problem: Problem) -> Problem:
        """A problem with the choice made as the least RAM probably needs it."""
        return self.usual(problem)

    def frugal_as(self, problem: Problem, smallest: Problem) -> Problem:
        """`problem` with the option that `smallest` has, the problem in which the least RAM was found."""
        del smallest
        return self.frugal(problem)

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[ChoiceT]:
        """Options that are worth solving for, best first. `incumbent`: the cheapest solution so far."""
        del problem, incumbent
        yield from ()

    def chosen(self, problem: Problem, solved: Problem) -> ChoiceT | None:
        """`fix` backwards: the option that `solved` has; None if it shows none. Raises ScheduleError if none fits."""
        del problem, solved
        return None

    def restore(self, problem: Problem, choice: ChoiceT, solution: Solution) -> Solution:
        """`solution` of `fix(problem, choice)` as one of `problem`.

        Its bound is for this option alone, if options have scopes. One of no more than computing once holds for any.
        """
        if self.scoped:
            trivial = solution.proof.bound <= least_cost(problem)
            option = ANY if trivial else cast(Iterable[int], choice)
            solution = solution.with_scope(solution.proof.scope.with_choice(self.name, option))
        return solution.with_choice(self.name, choice)

    def scope(self, solution: Solution) -> Scope:
        """The scope of a bound of `relax(problem)` that came with `solution`: any option."""
        scope = solution.proof.scope
        return scope.with_choice(self.name, ANY) if self.scoped else scope

    def realise(self, problem: Problem, solution: Solution) -> Solution:
        """`solution` of a relaxed or frugal problem with options that `problem` has: those that its problem shows."""
        choice = self.chosen(problem, solution.problem)
        return solution if choice is None else self.restore(problem, choice, solution)

    def least_cost(self, problem: Problem) -> int:
        """No schedule costs less, whatever this choice is: every operator once."""
        return least_cost(problem)

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        """No schedule needs less RAM, whatever is chosen. `inner`: the planner for the fixed problem."""
        relaxed = self.relax(problem)
        return inner.lower_bound_bytes(problem if relaxed is None else relaxed)

    def proves_too_small(self, problem: Problem) -> bool:
        """Whether a `lower_bound_bytes` above the budget proves that no option of this choice fits."""
        del problem
        return True

    @classmethod
    def scope_words(cls, option: Option) -> str:
        """The option in a sentence on the scope of a bound."""
        return f"any {cls.noun}" if option is ANY else f"these {cls.noun}"

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        """The choice for `asked` in a sentence for reports; "" where there is nothing to say."""
        del asked, solution
        return ""
