"""The rate falls by a factor, at least to `final`, at each plateau of the validation loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poetc.training.rates._schedule import KINDS, Kind, Schedule

LEAST_CHANGE = 1e-8  # a smaller reduction is left out, as ReduceLROnPlateau's `eps`


class _OnPlateau(Kind):
    def rate(self, schedule: Schedule, base: float, t: int) -> float:
        rate = base
        for _ in range(schedule.plateau.reductions):
            lower = rate * schedule.factor
            lower = schedule.final if lower < schedule.final else lower
            if not rate - lower > LEAST_CHANGE:
                break
            rate = lower
        return rate

    def observe(self, schedule: Schedule, loss: float) -> Schedule:
        value, seen = float(np.float32(loss)), schedule.plateau
        better = value < seen.best * (1.0 - schedule.threshold)
        worse = 0 if better or seen.cooling else seen.worse + 1
        after = replace(
            seen, best=value if better else seen.best, worse=worse, cooling=seen.cooling - 1 if seen.cooling else 0
        )
        if worse > schedule.patience:
            after = replace(after, worse=0, cooling=schedule.cooldown, reductions=seen.reductions + 1)
        return replace(schedule, plateau=after)


KINDS.add(
    "plateau",
    _OnPlateau(
        "plateau",
        number=3,
        parameters=("factor", "patience", "threshold", "cooldown", "final"),
        example="plateau:patience=5",
        firmware="plateau (host)",
        usage="plateau:factor=0.1,patience=10,threshold=1e-4,cooldown=0,final=0",
        formula="base · factor for each plateau of the validation loss",
        pytorch="ReduceLROnPlateau",
        needs_losses=True,
    ),
)
