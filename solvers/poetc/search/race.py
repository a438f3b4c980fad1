"""The race: many runs of the eviction heuristic with different parameters. Each is cleaned up, the best is kept."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from poetc.scheduling import Completer, Problem, Proof, Schedule, Scope, SolveOptions, Status
from poetc.solvers.interface import ENGINE_NAME, bound_beside
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.search.eviction import Policy, Simulation, Stuck
from poetc.solvers.poetc.search.plans import plan_of, sample
from poetc.solvers.poetc.search.unwritten import unwritten
from poetc.solvers.poetc.settings import RACE, UNWRITTEN, WORK


@dataclass(slots=True)
class Incumbent:
    codes: list[int]
    cost: int
    time_ns: int
    origin: str


@dataclass(slots=True)
class _Arm:
    """A way of running: with or without paging, guided by a relaxation or not."""

    name: str
    paging: bool
    relaxation: Relaxation | None
    recompute: bool = True
    best: float = np.inf
    policy: Policy | None = None
    runs: int = 0
    failures: int = 0


@dataclass(slots=True)
class Race:
    """A race and its best feasible sequence. `stop_at` is a clock time; everything else is counted in runs."""

    problem: Problem
    seed: int
    stop_at: float
    model: Model = field(init=False)
    completer: Completer = field(init=False)
    incumbent: Incumbent | None = None
    is_needed: bool = True  # no other schedule is known, so that the first one may be late
    runs: int = 0
    most_runs: float = math.inf  # once there is a schedule
    arms: list[_Arm] = field(default_factory=list)
    random: np.random.Generator = field(init=False)
    too_slow: float = 0.0  # the largest weight on time whose schedules missed the deadline
    in_time: float | None = None  # the smallest weight whose schedules met it
    _weighted: dict[float, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(self.problem)
        self.completer = Completer(self.problem)
        self.random = np.random.Generator(np.random.PCG64(self.seed))
        self.add_arms(None)

    def add_arms(self, relaxation: Relaxation | None, name: str = "free") -> None:
        model = self.model
        if not model.must_page:
            self.arms.append(_Arm(name, False, relaxation))
        if model.can_page:
            self.arms.append(_Arm(f"{name}, paging", True, relaxation))

    def page_alone(self) -> None:
        """Add runs without recomputation: recomputing an operand takes room for others, reading one back does not."""
        if self.model.can_page:
            self.arms.insert(0, _Arm("paging alone", True, None, recompute=False))

    @property
    def out_of_time(self) -> bool:
        if self.incumbent is not None and self.runs >= self.most_runs:
            return True
        return time.monotonic() >= self.stop_at

    @property
    def give_up_at(self) -> float:
        """The clock time at which a run is given up; never, where no schedule has been found and one is needed."""
        return math.inf if self.incumbent is None and self.is_needed else self.stop_at

    @property
    def left_s(self) -> float:
        """The time that is left, as a limit for HiGHS."""
        return max(WORK.least_left_s, self.stop_at - time.monotonic())

    def pages(self, codes: list[int]) -> bool:
        return any(code >= self.model.n_ops for code in codes)

    def capacity_for(self, codes: list[int]) -> int:
        return self.model.capacity_for(self.pages(codes))

    def offer(self, codes: list[int], origin: str) -> bool:
        """Take a sequence if it fits in RAM, meets the deadline and is better. True if it fits and is in time."""
        model = self.model
        once = [code for code in codes if code < model.n_ops and not model.recomputable[code]]
        if len(once) > len(set(once)):
            return False
        completion = self.completer.run(model.decisions(codes))
        if completion.peak_bytes > self.problem.budget_bytes:
            return False
        if model.stored_bytes(codes) > model.store_free:
            return False
        time_ns = completion.time_ns
        if self.problem.deadline_ns is not None and time_ns > self.problem.deadline_ns:
            return False
        cost = int(model.cost(codes))
        if self.incumbent is None or cost < self.incumbent.cost:
            self.incumbent = Incumbent(codes, cost, time_ns, origin)
        return True

    def offer_improved(self, codes: list[int], origin: str) -> None:
        """Offer a sequence, cleaned up."""
        self.offer(improve(self.model, codes, self.capacity_for(codes)), origin)

    def offer_unwritten(self, codes: list[int], origin: str) -> None:
        """Offer a sequence that fits, with fewer writes; after the time is up for a moment, since that saves much."""
        stop_at = max(self.give_up_at, time.monotonic() + UNWRITTEN.late_s)
        fewer = unwritten(self.model, codes, self.capacity_for(codes), stop_at)
        if fewer != codes:
            self.offer(fewer, f"{origin}, fewer writes")

    def run(self, count: int, target: float) -> None:
        """Run up to `count` times, until the incumbent costs at most `target`, or the time is up."""
        for _ in range(count):
            if self.out_of_time or (self.incumbent is not None and self.incumbent.cost <= target):
                return
            self._one()

    def _choose(self) -> _Arm:
        fresh = [a for a in self.arms if a.runs < RACE.fair_runs]
        if fresh:
            return min(fresh, key=lambda a: a.runs)
        if self.random.random() < RACE.explore:
            return self.arms[int(self.random.integers(len(self.arms)))]
        return min(self.arms, key=lambda a: (a.best, a.failures / a.runs))

    def _weight(self) -> float:
        """The cost of a ns in this run, bisected on a logarithmic scale.

        The ends are a weight whose schedules miss the deadline and one whose schedules meet it.
        """
        deadline = self.problem.deadline_ns
        if deadline is None or (self.too_slow == 0.0 and self.in_time is None):
            return 0.0
        if self.in_time == 0.0:
            return 0.0
        if self.in_time is None:
            return self.too_slow * RACE.weight_factor
        low = self.too_slow or self.in_time / RACE.weight_range
        return (low * self.in_time) ** 0.5 if self.in_time > low * RACE.weight_near else self.in_time

    def _model_for(self, weight: float) -> Model:
        if weight == 0.0:
            return self.model
        if weight not in self._weighted:
            self._weighted.clear()
            self._weighted[weight] = Model(self.problem, time_weight=weight)
        return self._weighted[weight]

    def _one(self) -> None:
        arm = self._choose()
        weight = self._weight()
        model = self._model_for(weight)
        plan = None
        if arm.relaxation is not None and arm.relaxation.held:
            plan = plan_of(model, arm.relaxation, float(self.random.choice(RACE.favours)))
        around = arm.policy if arm.policy is not None and self.random.random() < RACE.near_best else None
        policy = Policy(plan=plan) if arm.runs == 0 else sample(self.random, model, around, plan)
        if not arm.recompute:
            policy = replace(policy, recompute=False)
        arm.runs += 1
        self.runs += 1
        capacity = self.model.capacity_for(arm.paging)
        try:
            codes = Simulation(model, capacity, policy, paging=arm.paging, stop_at=self.give_up_at).run()
        except Stuck:
            arm.failures += 1
            if arm.paging and all(a.recompute for a in self.arms):
                self.page_alone()
            return
        if codes is None:
            return
        codes = improve(model, codes, capacity)
        met = self.offer(codes, f"clairvoyant eviction ({arm.name})")
        if met:
            self.in_time = weight if self.in_time is None else min(self.in_time, weight)
        else:
            unit = max(1e-12, self.model.base_cost / max(1, self.problem.compute_once_ns))
            self.too_slow = max(self.too_slow, weight, unit * RACE.weight_first)
        cost = self.model.cost(codes) if met else np.inf
        if cost < arm.best:
            self.offer_unwritten(codes, f"clairvoyant eviction ({arm.name})")
            arm.best, arm.policy = cost, policy

    def begin(self) -> None:
        """The first run that succeeds, of one of each kind.

        Near the smallest budget, paging alone often succeeds where recomputing has no room.
        """
        self.run(len(self.arms), math.inf)
        if self.incumbent is None and not all(arm.recompute for arm in self.arms):
            self.run(1, math.inf)

    def best(self) -> Schedule | None:
        """The best schedule so far; the bound is that of every operator once."""
        return None if self.incumbent is None else self.schedule()

    def schedule(self) -> Schedule:
        """The best schedule, where one is known."""
        assert self.incumbent is not None
        cost = self.incumbent.cost
        proof = Proof(
            status=Status.LIMIT,
            objective=cost,
            bound=bound_beside(int(self.model.base_cost), cost, "every operator once"),
            scope=Scope(),
            method=f"schedule: {self.incumbent.origin}; bound: every operator once",
        )
        actions = self.completer.run(self.model.decisions(self.incumbent.codes)).actions
        return Schedule(solver=ENGINE_NAME, actions=actions, proof=proof)


def at_once(problem: Problem, options: SolveOptions) -> Schedule | None:
    """The schedule that a race begins with, under the problem's own order."""
    race = Race(problem, options.seed, math.inf)
    race.begin()
    return race.best()
