"""The answer of a planner: a plain problem, its schedule and memory plan, and the choices that led there."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from poetc.scheduling import Problem
from poetc.scheduling.schedule import MemoryPlan, Proof, Schedule, first_executions
from poetc.scheduling.scope import Scope
from poetc.solvers.processors import relaxed
from poetc.training import Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices, in the words of the problem that was asked; None where there was nothing to choose.

    `kernels`: the number of the kernel that each operator runs, 0 for the fastest. `state`: the tensors of state that
    live on the store between steps. `micro_batches`: the number of parts of the batch. `updates`: the trained part of
    each parameter. `saved`: the numbers of the encodings of saved tensors.
    `threads`: those of each kernel, 1 where operators run side by side, 0 where the main processor runs them alone.
    `processors`: the processor of each operator. `banks`: the bank in which each tensor arrives in RAM.
    `streaming`: the streamed operators, as `poetc.planning.streaming` has them.
    """

    kernels: tuple[int, ...] | None = None
    state: frozenset[int] | None = None
    micro_batches: int | None = None
    updates: Updates | None = None
    saved: tuple[int, ...] | None = None
    processors: tuple[int, ...] | None = None
    banks: tuple[int, ...] | None = None
    threads: int | None = None
    streaming: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
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
class Tried:
    """One number of micro-batches, or of threads as `Choices` has it.

    `cost`: of its schedule (None: none); `least`: no schedule of it costs less.
    """

    count: int
    cost: int | None
    least: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`problem` is plain: the one that was asked with `choices` made; `schedule` and `plan` are for it.

    `placement_bound`: the bound for this placement of state alone, where a lower one for any placement is stated.
    `tried`: the numbers of micro-batches that were compared; `ways`: those of threads.
    `worth`: of the updates, where they were chosen.
    """

    problem: Problem
    schedule: Schedule
    plan: MemoryPlan
    choices: Choices = field(default_factory=Choices)
    placement_bound: int | None = None
    tried: tuple[Tried, ...] = ()
    ways: tuple[Tried, ...] = ()
    worth: Worth | None = None

    @property
    def proof(self) -> Proof:
        return self.schedule.proof

    @property
    def cost(self) -> int:
        """The cost of the schedule, in the unit of the objective."""
        return self.schedule.proof.objective

    @property
    def scope(self) -> Scope:
        """The scope that holds this solution's schedule and no other choices."""
        kinds = {f.name for f in fields(Scope)}
        made = {f.name: getattr(self.choices, f.name) for f in fields(Choices) if f.name in kinds}
        return Scope(order=first_executions(self.schedule.steps), **made)

    def with_proof(self, proof: Proof) -> Solution:
        return replace(self, schedule=replace(self.schedule, proof=proof))

    def with_choice(self, scope: Scope, **made: object) -> Solution:
        """With one more choice, and a proof whose scope says so."""
        choices = replace(self.choices, **made)  # type: ignore[arg-type]
        return replace(self.with_proof(replace(self.proof, scope=scope)), choices=choices)


def bound_holds(proven: Solution, solution: Solution) -> bool:
    """Whether the bound of `proven` may be stated beside the schedule of `solution`."""
    return proven.proof.scope.choices_cover(solution.scope)


def cost_of_computing_once(problem: Problem) -> int:
    """Every operator once on the main processor, in the unit of the objective. On that one no schedule costs less."""
    return problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)


def least_cost(problem: Problem) -> int:
    """No schedule costs less: every operator once, on several processors divided among them."""
    return relaxed(problem).least if problem.processors else cost_of_computing_once(problem)
