"""`poetc analyze --largest-batch`: the largest batch that trains within a budget, and a bound on any.

Two binary searches over the batch. One is for a schedule whose packed arena fits, the other for the batch from which on
it is proven that nothing fits. A tensor of a larger batch is no smaller. So a batch fits where a larger one does, and
none fits above one that is proven too large. Schedules that stream operands are left out: they fit nearly any batch,
and cost transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from poetc.commands.requests import ModelRequest, SolveRequest, training_graph, with_any_weights
from poetc.devices import build_problem, load_profile, parse_duration, parse_size
from poetc.errors import InfeasibleError, UsageError
from poetc.events import Progress, silent
from poetc.planning.smallest_ram import smallest_known
from poetc.scheduling import Problem, keep_all_peak_bytes

MOST_BATCH = 1 << 16  # larger ones are not tried
SEARCH_S = 5.0  # for a schedule of one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatchRequest:
    """`budget` as typed by the user; `deadline_per_sample`: 20ms, or 1.1x the time without recomputing or paging."""

    model: ModelRequest
    budget: str | None
    deadline_per_sample: str | None = None


def largest_batch(
    request: LargestBatchRequest, search_s: float = SEARCH_S, progress: Progress = silent
) -> dict[str, Any]:
    """The answer of the command. Raises UsageError, InfeasibleError where not even one sample fits."""
    return _Search(request, search_s, progress).run()


class _Search:
    def __init__(self, request: LargestBatchRequest, search_s: float, progress: Progress) -> None:
        if request.model.batch is not None:
            raise UsageError("--batch and --largest-batch exclude each other: the batch is searched for")
        self.request, self.search_s, self.progress = request, search_s, progress
        self.profile = load_profile(request.model.device)
        self.budget_bytes = self.profile.ram_bytes
        if request.budget is not None:
            self.budget_bytes = parse_size(request.budget, option="--budget")
        self.problems: dict[int, Problem] = {}
        self.needs: dict[int, tuple[int | None, int]] = {}  # by batch: RAM of the schedule found, and its bound

    def problem(self, batch: int) -> Problem:
        if batch not in self.problems:
            step = training_graph(replace(with_any_weights(self.request.model), batch=batch))[1]
            problem = build_problem(step, self.profile, budget_bytes=self.budget_bytes)
            text = self.request.deadline_per_sample
            if text is not None:
                own_ns = problem.compute_once_ns // batch
                each_ns = parse_duration(text, of=own_ns, option="--deadline-per-sample")
                problem = replace(problem, deadline_ns=each_ns * batch)
            self.problems = {batch: problem}  # one at a time: steps of large batches are large
        return self.problems[batch]

    def keeps_all(self, batch: int) -> bool:
        """Whether the step fits as it is."""
        problem = self.problem(batch)
        late = problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns
        return not late and keep_all_peak_bytes(problem) <= self.budget_bytes

    def may_fit(self, batch: int) -> bool:
        """Whether it is not proven that nothing fits."""
        planner = SolveRequest(model=self.request.model).planner(self.search_s)
        return planner.lower_bound_bytes(self.problem(batch)) <= self.budget_bytes

    def fits(self, batch: int) -> bool:
        """Whether a schedule is found whose packed arena fits."""
        self.progress(f"batch {batch:,}")
        if not self.may_fit(batch):
            return False
        problem = self.problem(batch)
        answer = SolveRequest(model=self.request.model).planner(self.search_s).search_ram(problem, self.search_s).result
        self.needs[batch] = answer.ram_bytes, answer.bound_bytes
        return answer.ram_bytes is not None and answer.ram_bytes <= self.budget_bytes

    def run(self) -> dict[str, Any]:
        if not self.fits(1):
            ram, bound = self.needs.get(1, (None, self.budget_bytes + 1))
            known = "" if ram is None else f"; {smallest_known(self.problem(1), ram)}"
            raise InfeasibleError(
                f"one sample does not fit in {self.budget_bytes} bytes{known}",
                details={"budget_bytes": self.budget_bytes, "min_budget_bytes": ram, "min_budget_bound_bytes": bound},
            )
        most = last_batch(self.may_fit, 1)
        largest = last_batch(self.fits, 1, most)
        ram, _ = self.needs[largest]
        step = self.problem(largest)
        return {
            "model": str(self.request.model.source),
            "device": self.request.model.device,
            "budget_bytes": self.budget_bytes,
            "deadline_per_sample": self.request.deadline_per_sample,
            "largest_batch": largest,
            "largest_batch_bound": most if most < MOST_BATCH else None,
            "keep_all_batch": last_batch(self.keeps_all, 0, largest),
            "ram_bytes": ram,
            "time_once_per_sample_ns": step.compute_once_ns // largest,
            "searched": {str(batch): ram for batch, (ram, _) in sorted(self.needs.items())},
        }


def last_batch(holds: Callable[[int], bool], known: int, most: int = MOST_BATCH) -> int:
    """The last number up to `most` for which `holds`, which holds for `known` (0: nothing is known to)."""
    low, high = known, known + 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def text_of(answer: dict[str, Any]) -> str:
    """The answer in words."""
    largest, most = answer["largest_batch"], answer["largest_batch_bound"]
    if most is None:
        proof = f"nothing is proven: batches above {MOST_BATCH:,} are not tried"
    else:
        proof = "proven: no larger batch fits" if largest == most else f"proven: no batch above {most:,} fits"
    return "\n".join(
        (
            f"largest batch  {largest:,}  ({proof})",
            f"with all kept  {answer['keep_all_batch']:,}",
            f"RAM            {answer['ram_bytes']:,} B of {answer['budget_bytes']:,} B",
        )
    )
