"""A schedule: the actions of the device, in order, and the proof about their cost."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from poetc.errors import UsageError, shortened
from poetc.scheduling.scope import Scope


@dataclass(frozen=True, slots=True)
class Compute:
    """Execute operator `operator` on processor `processor`.

    `in_place` lists (input, output) tensor pairs where the output takes over the input's bytes. All actions before
    one with a `fence` are over when it, or a later one, begins. That has a meaning only for several processors.
    """

    operator: int
    in_place: tuple[tuple[int, int], ...] = ()
    processor: int = 0
    fence: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the copy in RAM."""

    tensor: int


@dataclass(frozen=True, slots=True)
class PageOut:
    """Copy a resident tensor to the store; the copy in RAM stays until freed."""

    tensor: int


@dataclass(frozen=True, slots=True)
class PageIn:
    """Bring a tensor that the store holds into RAM."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a resident tensor to another place in RAM, which may overlap its old one; the old place is free then.

    `bank`: the bank of the new place; None where that is the bank of the old one.
    """

    tensor: int
    bank: int | None = None


Action = Compute | Free | PageOut | PageIn | Move


class Status(enum.StrEnum):
    OPTIMAL = "optimal"  # proven within the stated scope: gap 0 up to rounding
    FEASIBLE = "feasible"  # a schedule with a bound, the search ended by its own criterion (gap reached)
    LIMIT = "limit"  # a schedule, stopped by the time limit before the wanted gap
    INFEASIBLE = "infeasible"  # proven: no schedule in the scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The cost of a schedule and the bound on it: energy, or time if that is the objective."""

    status: Status
    objective: int  # pJ (or ns) of the schedule
    bound: int  # no schedule in `scope` costs less, pJ (or ns)
    scope: Scope
    method: str = ""  # the stage that found the schedule, and the one that proved the bound

    def gap(self) -> float:
        """(objective - bound) / objective."""
        return 0.0 if self.objective <= 0 else max(0.0, (self.objective - self.bound) / self.objective)

    def overhead_gap(self, compute_once: int) -> float:
        """The gap relative to the cost above compute-once; 0 where the schedule costs no more than that.

        At most 1: a bound below `compute_once` is about ways that compute more cheaply.
        """
        over = self.objective - compute_once
        return 0.0 if over <= 0 else min(1.0, max(0.0, (self.objective - self.bound) / over))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`banks`: by tensor, the bank in which it arrives in RAM. An output made in place is in the bank of its input.

    `workspace_banks`: by operator. Both are empty where the problem names no banks.
    """

    solver: str
    actions: tuple[Action, ...]
    proof: Proof
    log: tuple[str, ...] = field(default=())  # how the solve went, one line an event (no clock times: deterministic)
    banks: tuple[int, ...] = ()
    workspace_banks: tuple[int, ...] = ()


# auto: by layer where a formulation takes no more operators; see `poetc.solvers.grouping`.
GROUPINGS = ("auto", "layer", "none")
LARGEST_SEED = 2**31 - 1  # the largest that HiGHS takes
DEFAULT_GAP = 0.001  # of the command line and the Python interface: real networks reach it long before gap 0
TRAINING_GAP = 0.05  # of `poetc train`: the bits are the same under every schedule, and the first step comes sooner


def first_executions(actions: Iterable[Action]) -> tuple[int, ...]:
    """The operators in the order in which they are first executed."""
    return tuple(dict.fromkeys(action.operator for action in actions if isinstance(action, Compute)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """The options of every solver. Counted work makes results repeatable; the time limit only stops a solve.

    `work_limit_s`: total counted work, of which each stage gets a share. It defaults to `time_limit_s`. A retry in the
    remaining time keeps this value, so results do not depend on the clock.
    """

    time_limit_s: float = 60.0
    gap: float = 0.0  # stop when proven within this fraction of the total
    seed: int = 0
    threads: int = 1
    fixed_order: bool = False  # keep the problem's order of first executions
    group: str = "auto"  # one of GROUPINGS: the operators of published methods
    work_limit_s: float = -1.0  # seconds of a usual machine; below 0: the time limit
    # A good schedule soon: all runs count, one placement of state and one set of streams is solved, nothing is proven.
    is_quick: bool = False

    def __post_init__(self) -> None:
        if self.work_limit_s < 0:
            object.__setattr__(self, "work_limit_s", self.time_limit_s)
        if math.isnan(self.time_limit_s) or self.time_limit_s < 0:
            raise UsageError(f"--time-limit {self.time_limit_s!r}: must be a number of seconds above 0")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"seed {shortened(self.seed)}: must be between 0 and {LARGEST_SEED}")
        if self.group not in GROUPINGS:
            raise UsageError(f"--group {self.group!r}: there are {', '.join(GROUPINGS)}")
        if math.isnan(self.gap) or self.gap < 0:
            raise UsageError(f"--gap {self.gap!r}: must be a number of at least 0")
        if self.gap > 1:
            raise UsageError(f"--gap {self.gap!r}: must be at most 1, a fraction of the total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One storage in the arena over a half-open interval of schedule actions [start, end).

    A tensor has one allocation for each time it comes to RAM, and another from each action that moves it. An in-place
    output continues its input's allocation, so `tensors` names every (tensor, first action) that lives in it, in order.
    Workspace has `tensors == ()` and `operator` set.
    """

    offset_bytes: int
    size_bytes: int
    start: int
    end: int
    tensors: tuple[tuple[int, int], ...] = ()
    operator: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BankUse:
    """The part of an arena that lies in one bank, with the state at its bottom."""

    arena_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Offsets for everything that lives in the arena.

    State comes first, at offset 0, where it stays from step to step.

    `banks`: none, or the parts of the arena by bank. Offsets are then within the bank, which the schedule names, and
    `arena_bytes` and `state_bytes` are sums over the banks.
    """

    allocations: tuple[Allocation, ...]
    arena_bytes: int  # end of the highest allocation
    max_live_bytes: int  # lower bound on any arena for this schedule
    state_bytes: int  # the part at the bottom that persists
    banks: tuple[BankUse, ...] = ()
