"""The state of a solve of poetc: its best schedule and bound, its endings, and its progress."""

from __future__ import annotations

import math
import time

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import Completer, Problem, Proof, Schedule, Scope, SolveOptions, Status, keep_all
from poetc.solvers.interface import ENGINE_NAME, ROUNDING, BudgetError, Event, NotFoundError, Progress, bound_beside
from poetc.solvers.poetc.bounds.cuts import Relaxation, has_many_alike
from poetc.solvers.poetc.bounds.ram import lower_bound_bytes
from poetc.solvers.poetc.options import warm_start_of
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.smallest_budget import MinimumBudget, min_budget
from poetc.solvers.poetc.settings import ENGINE, WORK


class Solving:
    """One problem under one order of operators: the best schedule and bound so far."""

    def __init__(
        self, problem: Problem, options: SolveOptions, progress: Progress | None, to_beat: float = math.inf
    ) -> None:
        self.problem, self.options, self.progress = problem, options, progress
        self.warm_start = warm_start_of(options)
        self.to_beat = to_beat  # the cost of a schedule of another order: dearer ones are of no use
        self.small = len(problem.operators) <= ENGINE.small_operators
        # The gap of a small problem is closed further than was asked for, as long as that costs next to nothing.
        self.gap = min(options.gap, ENGINE.small_gap) if self.small else options.gap
        self.stop_at = time.monotonic() + options.time_limit_s
        self.race = Race(problem, options.seed, self.stop_at)
        if options.is_quick:
            self.race.most_runs = max(ENGINE.first_runs, options.work_limit_s / (self.race.model.n_ops * WORK.run_s))
        self.model = self.race.model
        self.ties = not self.small and has_many_alike(self.model)
        self.bound = float(self.model.base_cost)
        self.bound_by = "every operator once"
        if self.warm_start.proven > self.bound:
            self.bound, self.bound_by = float(self.warm_start.proven), "an earlier proof"
        self.log: list[str] = []
        self.cut_short = False  # the clock has ended a relaxation early
        self.exhausted = False  # done, see `candidates`

    @property
    def target(self) -> float:
        """The cost of an incumbent that ends the search."""
        if self.gap >= 1:
            return math.inf
        optimal = self.bound / (1 - ROUNDING)
        return max(optimal, self.asked_from(self.bound) / (1 - self.gap))

    def asked_from(self, bound: float) -> float:
        """The bound that the gap is measured from, where `bound` is proven for this budget."""
        looser = self.warm_start.looser_bound
        return bound if looser is None else min(bound, looser)

    @property
    def known_cost(self) -> float:
        return math.inf if self.race.incumbent is None else self.race.incumbent.cost

    @property
    def done(self) -> bool:
        incumbent = self.race.incumbent
        if self.bound >= self.to_beat:
            return True
        if incumbent is None:
            return False
        return incumbent.cost <= self.target

    def say(self, stage: str) -> None:
        incumbent = self.race.incumbent
        cost = None if incumbent is None else incumbent.cost
        text = f"{stage}: " + ("no schedule yet" if cost is None else f"schedule {cost}") + f", bound {int(self.bound)}"
        self.log.append(text)
        if self.progress is not None:
            schedule = None if incumbent is None else self.race.schedule
            bound = int(self.bound)
            self.progress(Event(stage=stage, objective=cost, bound=bound, schedule=schedule, order=self.problem.order))

    def raise_bound(self, relaxation: Relaxation, name: str) -> None:
        if relaxation.infeasible:
            raise self.infeasible(f"proven by {name}")
        self.take_bound(relaxation.bound, name)

    def take_bound(self, bound: float, name: str) -> None:
        if bound > self.bound:
            self.bound, self.bound_by = bound, name
        incumbent = self.race.incumbent
        if incumbent is not None:
            bound_beside(self.bound, incumbent.cost, self.bound_by)

    def offer_improved(self, codes: list[int], origin: str) -> None:
        """Offer a sequence, cleaned up."""
        self.race.offer_improved(codes, origin)

    def guide(self, relaxation: Relaxation, name: str) -> None:
        if relaxation.held and not self.done:
            self.race.add_arms(relaxation, name)

    def trivial(self) -> Schedule | None:
        problem, model = self.problem, self.model
        schedule = keep_all(problem)
        needed = lower_bound_bytes(problem)
        least_ns = model.time(model.keep_all())
        if problem.deadline_ns is not None and least_ns > problem.deadline_ns:
            raise InfeasibleError(
                f"the deadline of {problem.deadline_ns / 1e6:.6g} ms cannot be met: every operator once takes "
                f"{least_ns / 1e6:.6g} ms; allow at least that"
            )
        stored = sum(model.footprint[t] for t in model.page_outs_needed)
        if stored > model.store_free:
            limit, written = problem.write_limit_bytes, stored + model.streamed_bytes
            if limit is not None and written > limit:
                writers = "streamed operators and tensors" if model.streamed_bytes else "tensors"
                raise InfeasibleError(
                    f"{writers} that end on the store take {written} bytes of writing, the limit is {limit};"
                    f" --max-written must be at least {written} bytes"
                )
            raise InfeasibleError(
                f"the store is too small: {stored - model.store_free} bytes more are needed at the end"
            )
        completion = Completer(problem).run(model.decisions(model.keep_all()))
        in_time = problem.deadline_ns is None or completion.time_ns <= problem.deadline_ns
        if completion.peak_bytes <= problem.budget_bytes and in_time:
            self.log.append("keep-all fits")
            proof = Proof(
                status=Status.OPTIMAL,
                objective=schedule.proof.objective,
                bound=schedule.proof.objective,
                scope=Scope(),
                method="every operator once",
            )
            return Schedule(solver=ENGINE_NAME, actions=schedule.actions, proof=proof, log=tuple(self.log))
        if needed > problem.budget_bytes:
            raise self.infeasible("an operator's operands alone need more")
        return None

    def smallest_budget(self) -> MinimumBudget:
        """The smallest budget with a schedule, in about the time that is left."""
        left_s = min(ENGINE.smallest_most_s, self.stop_at - time.monotonic())
        return min_budget(self.problem, time_limit_s=max(ENGINE.smallest_least_s, left_s))

    def infeasible(self, why: str) -> InfeasibleError:
        if self.to_beat < math.inf:
            return InfeasibleError("nothing fits under this order")
        smallest = self.smallest_budget()
        budget = self.problem.budget_bytes
        written = self.problem.write_limit_bytes
        within = "" if written is None else f" with at most {written} bytes written to the store"
        text = f"no schedule fits in {budget} bytes{within} ({why})"
        if smallest.smallest_bytes is None or smallest.smallest_bytes <= budget:
            text += " together with the deadline; allow more of either"
        else:
            text += f"; the smallest budget known to work is {smallest.smallest_bytes} bytes (nothing below "
            text += f"{smallest.lower_bound_bytes} can)"
        if smallest.tensors:
            text += "; at its peak: " + ", ".join(f"{name} ({size})" for name, size in smallest.tensors[:5])
        return BudgetError(
            text,
            smallest_bytes=smallest.smallest_bytes,
            lower_bound_bytes=smallest.lower_bound_bytes,
            tensors=smallest.tensors,
        )

    def finish(self) -> Schedule:
        if self.race.incumbent is None and self.to_beat < math.inf:
            raise LimitError("found nothing under this order")
        if self.race.incumbent is None:
            # The bisection runs the heuristic with less RAM, where it now and then succeeds though it failed with more.
            smallest = self.smallest_budget()
            smallest_bytes = smallest.smallest_bytes
            if (
                smallest_bytes is not None
                and smallest_bytes <= self.problem.budget_bytes
                and smallest.schedule is not None
            ):
                self.race.offer(self.model.codes(smallest.schedule.actions), "smallest budget")
        if self.race.incumbent is None:
            why = f"found no schedule for {self.problem.budget_bytes} bytes, nor a proof that there is none"
            raise NotFoundError(why, smallest_bytes)
        incumbent = self.race.incumbent
        bound = bound_beside(self.bound, incumbent.cost, self.bound_by)
        gap = (incumbent.cost - bound) / max(1, incumbent.cost)
        if gap <= ROUNDING:
            status = Status.OPTIMAL
        elif gap <= self.options.gap or not (self.race.out_of_time or self.cut_short):
            status = Status.FEASIBLE
        else:
            status = Status.LIMIT
        completion = Completer(self.problem).run(self.model.decisions(incumbent.codes))
        proof = Proof(
            status=status,
            objective=incumbent.cost,
            bound=bound,
            scope=Scope(order=tuple(range(len(self.problem.operators)))),
            method=f"schedule: {incumbent.origin}; bound: {self.bound_by}",
        )
        return Schedule(solver=ENGINE_NAME, actions=completion.actions, proof=proof, log=tuple(self.log))
