"""The training step that is solved for a budget: with kernels for little RAM where operands have to be streamed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetc import passes
from poetc.commands.requests import SolveRequest, problem_of, streams_of, with_short_pieces
from poetc.devices import DeviceProfile
from poetc.devices.units import format_enough_ns
from poetc.errors import InfeasibleError, LimitError
from poetc.graph import Graph, TrainingGraph
from poetc.planning import ENGINE, Planner, RamSearch, reductions
from poetc.planning.saved import EncodingSpace
from poetc.planning.smallest_ram import PATIENCE, advice, details, within_limits
from poetc.planning.solution import cost_of_computing_once
from poetc.planning.streaming import Streaming
from poetc.scheduling.problem import Problem

WORTH_STREAMING = 0.95  # of the smallest RAM without streamed operands


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training step, the model for predictions, and the scheduling problem.

    `made_of`: the step as it was asked, where this one has other kernels than it.
    `floor`: the problem with as many operands streamed as can be, where nothing fits its budget without streams. None
    where something may fit, or nothing can be streamed.
    """

    graph: TrainingGraph
    model: Graph
    problem: Problem
    made_of: Step | None = None
    floor: Problem | None = None

    @property
    def whole(self) -> Step:
        """The step as it was asked."""
        return self.made_of or self


def step_for_budget(
    request: SolveRequest, step: Step, profile: DeviceProfile, offers: Sequence[EncodingSpace] = ()
) -> Step:
    """The step with the kernels that suit its budget best, where operands have to be streamed.

    Two sets of kernels are priced with their streams: those for the budget, and those of the least workspace. The
    cheaper one is taken. The step stays as it is where a schedule without streams may fit, where nothing can be
    streamed, or where the kernels exceed --longest-piece. `offers`: the encodings that saved tensors may have.
    """
    if not has_to_stream(request, step, profile, offers):
        return step
    planner, cheapest, least = _planner(request), step, math.inf
    for ram_bytes in (step.problem.budget_bytes, 0):
        small = _for_ram(request, step, profile, ram_bytes)
        if small is None:
            continue
        streaming = _streaming(request, small, profile)
        cost = _cost_of_streams(planner, streaming, small.problem)
        if cheapest is step or cost < least:
            cheapest, least = replace(small, floor=streaming.floor(small.problem)), cost
    return cheapest


def has_to_stream(
    request: SolveRequest, step: Step, profile: DeviceProfile, offers: Sequence[EncodingSpace] = ()
) -> bool:
    """Whether nothing fits the budget without streams, and operands can be streamed. `offers`: as above."""
    problem, planner = step.problem, _planner(request)
    if planner.lower_bound_bytes(problem) <= problem.budget_bytes or not _can_stream(request, step, profile):
        return False
    encoding = replace(planner, reductions=reductions(request.state_mode, offers=offers))
    return not offers or encoding.lower_bound_bytes(problem) > problem.budget_bytes


def _cost_of_streams(planner: Planner, streaming: Streaming, problem: Problem) -> float:
    """Every operator once, with the cheapest streams that may fit the budget; infinite where none may."""
    fixed = (streaming.fix(problem, choice) for choice in streaming.propose(problem, None))
    fitting = (p for p in fixed if planner.lower_bound_bytes(p) <= problem.budget_bytes)
    return min(map(cost_of_computing_once, fitting), default=math.inf)


def least_streamed(
    request: SolveRequest,
    step: Step,
    profile: DeviceProfile,
    whole_bytes: int | None,
    search_s: float,
    work_limit_s: float = math.inf,
) -> tuple[Step, RamSearch] | None:
    """The step with the least RAM that is found with streams, as its budget, and the search that found it.

    `search_s`: of the search, on the clock; `work_limit_s`: the same in counted work. None where streams do not need
    clearly less than `whole_bytes`, the least that is known without them, or where kernels for little RAM exceed
    --longest-piece.
    """
    if not _can_stream(request, step, profile):
        return None
    limit_bytes = math.inf if whole_bytes is None else WORTH_STREAMING * whole_bytes
    small = _for_ram(request, step, profile, 0)
    if small is None:
        return None
    floor = _streaming(request, small, profile).floor(small.problem)
    if _planner(request).lower_bound_bytes(floor) >= limit_bytes:
        return None
    search = request.planner(search_s).search_ram(floor, search_s, work_limit_s=work_limit_s)
    if search.result.ram_bytes is None or search.result.ram_bytes >= limit_bytes:
        return None
    problem = replace(small.problem, budget_bytes=search.result.ram_bytes)
    return replace(small, problem=problem, floor=search.as_budget().problem), search.as_budget()


def require_time_to_stream(request: SolveRequest, step: Step, profile: DeviceProfile) -> None:
    """LimitError where operands have to be streamed, and each way of that which may fit takes longer than the deadline.

    Times without streams would say nothing of this budget.
    """
    problem = step.problem
    if problem.deadline_ns is None or step.floor is None:
        return
    planner, streaming = _planner(request), _streaming(request, step, profile)
    fixed = (streaming.fix(problem, choice) for choice in streaming.propose(problem, None))
    fitting = [p for p in fixed if planner.lower_bound_bytes(p) <= problem.budget_bytes]
    once_ns = min((p.compute_once_ns for p in fitting), default=0)
    if problem.deadline_ns < once_ns:
        raise LimitError(
            f"no schedule was found for {problem.budget_bytes} bytes{within_limits(problem)}: every operator once, with"
            f" operands streamed through windows, takes {format_enough_ns(once_ns)};"
            " allow more than that, or raise --budget"
        )


def in_least_ram(
    request: SolveRequest, step: Step, profile: DeviceProfile, search_s: float, failed: InfeasibleError | LimitError
) -> tuple[Step, RamSearch]:
    """The step with the schedule that `--budget least` finds with streams, if the budget has room for it.

    Raises `failed`, of a schedule for the budget, where it has not. The error names the smaller one of both budgets, so
    that a budget that it names is one that works.
    """
    clock_s, known = PATIENCE * search_s, failed.details.get("min_budget_bytes")
    budget_bytes, limit_bytes = step.problem.budget_bytes, known if isinstance(known, int) else None
    streamed = least_streamed(request, step, profile, None, clock_s, search_s)
    if streamed is None:
        raise failed
    least, search = streamed
    if least.problem.budget_bytes <= budget_bytes:
        search = search.as_budget(budget_bytes)
        problem = replace(least.problem, budget_bytes=budget_bytes)
        return replace(least, problem=problem, floor=search.problem), search
    if limit_bytes is not None and limit_bytes <= least.problem.budget_bytes:
        raise failed
    kind = InfeasibleError if isinstance(failed, InfeasibleError) else LimitError
    why = "no schedule fits in" if kind is InfeasibleError else "no schedule was found for"
    whole_bytes = _planner(request).lower_bound_bytes(step.problem)
    text = f"{why} {budget_bytes} bytes{within_limits(step.problem)}; {advice(search.problem, search.result)}"
    text += f" (with operands streamed; without streaming no schedule needs less than {whole_bytes} bytes)"
    text += _streaming(request, least, profile).reasons(least.problem)
    raise kind(text, details=details(step.problem, search.result))


def least_bound_bytes(request: SolveRequest, step: Step, profile: DeviceProfile) -> int:
    """No schedule of the step needs less RAM, with streams or without."""
    whole_bytes = _planner(request).lower_bound_bytes(step.problem)
    if not _can_stream(request, step, profile):
        return whole_bytes
    small = _for_ram(request, step, profile, 0)
    if small is None:
        return 0  # kernels that need more RAM than those may keep --longest-piece
    return min(
        whole_bytes, _planner(request).lower_bound_bytes(_streaming(request, small, profile).floor(small.problem))
    )


def _can_stream(request: SolveRequest, step: Step, profile: DeviceProfile) -> bool:
    return request.solver == ENGINE and _streaming(request, step, profile).is_open(step.problem)


def _planner(request: SolveRequest) -> Planner:
    return Planner(options=request.options, reductions=reductions(request.state_mode))


def _streaming(request: SolveRequest, step: Step, profile: DeviceProfile) -> Streaming:
    return Streaming(streams_of(step.graph, profile=profile, request=request))


def _for_ram(request: SolveRequest, step: Step, profile: DeviceProfile, ram_bytes: int) -> Step | None:
    """The same with kernels for so little RAM, in the same limits; None where they exceed --longest-piece."""
    graph, limit = passes.for_small_ram(step.graph, ram_bytes), step.problem
    problem = problem_of(request, graph, profile)
    try:
        problem = with_short_pieces(request, problem, graph, profile)
    except InfeasibleError:
        return None
    problem = replace(
        problem,
        budget_bytes=limit.budget_bytes,
        deadline_ns=limit.deadline_ns,
        write_limit_bytes=limit.write_limit_bytes,
        objective=limit.objective,
        paging=limit.paging,
    )
    return Step(
        graph=graph, model=passes.model_for_small_ram(step.model, ram_bytes), problem=problem, made_of=step.whole
    )
