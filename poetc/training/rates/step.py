"""The rate falls by a factor after every so many steps."""

from __future__ import annotations

from poetc.errors import UsageError
from poetc.training.rates._schedule import KINDS, Kind, Schedule


class _Step(Kind):
    def check(self, schedule: Schedule) -> None:
        if not schedule.every:
            raise UsageError("--schedule step: say after how many steps the rate falls, as in step:every=1000")

    def rate(self, schedule: Schedule, base: float, t: int) -> float:
        return base * _power(schedule.factor, t // schedule.every)

    def c_steps(self, schedule: Schedule) -> int:
        return schedule.every


def _power(base: float, exponent: int) -> float:
    """By repeated squaring, as in C."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


KINDS.add(
    "step",
    _Step(
        "step",
        number=1,
        parameters=("every", "factor"),
        example="step:every=N,factor=0.1",
        firmware="step:every=N,factor=F",
        formula="base · factor^⌊t/N⌋",
        pytorch="StepLR",
    ),
)
