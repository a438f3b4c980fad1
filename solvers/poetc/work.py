"""Counted work: limits in seconds of a usual machine, so that the same input gives the same answer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# Work in seconds of a usual machine: of a simplex iteration, times the square root of the coefficients; of a run of the
# heuristic, times the operators.
ITERATION_S, RUN_S = 2.5e-6, 6e-5


@dataclass(slots=True)
class Work:
    """Counted against a limit, in seconds of a usual machine, so that the same input gives the same answer; only what
    takes so much longer that `time.monotonic()` is `stop_at` is stopped by the clock.
    """

    limit_s: float
    stop_at: float = math.inf
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        return max(0.0, self.limit_s - self.spent_s)

    @property
    def over(self) -> bool:
        return self.left_s == 0.0 or time.monotonic() >= self.stop_at

    @property
    def clock_left_s(self) -> float:
        return max(0.0, self.stop_at - time.monotonic())

    def spend_runs(self, runs: int, operators: int) -> None:
        self.spent_s += runs * operators * RUN_S

    def spend_iterations(self, iterations: int, entries: int) -> None:
        """Of the simplex method, with so many coefficients."""
        self.spent_s += iterations * math.sqrt(entries) * ITERATION_S
