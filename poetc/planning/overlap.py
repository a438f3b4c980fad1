"""Transfers that overlap compute, where waiting has a price: problems whose prices add up stand for the problem.

Each gives the transfers another share of the time (`poetc.solvers.overlap`). A step with more work than transfers is
solved with a share of 0 first. Where the schedule found waits, the share goes up; where the transfers then pause, it
goes halfway back. The cheapest schedule counts, with its cost, and the highest bound that holds beside it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from poetc import solvers
from poetc.devices import format_ns
from poetc.errors import InfeasibleError, LimitError
from poetc.planning.arena import packed, ram_bytes
from poetc.planning.kernels import Kernels
from poetc.planning.order import in_order, with_own_order
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner, Reduction
from poetc.planning.repricing import with_prices_of
from poetc.planning.settings import OVERLAP
from poetc.planning.solution import Solution, least_cost, with_bound_of
from poetc.scheduling import (
    Objective,
    OperatorSpec,
    Paging,
    Problem,
    ScheduleError,
    Variant,
    complete,
    keep_all_peak_bytes,
    settled,
    verify_parts,
    without_moves,
)
from poetc.scheduling.schedule import Status, first_executions
from poetc.scheduling.scope import ANY
from poetc.solvers.overlap import WHOLE, at_share, prices_waiting, with_waiting


def expected_cost(problem: Problem) -> int:
    """An estimate, and no bound: the cost of every operator once, and of waiting for the likely transfers.

    These are twice the bytes that do not fit the budget: weights are read in the forward and in the backward pass.
    """
    least = least_cost(problem)
    if not prices_waiting(problem):
        return least
    waited_ns = max(0, expected_transfer_ns(problem) - problem.compute_once_ns)
    return least + problem.objective.cost(problem.idle_uw * waited_ns // 1000, waited_ns)


class Overlap(Reduction[int]):
    """The share of the time that the transfers take, in parts of WHOLE. No bound is about one share alone."""

    name = "overlap"

    def __init__(self, *, one_share: bool = False) -> None:
        """`one_share`: the first one alone, with its own bound, for actions that are then listed anew."""
        self.one_share = one_share
        # By budget and operators, of the first solution: the bounds of shares and of ways are about one order.
        self._orders: dict[tuple[int, tuple[str, ...]], tuple[int, ...]] = {}

    def is_open(self, problem: Problem) -> bool:
        return prices_waiting(problem)

    def fix(self, problem: Problem, choice: int) -> Problem:
        priced = at_share(problem, choice)
        if priced is None:
            raise ScheduleError(None, "waiting costs more than working")
        return priced

    def relax(self, problem: Problem) -> Problem:
        """Where waiting costs nothing."""
        return self.fix(problem, 0) if self.is_open(problem) else problem

    def frugal(self, problem: Problem) -> Problem:
        return self.relax(problem)

    def realise(self, problem: Problem, solution: Solution) -> Solution:
        """With the cost of waiting. LimitError where it is late."""
        if not self.is_open(problem):
            return solution
        asked = _at_prices_of(problem, solution.problem)
        schedule = with_waiting(asked, solution.schedule)
        if asked.objective is Objective.TIME and schedule.proof.objective > (asked.deadline_ns or math.inf):
            took, limit = format_ns(schedule.proof.objective), format_ns(asked.deadline_ns or 0)
            raise LimitError(f"the fastest schedule that was found takes {took}, longer than the deadline of {limit}")
        return replace(solution, problem=asked, schedule=schedule)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if planner.solver != ENGINE or not self.is_open(problem):
            return planner.inner.solve(problem)
        low, high = 0, WHOLE  # the schedule waits at `low`, and the transfers pause at `high`
        share = WHOLE if expected_transfer_ns(problem) > problem.compute_once_ns and at_share(problem, WHOLE) else 0
        best = solution = self._solved(problem, share, planner, 1.0 if self.one_share else OVERLAP.first_part)
        if self.one_share:
            return best
        best = self._with_bound_by_phases(problem, best, planner)
        shares = {share}
        for part in OVERLAP.parts:
            if best.proof.gap() <= planner.options.gap or planner.left_s <= 0:
                break
            if _waits(solution):
                low, share = share, high
            else:
                high, share = share, low
            share = (low + high) // 2 if share in shares else share  # the other end first
            if share in shares or at_share(problem, share) is None:
                break
            shares.add(share)
            try:
                solution = self._solved(problem, share, planner, part)
            except (InfeasibleError, LimitError):
                break
            best = _better(best, solution)
        return best

    def _with_bound_by_phases(self, problem: Problem, best: Solution, planner: Planner) -> Solution:
        """With the bound from the parts of a step around one operator, if it is higher. That holds for any choices."""
        proof = best.proof
        if best.is_close(planner.options.gap):
            return best
        seconds = max(planner.left_s, OVERLAP.phases_share * planner.options.time_limit_s)
        bound = solvers.phased_bound(problem, time_limit_s=planner.within_s(seconds))
        by = "parts of the step around one operator"
        bound = solvers.bound_beside(bound, proof.objective, by)
        if bound <= proof.bound:
            return best
        method = f"{proof.method.partition('; bound: ')[0]}; bound: {by}"
        proven = best.with_proof(replace(proof, bound=bound, method=method))
        if not proven.is_close(planner.options.gap):
            return proven
        status = Status.OPTIMAL if bound == proof.objective else Status.FEASIBLE
        return proven.with_proof(replace(proven.proof, status=status))

    def _solved(self, problem: Problem, share: int, planner: Planner, part: float) -> Solution:
        """The solution with this share of overlapping, in this part of the time and of the work that are left."""
        inner = replace(planner.inner, relaxed=planner.relaxed | {self.name})
        inner = inner.part(part * planner.left_s, work_limit_s=part * planner.options.work_limit_s)
        asked, key = self.fix(problem, share), (problem.budget_bytes, tuple(op.name for op in problem.operators))
        solution = self._in_known_order(asked, self._orders.get(key), inner) or inner.solve(asked)
        self._orders.setdefault(key, first_executions(solution.schedule.actions))
        solution = self.realise(problem, solution)
        if self.one_share:
            return solution
        ahead = _issued_ahead(solution, time.monotonic() + OVERLAP.pack_share * planner.options.time_limit_s)
        return solution if ahead is None or ahead.cost >= solution.cost else ahead

    def _in_known_order(self, asked: Problem, order: tuple[int, ...] | None, inner: Planner) -> Solution | None:
        """The solution in this order of operators; None where nothing fits in it, though something may in another."""
        if order is None:
            return None
        try:
            solution = inner.part(inner.left_s, fixed_order=True).solve(in_order(asked, order))
        except InfeasibleError:
            return None
        return _in_model_order(asked, order, solution, inner)


def _in_model_order(asked: Problem, order: tuple[int, ...], solved: Solution, planner: Planner) -> Solution:
    """A solution of `asked` out of `solved`, which is one of the same problem with its operators in `order`."""
    solved = planner.recall(asked, with_own_order(order, solved))
    kernels = solved.proof.scope.choice(Kernels.name)
    if kernels is None or kernels is ANY:
        return solved
    own = dict(zip(order, kernels, strict=True))
    return solved.with_scope(solved.proof.scope.with_choice(Kernels.name, (own[k] for k in range(len(own)))))


def _issued_ahead(known: Solution, stop_at: float) -> Solution | None:
    """The same actions with page-ins issued ahead; None where that does not pack."""
    problem = known.problem
    decisions = settled(problem, without_moves(problem, known.schedule).actions)
    ahead = with_waiting(problem, replace(known.schedule, actions=complete(problem, decisions)))
    schedule, plan = packed(problem, ahead, stop_at, stop_at)
    if ram_bytes(problem, plan) > problem.budget_bytes:
        return None
    return replace(known, schedule=with_waiting(problem, schedule), plan=plan)


def _better(known: Solution, solved: Solution) -> Solution:
    """The cheaper one, with the higher bound of both where it holds."""
    best, other = (solved, known) if solved.cost < known.cost else (known, solved)
    return with_bound_of(best, other)


def expected_pj(problem: Problem, transfers_ns: int) -> int:
    """The energy of everything once, and of transfers that take so long, at the mean price of page-ins."""
    pages = [t for t in problem.tensors if t.pageable]
    transfers_pj = transfers_ns * sum(t.page_in_pj for t in pages) // max(1, sum(t.page_in_ns for t in pages))
    waits_ns = max(0, transfers_ns - problem.compute_once_ns) if problem.paging is Paging.DMA else 0
    return problem.compute_once_pj + transfers_pj + problem.idle_uw * waits_ns // 1000


def expected_transfer_ns(problem: Problem) -> int:
    """An estimate: each byte that does not fit the budget is read twice."""
    excess_bytes = max(0, keep_all_peak_bytes(problem) - problem.budget_bytes)
    pages = [t for t in problem.tensors if t.pageable]
    return 2 * excess_bytes * sum(t.page_in_ns for t in pages) // max(1, sum(t.size_bytes for t in pages))


def _waits(solution: Solution) -> bool:
    """Whether the transfers of a step take more time than its work."""
    trace = verify_parts([(solution.problem, solution.schedule.actions)])
    return sum(s.end_ns - s.begin_ns for s in trace.spans if s.lane < 0) > trace.busy_ns[0]


def _at_prices_of(problem: Problem, solved: Problem) -> Problem:
    """`solved`, made from a problem of `at_share`, at the prices of `problem`."""

    def operator(asked: OperatorSpec, priced: OperatorSpec) -> OperatorSpec:
        kernel: OperatorSpec | Variant = asked
        for variant in asked.low_workspace:
            if (variant.kernel, variant.workspace_bytes) == (priced.kernel, priced.workspace_bytes):
                kernel = variant
        variants = asked.low_workspace if priced.low_workspace else ()
        return replace(priced, energy_pj=kernel.energy_pj, time_ns=kernel.time_ns, low_workspace=variants)

    return replace(
        solved,
        operators=tuple(operator(a, m) for a, m in zip(problem.operators, solved.operators, strict=True)),
        tensors=tuple(map(with_prices_of, solved.tensors, problem.tensors)),
        objective=problem.objective,
        deadline_ns=problem.deadline_ns,
        paging=problem.paging,
        idle_uw=problem.idle_uw,
    )
