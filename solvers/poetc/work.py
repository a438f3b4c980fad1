"""Counted work: limits in seconds of a usual machine, so that the same input gives the same answer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from poetc.solvers.poetc.settings import WORK


def simplex_s(iterations: int, entries: int, iteration_s: float = WORK.iteration_s) -> float:
    """Work on simplex iterations with `entries` coefficients, in seconds of a usual machine."""
    return iterations * math.sqrt(entries) * iteration_s


@dataclass(slots=True)
class Work:
    """Work counted against a limit, in seconds of a usual machine, so that the same input gives the same answer.

    The clock ends it only on a machine so much slower that `time.monotonic()` reaches `stop_at` first.
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
        self.spent_s += runs * operators * WORK.run_s

    def spend_iterations(self, iterations: int, entries: int) -> None:
        """Count simplex iterations with `entries` coefficients."""
        self.spent_s += simplex_s(iterations, entries)
