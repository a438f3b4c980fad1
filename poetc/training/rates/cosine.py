"""The rate falls to `final` as half a cosine. `steps` is its length, its warm-up included; it is `final` afterwards."""

from __future__ import annotations

from poetc.training.rates._schedule import KINDS, Kind, Schedule

HALF_PI = float.fromhex("0x1.921fb54442d18p+0")
SINE_TERMS = 11  # of the series: the first that is left out is below 2^-57 of the sine


class _Cosine(Kind):
    def needs_steps(self, schedule: Schedule) -> bool:
        return not schedule.steps

    def rate(self, schedule: Schedule, base: float, t: int) -> float:
        if not schedule.steps:
            raise ValueError("a cosine schedule without its number of steps has no rate: call over(steps)")
        length = schedule.steps - schedule.warmup
        sine = _sine((length - min(t, length)) / length)
        return schedule.final + (base - schedule.final) * (sine * sine)


def _sine(x: float) -> float:
    """sin(pi / 2 * x) for x from 0 to 1, by its series: within two units in the last place."""
    angle = HALF_PI * x
    square = angle * angle
    term = total = angle
    for k in range(1, SINE_TERMS):
        term = -(term * square) / (2 * k * (2 * k + 1))
        total += term
    return total


KINDS.add(
    "cosine",
    _Cosine(
        "cosine",
        number=2,
        parameters=("steps", "final"),
        example="cosine:final=1e-5",
        firmware="cosine:steps=N,final=R",
        usage="cosine:steps=N,final=0",
        formula="final + (base - final)(1 + cos(πt/N))/2, then final",
        pytorch="CosineAnnealingLR",
    ),
)
