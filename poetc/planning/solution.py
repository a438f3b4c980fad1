"""The answer of a planner: a plain problem, its schedule and memory plan, and the choices that led there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from poetc import solvers
from poetc.scheduling import Objective, Problem
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, Status, first_executions
from poetc.scheduling.scope import ANY, Scope
from poetc.solvers.processors import relaxed

NAMED = 4  # operators or updates with their names, in a note
SCOPED: set[str] = set()  # the kinds of choice for which a bound can hold for one option alone


@dataclass(frozen=True, slots=True, kw_only=True)
class SetImportance:
    """The importance of a set of updates among all sets: `value` of it, `bound` of any within the limits.

    `total`: of the best update of each parameter. `tried`: sets that were solved for. Where an importance of `least`
    was asked for, no set that has it costs less than `cost_bound`, in the unit of the objective.
    """

    value: float
    bound: float
    total: float
    tried: int = 1
    least: float | None = None
    cost_bound: int | None = None

    @property
    def gap(self) -> float:
        """The importance that a set could have beyond this one's, as a share of this one's."""
        return max(0.0, self.bound - self.value) / self.value if self.value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class OptionResult:
    """One number of micro-batches, or one way of using the processors, as `poetc.planning.ways` numbers them.

    `cost`: of its schedule (None: none); `least`: no schedule of it costs less.
    """

    count: int
    cost: int | None
    least: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`problem` is plain: the one that was asked with `choices` made; `schedule` and `plan` are for it.

    `choices`: options by kind, in the words of the problem that was asked. `Reduction.option` reads one.
    `placement_bound`: the bound for this placement of state alone, where a lower one for any placement is stated.
    `tried`: the numbers of micro-batches that were compared; `ways`: those of threads.
    `worth`: of the updates, where they were chosen.
    """

    problem: Problem
    schedule: Schedule
    plan: MemoryPlan
    choices: Mapping[str, Any] = field(default_factory=dict)
    placement_bound: int | None = None
    results: tuple[OptionResult, ...] = ()
    ways: tuple[OptionResult, ...] = ()
    worth: SetImportance | None = None

    @property
    def proof(self) -> Proof:
        return self.schedule.proof

    @property
    def cost(self) -> int:
        """The cost of the schedule, in the unit of the objective."""
        return self.schedule.proof.objective

    def is_close(self, gap: float) -> bool:
        """Whether no more than `gap` could be saved."""
        return self.proof.gap() <= gap

    @property
    def scope(self) -> Scope:
        """The scope that holds this solution's schedule and no other choices."""
        scope = Scope(order=first_executions(self.schedule.actions))
        for name in SCOPED & self.choices.keys():
            scope = scope.with_choice(name, self.choices[name])
        return scope

    def with_proof(self, proof: Proof) -> Solution:
        return replace(self, schedule=replace(self.schedule, proof=proof))

    def with_scope(self, scope: Scope) -> Solution:
        return self.with_proof(replace(self.proof, scope=scope))

    def with_choice(self, name: str, option: Any) -> Solution:
        """With the option of one more kind of choice. The scope of the proof stays."""
        return replace(self, choices={**self.choices, name: option})


def everything() -> Scope:
    """The scope of every schedule, whatever it chooses."""
    return Scope(choices=tuple((name, ANY) for name in sorted(SCOPED)))


def bound_holds(proven: Solution, solution: Solution) -> bool:
    """Whether the bound of `proven` may be stated beside the schedule of `solution`."""
    return proven.proof.scope.choices_cover(solution.scope)


def with_bound_of(best: Solution, other: Solution) -> Solution:
    """`best` with the bound of `other`, if that is higher and may be stated. AssertionError where it is wrong."""
    proof = other.proof
    if proof.bound <= best.proof.bound or not bound_holds(other, best):
        return best
    bound = solvers.bound_beside(proof.bound, best.cost, proof.method)
    status = Status.OPTIMAL if bound == best.cost else best.proof.status
    claim = replace(best.proof, bound=bound, scope=proof.scope, status=status)
    return best.with_proof(claim)


def status_of(cost: int, bound: int, gap: float) -> Status:
    """Of a schedule beside the bound for it. `gap`: the asked one."""
    if cost <= bound * (1 + solvers.ROUNDING):
        return Status.OPTIMAL
    return Status.FEASIBLE if cost - bound <= gap * cost else Status.LIMIT


def cost_of_computing_once(problem: Problem) -> int:
    """Every operator once on the main processor, in the unit of the objective. On that one no schedule costs less."""
    return problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)


def least_once(problems: Iterable[Problem], objective: Objective) -> int:
    """The least cost of every operator once with unlimited RAM, in any of these problems, whatever the budget.

    On several processors it is a bound.
    """
    return min(least_cost(replace(problem, objective=objective)) for problem in problems)


def least_cost(problem: Problem) -> int:
    """No schedule costs less: every operator once, on several processors divided among them."""
    return relaxed(problem).least if problem.processors else cost_of_computing_once(problem)
