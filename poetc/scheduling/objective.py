"""The objective of a problem: the quantity that a schedule is made for, as a cost in energy and time."""

from __future__ import annotations

import enum


class Objective(enum.StrEnum):
    """The quantity that a schedule is made for. Its value is its name in files and on the command line."""

    ENERGY = "energy"
    TIME = "time"

    def cost(self, energy_pj: int, time_ns: int) -> int:
        """The cost in the unit of the objective. It is linear, so that the costs of actions add up to a schedule's."""
        return energy_pj if self is Objective.ENERGY else time_ns

    @property
    def unit(self) -> str:
        """The unit of costs."""
        return "pJ" if self is Objective.ENERGY else "ns"
