"""How small the RAM can be: a search for the schedule whose packed arena is the smallest, and a proven lower bound."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.devices import format_ns
from poetc.planning.arena import pack_with_moves_in_time, ram_bytes
from poetc.planning.settings import SMALLEST_RAM
from poetc.scheduling import Problem, pack
from poetc.scheduling.schedule import MemoryPlan, Schedule

LONGEST_SEARCH_S = 10.0  # of the search for the smallest RAM
PATIENCE = 10.0  # times counted work, on the clock: a busy machine has the same result


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestRam:
    """The least RAM for which a schedule with a packed arena is known; nothing fits in less than `bound_bytes`.

    `ram_bytes` is None when not even keep-all obeys the deadline. `tensors` (name, bytes): those in RAM at the peak.
    """

    ram_bytes: int | None
    bound_bytes: int
    schedule: Schedule | None
    plan: MemoryPlan | None
    tensors: tuple[tuple[str, int], ...]


class RamSearch:
    """The search for the least RAM of a plain problem. It runs once, when its result is first asked for.

    It lasts until the clock says `stop_at`, but no shorter than `least_s` and no longer than LONGEST_SEARCH_S. It
    claims no bound above that of `least_bytes`, for other choices than those of `problem`. To know it, problems may
    have to be built, so it is asked for late. `work_limit_s`: of counted work, so that the same input has the same
    result where the clock leaves time.
    """

    def __init__(
        self,
        problem: Problem,
        least_s: float,
        stop_at: float = 0.0,
        least_bytes: Callable[[], int] | None = None,
        work_limit_s: float = math.inf,
    ) -> None:
        self.problem, self.least_s, self.stop_at, self.least_bytes = problem, least_s, stop_at, least_bytes
        self.work_limit_s = work_limit_s

    @functools.cached_property
    def result(self) -> SmallestRam:
        left_s = min(LONGEST_SEARCH_S, self.stop_at - time.monotonic())
        smallest = find_smallest_ram(self.problem, max(self.least_s, left_s), self.work_limit_s)
        if self.least_bytes is None:
            return smallest
        return replace(smallest, bound_bytes=min(smallest.bound_bytes, self.least_bytes()))

    @property
    def is_done(self) -> bool:
        """Whether its result is there."""
        return "result" in vars(self)

    def as_budget(self, budget_bytes: int | None = None) -> RamSearch:
        """The same search, finished, of the problem with its result as the budget, or with one that has room for it.

        Only where something was found.
        """
        assert self.result.ram_bytes is not None
        smaller = replace(self.problem, budget_bytes=budget_bytes or self.result.ram_bytes)
        same = RamSearch(smaller, self.least_s, self.stop_at, self.least_bytes, self.work_limit_s)
        same.result = self.result
        return same

    def without_schedule(self, problem: Problem) -> RamSearch:
        """This search for `problem`, which differs in its kernels: the numbers that were found, and no schedule."""
        return _OtherKernels(replace(self.problem, operators=problem.operators), self)


class _OtherKernels(RamSearch):
    def __init__(self, problem: Problem, known: RamSearch) -> None:
        super().__init__(problem, known.least_s, known.stop_at, known.least_bytes, known.work_limit_s)
        self.known = known

    @functools.cached_property
    def result(self) -> SmallestRam:
        return replace(self.known.result, schedule=None, plan=None)


def search_share_s(time_limit_s: float) -> float:
    """The part of a time limit that is set aside for the search for the least RAM, in seconds."""
    return min(LONGEST_SEARCH_S, SMALLEST_RAM.share * time_limit_s)


def find_smallest_ram(problem: Problem, time_limit_s: float, work_limit_s: float = math.inf) -> SmallestRam:
    """The least RAM of a plain problem, packing included, in so much counted work where the clock leaves time."""
    stop_at = time.monotonic() + time_limit_s
    share = 1 - SMALLEST_RAM.pack_share
    least = solvers.min_budget(problem, time_limit_s=share * time_limit_s, work_limit_s=share * work_limit_s)
    if least.schedule is None:
        return SmallestRam(
            ram_bytes=None, bound_bytes=least.lower_bound_bytes, schedule=None, plan=None, tensors=least.tensors
        )
    effort = min(1.0, SMALLEST_RAM.pack_share * work_limit_s / SMALLEST_RAM.pack_s)
    schedule, plan = least.schedule, pack(problem, least.schedule, stop_at=stop_at, effort=effort)
    low, high = plan.max_live_bytes, plan.arena_bytes
    for _ in range(SMALLEST_RAM.attempts):
        if high <= SMALLEST_RAM.nearly * low or time.monotonic() >= stop_at:
            break
        capacity = low if low == plan.max_live_bytes else (low + high) // 2
        moved = pack_with_moves_in_time(problem, least.schedule, capacity, stop_at)
        if moved is None:
            low = capacity + problem.alignment_bytes
        else:
            schedule, plan = moved
            high = plan.arena_bytes
    return SmallestRam(
        ram_bytes=ram_bytes(problem, plan),
        bound_bytes=least.lower_bound_bytes,
        schedule=schedule,
        plan=plan,
        tensors=least.tensors,
    )


def next_step(problem: Problem) -> str:
    """Advice to a user whose budget is too small."""
    others = "" if problem.deadline_ns is None else ", or allow a longer --deadline"
    least = problem.budget_bytes
    unit = f" ({least} is in bytes; {least}% is a share of the keep-all peak)" if 0 < least <= 100 else ""
    return f"raise --budget{unit}" + others + ("" if problem.write_limit_bytes is None else ", or raise --max-written")


def smallest_known(problem: Problem, size_bytes: int) -> str:
    """That budget in words, with its part that no schedule changes."""
    fixed = f", with {problem.base_bytes} for the runtime and the stack" if problem.base_bytes else ""
    return f"the smallest budget known to work is {size_bytes} bytes{fixed}"


def advice(problem: Problem, smallest: SmallestRam) -> str:
    """The smallest budget that works, the next step, and the tensors at the peak."""
    if smallest.ram_bytes is None:
        return "the deadline is too short even with unlimited RAM: allow a longer --deadline"
    # Other operands, or fewer, may take less.
    is_streamed = any(op.is_streamed for op in problem.operators)
    step = "with these streamed operands" if is_streamed else "of this training step, with these options,"
    text = f"{smallest_known(problem, smallest.ram_bytes)} (no schedule {step} needs less than {smallest.bound_bytes});"
    text += f" {next_step(problem)}"
    if smallest.tensors:
        text += "; at its peak: " + ", ".join(f"{name} ({size})" for name, size in smallest.tensors[:5])
    return text


def details(problem: Problem, smallest: SmallestRam) -> dict[str, object]:
    """The same for `--json`."""
    return {
        "budget_bytes": problem.budget_bytes,
        "min_budget_bytes": smallest.ram_bytes,
        "min_budget_bound_bytes": smallest.bound_bytes,
        "tensors_at_peak": [list(tensor) for tensor in smallest.tensors],
    }


def within_limits(problem: Problem) -> str:
    """The limits besides the budget, for a sentence on a budget."""
    within = "" if problem.deadline_ns is None else f" within the deadline of {format_ns(problem.deadline_ns)}"
    if problem.write_limit_bytes is not None:
        within += f" with at most {problem.write_limit_bytes} bytes written to the store"
    return within
