"""The interface of a solver: its description, its progress reports and its errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling.schedule import Schedule
from poetc.scheduling.scope import Repetition


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverInfo:
    """Each solver module has `INFO = SolverInfo(...)`.

    `read`, `differs` and `checked` are cells of the page on published solvers. They name the parts of its paper, the
    differences here, and the check from the paper that a test repeats.
    """

    name: str
    title: str
    citation: str = ""
    general_graphs: bool = True  # any DAG, not only chains
    paging: bool = False  # may page tensors
    energy: bool = False  # minimises the problem's objective, rather than a proxy
    deadline: bool = False  # obeys the deadline
    proof: bool = False  # gives a lower bound better than "every operator once"
    milp: bool = False  # solves MILPs, which another program can do in place of HiGHS (`solvers/milp.py`)
    processors: bool = False  # chooses among the processors of a problem
    fits_cache: bool = False  # has a batch whose number of parts is open split so that each operator fits the cache
    most_operators: int = 0  # that its formulation takes; 0: any number
    notes: str = ""
    read: str = ""
    differs: str = ""
    checked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A progress report: the best objective and bound so far (pJ or ns), and the stage that the solver is in.

    `schedule`: makes the schedule that costs `objective`, where the solver has it at hand. `order`: the names of the
    operators in the order of first executions that bound and schedule are about; (): any order. `repetition`: the class
    of schedules that the bound is about.
    """

    stage: str
    objective: int | None
    bound: int
    schedule: Callable[[], Schedule] | None = None
    order: tuple[str, ...] = ()
    repetition: Repetition = Repetition.ANY


ENGINE_NAME = "poetc"  # the name of this project's own solver
ROUNDING = 1e-8  # fraction of the total: HiGHS's tolerances leave so small a gap open

Progress = Callable[[Event], None]


def is_above(bound: float, cost: int) -> bool:
    """Whether a bound is above the cost of a schedule by more than rounding: one that is not about the schedule."""
    return bound > cost * (1 + ROUNDING) + 1


def bound_beside(bound: float, cost: int, method: str) -> int:
    """`bound` as it stands beside a verified schedule in its scope, which costs `cost`.

    Rounding may lift it above the cost by a little. A bound that is higher is wrong, and not cut: AssertionError.
    """
    if is_above(bound, cost):
        raise AssertionError(f"the bound {bound} from {method!r} exceeds a schedule of {cost}")
    return min(math.ceil(bound), cost)


class BudgetError(InfeasibleError):
    """No schedule fits the budget; the message names a budget that works.

    `smallest_bytes`: the smallest budget with a verified schedule (None: none found). `lower_bound_bytes`: no schedule
    fits in less. `tensors`: names and bytes of the tensors in RAM at the peak of the smallest one.
    """

    def __init__(
        self,
        message: str,
        *,
        smallest_bytes: int | None,
        lower_bound_bytes: int,
        tensors: tuple[tuple[str, int], ...] = (),
    ) -> None:
        details = {"min_budget_bytes": smallest_bytes, "min_budget_bound_bytes": lower_bound_bytes}
        super().__init__(message, details={**details, "tensors_at_peak": [list(tensor) for tensor in tensors]})
        self.smallest_bytes, self.lower_bound_bytes, self.tensors = smallest_bytes, lower_bound_bytes, tensors


class NotFoundError(LimitError):
    """Neither a schedule was found nor a proof that there is none, for the reason `why`.

    `smallest_bytes`: the smallest budget for which a schedule is known (None: none).
    """

    def __init__(self, why: str, smallest_bytes: int | None) -> None:
        known = "allow more time"
        if smallest_bytes is not None:
            known = f"the smallest budget with a schedule is {smallest_bytes} bytes"
        super().__init__(f"{why}; {known}")
        self.why, self.smallest_bytes = why, smallest_bytes
